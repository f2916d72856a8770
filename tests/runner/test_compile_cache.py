"""Compiled programs are kept in private, and a bad one is never used."""

import os
import re
import stat

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

from moon_jax import catalog
from moon_jax.errors import ExitCode
from moon_jax.models import fused_cpu
from moon_jax.runner import compile_cache
from tests.processes import Running, check_success, contents, launch
from tests.runner.test_files import fill
from tests.selection import few

RUN = (
  '--config.data.limit=60',
  '--config.num_clients=2',
  '--config.partition.name=iid',
  '--config.algorithm=fedavg',
  '--config.mlp.width=8',
  '--config.mlp.representation=8',
  '--config.local_epochs=1',
  '--config.num_rounds=1',
)
CACHE = '--config.execution.compile_cache=programs'
KEY = '0' * 64


@pytest.fixture(autouse=True)
def _no_other_cache():
  """The programs that the tests share are not looked up here."""
  shared = jax.config.jax_compilation_cache_dir
  jax.config.update('jax_compilation_cache_dir', None)
  compilation_cache.reset_cache()
  yield
  jax.config.update('jax_compilation_cache_dir', shared)
  compilation_cache.reset_cache()


def entries(folder):
  return sorted(path for path in folder.iterdir() if path.suffix != '.sha256')


