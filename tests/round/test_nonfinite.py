"""A client whose results are NaN or infinite: left out, or the end of the run."""

import dataclasses
import re

import jax
import numpy as np
import pytest

from moon_jax.core.errors import DivergedError, ExitCode
from moon_jax.round.traffic import Traffic
from moon_jax.runner import round_records
from moon_jax.runner.callbacks import stop_if_diverged
from tests import world
from tests.processes import checkpoint, launched, read_lines
from tests.round.test_round import (
  REMEMBERING,
  assert_equal_to_reference,
  of_some,
  reference_run,
)
from tests.selection import few

NUM_ROUNDS = 4
# The first round in which the client fails; it takes part in every round.
FIRST_BAD = 2


def run(algorithm, plans, client, bad_value):
  """The state and the metrics after each round; a client fails from FIRST_BAD on."""

  def data_of(index, data):
    images = np.asarray(data.examples.images, np.float32)
    if index >= FIRST_BAD:
      images[world.owned()[client], 3, 3] = bad_value
    examples = dataclasses.replace(data.examples, images=images)
    return dataclasses.replace(data, examples=examples)

  return world.run(algorithm, NUM_ROUNDS, plans=plans, data_of=data_of)


@pytest.mark.parametrize(
  ('algorithm', 'num_lanes', 'num_devices', 'client', 'bad_value'),
  few(
    # Idle lanes train on row 0, which is client 0's.
    [('scaffold', 6, 1, 0, np.inf)],
    [('moon', 6, 3, 0, np.inf), ('scaffold', 6, 3, 0, np.inf)]
    + [(name, 2, 1, 1, np.nan) for name in REMEMBERING],
  ),
)
def test_equals_the_reference_without_that_client(
  algorithm, num_lanes, num_devices, client, bad_value
):
  plans = world.planner(num_lanes, num_devices=num_devices)
  assert all(client in plans.plan(index).clients for index in range(NUM_ROUNDS))
  skipped = [{client} if index >= FIRST_BAD else set() for index in range(NUM_ROUNDS)]
  history = run(algorithm, plans, client, bad_value)
  expected = reference_run(algorithm, NUM_ROUNDS, plans=plans, skipped=skipped)
  finite = [(state, of_some(metrics, metrics.finite)) for state, metrics in history]
  assert_equal_to_reference(algorithm, finite, expected)

  for index, (state, metrics) in enumerate(history):
    assert bool(metrics.server_finite)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state))
    plan, truth = plans.plan(index), expected[index]
    record = round_records.round_record(
      index + 1, plan, metrics, traffic=Traffic(1, 1), skip_nonfinite=True
    )
    assert set(record['skipped_clients']) == skipped[index]
    assert set(record['clients']) == set(plan.clients)
    assert record['num_examples'] == world.LOCAL_EPOCHS * plan.cohort.weights.sum()
    np.testing.assert_allclose(record['train_loss'], truth.train_loss, atol=1e-5)
    drift = np.mean(list(truth.drift.values()))
    np.testing.assert_allclose(record['drift'], drift, atol=1e-5)
    stop_if_diverged(record, metrics, 'skip_client')


@pytest.mark.parametrize(
  ('cohort_size', 'num_devices'), few([(3, 1)], [(world.NUM_CLIENTS, 1), (3, 3)])
)
def test_the_memory_of_a_client_that_is_not_finite_stays_bit_for_bit(
  cohort_size, num_devices
):
  plans = world.planner(num_lanes=6, cohort_size=cohort_size, num_devices=num_devices)
  history = run('scaffold', plans, 1, np.nan)
  before, *after = (
    world.of_client(state.clients, 1) for state, _ in history[FIRST_BAD - 1 :]
  )
  for memory in after:
    jax.tree.map(np.testing.assert_array_equal, memory, before)
  # Before it failed it has trained.
  assert np.any(before['encoder']['kernel'])


# --- when does it end the run? --------------------------------------------------------

