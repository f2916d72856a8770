"""Compiled programs are kept, and no state of the folder ends a run."""

import errno
import fcntl
import os
import shutil
import stat
import subprocess
import sys
import time
from concurrent import futures

import filelock
import jax
import numpy as np
import pytest
from jax._src import lru_cache
from jax.experimental.compilation_cache import compilation_cache

from moon_jax import catalog
from moon_jax.core import user_cache
from moon_jax.models import cpu_kernels
from moon_jax.platform import compile_cache
from tests.processes import LIMIT_SECONDS, ROOT, check_success, contents, launch
from tests.runner.test_files import fill

HIT = '/jax/compilation_cache/cache_hits'


@pytest.fixture(autouse=True)
def _no_other_cache(tmp_path, monkeypatch):
  """These tests look up neither the programs that tests share nor the user's."""
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'home'))
  # JAX's own settings, of which tests/conftest.py has changed some.
  defaults = {
    'jax_compilation_cache_dir': None,
    'jax_persistent_cache_min_compile_time_secs': 1.0,
    'jax_persistent_cache_enable_xla_caches': 'xla_gpu_per_fusion_autotune_cache_dir',
  }
  shared = {name: getattr(jax.config, name) for name in defaults}

  def use(settings):
    for name, value in settings.items():
      jax.config.update(name, value)
    compilation_cache.reset_cache()

  use(defaults)
  yield
  use(shared)


def start(choice, *factors):
  """Compiles programs like a start; returns how many of them were looked up."""
  hits = []

  def count_hit(event, **_):
    hits.append(event == HIT)

  def compile_programs():
    hits.clear()
    return [compiled_product(factor) for factor in factors or (3,)]

  jax.monitoring.register_event_listener(count_hit)
  try:
    programs = compile_cache.compiled(str(choice), compile_programs)
  finally:
    jax.monitoring.unregister_event_listener(count_hit)
  for factor, program in zip(factors or (3,), programs, strict=True):
    assert np.asarray(program(np.float32([2]))) == 2 * factor
  return sum(hits)


def compiled_product(factor):
  return jax.jit(lambda x: factor * x).lower(np.float32([2])).compile()


def the_entry(folder):
  (entry,) = (folder / 'programs').glob('*-cache')
  return entry


def damage(entry, damage_kind):
  """Damages the entry as a kill, a full disk or a worn disk does."""
  content = entry.read_bytes()
  middle = len(content) // 2
  if damage_kind == 'torn':
    entry.write_bytes(content[:-100])
  elif damage_kind == 'flipped':
    flipped_byte = bytes([content[middle] ^ 1])
    entry.write_bytes(content[:middle] + flipped_byte + content[middle + 1 :])
  elif damage_kind == 'emptied':
    entry.write_bytes(b'')
  elif damage_kind == 'killed before the time of use':
    entry.with_name(entry.name.removesuffix('cache') + 'atime').unlink()
  else:
    entry.with_name('.lockfile').write_text('12345')


@pytest.mark.parametrize(
  ('damage_kind', 'hits', 'num_lines'),
  [
    ('torn', [0, 0, 1], 1),
    ('flipped', [0, 0, 1], 1),
    ('emptied', [0, 0, 1], 1),
    ('killed before the time of use', [1, 1, 1], 0),
    ('a stale lock', [1, 1, 1], 0),
  ],
)
def test_a_damaged_entry_is_compiled_anew_and_replaced(
  tmp_path, capsys, damage_kind, hits, num_lines
):
  assert [start(tmp_path) for _ in range(2)] == [0, 1]
  damage(the_entry(tmp_path), damage_kind)
  assert [start(tmp_path) for _ in range(3)] == hits
  lines = capsys.readouterr().err.splitlines()
  assert len(lines) == num_lines
  for line in lines:
    assert line.startswith(f'compile cache {tmp_path / "programs"}: ')
  # Another program is still kept.
  assert [start(tmp_path, 5) for _ in range(2)] == [0, 1]
  assert capsys.readouterr().err == ''


def test_an_entry_without_a_time_of_use_does_not_keep_others_out(tmp_path, capsys):
  start(tmp_path)
  damage(the_entry(tmp_path), 'killed before the time of use')
  hits = [start(tmp_path, 5) for _ in range(3)]
  # JAX before 0.12 cannot write beside such an entry: the first start removes it.
  assert hits in ([0, 0, 1], [0, 1, 1])
  assert capsys.readouterr().err.count('\n') == hits.count(0) - 1


def test_an_error_that_is_not_the_caches_is_raised_and_costs_no_entry(tmp_path, capsys):
  def fail():
    raise ValueError('of the program')

  start(tmp_path)
  with pytest.raises(ValueError, match='of the program'):
    compile_cache.compiled(str(tmp_path), fail)
  assert start(tmp_path) == 1
  assert capsys.readouterr().err == ''


