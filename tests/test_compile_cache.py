"""Compiled programs are kept in private, and a bad one is never used."""

import json
import re
import stat

import pytest

from moon_jax import compile_cache
from moon_jax.errors import ExitCode, RunError
from tests.processes import Running, check_success, contents, launch
from tests.test_storage import fill

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
  (cache / 'jit_other-0-cache').write_bytes(b'half a pro')
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


def test_a_full_disk_is_one_line(disk):
  folder = disk('small', '64k')
  cache = compile_cache.using(str(folder / 'programs'), print)
  full = r'digests\.json cannot be written: No space left'
  with pytest.raises(RunError, match=full), cache:
    fill(folder)
  assert [path.name for path in (folder / 'programs').iterdir()] == ['.lock']
