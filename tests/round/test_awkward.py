"""Awkward data: right by the reference, not just alive."""

import dataclasses

import jax
import numpy as np
import pytest

from moon_jax.data import device_split
from tests import world
from tests.round.test_round import assert_equal_to_reference, of_some, reference_run
from tests.selection import few

B = world.BATCH_SIZE
NUM_ROUNDS = 3
# Every client is in every cohort; the last two own one class each.
SIZES = (1, B - 1, B, B + 1)
LABELS = np.concatenate(
  [[2], np.arange(B - 1) % world.NUM_CLASSES, np.full(B, 1), np.full(B + 1, 3)]
).astype(np.int32)


def run_and_reference(algorithm, sizes, labels, num_lanes=2, num_devices=1):
  """(engine, reference), the rounds of clients that own consecutive examples."""
  plans = world.planner(num_lanes, len(sizes), sizes, num_devices=num_devices)

  def owned(index, data):
    images, offsets = world.data()[0].images, np.cumsum([0, *sizes])
    images = np.asarray(images)[: len(labels)]
    examples = dataclasses.replace(data.examples, images=images, labels=labels)
    rows, offsets = np.arange(len(labels), dtype=np.int32), offsets.astype(np.int32)
    split = device_split.TrainSplit(
      examples=examples,
      rows_by_owner=rows,
      offsets=offsets,
      position_of_row=rows,
      holds_cohort_only=False,
    )
    return jax.device_put(split)

  history = world.run(algorithm, NUM_ROUNDS, data_of=owned, plans=plans)
  images = world.data()[1][: len(labels)]
  expected = reference_run(
    algorithm, NUM_ROUNDS, plans=plans, images=images, labels=labels
  )
  return history, expected


# Algorithms that see the classes, or keep what depends on a client's steps.
@pytest.mark.parametrize(
  'algorithm',
  few(
    ['fedavg'],
    [
      *('scaffold', 'sa_moon', 'fedlc', 'fedproto', 'fednova', 'feddyn'),
      'decentralized_moon',
    ],
  ),
)
def test_odd_sizes_single_classes_and_everyone(algorithm):
  history, expected = run_and_reference(algorithm, SIZES, LABELS)
  assert_equal_to_reference(algorithm, history, expected)
  num_seen = world.LOCAL_EPOCHS * np.array(SIZES, np.float32)
  np.testing.assert_array_equal(history[0][1].num_seen, num_seen)


@pytest.mark.parametrize(
  ('algorithm', 'num_devices'),
  few([('solo', 3)], [('fedavg', 1), ('moon', 3)]),
)
def test_a_client_without_examples_changes_nothing(algorithm, num_devices):
  sizes, labels = (0, 1, B - 1, B + 1), np.delete(LABELS, slice(B, 2 * B))
  history, expected = run_and_reference(algorithm, sizes, labels, 3, num_devices)
  has_examples = np.array([False, True, True, True])
  trained = [(state, of_some(metrics, has_examples)) for state, metrics in history]
  assert_equal_to_reference(algorithm, trained, expected)
  first = world.of_client(world.first_state(algorithm).clients, 0)
  for state, metrics in history:
    assert metrics.num_seen[0] == metrics.drift[0] == 0
    # The client's memory does not change.
    memory = world.of_client(state.clients, 0)
    jax.tree.map(np.testing.assert_array_equal, memory, first)


@pytest.mark.slow
@pytest.mark.parametrize('algorithm', ['scaffold', 'moon'])
def test_one_client(algorithm):
  history, expected = run_and_reference(algorithm, (B + 1,), LABELS[-(B + 1) :], 1)
  assert_equal_to_reference(algorithm, history, expected)
