"""Attackers: clients that train honestly, and send another model than they trained.

Attackers know what the server sent and what all clients of the round trained. They
change only the parameters of the models in an upload; running statistics, and whatever
else an algorithm sends, stay. Attackers keep the same memory as honest clients.
`label_flip` is not here, because it changes the data.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax.traverse_util import flatten_dict, unflatten_dict

from moon_jax import catalog
from moon_jax.algorithms.base import Algorithm
from moon_jax.algorithms.private import Paths
from moon_jax.algorithms.wrappers.view import scalars_with_inner
from moon_jax.core import tree
from moon_jax.core.errors import KnobError
from moon_jax.core.flags import flag
from moon_jax.core.types import PyTree, Server, Upload

# The attack's numbers have this prefix among those of the algorithm; see
# `server_optimizer`.
_PREFIX = 'attack.'


class AttackerKnowledge(NamedTuple):
  """What attackers know of a round.

  Attributes:
    received: the parameters that the server sent.
    trained: leaves [K, ...], the parameters that each client of the cohort trained.
    honest: [K] bool, clients that do not attack and whose model is finite.
    attacking: [K] bool, clients that attack and whose model is finite.
    draws: [K] int32, seed of each client's random draws.
  """

  received: PyTree
  trained: PyTree
  honest: jax.Array
  attacking: jax.Array
  draws: jax.Array


def sign_flip(knowledge: AttackerKnowledge, *, scale: jax.Array) -> PyTree:
  """Sends w - scale (y - w), where y is the model that the attacker trained."""

  def flip(w, y):
    return w[None] - scale * (y - w[None])

  return jax.tree.map(flip, knowledge.received, knowledge.trained)


def gaussian(knowledge: AttackerKnowledge, *, sigma: jax.Array) -> PyTree:
  """Sends w + n, where n ~ N(0, sigma^2) is drawn for each attacker."""

  def add_noise(seed):
    noise = optax.tree_utils.tree_random_like(jax.random.key(seed), knowledge.received)
    return jax.tree.map(lambda w, n: w + sigma * n, knowledge.received, noise)

  return jax.vmap(add_noise)(jnp.maximum(knowledge.draws, 0))


def ipm(knowledge: AttackerKnowledge, *, epsilon: jax.Array) -> PyTree:
  """Sends w - epsilon (m - w), where m is the mean of the honest models.

  Inner product manipulation: Xie et al. 2019, section 4, arXiv:1903.03936.
  """
  mean = _mean(knowledge.trained, knowledge.honest)
  sent = jax.tree.map(lambda w, m: w - epsilon * (m - w), knowledge.received, mean)
  return tree.repeat(sent, len(knowledge.honest))


def alie(knowledge: AttackerKnowledge) -> PyTree:
  """Sends m - z s, with mean m and deviation s of the honest models.

  A little is enough: Baruch et al. 2019, algorithm 3, arXiv:1902.06156. f of n clients
  attack: z = max(quantile((n - f - t) / (n - f)), 0) of the normal distribution.
  t = floor(n / 2 + 1) - f, at least 1, is the number of honest clients that the
  attackers need for a majority. In the paper the attackers estimate m and s; here they
  know them.
  """
  mean = _mean(knowledge.trained, knowledge.honest)
  squares = jax.tree.map(lambda y, m: jnp.square(y - m[None]), knowledge.trained, mean)
  variance = _mean(squares, knowledge.honest)
  honest = jnp.sum(knowledge.honest, dtype=jnp.float32)
  attacking = jnp.sum(knowledge.attacking, dtype=jnp.float32)
  supporters = jnp.maximum(jnp.floor((honest + attacking) / 2 + 1) - attacking, 1.0)
  z = jnp.maximum(jax.scipy.special.ndtri((honest - supporters) / honest), 0.0)
  sent = jax.tree.map(lambda m, v: m - z * jnp.sqrt(v), mean, variance)
  return tree.repeat(sent, len(knowledge.honest))


def _mean(stacked: PyTree, weights: jax.Array) -> PyTree:
  """Leaves [K, ...], [K] weights or bool -> the mean; NaN if all weights are 0."""
  weights = jnp.float32(weights)
  # Divided last: if the weights come from a bool, XLA takes 0 / 0 times a leaf for 0.
  sums = tree.weighted_sum(stacked, weights)
  total_weight = jnp.sum(weights)
  return jax.tree.map(lambda leaf: leaf / total_weight, sums)


def with_attack(
  inner: Algorithm,
  name: str,
  numbers: dict[str, float],
  frozen: Paths = frozenset(),
) -> Algorithm:
  """The algorithm under an attack: some clients send the server other models.

  Where no client is honest, or no honest model finite, attackers whose model depends on
  the honest ones (`ipm`, `alie`) send what they trained.

  Args:
    inner: an algorithm with a server.
    name: name of an attack in the catalog.
    numbers: the knobs of the attack.
    frozen: paths of the variables that do not train; nobody sends them, so attackers
      cannot change them.

  Raises:
    KnobError: when traced, the clients send no model.
  """
  attack = catalog.part('attack', name)
  is_colluding = attack.has('colluding')
  attack_hyperparameters = {_PREFIX + knob: value for knob, value in numbers.items()}

  def scalars(hyperparameters, memory):
    return scalars_with_inner(inner, hyperparameters, memory)

  def aggregate(server, uploads, participation, scalars):
    if not tree.models_in(uploads.stacked):
      raise KnobError(
        'attack.name',
        name,
        f'changes models that clients send; clients of this {flag("algorithm")} send '
        f'none: use {flag("attack.name", "label_flip")}.',
      )
    is_attacker = uploads.attack_seeds >= 0
    honest = uploads.counted & ~is_attacker
    can_attack = jnp.any(honest) if is_colluding else True
    attacking = uploads.counted & is_attacker & can_attack
    received = _received_model(inner, server)['params']
    attack_options = {knob: scalars[_PREFIX + knob] for knob in numbers}

    def attack_model(model):
      trained = model['params']
      knowledge = AttackerKnowledge(
        received=_params_like(trained, received),
        trained=trained,
        honest=honest,
        attacking=attacking,
        draws=uploads.attack_seeds,
      )
      malicious = attack.function(knowledge, **attack_options)
      attacked = model | {'params': tree.where(attacking, malicious, trained)}
      return tree.kept_at(frozen, attacked, model)

    sent = uploads._replace(stacked=tree.map_models(attack_model, uploads.stacked))
    if not inner.needs_all_uploads:
      counted = jnp.float32(sent.counted)
      sent = Upload(
        weighted=_mean(sent.stacked.weighted, counted * sent.weights),
        uniform=_mean(sent.stacked.uniform, counted),
      )
    return inner.aggregate(server, sent, participation, scalars)

  return inner._replace(
    hyperparameters=dict(inner.hyperparameters) | attack_hyperparameters,
    scalars=scalars,
    aggregate=aggregate,
    needs_all_uploads=True,
  )


def _received_model(algorithm: Algorithm, server: Server) -> PyTree:
  """The model that the server broadcasts, or the server's own if it is not one model.

  An algorithm may send clients another model than the server's, or none.
  """
  models = tree.models_in(algorithm.broadcast(server))
  return models[0] if len(models) == 1 else server.variables


def _params_like(sent: PyTree, params: PyTree) -> PyTree:
  """Those of the params that are sent; a private layer, for example, is not."""
  flat_params = flatten_dict(params)
  return unflatten_dict({path: flat_params[path] for path in flatten_dict(sent)})
