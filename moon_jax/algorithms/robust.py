"""Rules of the server that withstand a few Byzantine clients, which may send anything.

Local training is FedAvg's. All clients have equal weights, whatever data they claim to
have. An upload that is not finite is left out, and n is the number of the others: the
clients of the round that sent a finite model. Running statistics of batch norm are
aggregated by the same rule as the parameters, but have no part in Krum's distances.
Every rule holds the cohort's K uploads in memory.
"""

import types
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp

from moon_jax.algorithms.base import Algorithm
from moon_jax.core import tree
from moon_jax.core.types import PyTree


def median() -> Algorithm:
  """w <- the median of the n models in each coordinate (Yin et al. 2018).

  arXiv:1803.01498. If n is even, it is the mean of the middle two: of the numbers 1, 2,
  5 and 9 it is 3.5. The coordinates are independent, so the result may be the model of
  no client.
  """

  def middle(ascending, count, scalars):
    lower, upper = ascending[(count - 1) // 2], ascending[count // 2]
    return 0.5 * lower + 0.5 * upper  # half of each, because their sum might overflow

  return _coordinate_wise(middle)


def trimmed_mean(*, trim: float) -> Algorithm:
  """w <- the mean of the models in each coordinate, without the extremes (Yin et al.).

  Of the n values of a coordinate, the floor(trim n) smallest and as many of the largest
  are left out; the others have equal weights. A product at most 0.001 below a whole
  number counts as this number, so 0.333 of 3 is 1. If trim is 0.25, of the numbers 1,
  2, 5 and 9 the mean of 2 and 5 remains. In each coordinate other clients may be left
  out. Among equal values it does not matter which is left out.

  Args:
    trim: beta in [0, 1/2); 0 is the mean with equal weights. With few clients the
      product may be below 1, and nothing is left out; a run is refused if that is so
      with all clients of a round.
  """

  def mean_without_extremes(ascending, count, scalars):
    # In float32 a product may be below the whole number that it is. One value is kept,
    # or two, even if the margin of 0.001 makes half of them the share.
    cut = jnp.floor(scalars['trim'] * count.astype(jnp.float32) + 1e-3).astype(int)
    cut = jnp.minimum(cut, (count - 1) // 2)
    rank = jnp.arange(len(ascending))
    is_middle = ((rank >= cut) & (rank < count - cut)).astype(jnp.float32)
    num_middle = (count - 2 * cut).astype(jnp.float32)
    return tree.weighted_sum(ascending, is_middle / num_middle)

  return _coordinate_wise(mean_without_extremes, {'trim': trim})


def _coordinate_wise(
  rule: Callable, hyperparameters: Mapping[str, float] = types.MappingProxyType({})
) -> Algorithm:
  """The algorithm whose server applies a rule to each coordinate.

  Args:
    rule: (values [K, ...] in ascending order, how many of them count [], scalars) ->
      the new value [...]; values that do not count are infinite.
    hyperparameters: name -> number, for the rule's scalars.
  """

  def aggregate(server, uploads, participation, scalars):
    count = jnp.sum(uploads.counted)

    def aggregate_leaf(leaf):
      infinite = jnp.full_like(leaf, jnp.inf)
      ascending = jnp.sort(tree.where(uploads.counted, leaf, infinite), axis=0)
      return rule(ascending, count, scalars)

    variables = jax.tree.map(aggregate_leaf, uploads.stacked.weighted)
    return server._replace(variables=variables)

  return Algorithm(
    hyperparameters=hyperparameters, aggregate=aggregate, needs_all_uploads=True
  )


def krum(*, num_byzantine: int, num_selected: int) -> Algorithm:
  """w <- the mean of the models nearest to the others (Blanchard et al. 2017).

  The score of a model is the sum of its squared distances to the n - f - 2 nearest of
  the others, and to one at least; f is how many may be Byzantine. The models with the
  lowest scores are averaged with equal weights. If scores are equal, the client with
  the smaller id is selected. (arXiv:1703.02757; Krum selects one model, multi-Krum
  several, all by the scores among n models.) The proof needs 2 f + 2 < n. With fewer
  models, also if some are left out, f Byzantine models that agree can win.

  With f = 1, the scores of the numbers 0, 1, 2, 10 and 100 are 1 + 4, 1 + 1, 1 + 4,
  64 + 81 and 90^2 + 98^2: Krum selects 1.

  Args:
    num_byzantine: f, at least 0.
    num_selected: number of models that are averaged, at least 1; all, if there are
      fewer.
  """

  def aggregate(server, uploads, participation, scalars):
    stacked, counted = uploads.stacked.weighted, uploads.counted
    num_models = jnp.sum(counted).astype(jnp.float32)
    num_nearest = jnp.maximum(num_models - scalars['num_byzantine'] - 2.0, 1.0)
    ranks = jnp.arange(len(counted), dtype=jnp.float32)
    is_nearest = (ranks < num_nearest)[None]
    distances = jnp.sort(_squared_distances(stacked['params'], counted))
    scores = jnp.sum(distances, axis=1, where=is_nearest)
    # NaN is sorted last, behind the infinite score of a Byzantine model.
    rank_of_model = jnp.argsort(jnp.argsort(jnp.where(counted, scores, jnp.nan)))
    is_selected = (ranks < scalars['num_selected'])[rank_of_model]
    selected = (counted & is_selected).astype(jnp.float32)
    mean = tree.weighted_sum(stacked, selected / jnp.sum(selected))
    return server._replace(variables=mean)

  return Algorithm(
    hyperparameters={'num_byzantine': num_byzantine, 'num_selected': num_selected},
    aggregate=aggregate,
    needs_all_uploads=True,
  )


def _squared_distances(models: PyTree, counted: jax.Array) -> jax.Array:
  """[K, K] squared distances; infinite on the diagonal and for models left out.

  Args:
    models: leaves [K, ...].
    counted: [K] bool.
  """

  def to_all_models(slot):
    differences = jax.tree.map(lambda leaf: leaf - leaf[slot][None], models)
    return jax.vmap(tree.squared_norm)(differences)

  # Row by row: all rows at once would hold K differences for each model.
  squares = jax.lax.map(to_all_models, jnp.arange(len(counted)))
  pairs = counted[:, None] & counted[None] & ~jnp.eye(len(counted), dtype=bool)
  return jnp.where(pairs, squares, jnp.inf)