FAULTS = {
  'others may write': 'nobody else may write there',
  'of another user': 'it must be yours',
  'a file': 'File exists',
}


def spoil(folder, fault):
  """Makes a folder, or a file in its place, that cannot be used."""
  if fault == 'a file':
    folder.touch()
    return
  folder.mkdir()
  if fault == 'others may write':
    folder.chmod(0o770)
  else:
    shutil.chown(folder, 12345)


@pytest.mark.parametrize('name', ['moon_jax', 'named'])
@pytest.mark.parametrize('inside', ['', 'programs'])
@pytest.mark.parametrize('fault', FAULTS)
def test_where_nothing_can_be_kept_one_line_says_so(
  tmp_path, capsys, fault, inside, name
):
  home, folder = tmp_path / 'home', tmp_path / 'home' / name
  (folder if inside else home).mkdir(parents=True)
  try:
    spoil(folder / inside, fault)
  except PermissionError:
    pytest.skip('only root can give a folder away')
  before = contents(home)
  for _ in range(2):
    assert start('auto' if name == 'moon_jax' else folder) == 0
  assert contents(home) == before
  warning = capsys.readouterr().err
  assert warning.count('\n') == 1
  assert warning.startswith(f'nothing is kept in {folder}')
  assert FAULTS[fault] in warning


def test_a_lock_that_another_process_holds_is_not_waited_for_long(
  tmp_path, capsys, monkeypatch
):
  # JAX waits for ten seconds, and has no setting for it.
  defaults = lru_cache.LRUCache.__init__.__kwdefaults__
  monkeypatch.setitem(defaults, 'lock_timeout_secs', 0.1)
  tmp_path.chmod(0o755)  # others may read
  start(tmp_path)
  with filelock.FileLock(tmp_path / 'programs/.lockfile'):
    assert start(tmp_path) == 0
  assert capsys.readouterr().err.count('\n') == 1
  assert start(tmp_path) == 1


@pytest.mark.parametrize('number', [errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP])
def test_a_disk_without_locks_keeps_nothing(tmp_path, capsys, monkeypatch, number):
  def refuse(*_):
    raise OSError(number, os.strerror(number))

  monkeypatch.setattr(fcntl, 'flock', refuse)
  assert [start(tmp_path) for _ in range(2)] == [0, 0]
  assert capsys.readouterr().err == (
    f'nothing is kept in {tmp_path / "programs"}: its file system has no locks; '
    '--config.execution.compile_cache names another folder\n'
  )
  assert list((tmp_path / 'programs').iterdir()) == []


def test_a_full_disk_costs_what_it_cannot_keep(disk, capsys):
  folder = disk('small', '64k')
  start(folder / 'cache')
  filler = fill(folder)
  assert start(folder / 'cache', 5, 7) == 0
  warning = capsys.readouterr().err
  assert 'No space left on device' in warning
  assert warning.count('\n') == 1
  filler.unlink()
  assert [start(folder / 'cache', 3, 5, 7) for _ in range(2)] == [0, 3]


PROCESS = """
import sys
import jax, numpy
from moon_jax.platform import compile_cache
def compile_programs():
  for factor in range(20):
    jax.jit(lambda x: factor * x).lower(numpy.float32(1)).compile()
compile_cache.compiled(sys.argv[1], compile_programs)
"""


@pytest.mark.slow
def test_processes_that_start_at_once_share_an_empty_folder(tmp_path, monkeypatch):
  monkeypatch.setenv('PYTHONPATH', str(ROOT))
  monkeypatch.delenv('JAX_COMPILATION_CACHE_DIR')
  folder = tmp_path / 'programs'
  words = [sys.executable, '-c', PROCESS, folder]
  processes = [
    subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    for _ in range(2)
  ]
  outputs = [process.communicate(timeout=LIMIT_SECONDS)[0] for process in processes]
  assert outputs == [b'', b'']
  assert [process.returncode for process in processes] == [0, 0]
  assert len(list(folder.rglob('*-cache'))) == 20


