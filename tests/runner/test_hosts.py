"""Several processes are one run: the same numbers, one end, one line if it is early."""

import json
import platform
import shutil
import signal
import time

import numpy as np
import pytest

from moon_jax.data import convert
from moon_jax.errors import ExitCode
from tests.data import federations
from tests.processes import (
  ROOT,
  Running,
  check_success,
  checkpoint,
  contents,
  launch,
  read_lines,
)
from tests.several import finish, places, run, started

HOST = platform.node()
RUN = (
  '--config.data.limit=300',
  '--config.num_clients=6',
  '--config.participation=0.7',  # 4 of them
  '--config.partition.min_size=2',
  '--config.local_epochs=1',
  '--config.mlp.width=16',
  '--config.mlp.representation=8',
  '--config.checkpoint_every_rounds=2',
  '--config.execution.lanes=4',
  '--workdir=run',
)
ROUNDS = '--config.num_rounds='
DEVICES = '--config.execution.devices='
# Rounds that take a second or more.
LONG = (*RUN[:4], '--config.local_epochs=300', *RUN[5:8], '--workdir=run')


@pytest.fixture
def folders(tmp_path):
  """Two, as of two hosts that share no disk."""
  made = [tmp_path / name for name in ('first', 'second')]
  for folder in made:
    folder.mkdir()
  return made


def check_successes(done):
  for one in done:
    check_success(one)


def metrics(folder):
  return (folder / 'run/metrics.jsonl').read_bytes()


def test_two_processes_are_one_with_two_devices(tmp_path, folders):
  alone = tmp_path / 'alone'
  alone.mkdir()
  check_success(launch(alone, *RUN, f'{ROUNDS}4', f'{DEVICES}2'))
  done = run(folders, *RUN, f'{ROUNDS}2', f'{DEVICES}1')
  check_successes(done)
  assert f'processes: 2; 2 on {HOST}' in done[0].stdout
  assert 'round 2/2' in done[0].stdout
  # Process 0 reads what is saved, and sends it to the other one.
  check_successes(run(folders, *RUN, f'{ROUNDS}4', f'{DEVICES}1'))
  assert metrics(folders[0]) == metrics(alone)
  assert checkpoint(folders[0] / 'run', 4) == checkpoint(alone / 'run', 4)
  assert contents(folders[1]) == {}


# --- the battery ----------------------------------------------------------------------

# Many runs in one start: JAX and its processes are started once.
MANY = """
import json, os, sys
from moon_jax import cli
from moon_jax.engine import hosts
runs = json.load(open('runs.json'))
with hosts.joined(lambda: {'runs': runs}):
  from moon_jax.runner import loop
  for words in runs:
    loop.run(cli.parse([*words, *sys.argv[1:]]))
"""
# One of each kind: what is sent, remembered, kept where, and done with uploads.
RUNS = {
  'fedavg': {'algorithm': 'fedavg'},
  'scaffold': {'algorithm': 'scaffold'},
  'sa_moon': {'algorithm': 'sa_moon'},
  'dco_moon': {'algorithm': 'dco_moon'},
  'peers': {'algorithm': 'decentralized_fedavg'},
  'solo': {'algorithm': 'solo'},
  'krum': {'algorithm': 'krum', 'krum.num_byzantine': 0},
  'fedadam': {'algorithm': 'fedavg', 'server_optimizer.name': 'adam'},
  'frozen once': {'algorithm': 'moon', 'local_epochs': 2},
  'moon on disk': {'algorithm': 'moon', 'execution.client_store': 'disk'},
  'peers in memory': {
    'algorithm': 'decentralized_moon',
    'execution.client_store': 'disk',
  },
}
# With several devices in each process too.
SEVERAL_DEVICES = ('scaffold', 'krum', 'frozen once', 'peers in memory')


def words_of(name):
  changes = {'num_rounds': 3, **RUNS[name]}
  given = [f'--config.{knob}={value}' for knob, value in changes.items()]
  return [*RUN[:-1], f'--workdir={name}', *given]


@pytest.fixture(scope='module')
def battery(tmp_path_factory):
  """(processes, devices of each) -> the folder of all runs of so many."""
  base, made = tmp_path_factory.mktemp('battery'), {}
  for count, devices in ((1, 2), (2, 1), (2, 2), (1, 4)):
    folder = made[count, devices] = base / f'{count}x{devices}'
    folder.mkdir()
    words = [
      words_of(name) for name in (RUNS if count * devices == 2 else SEVERAL_DEVICES)
    ]
    (folder / 'runs.json').write_text(json.dumps(words))
    program = {'program': ('-c', MANY), 'PYTHONPATH': str(ROOT)}
    if count == 1:
      check_success(launch(folder, f'{DEVICES}{devices}', **program))
    else:
      check_successes(run([folder] * count, f'{DEVICES}{devices}', **program))
  return made