@pytest.mark.slow
@pytest.mark.faults
def test_bad_entries_are_removed_and_the_run_goes_on(tmp_path):
  cache = tmp_path / 'programs'
  check_success(launch(tmp_path, *RUN, CACHE, '--workdir=first'))
  assert stat.S_IMODE(cache.stat().st_mode) == 0o700
  of_test, of_round = entries(cache)[:2], entries(cache)[2:]
  assert all(path.name.startswith('jit_evaluate-') for path in of_test)
  assert all(path.name.startswith('jit_run_round-') for path in of_round)
  whole = contents(cache)
  metrics = (tmp_path / 'first/metrics.jsonl').read_bytes()

  # Truncated; and one bit in the middle, which JAX itself would run.
  for path in of_round:
    path.write_bytes(path.read_bytes()[:-100])
  flipped = bytearray(of_test[0].read_bytes())
  flipped[len(flipped) // 2] ^= 1
  of_test[0].write_bytes(flipped)
  # As of a process that was killed before it had written the digest.
  (cache / f'jit_other-{KEY}-cache').write_bytes(b'half a pro')
  done = launch(tmp_path, *RUN, CACHE, '--workdir=second')
  check_success(done)
  assert f'compile cache: 4 bad entries removed from {cache}\n' in done.stdout
  assert contents(cache).keys() == whole.keys()
  assert (tmp_path / 'second/metrics.jsonl').read_bytes() == metrics

  # Now they are good: looked up, not compiled, and not written again.
  before = contents(cache)
  done = launch(tmp_path, *RUN, CACHE, '--workdir=third')
  check_success(done)
  assert 'bad entries' not in done.stdout
  assert contents(cache) == before
  assert (tmp_path / 'third/metrics.jsonl').read_bytes() == metrics

  # A setting of JAX may change what is traced. Here it does not, so nothing compiles.
  done = launch(tmp_path, *RUN, CACHE, '--workdir=fourth', JAX_LOG_COMPILES='1')
  assert done.returncode == ExitCode.DONE
  hits = re.findall(r'Persistent compilation cache hit for .(jit_\w+)', done.stderr)
  assert hits == ['jit_run_round', 'jit_evaluate']
  assert contents(cache).keys() > before.keys()


@pytest.mark.faults
@pytest.mark.slow
def test_a_killed_process_leaves_a_cache_that_works(tmp_path):
  cache = tmp_path / 'programs'
  with Running(tmp_path, *RUN, CACHE, '--workdir=run') as process:
    process.pause_when(lambda: list(cache.glob('*-cache')))
    process.kill()
  assert not list(cache.glob('*-cache.sha256'))
  assert len(list(cache.glob('*-traced.sha256'))) == 2
  done = launch(tmp_path, *RUN, CACHE, '--workdir=run')
  check_success(done)
  assert f'compile cache: 1 bad entries removed from {cache}\n' in done.stdout


@pytest.mark.parametrize('mode', few([0o755], [0o750, 0o701]))
def test_a_folder_that_others_may_enter_is_refused(tmp_path, mode):
  (tmp_path / 'programs').mkdir()
  (tmp_path / 'programs').chmod(mode)
  done = launch(tmp_path, *RUN, CACHE)
  assert done.returncode == ExitCode.USAGE
  (line,) = done.stderr.splitlines()
  assert line.startswith(
    "--config.execution.compile_cache='programs' must be a folder "
  )
  assert contents(tmp_path) == {}


def test_a_file_is_refused(tmp_path):
  (tmp_path / 'programs').write_text('mine')
  done = launch(tmp_path, *RUN, CACHE)
  assert done.returncode == ExitCode.USAGE
  assert 'must be a folder' in done.stderr
  assert contents(tmp_path) == {'programs': b'mine'}


@pytest.mark.slow
@pytest.mark.faults
def test_a_run_goes_on_without_what_a_full_disk_cannot_keep(disk, tmp_path):
  cache = disk('small', '16k') / 'programs'
  # Nor does the second start take what was torn for a program.
  for workdir in ('--workdir=first', '--workdir=second'):
    done = launch(tmp_path, *RUN, f'--config.execution.compile_cache={cache}', workdir)
    assert done.returncode == ExitCode.DONE, done.stderr
    assert 'No space left on device' in done.stderr


def add_entry(folder, name):
  """As JAX does."""
  (folder / f'{name}-{KEY}-cache').write_bytes(name.encode())


def test_an_entry_whose_digest_does_not_fit_is_removed_by_the_next_start(disk):
  folder, told = disk('small', '64k'), []
  cache = folder / 'programs'
  with compile_cache.using(str(cache), told.append):
    add_entry(cache, 'jit_old')
  before = contents(cache)
  with compile_cache.using(str(cache), told.append):
    add_entry(cache, 'jit_new')
    filler = fill(folder)
  filler.unlink()
  with compile_cache.using(str(cache), told.append):
    assert contents(cache).keys() == before.keys()
    add_entry(cache, 'jit_newer')
  assert told == [f'compile cache: 1 bad entries removed from {cache}']
  assert contents(cache).keys() == {
    *(f'jit_{name}-{KEY}-cache' for name in ('newer', 'old')),
    *(f'jit_{name}-{KEY}-cache.sha256' for name in ('newer', 'old')),
  }


def test_nothing_of_others_is_removed(tmp_path):
  # A folder that is private, but not ours alone.
  told = []
  tmp_path.chmod(0o700)
  (tmp_path / 'pip-cache').mkdir()
  (tmp_path / 'pip-cache/thesis.tex').touch()
  (tmp_path / 'font-cache').touch()
  with compile_cache.using(str(tmp_path), told.append):
    pass
  assert told == []
  names = {path.name for path in tmp_path.rglob('*')}
  assert names == {'pip-cache', 'thesis.tex', 'font-cache'}


def test_the_users_folder_is_the_default_and_off_is_none(tmp_path, monkeypatch):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
  assert catalog.every_knob()['execution.compile_cache'].default == 'auto'
  assert compile_cache.folder_of('auto') == tmp_path / 'moon_jax'
  assert compile_cache.folder_of('off') is compile_cache.folder_of('') is None
  with compile_cache.using('auto', print):
    add_entry(tmp_path / 'moon_jax', 'jit_new')
  assert len(entries(tmp_path / 'moon_jax')) == 1
  assert stat.S_IMODE((tmp_path / 'moon_jax').stat().st_mode) == 0o700


def test_kernels_in_c_are_kept_there_too(tmp_path, monkeypatch):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
  monkeypatch.setattr(fused_cpu, '_folders', [])
  folder = tmp_path / 'moon_jax'

  def kept_in(choice):
    compile_cache.check(choice)
    return fused_cpu._folders[0]()

  compile_cache.check('auto')
  assert not folder.exists()
  assert kept_in('auto') == folder
  assert stat.S_IMODE(folder.stat().st_mode) == 0o700
  assert kept_in(str(tmp_path / 'programs')) == tmp_path / 'programs'
  assert kept_in('off') is None
  folder.chmod(0o770)
  assert kept_in('auto') is None


def test_a_cache_that_jax_was_given_is_left_to_it(tmp_path, monkeypatch):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
  jax.config.update('jax_compilation_cache_dir', str(tmp_path / 'mine'))
  with compile_cache.using('auto', print):
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / 'mine')
  assert contents(tmp_path) == {}


def test_without_a_home_that_can_be_written_nothing_is_kept(tmp_path, monkeypatch):
  (tmp_path / 'file').touch()
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'file'))
  told = []
  with compile_cache.using('auto', told.append):
    assert jax.config.jax_compilation_cache_dir is None
  assert told == [
    f'no compile cache: {tmp_path}/file/moon_jax cannot be written: Not a directory'
  ]


def test_the_oldest_entries_go(tmp_path, monkeypatch):
  monkeypatch.setattr(compile_cache, '_MOST_BYTES', 20)
  cache = tmp_path / 'programs'
  for number in range(4):
    with compile_cache.using(str(cache), print):
      add_entry(cache, f'jit_{number}')  # five letters
      os.utime(entries(cache)[-1], ns=(number, number))
  with compile_cache.using(str(cache), print):
    add_entry(cache, 'jit_4')
  kept = {path.name.partition('-')[0] for path in cache.iterdir()}
  assert kept == {'jit_1', 'jit_2', 'jit_3', 'jit_4'}