@pytest.mark.slow
def test_a_second_start_of_a_run_compiles_nothing_and_all_end_alike(tmp_path):
  flags = [
    '--config.data.limit=300',
    '--config.num_rounds=1',
    '--config.mlp.width=8',
    '--config.local_epochs=1',
  ]
  with_cache = '--config.execution.compile_cache=kept'
  without_cache = '--config.execution.compile_cache=off'
  deterministic = '--config.execution.deterministic=true'

  def program_names():
    return sorted(path.name for path in tmp_path.glob('kept/programs/*-cache'))

  check_success(launch(tmp_path, *flags, with_cache, '--workdir=first'))
  names = program_names()
  assert {name.partition('-')[0] for name in names} == {'jit_run_round', 'jit_evaluate'}
  check_success(launch(tmp_path, *flags, with_cache, '--workdir=second'))
  flags += [without_cache, deterministic]
  check_success(launch(tmp_path, *flags, '--workdir=without'))
  assert program_names() == names
  metrics = (tmp_path / 'first/metrics.jsonl').read_bytes()
  for workdir in ('second', 'without'):
    assert (tmp_path / workdir / 'metrics.jsonl').read_bytes() == metrics


def test_the_users_folder_is_the_default_and_off_is_none(tmp_path):
  assert catalog.every_knob()['execution.compile_cache'].default == 'auto'
  assert list(map(start, ('off', 'off', '', 'auto', 'auto'))) == [0, 0, 0, 0, 1]
  assert user_cache.folder() == tmp_path / 'home/moon_jax'
  assert stat.S_IMODE(user_cache.folder().stat().st_mode) == 0o700


def test_kernels_in_c_are_kept_there_too(tmp_path, monkeypatch):
  monkeypatch.setattr(cpu_kernels, '_cache_folder', None)
  for choice, folder in (
    ('auto', tmp_path / 'home/moon_jax'),
    (str(tmp_path / 'named'), tmp_path / 'named'),
    ('off', None),
  ):
    compile_cache.keep_kernels(choice)
    assert cpu_kernels._cache_folder == folder


def test_a_cache_that_jax_was_given_is_left_to_it(tmp_path):
  def cache_settings():
    settings = jax.config
    return settings.jax_compilation_cache_dir, settings.jax_compilation_cache_max_size

  jax.config.update('jax_compilation_cache_dir', str(tmp_path / 'mine'))
  mine = cache_settings()
  assert mine[0] == str(tmp_path / 'mine')
  assert compile_cache.compiled('auto', cache_settings) == mine
  named = compile_cache.compiled(str(tmp_path / 'named'), cache_settings)
  assert named == (str(tmp_path / 'named/programs'), 2**28)
  assert cache_settings() == mine
  assert not user_cache.folder().exists()


class Program:
  """A program that takes a while to compile, and writes down when."""

  def __init__(self, text, moments):
    self._text, self._moments = text, moments

  def as_text(self):
    return self._text

  def compile(self, compiler_options=None):
    self._moments.append(f'begin {self._text}')
    time.sleep(0.3)
    self._moments.append(f'end {self._text}')


@pytest.mark.parametrize(('texts', 'is_in_turn'), [('aa', True), ('ab', False)])
def test_processes_of_a_sweep_compile_the_same_program_one_after_another(
  texts, is_in_turn, tmp_path, monkeypatch
):
  """A lock of a file is between open files, so threads are as processes."""
  monkeypatch.setattr(compile_cache, '_takes_turns', True)
  (tmp_path / 'programs').mkdir()
  moments = []
  before = jax.config.jax_compilation_cache_dir
  jax.config.update('jax_compilation_cache_dir', str(tmp_path / 'programs'))
  try:
    with futures.ThreadPoolExecutor(2) as threads:
      programs = [Program(text, moments) for text in texts]
      list(threads.map(lambda p: compile_cache.compile_in_turn(p, 'it'), programs))
  finally:
    jax.config.update('jax_compilation_cache_dir', before)
  kinds = [moment.split()[0] for moment in moments]
  in_turn = ['begin', 'end', 'begin', 'end']
  assert (kinds == in_turn) == is_in_turn
  assert list((tmp_path / 'compiling').iterdir()) == []


@pytest.mark.parametrize(
  ('backend', 'kept'),
  [('cpu', 'none'), ('gpu', 'xla_gpu_per_fusion_autotune_cache_dir')],
)
def test_what_xla_measures_is_kept_on_gpus_and_removed_with_the_entries(
  tmp_path, monkeypatch, backend, kept
):
  monkeypatch.setattr(jax, 'default_backend', lambda: backend)
  chosen = []

  def compile_programs():
    chosen.append(jax.config.jax_persistent_cache_enable_xla_caches)
    if len(chosen) == 1:
      raise ValueError('of the cache')

  measured = tmp_path / 'programs/xla_gpu_per_fusion_autotune_cache_dir/product.txt'
  measured.parent.mkdir(parents=True, mode=0o700)
  measured.touch()
  for folder in (tmp_path, tmp_path / 'programs'):
    folder.chmod(0o700)
  compile_cache.compiled(str(tmp_path), compile_programs)
  assert chosen[0] == kept
  assert not measured.exists()
