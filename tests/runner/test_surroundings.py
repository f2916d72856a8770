"""Where JAX fails, or computes another thing: one line, before data are loaded."""

import importlib.util
import os
import subprocess
import sys

import numpy as np
import pytest

from moon_jax.core.errors import ExitCode
from tests.processes import LAUNCH, check_success, surroundings

SLOW = pytest.mark.slow
HAS_CUDA = importlib.util.find_spec('jax_cuda12_plugin') is not None
NO_CUDA = (SLOW, pytest.mark.skipif(HAS_CUDA, reason='there is a plugin for CUDA'))
TINY = ('--config.num_rounds=1', '--config.local_epochs=1', '--config.data.limit=300')


def launch_in(folder, *words, kibibytes='unlimited', **environment):
  limited = ['sh', '-c', f'ulimit -v {kibibytes} && exec "$@"', 'sh']
  return subprocess.run(
    [*limited, sys.executable, LAUNCH, *TINY, *words, '--workdir=run'],
    cwd=folder,
    env=surroundings((), environment),
    capture_output=True,
    text=True,
    timeout=120,
    check=False,
  )


def check_refused(folder, done, words):
  assert done.returncode == ExitCode.USAGE, done.stderr
  assert words in done.stderr
  assert done.stderr.count('\n') == 1, done.stderr
  assert done.stdout == ''
  assert not os.listdir(folder)


@pytest.mark.parametrize(
  ('environment', 'words'),
  [
    ({'JAX_PLATFORMS': 'cpuu'}, "JAX_PLATFORMS='cpuu': no such device"),
    pytest.param(
      {'JAX_PLATFORMS': 'cuda'}, "JAX_PLATFORMS='cuda': no such device", marks=NO_CUDA
    ),
    pytest.param(
      {'JAX_DISABLE_JIT': '1'}, 'JAX_DISABLE_JIT changes what is computed', marks=SLOW
    ),
    ({'JAX_ENABLE_X64': '1'}, 'JAX_ENABLE_X64 changes what is computed'),
  ],
)
def test_surroundings_that_are_refused(tmp_path, environment, words):
  check_refused(tmp_path, launch_in(tmp_path, **environment), words)


def test_too_little_address_space_is_told_at_once(tmp_path):
  done = launch_in(tmp_path, kibibytes=1500000)
  check_refused(tmp_path, done, 'ulimit -v allows 1,536,000,000 bytes')


@pytest.mark.slow
def test_a_display_that_is_none_is_not_asked_for(tmp_path):
  done = launch_in(tmp_path, MPLBACKEND='nosuch')
  assert (done.returncode, done.stderr) == (ExitCode.DONE, '')


def test_without_a_compiler_a_run_says_that_it_is_slower(tmp_path):
  rng = np.random.default_rng(0)
  arrays = {}
  for split in ('train', 'test'):
    arrays[f'{split}_x'] = rng.integers(0, 256, (300, 28, 28, 1), np.uint8)
    arrays[f'{split}_y'] = np.arange(300) % 10
  np.savez(tmp_path / 'data.npz', **arrays)
  words = ('--config.data.source=npz', '--config.data.path=data.npz')
  done = launch_in(tmp_path, *words, '--config.model=moon_cnn', CXX='/is/not/there')
  check_success(done)
  assert (
    'convolutions in a slower form: the C++ compiler /is/not/there cannot be run: '
    'No such file or directory\n'
  ) in done.stdout
