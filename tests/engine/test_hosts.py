"""Which processes belong together, and what they exchange."""

import threading

import numpy as np
import pytest

from moon_jax.core.errors import ExitCode, RunError, UsageError
from moon_jax.engine import hosts, launchers
from moon_jax.engine.launchers import LAUNCHERS, Place

BY_HAND, SLURM, OPEN_MPI = (launcher[:2] for launcher in LAUNCHERS)
HAND = {
  'MOON_JAX_COORDINATOR': 'node1:29400',
  'MOON_JAX_PROCESSES': '3',
  'MOON_JAX_PROCESS': '2',
}
HERE = HAND | {'MOON_JAX_COORDINATOR': 'localhost:7', 'MOON_JAX_WAIT': '20'}
STEP = {
  'SLURM_STEP_NODELIST': 'node[1-3]',
  'SLURM_STEP_NUM_TASKS': '8',
  'SLURM_PROCID': '5',
  'SLURM_STEP_TASKS_PER_NODE': '3(x2),2',
  'SLURM_NODEID': '1',
  'SLURM_LOCALID': '2',
}
MPI = {
  'OMPI_MCA_orte_hnp_uri': '4096.0;tcp://10.96.0.1:34911',
  'OMPI_COMM_WORLD_SIZE': '4',
  'OMPI_COMM_WORLD_RANK': '3',
  'OMPI_COMM_WORLD_LOCAL_SIZE': '2',
  'OMPI_COMM_WORLD_LOCAL_RANK': '1',
}


@pytest.mark.parametrize(
  ('environment', 'place'),
  [
    ({}, None),
    (HAND | {'MOON_JAX_PROCESSES': '1'}, None),
    (STEP | {'SLURM_STEP_NUM_TASKS': '1'}, None),
    # It is one of several processes that do not work together.
    (STEP | {'MOON_JAX_PROCESSES': '1'}, None),
    # It is the batch script, before its `srun`.
    ({'SLURM_JOB_ID': '17', 'SLURM_NTASKS': '8', 'SLURM_PROCID': '0'}, None),
    (HAND, Place(*BY_HAND, 'node1:29400', 3, 2)),
    (HERE, Place(*BY_HAND, 'localhost:7', 3, 2, beside=3, local=2, wait=20)),
    (STEP, Place(*SLURM, None, 8, 5, beside=3, local=2)),
    (STEP | {'SLURM_NODEID': '2'}, Place(*SLURM, None, 8, 5, beside=2, local=2)),
    (MPI, Place(*OPEN_MPI, None, 4, 3, beside=2, local=1)),
    (
      MPI | {'MOON_JAX_COORDINATOR': '[fe80::1]:65535'},
      Place(*OPEN_MPI, '[fe80::1]:65535', 4, 3, beside=2, local=1),
    ),
  ],
)
def test_which_process_this_is(environment, place):
  assert launchers.detect(environment) == place


@pytest.mark.parametrize(
  ('name', 'value'),
  [
    ('COORDINATOR', ''),
    ('COORDINATOR', 'node1'),
    ('COORDINATOR', ':29400'),
    ('COORDINATOR', 'a..b:29400'),
    ('COORDINATOR', 'node1:65536'),
    ('COORDINATOR', 'node1:0'),
    ('PROCESS', '3'),
    ('PROCESS', '-1'),
    ('PROCESS', ''),
    ('PROCESSES', 'two'),
    ('WAIT', '0'),
  ],
)
def test_words_that_cannot_be_meant_are_refused(name, value):
  name = f'MOON_JAX_{name}'
  with pytest.raises(UsageError, match=f'^{name}={value!r} must be ') as refused:
    launchers.detect(HAND | {name: value})
  assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize(
  ('environment', 'missing'),
  [(HAND, 'MOON_JAX_COORDINATOR'), (MPI, 'OMPI_MCA_orte_hnp_uri')],
)
def test_where_process_0_is_has_to_be_known(environment, missing):
  del (environment := dict(environment))[missing]
  with pytest.raises(UsageError, match="MOON_JAX_COORDINATOR='' must be host:port"):
    launchers.detect(environment)


# --- what processes of a host share ---------------------------------------------------

NODE = {'SLURM_GPUS_ON_NODE': '4'}


