"""Memories on the device or in a file: the same run, and none is lost."""

import contextlib
import errno
import functools
import os
import shutil
import tempfile

import jax
import numpy as np
import pytest

import moon_jax
from moon_jax import config as config_lib
from moon_jax.building import experiment
from moon_jax.core import files
from moon_jax.core.errors import NoCheckpointError, RunError
from moon_jax.core.types import Server, State
from moon_jax.platform import client_memory
from moon_jax.predict import inference
from moon_jax.runner import checkpoint, checkpoint_folder, client_store, model_tests
from moon_jax.runner.client_store import ClientStore, read_index
from tests.processes import check_same_records, flip
from tests.run_directories import TINY
from tests.selection import few

TIERS = ('device', 'disk')
# With SCAFFOLD, rounds use the clients' memories and tests do not.
CHANGES = TINY | {
  'algorithm': 'scaffold',
  'num_rounds': 6,
  'checkpoint_every_rounds': 2,
  'mlp.width': 16,
  'mlp.representation': 8,
}


def config_of(tier='device', **changes):
  changes = {name.replace('__', '.'): value for name, value in changes.items()}
  changes = CHANGES | {'execution.client_store': tier} | changes
  return moon_jax.load_config('configs/digits_moon.py', changes)


def built_of(tier='device', **changes):
  return experiment.build(config_lib.validate(config_of(tier, **changes)))


def run(workdir, tier='device', **changes):
  return moon_jax.run(config_of(tier, **changes), workdir)


def saved_memories(workdir):
  """The newest state, and each client's memory."""
  config = config_lib.validate(inference._read_saved_config(workdir)['config'])
  built = experiment.build(config)
  start = built.network.init(config.seed)
  template = jax.eval_shape(
    lambda: experiment.make_initial_state(built.algorithm, start, config.num_clients)
  )

  def first():
    return jax.device_get(built.algorithm.init_client(start))

  folder = workdir / 'checkpoints'
  clients = range(config.num_clients)
  return [checkpoint.newest(folder, template, client, first) for client in clients]


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
  """Tier and changes -> the directory of an undisturbed run."""

  @functools.cache
  def train_once(tier='disk', **changes):
    workdir = tmp_path_factory.mktemp('trained') / 'run'
    run(workdir, tier, **changes)
    return workdir

  return train_once


@pytest.fixture
def copied(trained, tmp_path):
  """Tier and changes -> the directory of a copy of that run."""

  def copy(*arguments, **changes):
    return shutil.copytree(trained(*arguments, **changes), tmp_path / 'run')

  return copy


expected_memories = functools.cache(saved_memories)  # many runs have to have the same


def assert_same(run, expected):
  check_same_records(run, expected)
  jax.tree.map(
    np.testing.assert_array_equal, saved_memories(run), expected_memories(expected)
  )


# --- the same run in every tier -------------------------------------------------------

# PLAIN: rounds and tests use memories. OTHERS: neighbours use them, there are memories
# of other kinds or none, or the server needs all uploads. SCAFFOLD, with memories in
# rounds alone, is trained in most other tests.
PLAIN = ['solo']
OTHERS = [
  'decentralized_moon',
  'moon',
  'fedavg',
  'sa_moon',
  'dco_moon',
  'krum',
  'ditto',
  'fedrep',
  'apfl',
  'pfedme',
  'per_fedavg',
  'fedala',
]
WITH_TESTS = ('ditto', 'apfl', 'pfedme', 'per_fedavg', 'fedala')


@pytest.mark.parametrize('algorithm', few(PLAIN, OTHERS))
def test_every_tier_gives_the_same_run(tmp_path, algorithm):
  for tier in TIERS:
    changes = {'algorithm': algorithm, 'eval_every_rounds': 4}
    changes |= {'data.local_test': 0.2} if algorithm in WITH_TESTS else {}
    if tier == 'disk':  # resumed, after a round that was tested
      run(tmp_path / tier, tier, num_rounds=4, **changes)
    metrics = run(tmp_path / tier, tier, **changes).metrics
  assert_same(tmp_path / 'disk', tmp_path / 'device')
  rounds_with_distance = [
    line['round'] for line in metrics if 'consensus_distance' in line
  ]
  assert rounds_with_distance == ([4, 6] if 'decentralized' in algorithm else [])