RECORD = {'round': 7, 'train_loss': 1.0, 'drift': 2.0, 'clients': [3, 8, 9]}
LOSS = {'train_loss': float('nan'), 'drift': float('inf')}


def metrics(*finite, server=True):
  """Metrics of three clients; only the deciding fields are filled in."""
  return round_records.ClientMetrics(
    sums=None,
    num_summed=None,
    num_seen=None,
    drift=None,
    reports=None,
    computed=None,
    finite=np.array(finite),
    server_finite=np.array(server),
  )


@pytest.mark.parametrize(
  ('on_nonfinite', 'changes', 'of_round', 'not_finite'),
  [
    ('stop', LOSS, metrics(True, False, False), 'train_loss, drift (clients 8, 9)'),
    ('stop', {}, metrics(False, True, True), 'updates (client 3)'),
    ('stop', {}, metrics(True, True, True, server=False), 'the new global model'),
    ('stop', {}, metrics(True, True, True), None),
    ('skip_client', {}, metrics(True, False, False), None),
    (
      'skip_client',
      LOSS,
      metrics(False, False, False),
      'train_loss, drift (clients 3, 8, 9)',
    ),
    (
      'skip_client',
      {'test_loss': float('inf')},
      metrics(True, True, True),
      'test_loss',
    ),
    (
      'skip_client',
      {},
      metrics(True, True, True, server=False),
      'the new global model',
    ),
  ],
)
def test_what_ends_a_run_and_what_it_says(on_nonfinite, changes, of_round, not_finite):
  record = RECORD | changes
  if not_finite is None:
    stop_if_diverged(record, of_round, on_nonfinite)
    return
  with pytest.raises(DivergedError) as caught:
    stop_if_diverged(record, of_round, on_nonfinite)
  text = str(caught.value)
  assert text.startswith('Diverged in round 7. ')
  assert f'Not finite: {not_finite}. ' in text
  assert ('skip_client' in text) == (on_nonfinite == 'stop')


# --- in a run -------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.faults
def test_a_run_goes_on_without_clients_that_are_not_finite(tmp_path):
  words = [
    *('algorithm=fedavg', 'data.limit=300', 'mlp.width=16', 'mlp.representation=8'),
    *('local_epochs=1', 'checkpoint_every_rounds=1', 'batch_size=32'),
    *('partition.name=quantity', 'partition.min_size=2', 'optimizer.learning_rate=1e6'),
  ]
  words = ['--workdir=run', *(f'--config.{word}' for word in words)]
  # The first step is huge, and the next gradient overflows; a client with one batch has
  # no next step.
  stopped = launched(tmp_path, [*words, '--config.num_rounds=1'])
  assert stopped.returncode == ExitCode.DIVERGED
  (line,) = stopped.stderr.splitlines()
  diverged = [int(word) for word in re.search(r'\(clients (.*)\)', line)[1].split(', ')]
  with np.load(tmp_path / 'run/partition.npz') as saved:
    sizes = np.diff(saved['offsets'])
  assert 0 < len(diverged) < 10
  assert diverged == np.flatnonzero(sizes > 32).tolist()

  # In round 2 the model that all clients receive is huge, and no client stays finite.
  words += ['--config.on_nonfinite=skip_client', '--config.num_rounds=3']
  assert launched(tmp_path, words).returncode == ExitCode.DIVERGED
  first, last = read_lines(tmp_path / 'run/metrics.jsonl')
  assert first['skipped_clients'] == diverged
  assert first['clients'] == list(range(10))
  assert first['train_loss'] > 0
  assert None not in first.values()
  assert None in last.values()
  (step,) = (tmp_path / 'run/checkpoints').iterdir()
  assert step.name == '1'
  for dtype, _, data in checkpoint(tmp_path / 'run', 1).values():
    assert np.isfinite(np.frombuffer(data, dtype)).all()
  assert not (tmp_path / 'run/summary.json').exists()
