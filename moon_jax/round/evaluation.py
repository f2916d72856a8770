"""Tests models: exactly, on a test set of any size. Pure.

It counts; `runner.round_records.test_record` divides. Which models are tested, and when
the host takes part, is in `runner.model_tests`.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from moon_jax.algorithms import losses
from moon_jax.core.types import LANES, Outputs, PyTree
from moon_jax.data.device_split import DeviceSplit

BATCH_SIZE = 500
# The examples of a batch take at most so many bytes as float32: 500 of 96x96x3 fit, but
# 111 of 224x224x3. A ResNet-18 of torchvision's design makes eleven times as many bytes
# of them at a time.
MOST_INPUT_BYTES = 2**26


class Score(NamedTuple):
  """The results of M models on one split, as sums that the host divides.

  Attributes:
    num_correct: [M] int32 examples whose highest logit is their label's.
    loss_sum: [M] float32 cross entropy summed over the examples, in nats.
    num_correct_of_users: [M, N'] int32, num_correct on each user's own examples; None
      if not asked.
    validation: the models' Score on the server's validation split; None if there is
      none.
    logits: [M, examples, Y] float32, in the order of the split; None if not asked.
  """

  num_correct: jax.Array
  loss_sum: jax.Array
  num_correct_of_users: jax.Array | None = None
  validation: 'Score | None' = None
  logits: jax.Array | None = None


def examples_at_a_time(example_shape: tuple[int, ...]) -> int:
  """The examples of a test's batch: 500, or fewer if they are large."""
  bytes_per_example = 4 * math.prod(example_shape)
  return min(BATCH_SIZE, max(1, MOST_INPUT_BYTES // bytes_per_example))


def make_evaluation(
  apply: Callable[[PyTree, jax.Array], Outputs],
  mesh: Mesh,
  batch_size: int = BATCH_SIZE,
  num_users: int = 0,
  *,
  keeps_logits: bool = False,
) -> Callable[[PyTree, DeviceSplit], Score]:
  """Builds the function (variables [M, ...], split) -> Score.

  The devices of the mesh share the batches, of at most `batch_size` examples, and of
  fewer if `examples_at_a_time` says so. The last ones are filled up and masked, so
  every example counts once. If `num_users`, N', is above 0, the examples of each user,
  whose numbers the split has, are counted apart. With `keeps_logits` the Score has the
  logits too.
  """

  def evaluate(models, split):
    num_images = split.labels.shape[0]
    size = min(
      batch_size,
      examples_at_a_time(split.images.shape[1:]),
      math.ceil(num_images / mesh.size),
    )
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
        return score, logits if keeps_logits else None

      zero = Score(
        num_correct=jnp.zeros((), jnp.int32),
        loss_sum=jnp.zeros(()),
        num_correct_of_users=(jnp.zeros(num_users, jnp.int32) if num_users else None),
      )
      batches = first_batch + jnp.arange(batches_per_device)
      return jax.lax.scan(add_batch, zero, batches)

    score, logits = jax.lax.map(score_model, models)
    score = jax.lax.psum(score, LANES)
    if not keeps_logits:
      return score
    # [M, batches, B, Y] of each device -> those of all devices, without filler.
    logits = jax.lax.all_gather(logits, LANES, axis=1, tiled=True)
    logits = logits.reshape(len(logits), -1, logits.shape[-1])
    return score._replace(logits=logits[:, :num_images])

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


class ClientScore(NamedTuple):
  """The results of the tests of C clients on their own examples.

  Attributes:
    num_correct: [C] int32.
    logits: [C, rows, Y] float32, of each client's examples in their order, then of
      filler; None if not asked.
  """

  num_correct: jax.Array
  logits: jax.Array | None = None


class LogitsRoom(NamedTuple):
  """The room for the logits that the tests of clients keep.

  Attributes:
    num_examples: most examples of a client.
    num_classes: Y.
  """

  num_examples: int
  num_classes: int


def make_client_tests(
  apply: Callable[[PyTree, jax.Array], Outputs],
  mesh: Mesh,
  model: Callable[[PyTree, jax.Array], PyTree],
  batch_size: int,
  room: LogitsRoom | None = None,
) -> Callable[[PyTree, DeviceSplit, ClientTests, jax.Array], ClientScore]:
  """Builds (source, split, tests, positions [C]) -> ClientScore of each of these.

  `positions` say which of the T clients with tests are tested. They are tested one
  after the other: `model` makes one model at a time from `source`, and only this one is
  in memory besides the source. The devices of the mesh share the clients.

  Args:
    apply: the network in evaluation mode.
    mesh: the devices.
    model: (source, [] int32 index into `positions`) -> variables of the model to test.
    batch_size: examples at a time; a client's last batch is filled up and masked.
    room: the room for the logits that are kept; None if none are.
  """
  zero = ClientScore(num_correct=jnp.zeros((), jnp.int32))
  if room:
    num_rows = math.ceil(room.num_examples / batch_size) * batch_size
    zero = zero._replace(logits=jnp.zeros((num_rows, room.num_classes)))

  def test(source, split, tests, positions):
    clients_per_device = math.ceil(len(positions) / mesh.size)
    first_index = clients_per_device * jax.lax.axis_index(LANES)
    indices_here = first_index + jnp.arange(clients_per_device)

    def test_client(index):
      index = jnp.minimum(index, len(positions) - 1)
      variables, position = model(source, index), positions[index]
      first, end = tests.offsets[position], tests.offsets[position + 1]

      def add_batch(batch_index, score):
        begin = first + batch_index * batch_size
        rows = tests.rows[jnp.minimum(begin + jnp.arange(batch_size), end - 1)]
        batch = split.batch(rows, end - begin)
        logits = apply(variables, batch.images).logits
        is_correct = _is_correct(logits, batch)
        num_correct = score.num_correct + jnp.sum(is_correct, dtype=jnp.int32)
        if not room:
          return ClientScore(num_correct)
        first_row = batch_index * batch_size, 0
        return ClientScore(
          num_correct=num_correct,
          logits=jax.lax.dynamic_update_slice(
            score.logits, logits.astype(jnp.float32), first_row
          ),
        )

      num_batches = (end - first + batch_size - 1) // batch_size
      return jax.lax.fori_loop(0, num_batches, add_batch, zero)

    def gathered(results_here):
      """The results of the clients on all devices."""
      num_clients = clients_per_device * mesh.size
      shape = num_clients, *results_here.shape[1:]
      results = jnp.zeros(shape, results_here.dtype)
      results = results.at[indices_here].set(results_here)
      return jax.lax.psum(results, LANES)[: len(positions)]

    return jax.tree.map(gathered, jax.lax.map(test_client, indices_here))

  return _on_mesh(test, mesh)
