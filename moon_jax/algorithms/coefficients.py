"""Dynamic weights of the two loss terms, from how far clients drift. Pure.

DCO-MOON: in each round a client either strays from the model it received or does not.
The share of clients that stray estimates a Bernoulli parameter, and sets the next
round's weights. Before the first round the share is chosen: 0 or 1.
"""

import chex
import jax
import jax.numpy as jnp

from moon_jax.core import tree
from moon_jax.core.types import PyTree


def deviation(trained: PyTree, received: PyTree) -> jax.Array:
  """d_i = ||w_i - w||_2 / ||w||_2 over all parameters (DCO-MOON).

  Args:
    trained: w_i, a client's parameters after its local training.
    received: w, the parameters it received, not all 0.

  Returns:
    [] float32, no unit.
  """
  chex.assert_trees_all_equal_shapes(trained, received)
  moved = tree.squared_norm(tree.subtract(trained, received))
  return jnp.sqrt(moved) / jnp.sqrt(tree.squared_norm(received))


def outcome(deviation: jax.Array, theta: jax.Array) -> jax.Array:
  """b_i = 1 if d_i > theta else 0 (DCO-MOON).

  Args:
    deviation: [...] d_i.
    theta: [] threshold, at least 0; at infinity no client ever strays.

  Returns:
    [...] float32, 0.0 or 1.0.
  """
  return (deviation > theta).astype(jnp.float32)


def weights(
  *, mu: jax.Array, mu_t: jax.Array, normalise: bool
) -> tuple[jax.Array, jax.Array]:
  """The loss is (2 mu - mu_t) L_sup + (mu + mu_t) L_con (DCO-MOON).

  The weights sum to 3 mu, so mu scales the whole loss and acts like a factor of the
  learning rate. Divided by mu they are 2 - p and 1 + p, and no longer depend on mu.

  Args:
    mu: [] at least 0; above 0 with `normalise`, or else the weights are NaN.
    mu_t: [] in [0, mu].
    normalise: whether to divide both weights by mu.

  Returns:
    [] weight of the supervised loss, and [] weight of the contrastive one.
  """
  supervised, contrastive = 2.0 * mu - mu_t, mu + mu_t
  return (supervised / mu, contrastive / mu) if normalise else (supervised, contrastive)