@pytest.mark.slow
def test_a_run_may_change_its_tier(tmp_path, trained):
  for rounds, tier in enumerate(('disk', 'device', 'disk'), 1):
    run(tmp_path, tier, num_rounds=2 * rounds)
  assert_same(tmp_path, trained('device'))


@pytest.mark.slow
def test_without_a_run_directory_the_file_is_a_temporary_one(
  tmp_path, trained, monkeypatch
):
  monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path))
  outcomes = moon_jax.rounds(config_of('disk'))
  metrics = [next(outcomes).metrics]
  assert [path.name for path in tmp_path.glob('*/*')] == ['clients.bin']
  metrics += [outcome.metrics for outcome in outcomes]
  assert metrics == files.read_lines(trained() / 'metrics.jsonl')
  assert list(tmp_path.iterdir()) == []


# --- damage ---------------------------------------------------------------------------


@pytest.mark.parametrize('tier', few(['disk'], TIERS))
def test_a_flipped_bit_is_found_and_the_older_checkpoint_taken(
  trained, copied, tier, capsys
):
  workdir = copied()
  folder = workdir / 'checkpoints'
  newest, older = (read_index(folder / step / 'clients.npz') for step in '64')
  newest_places = set(newest.places) - set(older.places)
  record_bytes = built_of().placement.client_memory.bytes_per_client
  flip(folder / 'clients.bin', max(newest_places) * record_bytes + 5)
  (workdir / 'summary.json').unlink()
  run(workdir, tier)
  printed = capsys.readouterr().out
  assert 'checkpoint 6 is damaged (client ' in printed
  assert 'in clients.bin has changed); set aside as bad-6-1' in printed
  assert 'resumed after round 4 of 6' in printed
  assert_same(workdir, trained('device'))


def test_a_model_is_loaded_from_the_newest_checkpoint_that_has_its_memory(copied):
  folder = copied(algorithm='solo') / 'checkpoints'
  newest, older = (read_index(folder / step / 'clients.npz') for step in '64')
  last_place, damaged_client = max(zip(newest.places, newest.clients, strict=True))
  assert last_place not in older.places
  record_bytes = built_of(algorithm='solo').placement.client_memory.bytes_per_client
  flip(folder / 'clients.bin', last_place * record_bytes)
  damage = rf'^checkpoint 6 .* \(client {damaged_client} in .*\); round 4 is loaded$'
  with pytest.warns(UserWarning, match=damage) as caught:
    rounds = [moon_jax.load(folder.parent, client=client).round for client in range(10)]
  assert len(caught) == 1
  expected = [6] * 10
  expected[damaged_client] = 4
  assert rounds == expected


@pytest.mark.slow
@pytest.mark.parametrize('tier', TIERS)
def test_without_the_file_a_checkpoint_that_needs_none_is_taken(copied, tier, capsys):
  workdir = copied('device', num_rounds=2)
  run(workdir, 'disk', num_rounds=4)
  path = workdir / 'checkpoints/clients.bin'
  path.unlink()
  with pytest.warns(UserWarning, match='; round 2 is loaded'):
    assert moon_jax.load(workdir).round == 2
  os.mkfifo(path)  # opening it must not wait for a writer
  with pytest.warns(UserWarning, match='; round 2 is loaded'):
    assert moon_jax.load(workdir).round == 2
  path.unlink()
  run(workdir, tier, num_rounds=5)
  printed = capsys.readouterr().out
  assert 'set aside as bad-4-1' in printed
  assert 'resumed after round 2 of 5' in printed


def failing(number):
  def fail(*arguments):
    raise OSError(number, os.strerror(number))

  return fail


def unreadable(folder, monkeypatch):
  monkeypatch.setattr(os, 'pread', failing(errno.EIO))


def with_index(field, value):
  """Makes a stranger's damage, with a manifest that matches the damaged files."""

  def replace(folder, monkeypatch):
    for step in '46':
      index = read_index(folder / step / 'clients.npz')
      wrong = getattr(index, field).astype(np.int64)
      wrong[0] = value
      wrong = index._asdict() | {field: wrong}
      files.write_arrays(folder / step / 'clients.npz', wrong)
      (folder / step / 'manifest.json').unlink()
      checkpoint_folder.write_manifest(folder / step, int(step))

  return replace


