"""This code repeats a run of papers/frozen/: it computes what commit f2054011 did."""

import os
import shlex
import subprocess
import sys

import jax
import pytest

from moon_jax.core import files
from papers import kept_runs, numerics, planned
from tests.data.test_real_data import PREPARED
from tests.processes import ROOT, read_lines

RUN = 'moon_cvpr21_moon_seed4'
NUM_ROUNDS = 2
# What papers.numerics says of the machine that made it; bits must be equal on its like.
MADE_ON = 'AuthenticAMD 25 1, avx2, C++'
# Relative, and in accuracy.
TOLERANCES = {'train_loss': 0.01, 'test_accuracy': 0.02}


@pytest.mark.slow
@pytest.mark.usefixtures('as_users')
@pytest.mark.skipif(
  not (PREPARED / 'cifar10').is_dir(),
  reason='no prepared CIFAR-10 in $TFDS_DATA_DIR or ../shared/data/tfds',
)
def test_two_rounds_of_a_kept_run_repeat(tmp_path):
  kept = kept_runs.read(ROOT / f'papers/frozen/{RUN}.jsonl.gz')
  assert kept.provenance['git_commit'].startswith(planned.COMMIT)
  flags = [
    f'--config.data.dir={PREPARED}',
    f'--config.num_rounds={NUM_ROUNDS}',
    '--config.execution.devices=1',
    '--config.execution.lanes=1',
    f'--workdir={tmp_path / "run"}',
  ]
  command = [*shlex.split(kept.command.removeprefix('python ')), *flags]
  environment = os.environ | {'JAX_PLATFORMS': 'cpu'}
  # Two rounds take minutes on a slow core: no limit.
  subprocess.run([sys.executable, *command], cwd=ROOT, check=True, env=environment)
  description = files.read_json(tmp_path / 'run/config.json')
  if description['data_digest'] != kept.data_digest:
    pytest.skip('no prepared CIFAR-10 with the pixels of the kept run')
  rounds = read_lines(tmp_path / 'run/metrics.jsonl')
  kept_rounds = kept.rounds[:NUM_ROUNDS]
  made_by = (kept.provenance['versions']['jax'], MADE_ON)
  if (jax.__version__, numerics.arithmetic()) == made_by:
    assert rounds == kept_rounds
  for computed, expected in zip(rounds, kept_rounds, strict=True):
    assert computed['clients'] == expected['clients']
    assert computed['num_steps'] == expected['num_steps']
    assert computed['train_loss'] == pytest.approx(
      expected['train_loss'], rel=TOLERANCES['train_loss']
    )
    assert computed['test_accuracy'] == pytest.approx(
      expected['test_accuracy'], abs=TOLERANCES['test_accuracy']
    )
