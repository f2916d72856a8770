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
from moon_jax.core import tree
from moon_jax.core.errors import UsageError
from moon_jax.core.types import PyTree, Upload

# The attack's numbers among those of the algorithm.
_PREFIX = 'attack_'


class Known(NamedTuple):
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


def sign_flip(known: Known, *, scale: jax.Array) -> PyTree:
  """Sends w - scale (y - w), where y is the model that the attacker trained."""
  flip = lambda w, y: w[None] - scale * (y - w[None])  # noqa: E731
  return jax.tree.map(flip, known.received, known.trained)


def gaussian(known: Known, *, sigma: jax.Array) -> PyTree:
  """Sends w + n, where n ~ N(0, sigma^2) is drawn for each attacker."""

  def of_one(draw):
    noise = optax.tree_utils.tree_random_like(jax.random.key(draw), known.received)
    return jax.tree.map(lambda w, n: w + sigma * n, known.received, noise)

  return jax.vmap(of_one)(jnp.maximum(known.draws, 0))


def ipm(known: Known, *, epsilon: jax.Array) -> PyTree:
  """Sends w - epsilon (m - w), where m is the mean of the honest models.

  Inner product manipulation: Xie et al. 2019, section 4, arXiv:1903.03936.
  """
  mean = _mean(known.trained, known.honest)
  back = jax.tree.map(lambda w, m: w - epsilon * (m - w), known.received, mean)
  return tree.repeat(back, len(known.honest))


def alie(known: Known) -> PyTree:
  """Sends m - z s, with mean m and deviation s of the honest models.

  A little is enough: Baruch et al. 2019, algorithm 3, arXiv:1902.06156. f of n clients
  attack: z = max(quantile((n - f - t) / (n - f)), 0) of the normal distribution.
  t = floor(n / 2 + 1) - f, at least 1, is the number of honest clients that the
  attackers need for a majority. In the paper the attackers estimate m and s; here they
  know them.
  """
  mean = _mean(known.trained, known.honest)
  squares = jax.tree.map(lambda y, m: jnp.square(y - m[None]), known.trained, mean)
  variance = _mean(squares, known.honest)
  honest, attacking = (
    jnp.sum(who, dtype=jnp.float32) for who in (known.honest, known.attacking)
  )
  needed = jnp.maximum(jnp.floor((honest + attacking) / 2 + 1) - attacking, 1.0)
  z = jnp.maximum(jax.scipy.special.ndtri((honest - needed) / honest), 0.0)
  sent = jax.tree.map(lambda m, v: m - z * jnp.sqrt(v), mean, variance)
  return tree.repeat(sent, len(known.honest))


def _mean(stacked: PyTree, weights: jax.Array) -> PyTree:
  """Leaves [K, ...], [K] weights or bool -> the mean; NaN if all weights are 0."""
  weights = jnp.float32(weights)
  # Divided last: if the weights come from a bool, XLA takes 0 / 0 times a leaf for 0.
  total, sums = jnp.sum(weights), tree.weighted_sum(stacked, weights)
  return jax.tree.map(lambda leaf: leaf / total, sums)


def with_attack(inner: Algorithm, name: str, numbers: dict[str, float]) -> Algorithm:
  """The algorithm under an attack: some clients send the server other models.

  Where no client is honest, or no honest model finite, attackers whose model depends on
  the honest ones (`ipm`, `alie`) send what they trained.

  Args:
    inner: an algorithm with a server.
    name: name of an attack in the catalog.
    numbers: the knobs of the attack.

  Raises:
    UsageError: when traced, the clients send no model.
  """
  part = catalog.part('attack', name)
  build, colluding = part.function, part.has('colluding')
  hyperparameters = {_PREFIX + key: value for key, value in numbers.items()}

  def scalars(given, memory):
    its = {key: given[key] for key in inner.hyperparameters}
    return given | inner.scalars(its, memory)

  def aggregate(server, uploads, participation, scalars):
    attacks = uploads.attackers >= 0
    honest = uploads.counted & ~attacks
    can_attack = jnp.any(honest) if colluding else True
    who = honest, uploads.counted & attacks & can_attack
    found, models = [], []
    tree.map_models(models.append, inner.broadcast(server))
    # An algorithm may send clients another model than the server's, or none.
    (broadcast,) = models if len(models) == 1 else (server.variables,)

    def attacked(model):
      received = _those_of(model['params'], broadcast['params'])
      given = received, model['params'], *who, uploads.attackers
      own = {key: scalars[_PREFIX + key] for key in numbers}
      found.append(build(Known(*given), **own))
      return model | {'params': tree.where(who[1], found[-1], model['params'])}

    stacked = tree.map_models(attacked, uploads.stacked)
    if not found:
      raise UsageError(
        f'--config.attack.name={name} changes models that clients send; clients of '
        'this --config.algorithm send none: use --config.attack.name=label_flip.'
      )
    sent = uploads._replace(stacked=stacked)
    if not inner.needs_all_uploads:
      counted = jnp.float32(sent.counted)
      sent = Upload(*map(_mean, sent.stacked, (counted * sent.weights, counted)))
    return inner.aggregate(server, sent, participation, scalars)

  return inner._replace(
    hyperparameters=dict(inner.hyperparameters) | hyperparameters,
    scalars=scalars,
    aggregate=aggregate,
    needs_all_uploads=True,
  )


def _those_of(sent: PyTree, params: PyTree) -> PyTree:
  """The params that are sent; a private layer, for example, is not."""
  flat = flatten_dict(params)
  return unflatten_dict({path: flat[path] for path in flatten_dict(sent)})
