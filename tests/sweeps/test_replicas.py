"""Replicas of a sweep end in the directories that they would have alone."""

import shutil
import signal

import jax
import numpy as np
import pytest

import moon_jax
from moon_jax import cli, config
from moon_jax.config import ConfigError
from moon_jax.engine import programs
from moon_jax.errors import DivergedError, ExitCode, RunError, UsageError
from moon_jax.runner import lock
from moon_jax.runner.checkpoint import Checkpoints
from moon_jax.runner.console import Console
from moon_jax.runner.replicas import run
from moon_jax.runner.signals import Stop
from moon_jax.sweeps import command
from tests.processes import Running, checkpoint, launch, read_lines
from tests.sweeps.test_sweep import SWEEP, TINY

OVER = {'moon.mu': [1.0, 5.0], 'seed': [0, 1]}
RUNS = [f'moon.mu={mu}-seed={seed}' for mu in (1.0, 5.0) for seed in (0, 1)]


def load(**changes):
  given = dict(word.removeprefix('--config.').split('=') for word in TINY)
  words = {name: config.from_word(name, word) for name, word in given.items()}
  return moon_jax.load_config('configs/digits_moon.py', words | changes)


def check_same(one, other, rtol=1e-5):
  """Both have the same records, up to rounding."""
  lines = [read_lines(place / 'metrics.jsonl') for place in (one, other)]
  for mine, own in zip(*lines, strict=True):
    assert mine.keys() == own.keys()
    for name, value in mine.items():
      np.testing.assert_allclose(value, own[name], rtol=rtol, atol=1e-5, err_msg=name)


@pytest.fixture(scope='module')
def alone(tmp_path_factory):
  """A sweep whose runs ran one after another, for four rounds."""
  out = tmp_path_factory.mktemp('alone')
  moon_jax.sweep(load(num_rounds=4), OVER, out, replicas=1)
  return out


@pytest.fixture(scope='module')
def together(tmp_path_factory):
  """The same sweep, with three runs at a time."""
  out = tmp_path_factory.mktemp('together')
  return out, moon_jax.sweep(load(num_rounds=4), OVER, out, replicas=3)


def test_their_directories_are_those_of_runs_alone(alone, together):
  out, rows = together
  for name, row in zip(RUNS, rows, strict=True):
    check_same(out / name, alone / name)
    assert row['workdir'] == str(out / name)
    files = [
      {p.relative_to(place / name) for p in (place / name).glob('*[!0-9]')}
      for place in (out, alone)
    ]
    assert files[0] == files[1]
    partition = [
      (place / name / 'partition.npz').read_bytes() for place in (out, alone)
    ]
    assert partition[0] == partition[1]
    assert len(read_lines(out / name / 'timings.jsonl')) == 4
    told = moon_jax.load(out / name).predict(np.zeros((1, 8, 8, 1), np.uint8))
    assert told.labels.shape == (1,)


def test_each_can_go_on_alone(alone, together, tmp_path):
  places = []
  for number, out in enumerate((together[0], alone)):
    places.append(shutil.copytree(out / RUNS[-1], tmp_path / str(number) / RUNS[-1]))
    moon_jax.run(load(num_rounds=5, seed=1, **{'moon.mu': 5.0}), places[-1])
  check_same(*places)
  assert len(read_lines(places[0] / 'metrics.jsonl')) == 5


def test_those_that_are_in_different_rounds_go_on_together(alone, tmp_path):
  moon_jax.run(load(num_rounds=1, **{'moon.mu': 1.0}), tmp_path / RUNS[0])
  moon_jax.run(load(num_rounds=3, **{'moon.mu': 5.0}), tmp_path / RUNS[2])
  over = OVER | {'seed': [0]}
  moon_jax.sweep(load(num_rounds=4), over, tmp_path, replicas=2)
  for name in (RUNS[0], RUNS[2]):
    check_same(tmp_path / name, alone / name)


def test_one_that_diverges_is_told_and_the_others_go_on(alone, tmp_path, capsys):
  over = {'optimizer.learning_rate': [0.01, 1e30]}
  common = load(num_rounds=4, **{'moon.mu': 1.0})
  with pytest.raises(DivergedError, match='Diverged in round 1'):
    moon_jax.sweep(common, over, tmp_path, replicas=2)
  assert 'learning_rate=1e+30: Diverged in round 1.' in capsys.readouterr().err
  check_same(tmp_path / 'optimizer.learning_rate=0.01', alone / RUNS[0])
  bad = tmp_path / 'optimizer.learning_rate=1e+30'
  assert len(read_lines(bad / 'metrics.jsonl')) == 1
  assert not (bad / 'summary.json').exists()
  assert not list((bad / 'checkpoints').iterdir())