@pytest.mark.slow
@pytest.mark.parametrize('name', RUNS)
def test_any_division_into_processes_gives_the_same_results(battery, name):
  split, whole = (battery[c] / name / 'metrics.jsonl' for c in ((2, 1), (1, 2)))
  assert len(read_lines(whole)) == 3
  assert split.read_bytes() == whole.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize('name', SEVERAL_DEVICES)
def test_processes_may_have_several_devices_each(battery, name):
  split, whole = (
    read_lines(battery[c] / name / 'metrics.jsonl') for c in ((2, 2), (1, 4))
  )
  assert len(whole) == 3
  for one, other in zip(split, whole, strict=True):
    assert one.keys() == other.keys()
    for key, value in one.items():
      np.testing.assert_allclose(value, other[key], rtol=1e-6, atol=1e-6, err_msg=key)


@pytest.mark.slow
def test_data_that_stay_on_disk_are_read_by_who_trains_on_them(tmp_path, folders):
  knobs = federations.hdf5(tmp_path, federations.federation())
  words = [f'--config.{name}={value}' for name, value in knobs.items()]
  assert convert.main([*words, f'--out={tmp_path / "records"}']) == ExitCode.DONE
  words = (
    '--config.data.source=records',
    f'--config.data.path={tmp_path / "records"}',
    '--config.partition.name=natural',
    *(word for word in RUN if 'data.' not in word and 'clients' not in word),
    '--config.participation=0.5',
    '--config.execution.client_store=disk',
    f'{ROUNDS}3',
  )
  alone = tmp_path / 'alone'
  alone.mkdir()
  check_success(launch(alone, *words, f'{DEVICES}2'))
  check_successes(run(folders, *words, f'{DEVICES}1'))
  assert metrics(folders[0]) == metrics(alone)
  assert checkpoint(folders[0] / 'run', 3) == checkpoint(alone / 'run', 3)


# --- ends -----------------------------------------------------------------------------


def lines(done):
  """What the processes wrote to standard error, line by line."""
  return [one.stderr.splitlines() for one in done]


def codes(done):
  return [one.returncode for one in done]


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.parametrize('signalled', [0, 1])
def test_sigterm_to_any_process_saves_and_ends_all(folders, signalled):
  words = (*LONG, f'{ROUNDS}50', f'{DEVICES}1')
  with started(folders, *words) as processes:
    processes[0].wait_for('round 2/50')
    processes[signalled].send(signal.SIGTERM)
    done = finish(processes)
  assert codes(done) == [ExitCode.PREEMPTED] * 2
  last = len(read_lines(folders[0] / 'run/metrics.jsonl'))
  for said in lines(done):
    assert f'Stopped by SIGTERM after round {last}, which is saved. ' in said[-1]
  assert checkpoint(folders[0] / 'run', last)


@pytest.mark.slow
@pytest.mark.faults
def test_sigterm_while_it_compiles_ends_all(folders):
  words = (*LONG, f'{ROUNDS}4', f'{DEVICES}1', '--config.execution.compile_cache=off')
  with started(folders, *words) as processes:
    processes[0].wait_for('lanes: ')
    processes[1].send(signal.SIGTERM)
    done = finish(processes)
  assert codes(done) == [ExitCode.PREEMPTED] * 2
  assert 'Stopped at once by SIGTERM' in done[1].stderr
  line = f'Process 1 on {HOST} has ended with exit code 75; it says why.'
  assert lines(done)[0] == [line]


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.parametrize('killed', [0, 2])
def test_a_killed_process_ends_all_and_fewer_go_on(tmp_path, killed):
  words = (*RUN, f'{DEVICES}1')
  with started([tmp_path] * 3, *words, f'{ROUNDS}500') as processes:
    processes[0].wait_for('round 5/500')
    processes[killed].send(signal.SIGKILL)
    begin = time.monotonic()
    done = finish(processes)
    assert time.monotonic() - begin < 60
  line = (
    f'Process {killed} on {HOST} has ended; the same command goes on from what was '
  )
  for index, one in enumerate(done):
    if index == killed:
      assert one.returncode == -signal.SIGKILL
    else:
      assert one.returncode == ExitCode.FAILED
      assert one.stderr == f'{line}saved.\n'
  # With two, and then alone.
  steps = (tmp_path / 'run/checkpoints').glob('[0-9]*')
  saved = max(int(path.name) for path in steps if path.name.isdecimal())
  with started([tmp_path] * 2, *words, f'{ROUNDS}500') as processes:
    processes[0].wait_for(f'resumed after round {saved} of 500')
    processes[0].wait_for(f'round {saved + 4}/500')
    processes[1].send(signal.SIGTERM)
    assert codes(finish(processes)) == [ExitCode.PREEMPTED] * 2
  done = len(read_lines(tmp_path / 'run/metrics.jsonl'))
  check_success(launch(tmp_path, *words, f'{ROUNDS}{done + 2}'))
  assert len(read_lines(tmp_path / 'run/metrics.jsonl')) == done + 2


