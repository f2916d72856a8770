"""Attackers: clients that train honestly, and send another model than they trained.

They know what the server sent and what all clients of the round trained. Only the
parameters of the models in an upload are changed; running statistics, and what an
algorithm sends beside its model, stay. The clients keep what honest ones keep.
`label_flip` is not here: it is in the data.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
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
    trained: leaves [K, ...], what each client of the cohort trained.
    honest: [K] bool, who does not attack; without those that are not finite.
    attacking: [K] bool, likewise.
    draws: [K] int32, what each attacker draws from.
  """

  received: PyTree
  trained: PyTree
  honest: jax.Array
  attacking: jax.Array
  draws: jax.Array


def sign_flip(known: Known, *, scale: jax.Array) -> PyTree:
  """x = w - scale (y - w), y the own model: as far the other way, if scale is 1."""
  flip = lambda w, y: w[None] - scale * (y - w[None])  # noqa: E731
  return jax.tree.map(flip, known.received, known.trained)


def gaussian(known: Known, *, sigma: jax.Array) -> PyTree:
  """x = w + n, n ~ N(0, sigma^2) in each coordinate, of each attacker's own."""
  leaves, structure = jax.tree.flatten(known.received)

  def of_one(draw):
    keys = jax.random.split(jax.random.key(draw), len(leaves))
    noise = (jax.random.normal(k, w.shape) for k, w in zip(keys, leaves, strict=True))
    sums = [w + sigma * n for w, n in zip(leaves, noise, strict=True)]
    return jax.tree.unflatten(structure, sums)

  return jax.vmap(of_one)(jnp.maximum(known.draws, 0))


def ipm(known: Known, *, epsilon: jax.Array) -> PyTree:
  """x = w - epsilon (m - w), m the mean of the honest models.

  Inner product manipulation: Xie et al. 2019, section 4, arXiv:1903.03936.
  """
  mean = _mean(known.trained, known.honest)
  back = jax.tree.map(lambda w, m: w - epsilon * (m - w), known.received, mean)
  return tree.repeat(back, len(known.honest))


def alie(known: Known) -> PyTree:
  """x = m - z s, of mean and deviation of the honest models in each coordinate.

  A little is enough: Baruch et al. 2019, algorithm 3, arXiv:1902.06156. Of n clients f
  attack: z = max(quantile((n - f - t) / (n - f)), 0) of the normal distribution, with
  t = floor(n / 2 + 1) - f, at least 1, the honest ones they need for a majority. The
  paper's attackers estimate m and s by themselves; here they know all honest models.
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


def _mean(stacked: PyTree, of: jax.Array) -> PyTree:
  """Leaves [K, ...], [K] bool -> their mean; zeros of nobody."""
  shares = of.astype(jnp.float32)
  return tree.weighted_sum(stacked, shares / jnp.maximum(jnp.sum(shares), 1.0))


def with_attack(inner: Algorithm, name: str, numbers: dict[str, float]) -> Algorithm:
  """The algorithm under an attack: some of the models that its server gets are others.

  Where no honest client's model is finite, the attackers send what they trained.

  Args:
    inner: an algorithm with a server.
    name: of an attack in the catalog.
    numbers: of the attack.

  Raises:
    UsageError: when traced, no model is in what its clients send.
  """
  build = catalog.part('attack', name).function
  hyperparameters = {_PREFIX + key: value for key, value in numbers.items()}

  def aggregate(server, uploads, participation, scalars):
    attacks = uploads.attackers >= 0
    honest = uploads.counted & ~attacks
    who = honest, uploads.counted & attacks & jnp.any(honest)
    found = []

    def attacked(model):
      received = _those_of(model['params'], server.variables['params'])
      given = received, model['params'], *who, uploads.attackers
      own = {key: scalars[_PREFIX + key] for key in numbers}
      found.append(build(Known(*given), **own))
      return model | {'params': tree.where(who[1], found[-1], model['params'])}

    stacked = tree.map_models(attacked, uploads.stacked)
    if not found:
      raise UsageError(
        f'--config.attack.name={name} changes the model that a client sends, and with '
        'this --config.algorithm clients send none; only label_flip attacks it.'
      )
    sent = uploads._replace(stacked=stacked)
    if not inner.needs_all_uploads:
      sent = _averaged(sent)
    return inner.aggregate(server, sent, participation, scalars)

  return inner._replace(
    hyperparameters=dict(inner.hyperparameters) | hyperparameters,
    scalars=lambda given, memory: given | inner.scalars(given, memory),
    aggregate=aggregate,
    needs_all_uploads=True,
  )


def _those_of(sent: PyTree, params: PyTree) -> PyTree:
  """Of the params those that are sent; a private layer, say, is not."""
  flat = flatten_dict(params)
  return unflatten_dict({path: flat[path] for path in flatten_dict(sent)})


def _averaged(uploads) -> Upload:
  """The mean that a server gets of uploads which it does not ask for; NaN of nobody."""
  counted = jnp.float32(uploads.counted)

  def mean(stacked, weights):
    # Divided last: XLA takes 0 / 0 times a leaf for 0 where the first is a bool.
    total, sums = jnp.sum(weights), tree.weighted_sum(stacked, weights)
    return jax.tree.map(lambda leaf: leaf / total, sums)

  return Upload(*map(mean, uploads.stacked, (counted * uploads.weights, counted)))