@pytest.mark.parametrize(
  ('damage', 'problem'),
  [
    (unreadable, 'in clients.bin cannot be read (Input/output error)'),
    (with_index('clients', 10**9), 'there is no client 1000000000'),
    (with_index('places', 2**62), 'clients.bin is too short'),
  ],
)
def test_a_file_without_what_any_checkpoint_needs(
  copied, damage, problem, monkeypatch, capsys
):
  workdir = copied(algorithm='solo')
  damage(workdir / 'checkpoints', monkeypatch)
  with contextlib.suppress(NoCheckpointError):  # not every load reads what is damaged
    moon_jax.load(workdir, client=3)
  with pytest.raises(NoCheckpointError, match='holds no usable checkpoint'):
    run(workdir, 'disk', algorithm='solo', num_rounds=8)
  assert f'{problem}); set aside as bad-6-1' in capsys.readouterr().out


@pytest.mark.slow
def test_the_file_of_another_run_is_damage(trained, copied, capsys):
  workdir, other = copied(algorithm='solo'), trained(algorithm='solo', seed=1)
  shutil.copy(other / 'checkpoints/clients.bin', workdir / 'checkpoints/clients.bin')
  with pytest.raises(NoCheckpointError, match='holds no usable checkpoint'):
    run(workdir, 'disk', algorithm='solo', num_rounds=8)
  printed = capsys.readouterr().out
  assert 'clients.bin is too short); set aside as bad-6-1' in printed
  assert 'in clients.bin has changed); set aside as bad-4-1' in printed


@pytest.mark.slow
def test_memories_written_at_a_start_spare_older_checkpoints(trained, copied, capsys):
  """The newest checkpoint has all memories in its state, the older one in the file."""
  workdir = copied('disk', num_rounds=2)
  run(workdir, 'device', num_rounds=4)
  folder, built = workdir / 'checkpoints', built_of('disk')
  with (
    client_store.opened(built, folder) as store,
    checkpoint.Checkpoints(folder, print, store) as checkpoints,
  ):
    assert checkpoints.newest_or(experiment.initial_state(built)).round == 4
  (folder / '4/manifest.json').write_text('')
  run(workdir, 'disk')
  assert 'resumed after round 2 of 6' in capsys.readouterr().out
  assert_same(workdir, trained('device'))


def test_a_write_that_fails_once_ends_the_run(tmp_path, trained, monkeypatch):
  """The write fails long before a save: no later round trains on lost memories."""
  write, calls = os.pwrite, []

  def fail_once(*arguments):
    calls.append(arguments)
    return (failing(errno.ENOSPC) if len(calls) == 2 else write)(*arguments)

  monkeypatch.setattr(os, 'pwrite', fail_once)
  with pytest.raises(RunError, match='cannot be written: No space left'):
    run(tmp_path, 'disk', checkpoint_every_rounds=6)
  assert len(calls) == 2  # the run ends at the write, not at the save
  run(tmp_path, 'disk', checkpoint_every_rounds=6)
  assert_same(tmp_path, trained('device'))


# --- the file -------------------------------------------------------------------------

SIZE = 1000


def memories_of(seeds):
  drawn = [np.random.default_rng(seed).bytes(SIZE) for seed in seeds]
  return np.stack([np.frombuffer(memory, np.uint8) for memory in drawn])


def of_bytes(path):
  """A store of 100 clients that remember SIZE bytes."""
  return contextlib.closing(ClientStore(path, np.zeros(SIZE, np.uint8), 100))


@pytest.fixture
def store(tmp_path):
  with of_bytes(tmp_path / 'f') as store:
    yield store


def test_what_a_checkpoint_names_is_never_written_over(store):
  rng, protected, now = np.random.default_rng(0), [], {}
  for step in range(60):
    clients = np.sort(rng.choice(100, 7, replace=False))
    store.write(clients, memories_of(1000 * step + clients))
    now |= {int(client): 1000 * step + int(client) for client in clients}
    if step % 3 == 2:
      protected = [*protected, (store.index(), dict(now))][-2:]
      store.protect(index for index, _ in protected)
    for index, expected in protected:
      assert store.find_damage(index) == ''
      assert index.clients.tolist() == sorted(expected)
    np.testing.assert_array_equal(
      store.read(np.array([*now])), memories_of(now.values())
    )
  # The file holds two checkpoints of at most 100 clients and three rounds after the
  # newest.
  assert store._end <= 200 + 3 * 7


