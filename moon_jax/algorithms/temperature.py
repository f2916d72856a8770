"""Simulated annealing of the temperature tau of the contrastive loss. Pure."""

from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

_EPS = 1e-8


class Annealing(NamedTuple):
  """A client's temperature, and what the next proposal needs from the last step.

  Attributes:
    temperature: [] float32 tau, above 0, no unit.
    grad_norm: [] float32 norm of the gradient of the last step.
    loss: [] float32 loss of the last step.
    has_previous: [] bool, whether this local training has taken a step; before it,
      grad_norm and loss are 0 and mean nothing.
  """

  temperature: jax.Array
  grad_norm: jax.Array
  loss: jax.Array
  has_previous: jax.Array


def start(temperature: jax.Array | float) -> Annealing:
  """The state before a local training that begins at this temperature, [] above 0."""
  zero = jnp.zeros((), jnp.float32)
  return Annealing(
    temperature=jnp.asarray(temperature, jnp.float32),
    grad_norm=zero,
    loss=zero,
    has_previous=zero > 0,
  )


def candidate(
  state: Annealing, grad_norm: jax.Array, sigma: jax.Array, min_temperature: jax.Array
) -> jax.Array:
  """T' = max(T (1 - sigma |g - g_prev| / (g_prev + eps)), T_min).

  (SA-MOON's temperature update; eps = 1e-8.)

  Args:
    state: [] T, above 0, and [] g_prev, norm of the gradient of the step before.
    grad_norm: [] g, of this step.
    sigma: [] cooling rate, at least 0.
    min_temperature: [] T_min, above 0.

  Returns:
    [] T', at most max(T, T_min); NaN if a norm is NaN or g_prev is infinite.
  """
  change = jnp.abs(grad_norm - state.grad_norm) / (state.grad_norm + _EPS)
  # Cut off at a finite number, because 0 * inf is NaN and sigma = 0 has to keep T.
  change = jnp.minimum(change, jnp.finfo(jnp.float32).max)
  return jnp.maximum(state.temperature * (1.0 - sigma * change), min_temperature)


def acceptance(
  *, loss: jax.Array, previous_loss: jax.Array, temperature: jax.Array
) -> jax.Array:
  """P = 1 if loss < loss_prev, else exp((loss_prev - loss) / T).

  The rule of Metropolis et al. 1953 with the loss, in nats, as the energy. The exponent
  is cut at 0 instead of branching, so that it cannot overflow.

  Args:
    loss: [] loss of the new solution.
    previous_loss: [] loss of the old solution.
    temperature: [] T above 0, before the proposal.

  Returns:
    [] probability that the proposal is accepted; NaN if a loss is NaN or both are
    the same infinity.
  """
  return jnp.exp(jnp.minimum((previous_loss - loss) / temperature, 0.0))


def step(
  state: Annealing,
  key: jax.Array,
  *,
  grad_norm: jax.Array,
  loss: jax.Array,
  sigma: jax.Array,
  min_temperature: jax.Array,
  loss_at: Callable[[jax.Array], jax.Array] | None = None,
) -> Annealing:
  """Proposes a lower temperature after a local step, and accepts or rejects it.

  The rule compares the losses of this step and of the step before, or the losses of
  this step's batch at the proposal and at the old temperature. The first step of a
  local training only records its gradient norm and loss. These are recorded whether or
  not the proposal is accepted. The proposal of a diverging step is never accepted, so
  the temperature stays finite.

  Args:
    state: state of one client.
    key: random key that decides this step's proposal; used once.
    grad_norm: [] float32 norm of this step's gradient over all parameters, at least 0.
    loss: [] float32 loss of this step, in nats.
    sigma: [] float32, see `candidate`.
    min_temperature: [] float32, see `candidate`.
    loss_at: T' -> [] loss of this step if its temperature had been T'; None: two steps
      are compared.
  """
  chex.assert_rank([grad_norm, loss, *state], 0)
  proposed = candidate(state, grad_norm, sigma, min_temperature)
  if loss_at:
    new_loss, old_loss = loss_at(proposed), loss
  else:
    new_loss, old_loss = loss, state.loss
  probability = acceptance(
    loss=new_loss, previous_loss=old_loss, temperature=state.temperature
  )
  # Uniform in [0, 1): probability 1 always accepts, 0 and NaN never accept.
  is_accepted = jax.random.uniform(key) < probability
  changes = state.has_previous & is_accepted & jnp.isfinite(proposed)
  return Annealing(
    temperature=jnp.where(changes, proposed, state.temperature),
    grad_norm=grad_norm,
    loss=loss,
    has_previous=jnp.ones_like(state.has_previous),
  )
