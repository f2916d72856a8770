"""A client whose results are NaN or infinite: left out, or the end of the run."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moon_jax.core import tree
from moon_jax.core.errors import DivergedError, ExitCode
from moon_jax.core.types import Upload
from moon_jax.runner import metrics as metrics_lib
from moon_jax.runner.callbacks import stop_if_diverged
from moon_jax.train import aggregation
from tests import world
from tests.engine.test_round import assert_equal_to_reference, reference_run
from tests.processes import check_success, checkpoint, launch, read_lines
from tests.selection import few

NUM_ROUNDS = 4
# The first round in which a client fails; it takes part in every one.
FIRST_BAD = 2


def split(client=None, bad_value=None):
  """The training split as floats, one pixel of each of a client's images replaced."""
  whole = world.train_split()
  images = np.asarray(whole.examples.images, np.float32)
  if client is not None:
    images[world.owned()[client], 3, 3] = bad_value
  return whole._replace(examples=whole.examples._replace(images=jnp.asarray(images)))


def run(algorithm, plans, client, bad_value):
  """The state and the metrics after each round; a client fails from FIRST_BAD on."""
  state, history = world.first_state(algorithm), []
  numbers = world.scalars(world.make(algorithm))
  for index in range(NUM_ROUNDS):
    plan = plans.plan(index)
    run_round = world.compiled_round(algorithm, num_devices=len(plan.bounds))
    data = split(client if index >= FIRST_BAD else None, bad_value)
    state, metrics = run_round(state, plan.for_device(), numbers, data)
    history.append((state, jax.device_get(metrics)))
  return history


def of_finite(metrics):
  """The metrics of the clients that count."""
  per_client = ('sums', 'num_seen', 'drift', 'reports')
  kept = jax.tree.map(
    lambda values: values[metrics.finite],
    {name: getattr(metrics, name) for name in per_client},
  )
  return metrics._replace(**kept)


