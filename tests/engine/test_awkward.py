"""Awkward data: right by the reference, not just alive."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import sparse

from moon_jax.algorithms.wrappers import topology
from moon_jax.core import tree
from moon_jax.core.types import Server, State
from moon_jax.data import npz
from moon_jax.engine import devices
from moon_jax.runner import metrics as metrics_lib
from moon_jax.train import evaluation
from tests import reference, world
from tests.engine.test_round import (
  NAMES,
  PEERS,
  SEVERAL_CLIENTS,
  TOLERANCE,
  assert_equal_to_reference,
  draw,
  kept_models,
)
from tests.selection import few

B = world.BATCH_SIZE
NUM_ROUNDS = 3
# Everyone is in every cohort; the last two clients own one class each.
SIZES = (1, B - 1, B, B + 1)
LABELS = np.concatenate(
  [[2], np.arange(B - 1) % world.NUM_CLASSES, np.full(B, 1), np.full(B + 1, 3)]
).astype(np.int32)
CLIQUE = np.ones((4, 4), int) - np.eye(4, dtype=int)


def plans_of(sizes, num_lanes=2, num_devices=1):
  weights = sparse.csr_array(reference.metropolis_hastings(CLIQUE))
  clique = functools.partial(topology.among, weights)
  return world.planner(
    num_lanes,
    len(sizes),
    sizes,
    num_devices=num_devices,
    mixing=clique if len(sizes) == 4 else None,
  )


def run(algorithm, sizes, labels, plans):
  """The state and the metrics after each round."""
  examples = world.data()[0]._replace(labels=jnp.asarray(labels))
  rows = np.arange(len(labels), dtype=np.int32)
  offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
  data = jax.device_put(
    world.train_split()._replace(
      examples=examples._replace(images=examples.images[: len(labels)]),
      rows=rows,
      offsets=offsets,
    )
  )
  chosen, start = world.make(algorithm), world.variables()
  state = State(
    server=Server(start, chosen.init_server(start)),
    clients=tree.repeat(chosen.init_client(start), len(sizes)),
    round=jnp.zeros((), jnp.int32),
  )
  shape = {'num_devices': plans.num_devices, 'num_clients': len(sizes)}
  run_round = world.compiled_round(algorithm, **shape)
  history = []
  for index in range(NUM_ROUNDS):
    plan = plans.plan(index).for_device()
    state, metrics = run_round(state, plan, world.scalars(chosen), data)
    history.append((state, metrics))
  return history


def by_the_reference(algorithm, sizes, labels, plans, cohort=None):
  """The same rounds by plain loops, of the clients in `cohort`; None is everyone."""
  cohort = range(len(sizes)) if cohort is None else cohort
  options = (
    {'mu': 0.0, 'tau': 1.0, 'uniform': draw}
    | world.OPTIMIZER
    | world.OPTIONS[algorithm]
  )
  if algorithm in PEERS:
    options['mixing'] = [reference.metropolis_hastings(CLIQUE)] * NUM_ROUNDS
  rounds = [
    {
      client: [rows[:real] for rows, real in zip(*work, strict=True)]
      for client, work in zip(cohort, plans.batches(index, cohort), strict=True)
    }
    for index in range(NUM_ROUNDS)
  ]
  return reference.run(
    algorithm=NAMES.get(algorithm, algorithm),
    network=reference.mlp,
    params=world.variables()['params'],
    images=world.data()[1][: len(labels)],
    labels=labels,
    rounds=rounds,
    num_clients=len(sizes),
    sizes=dict(enumerate(sizes)),
    **options,
  )


@pytest.mark.parametrize('algorithm', few(['fedavg', 'moon'], SEVERAL_CLIENTS))
def test_odd_sizes_single_classes_and_everyone(algorithm):
  plans = plans_of(SIZES)
  history = run(algorithm, SIZES, LABELS, plans)
  expected = by_the_reference(algorithm, SIZES, LABELS, plans)
  assert_equal_to_reference(algorithm, history, expected)
  _, metrics = history[0]
  np.testing.assert_array_equal(
    metrics.num_seen, world.LOCAL_EPOCHS * np.array(SIZES, np.float32)
  )


@pytest.mark.parametrize(
  ('algorithm', 'num_devices'),
  few(
    [('moon', 1), ('fedavg', 3)],
    itertools.product(['fedavg', 'moon', 'solo'], [1, 3]),
  ),
)
def test_a_client_without_examples_changes_nothing(algorithm, num_devices):
  sizes, labels = (0, 1, B - 1, B + 1), np.delete(LABELS, slice(B, 2 * B))
  plans = plans_of(sizes, 3, num_devices)
  history = run(algorithm, sizes, labels, plans)
  expected = by_the_reference(algorithm, sizes, labels, plans, cohort=(1, 2, 3))
  first = tree.gather(world.first_state(algorithm).clients, 0)
  for (state, metrics), truth in zip(history, expected, strict=True):
    params = state.server.variables['params']
    assert world.largest_difference(params, truth.params) < TOLERANCE
    assert metrics.num_seen[0] == 0
    assert metrics.drift[0] == 0
    drift = [truth.drift[client] for client in (1, 2, 3)]
    np.testing.assert_allclose(metrics.drift[1:], drift, atol=TOLERANCE)
    loss = metrics.sums['train_loss'].sum() / metrics.num_seen.sum()
    np.testing.assert_allclose(loss, truth.train_loss, atol=TOLERANCE)
    stacked = kept_models(algorithm, state)
    for client, own in truth.clients.items() if stacked is not None else ():
      kept = tree.gather(stacked, client)
      assert world.largest_difference(kept, own) < TOLERANCE
    # It keeps what it had.
    if jax.tree.leaves(first):
      assert world.largest_difference(tree.gather(state.clients, 0), first) == 0


@pytest.mark.parametrize('algorithm', few(['scaffold'], ['fedavg', 'moon']))
def test_one_client(algorithm):
  sizes, labels = (B + 1,), LABELS[-(B + 1) :]
  plans = plans_of(sizes, 1)
  history = run(algorithm, sizes, labels, plans)
  expected = by_the_reference(algorithm, sizes, labels, plans)
  assert_equal_to_reference(algorithm, history, expected)


def test_a_class_that_is_not_tested(tmp_path):
  split, images, labels = world.data()
  tested = np.flatnonzero(labels != 0)
  pixels = np.asarray(split.images)
  np.savez(
    tmp_path / 'mine.npz',
    train_x=pixels,
    train_y=labels,
    test_x=pixels[tested],
    test_y=labels[tested],
  )
  data = npz.load_npz(str(tmp_path / 'mine.npz'))
  assert data.num_classes == world.NUM_CLASSES
  part = split._replace(
    images=jnp.asarray(data.test_images), labels=jnp.asarray(data.test_labels)
  )
  evaluate = evaluation.make_evaluation(world.network().apply, devices.mesh(1), B)
  score = jax.jit(evaluate)(tree.repeat(world.variables(), 1), part)
  record = metrics_lib.test_record(jax.device_get(score), len(tested))
  accuracy, loss = reference.accuracy_and_loss(
    reference.mlp, world.variables()['params'], images[tested], labels[tested]
  )
  assert record['test_accuracy'] == pytest.approx(accuracy, rel=1e-6)
  assert record['test_loss'] == pytest.approx(loss, rel=1e-5)
  # The class that is missing is still an answer, and then a wrong one.
  logits = world.network().apply(world.variables(), images[tested]).logits
  assert np.any(np.argmax(logits, axis=-1) == 0)
