"""How good is a model? Exact on a test set of any size. Pure."""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from moon_jax.algorithms import losses
from moon_jax.core import tree
from moon_jax.core.types import LANES, Outputs, PyTree
from moon_jax.data.device import DeviceSplit

BATCH_SIZE = 500


class Score(NamedTuple):
  """How M models do on one split: sums over its examples, which the host divides.

  Attributes:
    num_correct: [M] int32 examples whose highest logit is their label's.
    loss_sum: [M] float32 cross entropy summed over the examples, in nats.
    by_client: [M, N'] int32, num_correct on each user's own; None if not asked.
    validation: their Score on the server's validation split; None if there is none.
  """

  num_correct: jax.Array
  loss_sum: jax.Array
  by_client: jax.Array | None = None
  validation: 'Score | None' = None


def make_evaluation(
  apply: Callable[[PyTree, jax.Array], Outputs],
  mesh: Mesh,
  batch_size: int = BATCH_SIZE,
  num_clients: int = 0,
) -> Callable[[PyTree, DeviceSplit], Score]:
  """Builds the function (variables [M, ...], split) -> Score.

  The devices of the mesh share the batches, of at most `batch_size`. The last ones are
  filled up and masked, so every example counts once. With `num_clients` N' above 0 the
  examples of each user, whose numbers the split has, are counted apart.
  """

  def evaluate(models, split):
    num_images = split.labels.shape[0]
    size = min(batch_size, math.ceil(num_images / mesh.size))
    each = math.ceil(num_images / (size * mesh.size))
    first_batch = each * jax.lax.axis_index(LANES)

    def one_model(variables):
      def add(score, index):
        first = index * size
        rows = jnp.minimum(first + jnp.arange(size), num_images - 1)
        batch = split.batch(rows, num_images - first)
        logits = apply(variables, batch.images).logits
        correct = (jnp.argmax(logits, axis=-1) == batch.labels) & (batch.mask > 0)
        loss = losses.cross_entropy(logits, batch.labels, batch.mask)
        found = jnp.sum(correct, dtype=jnp.int32), loss * jnp.sum(batch.mask)
        total, counts = tree.add(score[:2], found), score.by_client
        if num_clients:
          counts = counts.at[split.clients[rows]].add(correct.astype(jnp.int32))
        return Score(*total, counts), None

      counts = jnp.zeros(num_clients, jnp.int32) if num_clients else None
      zero = Score(jnp.zeros((), jnp.int32), jnp.zeros(()), counts)
      return jax.lax.scan(add, zero, first_batch + jnp.arange(each))[0]

    return jax.lax.psum(jax.lax.map(one_model, models), LANES)

  specs = {'in_specs': PartitionSpec(), 'out_specs': PartitionSpec()}
  return jax.shard_map(evaluate, mesh=mesh, **specs, check_vma=False)
