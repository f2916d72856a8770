"""A run whose training data stay on disk is the run of the same data in memory."""

import shutil

import numpy as np
import pytest

import moon_jax
from moon_jax.building import experiment, programs
from moon_jax.core.errors import ExitCode, UsageError
from moon_jax.data import convert
from moon_jax.data.federated import user_records
from tests.data import federations
from tests.processes import ROOT, check_success, checkpoint, launch, read_lines
from tests.runner.test_natural import TINY, config
from tests.selection import few

CHANGES = {
  'algorithm': 'fedavg',
  'execution.devices': 2,
  'partition.min_size': 2,
  'participation': 0.5,
  'num_rounds': 4,
  'local_epochs': 2,
  'checkpoint_every_rounds': 2,
}


@pytest.fixture(scope='module')
def sources(tmp_path_factory):
  """The knobs of the same federation in memory, and on disk."""
  folder = tmp_path_factory.mktemp('streaming')
  knobs = federations.hdf5(folder, federations.make_federation())
  words = [*federations.flags(knobs), f'--out={folder / "records"}']
  assert convert.main(words) == ExitCode.DONE
  stored = {'data.source': 'records', 'data.path': str(folder / 'records')}
  return knobs, stored


@pytest.fixture(scope='module')
def finished(sources, tmp_path_factory):
  """A finished run of the federation on disk."""
  return moon_jax.run(config(sources[1] | CHANGES), tmp_path_factory.mktemp('run'))


@pytest.fixture(scope='module')
def built(sources):
  """The experiment of that run."""
  return experiment.build(moon_jax.config.validate(config(sources[1] | CHANGES)))


def check_same(first, second):
  metrics = [(workdir / 'metrics.jsonl').read_bytes() for workdir in (first, second)]
  assert metrics[0] == metrics[1]
  assert checkpoint(first, 4) == checkpoint(second, 4)
  arrays = [np.load(workdir / 'partition.npz') for workdir in (first, second)]
  for name in ('clients', 'offsets', 'class_counts'):
    np.testing.assert_array_equal(*(array[name] for array in arrays))


@pytest.mark.parametrize(
  'changes',
  few(
    [{}],
    [
      {'algorithm': 'moon'},  # the frozen networks run once, over what clients own
      {'execution.devices': 1},
      {'algorithm': 'solo', 'execution.client_store': 'disk'},
      {'augmentation.name': 'crop_flip'},
      {'algorithm': 'fedlc'},
      {'frozen_layers': 'body'},
      {'algorithm': 'ditto', 'fine_tune_epochs': 1},
      {'algorithm': 'fedala', 'execution.client_store': 'disk'},
      {'algorithm': 'per_fedavg', 'fine_tune_epochs': 1},
      {'algorithm': 'scaffold', 'execution.client_store': 'disk'},
      {'algorithm': 'decentralized_moon', 'participation': 1.0},
      {
        'algorithm': 'median',
        'data.limit': 40,
        'drop_last': True,
        'batch_size': 5,
        'partition.min_size': 5,
        'participation': 1.0,
      },
    ],
  ),
  ids=lambda changes: '-'.join(map(str, changes.values())) or 'fedavg',
)
def test_the_same_rounds_to_the_last_bit(changes, sources, finished, tmp_path):
  changed = CHANGES | changes
  in_memory = moon_jax.run(config(sources[0] | changed), tmp_path / 'memory')
  on_disk = finished
  if changes:
    on_disk = moon_jax.run(config(sources[1] | changed), tmp_path / 'disk')
  check_same(in_memory.workdir, on_disk.workdir)
  clients = [line['clients'] for line in on_disk.metrics]
  assert len(set(map(tuple, clients))) > 1 or 'participation' in changes


@pytest.mark.slow
def test_rounds_in_memory_are_those_of_the_run(sources, finished):
  metrics = [round.metrics for round in moon_jax.rounds(config(sources[1] | CHANGES))]
  assert metrics == finished.metrics
  images, labels = finished.model.test_data()
  assert (len(images), len(labels)) == (26, 26)


def test_a_round_has_the_examples_of_its_cohort_alone(built):
  sizes = built.data.partition.sizes
  assert sizes.tolist() == [7, 3, 12, 30]
  plan = built.planner.plan(1)
  train = programs.train_split(built, plan.for_device())
  # The largest cohort of two owns 30 + 12.
  images = train.examples.images
  assert images.shape == built.data.train.examples.images.shape == (42, 8, 8, 1)
  ends = np.cumsum(sizes[plan.clients])
  assert np.asarray(train.offsets).tolist() == [0, *ends]
  assert plan.schedule.example_rows[plan.step_real].max() == ends[-1] - 1
  stored = built.data.stream.data.stored
  for slot, (images, labels) in enumerate(stored.read(stored.records[plan.clients])):
    rows = slice(*np.asarray(train.offsets)[slot : slot + 2])
    np.testing.assert_array_equal(train.examples.images[rows], images)
    np.testing.assert_array_equal(train.examples.labels[rows], labels)


