"""Tests models: exactly, on a test set of any size. Pure."""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from moon_jax.algorithms import losses
from moon_jax.core.types import LANES, Outputs, PyTree
from moon_jax.data.device import DeviceSplit

BATCH_SIZE = 500


class Score(NamedTuple):
  """The results of M models on one split, as sums that the host divides.

  Attributes:
    num_correct: [M] int32 examples whose highest logit is their label's.
    loss_sum: [M] float32 cross entropy summed over the examples, in nats.
    num_correct_of_users: [M, N'] int32, num_correct on each user's own examples; None
      if not asked.
    validation: the models' Score on the server's validation split; None if there is
      none.
  """

  num_correct: jax.Array
  loss_sum: jax.Array
  num_correct_of_users: jax.Array | None = None
  validation: 'Score | None' = None


def make_evaluation(
  apply: Callable[[PyTree, jax.Array], Outputs],
  mesh: Mesh,
  batch_size: int = BATCH_SIZE,
  num_users: int = 0,
) -> Callable[[PyTree, DeviceSplit], Score]:
  """Builds the function (variables [M, ...], split) -> Score.

  The devices of the mesh share the batches, of at most `batch_size` examples. The last
  ones are filled up and masked, so every example counts once. If `num_users`, N', is
  above 0, the examples of each user, whose numbers the split has, are counted apart.
  """

  def evaluate(models, split):
    num_images = split.labels.shape[0]
    size = min(batch_size, math.ceil(num_images / mesh.size))
    batches_per_device = math.ceil(num_images / (size * mesh.size))
    first_batch = batches_per_device * jax.lax.axis_index(LANES)

    def score_model(variables):
      def add_batch(score, index):
        first_row = index * size
        rows = jnp.minimum(first_row + jnp.arange(size), num_images - 1)
        batch = split.batch(rows, num_images - first_row)
        logits = apply(variables, batch.images).logits
        is_correct = _is_correct(logits, batch)
        loss = losses.cross_entropy(logits, batch.labels, batch.mask)
        num_correct_of_users = score.num_correct_of_users
        if num_users:
          users = split.clients[rows]
          num_correct_of_users = num_correct_of_users.at[users].add(
            is_correct.astype(jnp.int32)
          )
        score = Score(
          num_correct=score.num_correct + jnp.sum(is_correct, dtype=jnp.int32),
          loss_sum=score.loss_sum + loss * jnp.sum(batch.mask),
          num_correct_of_users=num_correct_of_users,
        )
        return score, None

      zero = Score(
        num_correct=jnp.zeros((), jnp.int32),
        loss_sum=jnp.zeros(()),
        num_correct_of_users=(jnp.zeros(num_users, jnp.int32) if num_users else None),
      )
      batches = first_batch + jnp.arange(batches_per_device)
      score, _ = jax.lax.scan(add_batch, zero, batches)
      return score

    return jax.lax.psum(jax.lax.map(score_model, models), LANES)

  return _on_mesh(evaluate, mesh)


def _on_mesh(function, mesh):
  """The function on every device, each with all arguments and the same result."""
  return jax.shard_map(
    function,
    mesh=mesh,
    in_specs=PartitionSpec(),
    out_specs=PartitionSpec(),
    check_vma=False,
  )


def _is_correct(logits, batch):
  """[B] bool, whether the highest logit is that of the label of a real example."""
  return (jnp.argmax(logits, axis=-1) == batch.labels) & (batch.mask > 0)


class ClientTests(NamedTuple):
  """The examples that test one client each, on the device; see `data.client_tests`.

  Attributes:
    clients: [T] int32 ids, ascending.
    rows: [M] int32 rows of the split, client by client.
    offsets: [T + 1] int32; client i has rows[offsets[i]:offsets[i + 1]].
  """

  clients: jax.Array
  rows: jax.Array
  offsets: jax.Array


def make_client_tests(
  apply: Callable[[PyTree, jax.Array], Outputs],
  mesh: Mesh,
  model: Callable[[PyTree, jax.Array], PyTree],
  batch_size: int,
) -> Callable[[PyTree, DeviceSplit, ClientTests, jax.Array], jax.Array]:
  """Builds (source, split, tests, positions [C]) -> [C] int32 correct examples of each.

  `positions` say which of the T clients with tests are tested. They are tested one
  after the other: `model` makes one model at a time from `source`, and only this one is
  in memory besides the source. The devices of the mesh share the clients.

  Args:
    apply: the network in evaluation mode.
    mesh: the devices.
    model: (source, [] int32 index into `positions`) -> variables of the model to test.
    batch_size: examples at a time; a client's last batch is filled up and masked.
  """

  def test(source, split, tests, positions):
    clients_per_device = math.ceil(len(positions) / mesh.size)
    first_index = clients_per_device * jax.lax.axis_index(LANES)
    indices_here = first_index + jnp.arange(clients_per_device)

    def test_client(index):
      index = jnp.minimum(index, len(positions) - 1)
      variables, position = model(source, index), positions[index]
      first, end = tests.offsets[position], tests.offsets[position + 1]

      def add_batch(batch_index, num_correct):
        begin = first + batch_index * batch_size
        rows = tests.rows[jnp.minimum(begin + jnp.arange(batch_size), end - 1)]
        batch = split.batch(rows, end - begin)
        logits = apply(variables, batch.images).logits
        is_correct = _is_correct(logits, batch)
        return num_correct + jnp.sum(is_correct, dtype=jnp.int32)

      num_batches = (end - first + batch_size - 1) // batch_size
      return jax.lax.fori_loop(0, num_batches, add_batch, jnp.zeros((), jnp.int32))

    num_correct = jnp.zeros(clients_per_device * mesh.size, jnp.int32)
    num_correct = num_correct.at[indices_here].set(
      jax.lax.map(test_client, indices_here)
    )
    return jax.lax.psum(num_correct, LANES)[: len(positions)]

  return _on_mesh(test, mesh)