@pytest.mark.parametrize(
  ('beside', 'seen', 'environment', 'own'),
  [
    (1, 4, NODE, []),  # one process for each node: all
    (4, 4, NODE, [2]),  # one for each GPU
    (2, 4, NODE, [2, 3]),
    (8, 4, NODE, []),  # more processes than GPUs: JAX reports it
    (3, 0, {}, []),
    (4, 4, {}, [2]),
    # The launcher gave each process its own GPU.
    (4, 1, NODE, []),
    (2, 2, NODE, []),
    (1, 1, {'CUDA_VISIBLE_DEVICES': '2'}, []),
    (4, 4, {'CUDA_VISIBLE_DEVICES': '0,1,2,3'}, []),
  ],
)
def test_processes_of_a_host_share_its_gpus(
  monkeypatch, beside, seen, environment, own
):
  for name in ('CUDA_VISIBLE_DEVICES', *NODE):
    monkeypatch.delenv(name, raising=False)
  for name, value in environment.items():
    monkeypatch.setenv(name, value)
  local = 2 if beside > 2 else beside - 1
  place = Place(*SLURM, None, 16, 9, 300, beside, local)
  assert launchers.own_gpus(place, seen) == own


@pytest.mark.parametrize(
  ('launcher', 'cores', 'sharing'),
  [
    (SLURM, 16, 4),  # all cores of the job on the node
    (SLURM, 4, 1),  # each process is bound to its own cores
    (BY_HAND, 4, 4),  # no process is bound to cores
  ],
)
def test_processes_share_cores_that_are_nobodys_own(
  monkeypatch, launcher, cores, sharing
):
  assert hosts.sharing_cores(cores) == 1
  monkeypatch.setenv('SLURM_CPUS_ON_NODE', '16')
  monkeypatch.setattr(hosts, '_place', Place(*launcher, None, 8, 5, beside=4))
  assert hosts.sharing_cores(cores) == sharing


# --- what they tell each other --------------------------------------------------------


@pytest.fixture
def together(monkeypatch):
  """Runs a function in two threads that stand for processes; the result of each."""
  monkeypatch.setattr(hosts, '_place', Place(*BY_HAND, None, 2, 0))
  monkeypatch.setattr(hosts, '_names', ['a', 'b'])
  monkeypatch.setattr(hosts, 'is_first', lambda: mine.index == 0)
  mine, rows, all_are_here = threading.local(), {}, threading.Barrier(2, timeout=20)

  def exchange(data, width):
    rows[mine.index] = np.frombuffer(bytes(data).ljust(width, b'\0'), np.uint8)
    all_are_here.wait()
    both = np.stack([rows[0], rows[1]])
    all_are_here.wait()
    return both

  monkeypatch.setattr(hosts, '_exchange', exchange)

  def run(act):
    got = {}

    def one(index):
      mine.index = index
      try:
        got[index] = act(index)
      except RunError as error:
        got[index] = error

    threads = [threading.Thread(target=one, args=(index,)) for index in range(2)]
    for thread in threads:
      thread.start()
    for thread in threads:
      thread.join()
    return [got[0], got[1]]

  return run


def test_each_process_gets_the_values_of_all(together):
  values = [['ü' * 500, None], {'x': 1.5}]
  assert together(lambda index: hosts.gather(values[index])) == [values, values]
  values = [15, 0]
  assert together(lambda index: hosts.gather(values[index])) == [values, values]


def test_what_process_0_decides(together):
  assert together(lambda index: hosts.decided(lambda: index)) == [0, 0]


@pytest.mark.parametrize(
  ('wrong', 'told'),
  [
    ([0], ['no data', 'no data']),
    ([1], ['Process 1 on b: no data', 'no data']),
    ([0, 1], ['no data', 'no data']),
    ([], ['no room', 'no room']),  # process 0's decision
  ],
)
def test_an_error_in_one_process_ends_all(together, wrong, told):
  def act(index):
    with hosts.alike():
      if index in wrong:
        raise UsageError('no data')
      # When one process has failed, the others are still at work and go on to exchange.
      hosts.decided(lambda: None if wrong else refuse())

  def refuse():
    raise UsageError('no room')

  both = together(act)
  assert [str(error) for error in both] == told
  assert [error.exit_code for error in both] == [ExitCode.USAGE] * 2


def test_a_difference_is_named_in_all(together):
  given = [{'seed': 1, 'mu': 2}, {'seed': 3, 'mu': 2}]
  for error in together(lambda index: hosts.require_same('command', given[index])):
    line = 'Process 1 on b has another command than process 0: seed: 1 -> 3.'
    assert (str(error), error.exit_code) == (line, ExitCode.USAGE)


def test_a_lone_process_needs_nobody():
  with hosts.joined(None, dict):
    assert (hosts.is_first(), hosts.count(), hosts.names()) == (True, 1, [])
    assert (hosts.gather('x'), hosts.decided(lambda: 5)) == (['x'], 5)
    with pytest.raises(UsageError, match='why'), hosts.alike():
      raise UsageError('why')
    with hosts.by_first(pytest.raises(ZeroDivisionError)) as entered:
      assert entered is not None
      raise ZeroDivisionError