@pytest.mark.parametrize(
  ('algorithm', 'num_lanes', 'num_devices', 'client', 'bad_value'),
  few(
    # Row 0, on which idle lanes train, is client 0's.
    [('moon', 2, 1, 1, np.nan), ('scaffold', 6, 3, 0, np.inf)],
    [(name, 2, 1, 1, np.nan) for name in world.OPTIONS if name != 'centralized'],
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
  told = [(state, of_finite(metrics)) for state, metrics in history]
  assert_equal_to_reference(algorithm, told, expected)

  for index, (state, metrics) in enumerate(history):
    assert bool(metrics.server_finite)
    assert bool(tree.all_finite(state))
    plan, truth = plans.plan(index), expected[index]
    record = metrics_lib.round_record(
      index + 1, plan, metrics, (1, 1), skip_nonfinite=True
    )
    assert set(record['skipped_clients']) == skipped[index]
    assert set(record['clients']) == set(plan.clients)
    assert record['num_examples'] == world.LOCAL_EPOCHS * plan.num_examples.sum()
    np.testing.assert_allclose(record['train_loss'], truth.train_loss, atol=1e-5)
    drift = np.mean(list(truth.drift.values()))
    np.testing.assert_allclose(record['drift'], drift, atol=1e-5)
    stop_if_diverged(record, metrics, 'skip_client')


@pytest.mark.parametrize('cohort_size', [3, world.NUM_CLIENTS])
def test_its_memory_stays_bit_for_bit(cohort_size):
  plans = world.planner(cohort_size=cohort_size)
  history = run('moon', plans, 1, np.nan)
  for index in range(FIRST_BAD, NUM_ROUNDS):
    (before, _), (after, _) = history[index - 1], history[index]
    for old, new in zip(
      jax.tree.leaves(before.clients), jax.tree.leaves(after.clients), strict=True
    ):
      np.testing.assert_array_equal(old[1], new[1])
  assert float(history[-1][0].clients.count[1]) == 1


def test_the_mean_over_some_by_hand():
  # Weights 1, 2, 5 of which the last is left out: (1 * 4 + 2 * 7) / 3 = 6, where the
  # sum over the cohort was (4 + 14) / 8; and (4 + 7) / 2, where it was (4 + 7) / 3.
  mean = Upload({'w': jnp.float32(18 / 8)}, uniform=jnp.float32(11 / 3))
  weights = jnp.array([1.0, 2.0, 5.0])
  some = aggregation.mean_of_finite(mean, jnp.array([True, True, False]), weights)
  np.testing.assert_allclose(some.weighted['w'], 6, rtol=1e-6)
  np.testing.assert_allclose(some.uniform, 5.5, rtol=1e-6)
  everyone = aggregation.mean_of_finite(mean, jnp.ones(3, bool), weights)
  assert everyone.weighted['w'] == mean.weighted['w']
  assert everyone.uniform == mean.uniform


# --- when does it end the run? --------------------------------------------------------

RECORD = {'round': 7, 'train_loss': 1.0, 'drift': 2.0, 'clients': [3, 8, 9]}
LOSS = {'train_loss': float('nan'), 'drift': float('inf')}


def metrics(*finite, server=True):
  """Of three clients; only what decides is filled in."""
  nothing = dict.fromkeys(('sums', 'num_seen', 'drift', 'reports', 'computed'))
  return metrics_lib.ClientMetrics(
    **nothing, finite=np.array(finite), server_finite=np.array(server)
  )


@pytest.mark.parametrize(
  ('on_nonfinite', 'changes', 'of_round', 'told'),
  [
    ('stop', LOSS, metrics(True, False, False), 'train_loss, drift (clients 8, 9)'),
    ('stop', {}, metrics(False, True, True), 'updates (clients 3)'),
    ('stop', {}, metrics(True, True, True, server=False), 'the new global model'),
    ('stop', {}, metrics(True, True, True), None),
    ('skip_client', {}, metrics(True, False, False), None),
    ('skip_client', LOSS, metrics(*[False] * 3), 'train_loss, drift (clients 3, 8, 9)'),
    ('skip_client', {'test_loss': float('inf')}, metrics(*[True] * 3), 'test_loss'),
    ('skip_client', {}, metrics(*[True] * 3, server=False), 'the new global model'),
  ],
)
def test_what_ends_a_run_and_what_it_says(on_nonfinite, changes, of_round, told):
  record = RECORD | changes
  if told is None:
    stop_if_diverged(record, of_round, on_nonfinite)
    return
  with pytest.raises(DivergedError) as caught:
    stop_if_diverged(record, of_round, on_nonfinite)
  text = str(caught.value)
  assert text.startswith('Diverged in round 7. ')
  assert f'Not finite: {told}. ' in text
  assert ('skip_client' in text) == (on_nonfinite == 'stop')


def test_ten_clients_are_named_of_many():
  record = RECORD | {'clients': list(range(40))}
  with pytest.raises(DivergedError, match=r'\(clients 0, .*, 9, \.\.\.\)'):
    stop_if_diverged(record, metrics(*[False] * 40), 'stop')


# --- in a run -------------------------------------------------------------------------

RUN = (
  '--config.algorithm=fedavg',
  '--config.data.limit=300',
  '--config.mlp.width=16',
  '--config.mlp.representation=8',
  '--config.local_epochs=1',
  '--config.checkpoint_every_rounds=1',
  '--workdir=run',
)


@pytest.mark.slow
@pytest.mark.faults
def test_a_run_goes_on_without_them(tmp_path):
  # The first step is huge, and the gradient of the next one overflows: who owns one
  # batch has no next one.
  words = [
    *RUN,
    '--config.batch_size=32',
    '--config.partition.name=quantity',
    '--config.partition.min_size=2',
    '--config.optimizer.learning_rate=1e6',
    '--config.num_rounds=1',
  ]
  stopped = launch(tmp_path, *words)
  assert stopped.returncode == ExitCode.DIVERGED
  (line,) = stopped.stderr.splitlines()
  bad = [int(word) for word in re.search(r'\(clients (.*)\)', line)[1].split(', ')]
  with np.load(tmp_path / 'run/partition.npz') as saved:
    sizes = np.diff(saved['offsets'])
  assert 0 < len(bad) < 10
  assert bad == np.flatnonzero(sizes > 32).tolist()

  done = launch(tmp_path, *words, '--config.on_nonfinite=skip_client')
  check_success(done)
  (record,) = read_lines(tmp_path / 'run/metrics.jsonl')
  assert record['skipped_clients'] == bad
  assert record['clients'] == list(range(10))
  assert record['train_loss'] > 0
  assert all(is_finite(leaf) for leaf in checkpoint(tmp_path / 'run', 1).values())


@pytest.mark.slow
@pytest.mark.faults
def test_a_run_that_diverges_keeps_its_last_good_checkpoint(tmp_path):
  # The server's step of round 1 is huge, and the clients' steps of round 2 overflow.
  server = ['name=adam', 'learning_rate=1e5']
  words = [*RUN, *(f'--config.server_optimizer.{word}' for word in server)]
  done = launch(tmp_path, *words)
  assert done.returncode == ExitCode.DIVERGED
  (line,) = done.stderr.splitlines()
  last = int(re.match(r'Diverged in round (\d+)\. Not finite', line)[1])
  assert last > 1
  lines = read_lines(tmp_path / 'run/metrics.jsonl')
  assert [record['round'] for record in lines] == list(range(1, last + 1))
  assert [None in record.values() for record in lines] == [False] * (last - 1) + [True]
  steps = {path.name for path in (tmp_path / 'run/checkpoints').iterdir()}
  assert steps == {str(step) for step in (last - 2, last - 1) if step > 0}
  leaves = checkpoint(tmp_path / 'run', last - 1)
  assert all(is_finite(leaf) for leaf in leaves.values())
  assert not (tmp_path / 'run/summary.json').exists()


def is_finite(leaf):
  """Of a leaf of `checkpoint`."""
  dtype, _, data = leaf
  return bool(np.isfinite(np.frombuffer(data, dtype)).all())
