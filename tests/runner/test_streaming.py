"""A run whose training data stay on disk is the run of the same data in memory."""

import shutil

import numpy as np
import pytest

import moon_jax
from moon_jax.building import experiment, programs
from moon_jax.core.errors import ExitCode, UsageError
from moon_jax.data import convert
from moon_jax.data.federated import records
from tests.data import federations
from tests.processes import ROOT, check_success, checkpoint, launch, read_lines
from tests.runner.test_natural import TINY, config
from tests.selection import few

CHANGES = {
  'algorithm': 'moon',  # the frozen networks run once, over what clients own
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
  knobs = federations.hdf5(folder, federations.federation())
  words = [*federations.flags(knobs), f'--out={folder / "records"}']
  assert convert.main(words) == ExitCode.DONE
  stored = {'data.source': 'records', 'data.path': str(folder / 'records')}
  return knobs, stored


@pytest.fixture(scope='module')
def whole(sources, tmp_path_factory):
  """A finished run of the federation on disk."""
  return moon_jax.run(config(sources[1], **CHANGES), tmp_path_factory.mktemp('run'))


@pytest.fixture(scope='module')
def built(sources):
  """The experiment of that run."""
  return experiment.build(moon_jax.config.validate(config(sources[1], **CHANGES)))


def check_same(one, other):
  metrics = [(workdir / 'metrics.jsonl').read_bytes() for workdir in (one, other)]
  assert metrics[0] == metrics[1]
  assert checkpoint(one, 4) == checkpoint(other, 4)
  arrays = [np.load(workdir / 'partition.npz') for workdir in (one, other)]
  for name in ('clients', 'offsets', 'class_counts'):
    np.testing.assert_array_equal(*(array[name] for array in arrays))


@pytest.mark.parametrize(
  'changes',
  few(
    [{}],
    [
      {'algorithm': 'fedavg', 'execution.devices': 1},
      {'algorithm': 'solo', 'execution.client_store': 'disk'},
      {'augmentation.name': 'crop_flip'},
      {'algorithm': 'fedlc'},
      {'algorithm': 'ditto', 'fine_tune_epochs': 1},
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
  ids=lambda changes: '-'.join(map(str, changes.values())) or 'moon',
)
def test_the_same_rounds_to_the_last_bit(changes, sources, whole, tmp_path):
  changed = CHANGES | changes
  one = moon_jax.run(config(sources[0], **changed), tmp_path / 'memory')
  other = whole
  if changes:
    other = moon_jax.run(config(sources[1], **changed), tmp_path / 'disk')
  check_same(one.workdir, other.workdir)
  clients = [line['clients'] for line in other.metrics]
  assert len({tuple(one) for one in clients}) > 1 or 'participation' in changes


@pytest.mark.slow
def test_rounds_in_memory_are_those_of_the_run(sources, whole):
  found = [one.metrics for one in moon_jax.rounds(config(sources[1], **CHANGES))]
  assert found == whole.metrics
  images, labels = whole.model.test_data()
  assert (len(images), len(labels)) == (26, 26)


def test_a_round_has_the_examples_of_its_cohort_alone(built):
  sizes = built.data.partition.sizes
  assert sizes.tolist() == [7, 3, 12, 30]
  plan = built.planner.plan(1)
  given = programs.train_split(built, plan.for_device())
  # The largest cohort of two owns 30 + 12.
  images = given.examples.images
  assert images.shape == built.data.train.examples.images.shape == (42, 8, 8, 1)
  ends = np.cumsum(sizes[plan.clients])
  assert np.asarray(given.offsets).tolist() == [0, *ends]
  assert plan.schedule.example_rows[plan.step_real].max() == ends[-1] - 1
  stored = built.data.stream.data.stored
  for slot, (images, labels) in enumerate(stored.read(stored.records[plan.clients])):
    mine = slice(*np.asarray(given.offsets)[slot : slot + 2])
    np.testing.assert_array_equal(given.examples.images[mine], images)
    np.testing.assert_array_equal(given.examples.labels[mine], labels)


@pytest.mark.parametrize('place', ['memory', 'disk', 'dealt'])
def test_a_round_tells_each_client_of_its_data(place, sources):
  knobs = {'data.source': 'digits', 'partition.name': 'shards', 'data.limit': 90}
  if place != 'dealt':
    knobs = sources[place == 'disk']
  changed = CHANGES | {'algorithm': 'feddyn', 'feddyn.by_size': True}
  of_size, of_classes = (
    experiment.build(moon_jax.config.validate(config(knobs, **changes)))
    for changes in (changed, CHANGES | {'algorithm': 'fedlc'})
  )
  plan = of_classes.planner.plan(1)
  labels = np.asarray(
    programs.train_split(of_classes, plan.for_device()).examples.labels
  )
  owned = of_classes.planner.training.data.rows_of(plan.clients)
  counts = plan.cohort.client_facts['class_counts']
  assert counts.dtype == np.float32
  for mine, rows in zip(counts, owned, strict=True):
    assert mine.tolist() == np.bincount(labels[rows], minlength=len(mine)).tolist()
  assert len({tuple(mine) for mine in counts}) > 1
  sizes = of_size.data.partition.sizes
  found = of_size.planner.plan(1).cohort.client_facts
  assert found.keys() == {'relative_size'}
  wanted = sizes[plan.clients] * len(sizes) / sizes.sum()
  np.testing.assert_allclose(found['relative_size'], wanted, rtol=1e-6)


def test_a_record_damaged_during_a_run_costs_nothing_that_was_saved(
  sources, whole, built, tmp_path
):
  """The damage is found when the client is packed; after a repair the run goes on."""
  place = tmp_path / 'records'
  shutil.copytree(sources[1]['data.path'], place)
  knobs, path = sources[1] | {'data.path': str(place)}, place / records.RECORDS
  early = {*built.planner.cohort(0), *built.planner.cohort(1)}
  late = {*built.planner.cohort(2), *built.planner.cohort(3)} - early
  assert late
  good = path.read_bytes()
  for byte in range(0, len(good), 97):
    path.write_bytes(good[:byte] + bytes([good[byte] ^ 8]) + good[byte + 1 :])
    if set() < unreadable(place) <= late:
      break
  else:
    raise AssertionError('no byte is of such a record alone')
  with pytest.raises(UsageError, match=f'^{path}(: record .)? is damaged'):
    moon_jax.run(config(knobs, **CHANGES), tmp_path / 'run')
  assert 1 <= len(read_lines(tmp_path / 'run/metrics.jsonl')) <= 3
  path.write_bytes(good)
  moon_jax.run(config(knobs, **CHANGES), tmp_path / 'run')
  check_same(tmp_path / 'run', whole.workdir)


def unreadable(folder):
  """The clients whose records cannot be read."""
  try:
    stored = records.load_records(str(folder)).stored
  except UsageError:
    return {*range(4)}
  found = set()
  for client in range(4):
    try:
      stored.read(stored.records[[client]])
    except UsageError:
      found.add(client)
  return found


ALL_EXAMPLES = (
  "^--config.data.source='records' keeps each client on disk: it needs "
  r'--config.partition\.name=natural, and an algorithm of several clients\.$'
)


@pytest.mark.parametrize(
  ('changes', 'told'),
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
def test_what_changes_examples_or_wants_all_is_refused(changes, told, sources):
  changed = config(sources[1], **CHANGES)
  changed.update_from_flattened_dict(changes)
  with pytest.raises(UsageError, match=told):
    experiment.build(moon_jax.config.validate(changed))


def test_a_process_reads_the_clients_of_its_own_lanes(built):
  clients, stream = built.planner.cohort(0), built.data.stream
  whole, part = (
    stream.load_split(clients, slots, built.placement.mesh).examples
    for slots in (np.arange(len(clients)), np.array([1]))
  )
  own = np.zeros(len(part.labels), bool)
  own[stream.rows(clients)[1]] = True
  np.testing.assert_array_equal(part.images[own], whole.images[own])
  np.testing.assert_array_equal(part.labels[own], whole.labels[own])
  assert not part.images[~own].any()
  assert whole.images[~own].any()


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
    done = launch(tmp_path, *words, f'--workdir=run{users}', **program)
    check_success(done)
    peaks[users] = int(done.stdout.split('peak ')[1])
  on_disk = 10_000 * 50 * 28 * 28
  assert peaks[10_000] - peaks[100] < on_disk / 4
