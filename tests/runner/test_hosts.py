"""Several processes are one run: the same numbers, one end, one line if it is early."""

import json
import platform
import signal
import time
from concurrent import futures

import numpy as np
import pytest

from moon_jax.config import cli
from moon_jax.core.errors import ExitCode
from moon_jax.data import convert
from moon_jax.runner import start
from tests.data import federations
from tests.processes import (
  ROOT,
  check_success,
  checkpoint,
  contents,
  launch,
  read_lines,
)
from tests.several import finish, run, started

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
STOPPED = 'process 1 is asked to stop'  # a run that begins with these words


def made_in(parent):
  """Two folders, like those of two hosts that share no disk."""
  new_folders = [parent / name for name in ('first', 'second')]
  for folder in new_folders:
    folder.mkdir()
  return new_folders


@pytest.fixture
def folders(tmp_path):
  return made_in(tmp_path)


def lines(outcomes):
  """What the processes wrote to standard error, line by line."""
  return [outcome.stderr.splitlines() for outcome in outcomes]


def codes(outcomes):
  return [outcome.returncode for outcome in outcomes]


@pytest.fixture(scope='module')
def two_processes(tmp_path_factory):
  """Both folders after all runs of the list, and the output of each process."""
  folders = made_in(tmp_path_factory.mktemp('two'))
  rng, labels = np.random.default_rng(0), np.arange(60) % 4
  for folder, name in zip((*folders, folders[0]), ('both', 'both', 'one'), strict=True):
    images = rng.integers(0, 256, (60, 8, 8), np.uint8)
    arrays = {'train_x': images, 'test_x': 255 - images}
    np.savez(folder / f'{name}.npz', train_y=labels, test_y=labels, **arrays)
  words = (*RUN, f'{ROUNDS}3')
  other = (*words, '--workdir=other')
  data = (*other, '--config.data.source=npz', '--config.data.path=')
  runs = [
    (STOPPED, *words),
    words,  # process 0 reads what is saved, and sends it to the other one
    words,  # the run is finished already
    (*data[:-1], f'{data[-1]}both.npz'),
    (*data[:-1], f'{data[-1]}one.npz'),
    (*words, '--config.seed=1'),
    (*other, '--config.execution.lanes=1'),
    (*other, '--config.execution.client_store=disk'),
  ]
  outcomes = run_many(folders, runs, 1)
  (lines_of_first, (line_of_second,)) = lines(outcomes)
  assert not lines_of_first
  assert line_of_second.startswith('SIGTERM: saving after this round; ')
  return folders, [outcome.stdout for outcome in outcomes]


def test_a_request_to_one_process_ends_the_run_of_all(two_processes):
  _, outputs = two_processes
  code = int(ExitCode.PREEMPTED)
  for output in outputs:
    assert f'{code} Stopped by SIGTERM after round 1, which is saved. ' in output


def test_two_processes_are_one_with_two_devices(two_processes, tmp_path):
  folders, (first, _) = two_processes
  assert f'processes: 2; 2 on {HOST}' in first
  assert 'resumed after round 1 of 3' in first
  words = (*RUN, f'{ROUNDS}3', f'{DEVICES}2', f'--workdir={tmp_path}')
  start.run(cli.parse(words))
  of_two = folders[0] / 'run/metrics.jsonl'
  of_one = tmp_path / 'metrics.jsonl'
  assert of_two.read_bytes() == of_one.read_bytes()
  assert checkpoint(of_two.parent, 3) == checkpoint(tmp_path, 3)


def test_what_one_process_finds_out_is_told_by_all(two_processes):
  folders, (first, second) = two_processes
  assert 'nothing to do: the run has 3 rounds; 3 were asked for' in first
  errors = [line for line in first.splitlines() if line.startswith('2 ')]
  errors_of_second = [line for line in second.splitlines() if line.startswith('2 ')]
  assert errors_of_second[2:] == errors[2:]
  for line, beginning in zip(
    errors,
    (
      f'2 Process 1 on {HOST} has another data set than process 0: SHA-256: ',
      f'2 Process 1 on {HOST}: ',
      '2 The run directory run holds another experiment: seed: 0 -> 1',
      '2 2 processes need a lane each, and the run has 1: start ',
      "2 --config.execution.client_store='disk' must be device or auto in a run of 2 ",
    ),
    strict=True,
  ):
    assert line.startswith(beginning)
  assert 'one.npz' in errors[1]
  assert not (folders[0] / 'other').exists()
  assert {*contents(folders[1])} == {'runs.json', 'both.npz'}


# --- the battery ----------------------------------------------------------------------