@pytest.mark.parametrize('source', ['memory', 'disk', 'dealt'])
def test_a_round_tells_each_client_of_its_data(source, sources):
  knobs = {'data.source': 'digits', 'partition.name': 'shards', 'data.limit': 90}
  if source != 'dealt':
    knobs = sources[source == 'disk']
  changed = CHANGES | {'algorithm': 'feddyn', 'feddyn.by_size': True}
  of_size, of_classes = (
    experiment.build(moon_jax.config.validate(config(knobs | changes)))
    for changes in (changed, CHANGES | {'algorithm': 'fedlc'})
  )
  plan = of_classes.planner.plan(1)
  labels = np.asarray(
    programs.train_split(of_classes, plan.for_device()).examples.labels
  )
  owned = of_classes.planner.training.data.rows_of(plan.clients)
  counts = plan.cohort.client_facts['class_counts']
  assert counts.dtype == np.float32
  for class_counts, rows in zip(counts, owned, strict=True):
    expected = np.bincount(labels[rows], minlength=len(class_counts))
    assert class_counts.tolist() == expected.tolist()
  assert len({tuple(class_counts) for class_counts in counts}) > 1
  sizes = of_size.data.partition.sizes
  client_facts = of_size.planner.plan(1).cohort.client_facts
  assert client_facts.keys() == {'relative_size'}
  expected_sizes = sizes[plan.clients] * len(sizes) / sizes.sum()
  np.testing.assert_allclose(client_facts['relative_size'], expected_sizes, rtol=1e-6)


def test_a_record_damaged_during_a_run_costs_nothing_that_was_saved(
  sources, finished, built, tmp_path
):
  """The damage is found when the client is packed; after a repair the run goes on."""
  folder = tmp_path / 'records'
  shutil.copytree(sources[1]['data.path'], folder)
  knobs, path = sources[1] | {'data.path': str(folder)}, folder / user_records.RECORDS
  early_clients = {*built.planner.cohort(0), *built.planner.cohort(1)}
  late_clients = {*built.planner.cohort(2), *built.planner.cohort(3)} - early_clients
  assert late_clients
  undamaged = path.read_bytes()
  for byte in range(0, len(undamaged), 97):
    damaged = bytearray(undamaged)
    damaged[byte] ^= 8
    path.write_bytes(damaged)
    if set() < unreadable(folder) <= late_clients:
      break
  else:
    raise AssertionError('no byte is of such a record alone')
  with pytest.raises(UsageError, match=f'^{path}(: record .)? is damaged'):
    moon_jax.run(config(knobs | CHANGES), tmp_path / 'run')
  assert 1 <= len(read_lines(tmp_path / 'run/metrics.jsonl')) <= 3
  path.write_bytes(undamaged)
  moon_jax.run(config(knobs | CHANGES), tmp_path / 'run')
  check_same(tmp_path / 'run', finished.workdir)


def unreadable(folder):
  """The clients whose records cannot be read."""
  try:
    stored = user_records.load_records(str(folder)).stored
  except UsageError:
    return {*range(4)}
  clients = set()
  for client in range(4):
    try:
      stored.read(stored.records[[client]])
    except UsageError:
      clients.add(client)
  return clients


ALL_EXAMPLES = (
  "^--config.data.source='records' keeps each client on disk: it needs "
  r"--config.partition\.name='natural', and an algorithm of several clients\.$"
)


@pytest.mark.parametrize(
  ('changes', 'problem'),
  [
    (
      {'attack.name': 'label_flip', 'attack.fraction': 0.5},
      "--config.attack.name='label_flip' needs data in memory.",
    ),
    ({'data.local_test': 0.2}, r'local_test=0\.2 is not for data that stay on disk: '),
    ({'partition.name': 'iid'}, ALL_EXAMPLES),
    ({'algorithm': 'centralized'}, ALL_EXAMPLES),
  ],
)
def test_what_changes_examples_or_wants_all_is_refused(changes, problem, sources):
  changed = config(sources[1] | CHANGES)
  changed.update_from_flattened_dict(changes)
  with pytest.raises(UsageError, match=problem):
    experiment.build(moon_jax.config.validate(changed))


def test_a_process_reads_the_clients_of_its_own_lanes(built):
  clients, stream = built.planner.cohort(0), built.data.stream
  all_examples, own_examples = (
    stream.load_split(clients, slots, built.placement.mesh).examples
    for slots in (np.arange(len(clients)), np.array([1]))
  )
  is_own = np.zeros(len(own_examples.labels), bool)
  is_own[stream.rows(clients)[1]] = True
  np.testing.assert_array_equal(
    own_examples.images[is_own], all_examples.images[is_own]
  )
  np.testing.assert_array_equal(
    own_examples.labels[is_own], all_examples.labels[is_own]
  )
  assert not own_examples.images[~is_own].any()
  assert all_examples.images[~is_own].any()


# The most memory that a process used, in bytes.
PEAK = """
import resource, sys
from moon_jax import __main__
code = __main__.launch(sys.argv[1:])
print('peak', 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
sys.exit(code)
"""


@pytest.mark.slow  # writes 400 MB
def test_memory_does_not_grow_with_what_is_on_disk(tmp_path):
  peaks = {}
  for users in (100, 10_000):
    out = tmp_path / str(users)
    assert convert.main([f'--out={out}', f'--synthetic={users}x50']) == ExitCode.DONE
    knobs = TINY | {'data.source': 'records', 'data.path': out, 'num_rounds': 5}
    knobs |= {'participation': 10 / users, 'execution.compile_cache': 'off'}
    words = federations.flags(knobs)
    program = {'program': ('-c', PEAK), 'PYTHONPATH': str(ROOT)}
    completed = launch(tmp_path, *words, f'--workdir=run{users}', **program)
    check_success(completed)
    peaks[users] = int(completed.stdout.split('peak ')[1])
  on_disk = 10_000 * 50 * 28 * 28
  assert peaks[10_000] - peaks[100] < on_disk / 4