@pytest.mark.faults
def test_a_process_that_never_comes_is_one_line(tmp_path):
  both = places(3, wait=3)
  words = (*RUN, f'{ROUNDS}2')
  with (
    Running(tmp_path, *words, **both[0]) as first,
    Running(tmp_path, *words, **both[2]) as last,
  ):
    done = finish([first, last])
  at = both[0]['MOON_JAX_COORDINATOR']
  line = f'Of 3 processes 1 did not come to {at} within 3 s (MOON_JAX_WAIT).'
  assert lines(done) == [[line], [line]]
  assert codes(done) == [ExitCode.FAILED] * 2
  alone = launch(tmp_path, *words, **places(2, wait=1)[1])
  assert alone.returncode == ExitCode.FAILED
  assert 'Of 2 processes 0 did not come to localhost:' in alone.stderr
  assert contents(tmp_path) == {}


@pytest.mark.faults
def test_different_commands_are_refused_with_the_difference(folders):
  each = [('--config.seed=1',), ('--config.seed=2',)]
  done = run(folders, *RUN, each=each)
  line = (
    f'Process 1 on {HOST} has another command or program than process 0: '
    '--config.seed: 1 -> 2.'
  )
  assert lines(done) == [[line]] * 2
  assert codes(done) == [ExitCode.USAGE] * 2
  assert contents(folders[0]) == contents(folders[1]) == {}


@pytest.mark.slow
@pytest.mark.faults
def test_what_only_one_process_finds_out_ends_all(folders):
  rng = np.random.default_rng(0)
  for folder in folders:
    images = rng.integers(0, 256, (60, 8, 8), np.uint8)
    arrays = {'train_x': images, 'test_x': images}
    labels = np.arange(60) % 4
    np.savez(folder / 'data.npz', train_y=labels, test_y=labels, **arrays)
  data = ('--config.data.source=npz', '--config.data.path=data.npz')
  words = (*RUN, *data, f'{ROUNDS}2', f'{DEVICES}1')
  done = run(folders, *words)
  assert codes(done) == [ExitCode.USAGE] * 2
  for said in lines(done):
    start = f'Process 1 on {HOST} has another data set than process 0: SHA-256: '
    assert len(said) == 1
    assert said[0].startswith(start)
  # Missing on one host.
  (folders[1] / 'data.npz').unlink()
  done = run(folders, *words)
  assert codes(done) == [ExitCode.USAGE] * 2
  line = f'Process 1 on {HOST} has ended with exit code 2; it says why.'
  assert lines(done)[0] == [line]
  assert 'data.npz' in done[1].stderr
  # The run directory is process 0's: another experiment is there.
  shutil.copy(folders[0] / 'data.npz', folders[1])
  check_successes(run(folders, *words))
  again = run(folders, *words)
  check_successes(again)
  assert 'nothing to do: the run has the 2 rounds asked for' in again[0].stdout
  done = run(folders, *words, '--config.seed=1')
  assert codes(done) == [ExitCode.USAGE] * 2
  assert lines(done)[0] == lines(done)[1]
  assert 'holds another experiment: seed: 0 -> 1' in lines(done)[1][0]
  # A round's four clients are in four lanes.
  words = (*words, '--config.execution.lanes=1', '--workdir=other')
  done = run(folders, *words)
  assert codes(done) == [ExitCode.USAGE] * 2
  for said in lines(done):
    assert len(said) == 1
    assert said[0].startswith('2 processes need a lane each, and lanes are 1: start ')