# One start trains many runs: JAX and its processes start once, no pictures are drawn,
# and no program is traced twice.
MANY = f"""
import contextlib, json, os, sys
from moon_jax.config import cli
from moon_jax.building import programs
from moon_jax.platform import hosts, joining, launchers
from moon_jax.core.errors import RunError
from moon_jax.runner import callbacks, start, stop_requests
from tests.programs import compile_once
callbacks.PictureDrawer.end = lambda self: None
programs.compile_programs = compile_once
runs = [[*words, *sys.argv[1:]] for words in json.load(open('runs.json'))]
group, execution = launchers.detect(os.environ), cli.parse(runs[-1]).config.execution
joined = joining.joined(group, execution, dict) if group else contextlib.nullcontext()
with joined:
  for words in runs:
    stop = stop_requests.Stop()
    if words[0] == {STOPPED!r}:
      del words[0]
      if not hosts.is_first():
        stop.request(stop_requests.signal.SIGTERM)
    try:
      start.run(cli.parse(words), stop)
    except RunError as error:
      print(error.exit_code, error, flush=True)
"""
# Algorithms that differ in what they send and remember, and in the aggregation.
RUNS = {
  'scaffold': {'algorithm': 'scaffold'},
  'sa_moon': {'algorithm': 'sa_moon'},
  'dco_moon': {'algorithm': 'dco_moon'},
  'peers': {'algorithm': 'decentralized_moon'},
  'solo': {'algorithm': 'solo'},
  'krum': {'algorithm': 'krum', 'krum.num_byzantine': 0},
  'fedadam': {'algorithm': 'fedavg', 'server_optimizer.name': 'adam'},
  'frozen once': {'algorithm': 'moon', 'local_epochs': 2},
  # Each process reads the clients of its own lanes.
  'records': {'data.source': 'records', 'partition.name': 'natural'},
}
# (processes, devices of each) -> the runs that are made so.
DIVISIONS = dict.fromkeys([(1, 2), (2, 1)], tuple(RUNS))
DIVISIONS |= dict.fromkeys([(2, 2), (1, 4)], ('krum', 'frozen once'))
DIVISIONS |= dict.fromkeys([(3, 1), (1, 3)], ('scaffold', 'peers'))


def run_many(folders, runs, devices):
  """Makes runs of the given words one after the other, in a process for each folder."""
  for folder in folders:
    (folder / 'runs.json').write_text(json.dumps(runs))
  program = {'program': ('-c', MANY), 'PYTHONPATH': str(ROOT)}
  if len(folders) == 1:
    outcomes = [launch(folders[0], f'{DEVICES}{devices}', **program)]
  else:
    outcomes = run(folders, f'{DEVICES}{devices}', **program)
  assert codes(outcomes) == [ExitCode.DONE] * len(outcomes), lines(outcomes)
  return outcomes


@pytest.fixture(scope='module')
def battery(tmp_path_factory):
  """(processes, devices of each) -> the folder of all runs with these numbers."""
  base, folders = tmp_path_factory.mktemp('battery'), {}
  knobs = federations.hdf5(base, federations.make_federation())
  words = [*federations.flags(knobs), f'--out={base / "records"}']
  assert convert.main(words) == ExitCode.DONE
  records = f'--config.data.path={base / "records"}'
  for (count, devices), names in DIVISIONS.items():
    folder = folders[count, devices] = base / f'{count}x{devices}'
    folder.mkdir()
    runs = []
    for name in names:
      changes = {'num_rounds': 3, **RUNS[name]}
      flags = [f'--config.{knob}={value}' for knob, value in changes.items()]
      common = RUN[:-1]
      if name == 'records':
        flags, common = [*flags, records], RUN[2:-1]
      runs.append([*common, f'--workdir={name}', *flags])
    for outcome in run_many([folder] * count, runs, devices):
      check_success(outcome)
  return folders


@pytest.mark.slow
@pytest.mark.parametrize('name', RUNS)
def test_any_division_into_processes_gives_the_same_results(battery, name):
  of_two, of_one = (battery[c] / name / 'metrics.jsonl' for c in ((2, 1), (1, 2)))
  assert len(read_lines(of_one)) == 3
  assert of_two.read_bytes() == of_one.read_bytes()
  assert checkpoint(of_two.parent, 3) == checkpoint(of_one.parent, 3)


@pytest.mark.slow
@pytest.mark.parametrize('division', [((2, 2), (1, 4)), ((3, 1), (1, 3))])
@pytest.mark.parametrize('index', [0, 1])
def test_more_than_two_devices_agree_up_to_rounding(battery, division, index):
  """One process adds in the order of its devices; Gloo begins at another each time."""
  name = DIVISIONS[division[0]][index]
  of_many, of_one = (read_lines(battery[c] / name / 'metrics.jsonl') for c in division)
  assert len(of_one) == 3
  for line, expected in zip(of_many, of_one, strict=True):
    assert line.keys() == expected.keys()
    assert line['clients'] == expected['clients']
    for key, value in line.items():
      np.testing.assert_allclose(
        value, expected[key], rtol=1e-6, atol=1e-6, err_msg=key
      )


