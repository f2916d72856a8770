"""Compiled programs are kept in private, and a bad one is never used."""

import json
import os
import re
import stat
import warnings

import jax
import numpy as np
import pytest

from moon_jax.errors import ExitCode
from moon_jax.runner import compile_cache
from tests.processes import Running, check_success, contents, launch
from tests.runner.test_storage import fill

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


def entries(folder):
  return sorted(path for path in folder.iterdir() if path.name.endswith('-cache'))


@pytest.mark.faults
def test_bad_entries_are_removed_and_the_run_goes_on(tmp_path):
  cache = tmp_path / 'programs'
  check_success(launch(tmp_path, *RUN, CACHE, '--workdir=first'))
  assert stat.S_IMODE(cache.stat().st_mode) == 0o700
  round_program, test_program = entries(cache)[::-1]
  assert round_program.name.startswith('jit_run_round-')
  assert test_program.name.startswith('jit_evaluate-')
  whole = contents(cache)
  metrics = (tmp_path / 'first/metrics.jsonl').read_bytes()

  # Truncated; and one bit in the middle, which JAX itself would run.
  round_program.write_bytes(round_program.read_bytes()[:-100])
  flipped = bytearray(test_program.read_bytes())
  flipped[len(flipped) // 2] ^= 1
  test_program.write_bytes(flipped)
  # As of a process that was killed before it had written the digests.
  (cache / f'jit_other-{KEY}-cache').write_bytes(b'half a pro')
  done = launch(tmp_path, *RUN, CACHE, '--workdir=second')
  check_success(done)
  assert 'compile cache: 3 bad entries removed from programs\n' in done.stdout
  assert contents(cache).keys() == whole.keys()
  assert json.loads(contents(cache)['digests.json']).keys() == {
    path.name for path in entries(cache)
  }
  assert (tmp_path / 'second/metrics.jsonl').read_bytes() == metrics

  # Now they are good: looked up, not compiled, and not written again.
  before = contents(cache)
  done = launch(tmp_path, *RUN, CACHE, '--workdir=third', JAX_LOG_COMPILES='1')
  assert done.returncode == ExitCode.DONE
  assert 'bad entries' not in done.stdout
  hits = re.findall(r'Persistent compilation cache hit for .(jit_\w+)', done.stderr)
  assert hits == ['jit_run_round', 'jit_evaluate']
  assert contents(cache) == before
  assert (tmp_path / 'third/metrics.jsonl').read_bytes() == metrics


@pytest.mark.faults
def test_a_killed_process_leaves_a_cache_that_works(tmp_path):
  cache = tmp_path / 'programs'
  with Running(tmp_path, *RUN, CACHE, '--workdir=run') as process:
    process.pause_when(lambda: cache.exists() and entries(cache))
    process.kill()
  assert not (cache / 'digests.json').exists()
  done = launch(tmp_path, *RUN, CACHE, '--workdir=run')
  check_success(done)
  assert 'compile cache: 1 bad entries removed from programs\n' in done.stdout


@pytest.mark.parametrize('mode', [0o755, 0o750, 0o701])
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
  assert done.stderr == (
    "--config.execution.compile_cache='programs' must be a folder.\n"
  )
  assert contents(tmp_path) == {'programs': b'mine'}


@pytest.mark.faults
def test_a_run_goes_on_without_what_a_full_disk_cannot_keep(disk, tmp_path):
  cache = disk('small', '16k') / 'programs'
  done = launch(tmp_path, *RUN, f'--config.execution.compile_cache={cache}')
  check_success(done)
  told = [line for line in done.stdout.splitlines() if 'compile cache' in line]
  assert told == [
    f'compile cache: jit_run_round, jit_evaluate not kept in {cache}: No space left on '
    'device'
  ]
  assert re.search(
    r'^compiling one round and one test \.\.\. [\d.]+ s$', done.stdout, re.M
  )
  assert [path.name for path in cache.iterdir()] == ['.lock']


def add_entry(folder, name):
  """As JAX does."""
  (folder / f'{name}-{KEY}-cache').write_bytes(name.encode())


def test_an_entry_whose_digest_does_not_fit_is_not_kept(disk):
  folder, told = disk('small', '64k'), []
  cache = folder / 'programs'
  with compile_cache.using(str(cache), told.append):
    add_entry(cache, 'jit_old')
  before = contents(cache)
  with compile_cache.using(str(cache), told.append):
    add_entry(cache, 'jit_new')
    filler = fill(folder)
  assert told == [
    f'compile cache: jit_new not kept in {cache}: No space left on device'
  ]
  assert contents(cache) == before
  # What was there before is still good.
  filler.unlink()
  with compile_cache.using(str(cache), told.append):
    add_entry(cache, 'jit_new')
  assert len(told) == 1
  assert json.loads(contents(cache)['digests.json']).keys() == {
    f'jit_new-{KEY}-cache',
    f'jit_old-{KEY}-cache',
  }


def test_a_torn_entry_is_not_kept_and_a_whole_one_is(disk):
  folder, told = disk('small', '64k'), []
  cache = folder / 'programs'
  noise = np.random.default_rng(0).integers(0, 256, 100_000, np.uint8)

  def small(x):
    return x + 1

  def large(x):
    return x + noise

  with compile_cache.using(str(cache), told.append):
    for function in (small, large):
      jax.jit(function).lower(np.zeros_like(noise)).compile()
  assert told == [
    f'compile cache: jit_large not kept in {cache}: No space left on device'
  ]
  (kept,) = entries(cache)
  assert kept.name.startswith('jit_small-')
  with compile_cache.using(str(cache), told.append):
    assert entries(cache) == [kept]
  assert len(told) == 1


def test_no_room_for_the_folder(disk):
  folder, told = disk('small', '64k,nr_inodes=1'), []
  with compile_cache.using(str(folder / 'programs'), told.append):
    pass
  assert told == [
    f'compile cache: not used, {folder}/programs cannot be written: No space left on '
    'device'
  ]


def test_a_link_and_a_pipe_are_bad_entries(tmp_path):
  cache, told = tmp_path / 'programs', []
  with compile_cache.using(str(cache), told.append):
    add_entry(cache, 'jit_good')
  before = contents(cache)
  (cache / f'jit_link-{KEY}-cache').symlink_to('nowhere')
  os.mkfifo(cache / f'jit_pipe-{KEY}-cache')
  with compile_cache.using(str(cache), told.append):
    assert len(entries(cache)) == 1
  assert told.pop() == f'compile cache: 2 bad entries removed from {cache}'
  assert contents(cache) == before


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
  (tmp_path / f'jit_folder-{KEY}-cache').mkdir()
  with compile_cache.using(str(tmp_path), told.append):
    assert jax.config.jax_compilation_cache_dir is None
  assert told == [
    f'compile cache: not used, a bad entry of {tmp_path} stays: Is a directory'
  ]
  names = {path.name for path in tmp_path.rglob('*')} - {'.lock'}
  assert names == {
    'pip-cache',
    'thesis.tex',
    'font-cache',
    f'jit_folder-{KEY}-cache',
  }


def a_link(path):
  path.symlink_to('nowhere')


def a_list(path):
  path.write_text(f'["jit_good-{KEY}-cache"]')


@pytest.mark.parametrize(('spoil', 'num_bad'), [(a_link, 2), (a_list, 1)])
def test_digests_that_are_none(tmp_path, spoil, num_bad):
  cache, told = tmp_path / 'programs', []
  with compile_cache.using(str(cache), told.append):
    add_entry(cache, 'jit_good')
  before = contents(cache)
  (cache / 'digests.json').unlink()
  spoil(cache / 'digests.json')
  with compile_cache.using(str(cache), told.append):
    add_entry(cache, 'jit_good')
  assert told == [f'compile cache: {num_bad} bad entries removed from {cache}']
  assert contents(cache) == before


def test_other_warnings_are_shown(tmp_path):
  with (
    pytest.warns(UserWarning, match='of something else'),
    compile_cache.using(str(tmp_path / 'programs'), print),
  ):
    warnings.warn('of something else', stacklevel=1)
