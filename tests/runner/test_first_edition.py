"""Runs of the first edition, stopped in the middle, go on to the same end."""

import json
import pathlib
import shutil

import numpy as np
import pytest

import moon_jax
from tests.processes import check_success, checkpoint, launch, read_lines
from tests.selection import few

FIXTURES = pathlib.Path(__file__).parents[1] / 'fixtures/first_edition'
NUM_SAVED, NUM_ROUNDS = 2, 6


@pytest.mark.faults
@pytest.mark.parametrize('algorithm', few(['moon'], ['scaffold']))
def test_a_run_of_the_first_edition_goes_on(tmp_path, algorithm):
  fixture, run = FIXTURES / algorithm, tmp_path / algorithm
  shutil.copytree(fixture, run, ignore=shutil.ignore_patterns('ended_*'))
  command = json.loads((fixture / 'config.json').read_text())['command']
  words = [word for word in command.split()[2:] if 'num_rounds' not in word]
  done = launch(tmp_path, *words, f'--config.num_rounds={NUM_ROUNDS}')
  check_success(done)
  assert f'resumed after round {NUM_SAVED} of {NUM_ROUNDS}' in done.stdout

  lines, ended = (
    path.read_bytes().splitlines()
    for path in (run / 'metrics.jsonl', fixture / 'ended_metrics.jsonl')
  )
  assert lines[:NUM_SAVED] == ended[:NUM_SAVED]
  found = read_lines(run / 'metrics.jsonl')
  wanted = read_lines(fixture / 'ended_metrics.jsonl')
  assert len(found) == len(wanted) == NUM_ROUNDS
  # It knew nothing of `train_accuracy`, nor of `partition.balance` in its config.json.
  told = [line.pop('train_accuracy', None) for line in found]
  assert [accuracy is not None for accuracy in told] == [False] * 2 + [True] * 4
  for line, truth in zip(found, wanted, strict=True):
    # Another kind of CPU rounds otherwise; on that of the fixture the bytes are equal.
    assert line.pop('clients') == truth.pop('clients')
    assert line == pytest.approx(truth, rel=1e-4, abs=1e-6)

  leaves = checkpoint(run, NUM_ROUNDS)
  with np.load(fixture / 'ended_state.npz') as state:
    assert {name.replace('/', '.')[1:] for name in leaves} == set(state)
    for name, (dtype, shape, data) in leaves.items():
      truth = state[name.replace('/', '.')[1:]]
      assert (dtype, shape) == (str(truth.dtype), truth.shape)
      leaf = np.frombuffer(data, dtype).reshape(shape)
      np.testing.assert_allclose(leaf, truth, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize('algorithm', ['moon', 'scaffold'])
def test_its_model_is_loaded(algorithm):
  # Its config.json knows nothing of the algorithms that came later.
  model = moon_jax.load(FIXTURES / algorithm)
  assert model.round == 2
  images = np.zeros((3, 8, 8), np.uint8)
  assert model.predict(images).logits.shape == (3, 10)