# --- ends -----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.faults
def test_different_commands_are_refused_with_the_difference(folders):
  words_of_each = [('--config.seed=1',), ('--config.seed=2', '--config.num_rounds=7')]
  outcomes = run(folders, *RUN, f'{DEVICES}1', words_of_each=words_of_each)
  line = (
    f'Process 1 on {HOST} has another command or program than process 0: '
    '--config.seed: 1 -> 2; --config.num_rounds: 30 -> 7.'
  )
  assert lines(outcomes) == [[line]] * 2
  assert codes(outcomes) == [ExitCode.USAGE] * 2
  assert contents(folders[0]) == contents(folders[1]) == {}


@pytest.mark.faults
@pytest.mark.slow
def test_processes_with_different_numbers_of_devices_are_refused(folders):
  outcomes = run(
    folders, *RUN, words_of_each=[[f'{DEVICES}{count}'] for count in (1, 2)]
  )
  line = (
    'The processes have 1 to 2 devices each, and need equally many: give all the same '
    '--config.execution.devices, and GPUs by CUDA_VISIBLE_DEVICES.'
  )
  assert lines(outcomes) == [[line]] * 2
  for index, outcome in enumerate(outcomes):
    assert (
      f'process {index} of 2 (MOON_JAX_PROCESSES): waiting for all' in outcome.stdout
    )
  assert codes(outcomes) == [ExitCode.USAGE] * 2
  assert contents(folders[0]) == contents(folders[1]) == {}


@pytest.mark.slow
@pytest.mark.faults
def test_a_process_that_never_comes_is_one_line(tmp_path):
  with started([tmp_path] * 3, *RUN, absent=[1], wait=1) as processes:
    outcomes = finish(processes)
  line = (
    'Of 3 processes (MOON_JAX_PROCESSES) not all came within 1 s (MOON_JAX_WAIT). '
    'MOON_JAX_PROCESSES=1 runs one alone.'
  )
  assert lines(outcomes) == [[line], [line]]
  assert codes(outcomes) == [ExitCode.FAILED] * 2
  assert contents(tmp_path) == {}


def codes_after_a_standstill(processes, stopped, text):
  """The exit codes of a group, one process of which stood still once there was text."""
  processes[0].wait_for(text)
  processes[stopped].send(signal.SIGSTOP)
  time.sleep(60)
  processes[stopped].send(signal.SIGCONT)
  processes[0].wait_for('round 9/')
  processes[0].send(signal.SIGTERM)
  return codes(finish(processes))


@pytest.mark.slow
@pytest.mark.faults
def test_a_process_may_stand_still_for_a_minute(tmp_path_factory):
  # With three lanes one of the four devices has no part in the rounds.
  words = (*RUN, f'{ROUNDS}5000', f'{DEVICES}2', '--config.execution.lanes=3')
  words += ('--config.execution.compile_cache=off',)
  starting_folders = made_in(tmp_path_factory.mktemp('starting'))
  training_folders = made_in(tmp_path_factory.mktemp('training'))
  # Two groups at once: one stands still at its start, the other in its rounds.
  with (
    started(starting_folders, *words) as starting,
    started(training_folders, *words) as training,
    futures.ThreadPoolExecutor() as threads,
  ):
    exit_codes = threads.map(
      codes_after_a_standstill,
      (starting, training),
      (1, 0),
      ('compiling ', 'round 5/'),
    )
  assert [*exit_codes] == [[ExitCode.PREEMPTED] * 2] * 2


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.parametrize('killed', [0, 1])
def test_a_killed_process_ends_the_others_and_fewer_go_on(folders, killed):
  words = (*RUN, f'{DEVICES}1', f'{ROUNDS}5000')
  with started(folders, *words) as processes:
    processes[0].wait_for('round 5/')
    processes[killed].send(signal.SIGKILL)
    begin = time.monotonic()
    outcomes = finish(processes)
    assert time.monotonic() - begin < 60
  survivor = outcomes[1 - killed]
  if killed:
    assert survivor.returncode == ExitCode.FAILED
    assert survivor.stderr.startswith(
      'Another process has ended, or cannot be reached; '
    )
    assert len(survivor.stderr.splitlines()) == 1
  assert survivor.returncode not in (ExitCode.DONE, ExitCode.PREEMPTED)
  num_lines = len(read_lines(folders[0] / 'run/metrics.jsonl'))
  check_success(launch(folders[0], *words[:-1], f'{ROUNDS}{num_lines + 2}'))
  assert len(read_lines(folders[0] / 'run/metrics.jsonl')) == num_lines + 2