def test_memories_leave_a_save_the_space_that_it_needs(store):
  store.bytes_reserved = lambda: 2**62
  with pytest.raises(RunError, match='cannot be written: No space left on device'):
    store.write(np.arange(1), memories_of([0]))
  assert len(store.index().clients) == 0
  store.bytes_reserved = None
  store.write(np.arange(1), memories_of([0]))
  assert len(store.index().clients) == 1


def test_memories_need_no_space_for_what_a_save_has_written(store, monkeypatch):
  """The disk has room for a save and a record. The record comes after the weights."""
  state = State(Server({'params': np.ones(2**20, np.float32)}, ()), (), np.int32(1))
  disk = checkpoint_folder.bytes_needed(state) + 1000
  folder = store._path.parent / 'checkpoints'

  def disk_usage(path):
    return usage._replace(free=disk - files.bytes_on_disk(folder))

  def save_state(partial, *arguments):
    save(partial, *arguments)
    store.write(np.arange(1), memories_of([0]))

  save, usage = checkpoint_folder.save, shutil.disk_usage(store._path.parent)
  monkeypatch.setattr(checkpoint_folder, 'save', save_state)
  monkeypatch.setattr(files.shutil, 'disk_usage', disk_usage)
  with checkpoint.Checkpoints(folder, print, store) as checkpoints:
    checkpoints.save(state)
    checkpoints.wait()
  assert len(store.index().clients) == 1


def test_going_on_from_an_older_checkpoint(store):
  clients = np.arange(5)
  store.write(clients, memories_of(clients))
  older = store.index()
  store.protect([older])
  store.write(clients[:3], memories_of([7, 8, 9]))
  store.restore(older)
  store.protect([older])
  np.testing.assert_array_equal(store.read(clients), memories_of(clients))
  store.write(clients, memories_of(clients + 50))
  assert store.find_damage(older) == ''


# --- which tier, and the distance of all models ---------------------------------------

MIB = 2**20


@pytest.mark.parametrize(
  ('num_bytes', 'num_clients', 'cohort_size', 'tier'),
  [
    (MIB, 256, 10, 'device'),
    (MIB, 257, 10, 'disk'),
    (MIB, 1000, 250, 'device'),  # a client takes part in every fourth round
    (MIB, 1001, 250, 'disk'),
    (135_000, 10_000, 50, 'disk'),  # 1.35 GB in all
    (0, 10**6, 50, 'device'),
  ],
)
def test_auto_leaves_the_device_where_a_save_would_hurt(
  num_bytes, num_clients, cohort_size, tier
):
  memory = np.zeros(num_bytes, np.uint8)
  algorithm = built_of().algorithm._replace(init_client=lambda variables: memory)

  def choose(choice):
    return client_memory.choose(
      algorithm, {}, requested=choice, num_clients=num_clients, cohort_size=cohort_size
    )

  assert choose('auto') == (tier == 'device', num_bytes)
  assert choose('device').on_device
  assert not choose('disk').on_device or not num_bytes


def test_consensus_distance_by_hand(monkeypatch):
  monkeypatch.setattr(model_tests, '_MODELS_AT_A_TIME', 2)
  # The mean of (0, 0), (0, 0) and (9, 12) is (3, 4): the distances are 5, 5 and 10.
  models = {'a': np.array([0.0, 0.0, 9.0]), 'b': np.array([[0.0], [0.0], [12.0]])}

  def models_of(clients):
    return jax.tree.map(lambda leaf: leaf[clients], models)

  for has_trained in ([False, False, True], [True, False, True], [True, True, True]):
    distance = model_tests.consensus_distance(models_of, np.array(has_trained))
    assert distance == pytest.approx(20 / 3)


def test_one_model_stands_for_all_clients_that_never_trained():
  requested = []

  def models(clients):
    requested.extend(clients.tolist())
    return {'w': np.float32(clients == 70_001)}

  n = 100_000
  has_trained = np.isin(np.arange(n), [3, 70_001])
  distance = model_tests.consensus_distance(models, has_trained)
  assert distance == pytest.approx((n - 1) / n * 1 / n + (1 - 1 / n) / n)
  assert sorted(set(requested)) == [0, 3, 70_001]


def test_the_lines_of_a_layout():
  memory = {'params': {'w': np.zeros((2, 3), np.float32)}, 'n': np.zeros((), np.int32)}
  assert client_store.layout({'clients': memory}) == [
    'clients.n int32 ()',
    'clients.params.w float32 (2, 3)',
  ]