def test_what_ends_all_of_a_program_holds_no_other_back(tmp_path, capsys, monkeypatch):
  compile_programs = programs.compile_programs

  def without_room_for_fedavg(built, *given, **more):
    if built.config.algorithm == 'fedavg':
      raise jax.errors.JaxRuntimeError('RESOURCE_EXHAUSTED: no room')
    return compile_programs(built, *given, **more)

  monkeypatch.setattr(programs, 'compile_programs', without_room_for_fedavg)
  over = {'algorithm': ['fedavg', 'moon'], 'seed': [0, 1]}
  with pytest.raises(RunError, match='Out of memory'):
    moon_jax.sweep(load(num_rounds=1), over, tmp_path, replicas=2)
  told = capsys.readouterr().err
  assert 'fedavg-seed=0, fedavg-seed=1: Out of memory' in told
  assert 'models of 2 runs, see --replicas' in told
  for seed in (0, 1):
    assert (tmp_path / f'moon-seed={seed}/summary.json').exists()
    assert not (tmp_path / f'fedavg-seed={seed}/summary.json').exists()


def test_a_full_disk_and_a_busy_directory_end_one_each(alone, tmp_path, monkeypatch):
  save = Checkpoints.save

  def save_but_of_one(self, state):
    if self._directory.parent.name == RUNS[1]:
      raise RunError('the disk is full')
    save(self, state)

  common = load(num_rounds=4, checkpoint_every_rounds=2)
  with monkeypatch.context() as patch, lock.held(tmp_path / RUNS[2]):
    patch.setattr(Checkpoints, 'save', save_but_of_one)
    with pytest.raises(lock.BusyError, match='Another process is running'):
      moon_jax.sweep(common, OVER, tmp_path, replicas=4)
  finished = [(tmp_path / name / 'summary.json').exists() for name in RUNS]
  assert finished == [True, False, False, True]
  assert len(read_lines(tmp_path / RUNS[1] / 'metrics.jsonl')) == 2
  assert not (tmp_path / RUNS[2] / 'metrics.jsonl').exists()
  moon_jax.sweep(common, OVER, tmp_path, replicas=4)
  for name in RUNS:
    check_same(tmp_path / name, alone / name)


def test_those_that_cannot_be_built_are_told(tmp_path, capsys):
  common = load(**{'partition.min_size': 50})
  with pytest.raises(UsageError, match='lower --config'):
    moon_jax.sweep(common, {'seed': [0, 1]}, tmp_path, replicas=2)
  assert capsys.readouterr().err.count('lower --config.num_clients') == 2


def test_what_another_process_has_ended_is_left_alone(together):
  out, _ = together
  places = [out / name for name in RUNS[:2]]
  files = [place / name for place in places for name in ('config.json', 'summary.json')]
  before = [(file.read_bytes(), file.stat().st_mtime_ns) for file in files]
  requests = [
    cli.request(load(num_rounds=4, seed=seed, **{'moon.mu': 1.0}), place, '')
    for seed, place in enumerate(places)
  ]
  assert run(requests, Stop(), lambda requests: Console()) == []
  assert [(file.read_bytes(), file.stat().st_mtime_ns) for file in files] == before


@pytest.mark.slow
@pytest.mark.parametrize('algorithm', ['decentralized_moon', 'solo', 'scaffold'])
def test_of_clients_with_models_of_their_own(algorithm, tmp_path):
  for replicas in (1, 2):
    common = load(algorithm=algorithm, num_clients=3)
    moon_jax.sweep(
      common, {'seed': [0, 1]}, tmp_path / str(replicas), replicas=replicas
    )
  for seed in (0, 1):
    check_same(*(tmp_path / str(count) / f'seed={seed}' for count in (1, 2)))


@pytest.mark.slow
def test_stopped_together_they_go_on_to_the_same_bits(tmp_path):
  words = (*TINY, '--config.num_rounds=200', '--over', 'seed=0,1', '--no-report')
  words += ('--replicas=2',)
  with Running(tmp_path, *words, '--out=stopped', program=SWEEP) as process:
    process.wait_for('round 3/200')
    process.send(signal.SIGTERM)
    done = process.finish()
  assert done.returncode == ExitCode.PREEMPTED
  saved = [
    max(int(p.name) for p in (tmp_path / f'stopped/seed={s}/checkpoints').iterdir())
    for s in (0, 1)
  ]
  assert saved[0] == saved[1] < 200
  for out in ('stopped', 'whole'):
    done = launch(tmp_path, *words, f'--out={out}', program=SWEEP)
    assert done.returncode == ExitCode.DONE
  for seed in (0, 1):
    runs = [tmp_path / out / f'seed={seed}' for out in ('stopped', 'whole')]
    assert len({(run / 'metrics.jsonl').read_bytes() for run in runs}) == 1
    assert checkpoint(runs[0], 200) == checkpoint(runs[1], 200)


def test_two_in_one_directory_are_refused(tmp_path):
  common = moon_jax.load_config('configs/cifar10_moon.py')
  with pytest.raises(ConfigError, match=r'Several runs would be in data.dir=_a_b\.'):
    moon_jax.sweep(common, {'data.dir': ['/a b', '/a_b']}, tmp_path)


def test_their_number_may_be_left_to_the_device():
  for words, number in (([], None), (['--replicas=auto'], None), (['--replicas=3'], 3)):
    assert command.parse(words).values.replicas == number


@pytest.mark.parametrize('words', [('--replicas=0',), ('--replicas=2', '--slurm=')])
def test_a_number_that_cannot_be_is_refused(words, tmp_path):
  done = launch(tmp_path, *words, '--dry-run', program=SWEEP)
  assert done.returncode == ExitCode.USAGE
  assert len(done.stderr.splitlines()) == 1
