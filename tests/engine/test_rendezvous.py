"""How processes that were started together find each other."""

import contextlib
import socket
import threading
import time

import pytest

from moon_jax.engine import hosts, jax_service, rendezvous
from moon_jax.engine.rendezvous import Host, Place
from moon_jax.errors import ExitCode, RunError, UsageError
from tests.several import free_port

BY_HAND = {
  'MOON_JAX_COORDINATOR': 'node1:29400',
  'MOON_JAX_PROCESSES': '3',
  'MOON_JAX_PROCESS': '2',
}
SLURM = {
  'SLURM_JOB_ID': '17',
  'SLURM_STEP_ID': '0',
  'SLURM_STEP_NUM_TASKS': '8',
  'SLURM_PROCID': '5',
}
OPEN_MPI = {'OMPI_COMM_WORLD_SIZE': '2', 'OMPI_COMM_WORLD_RANK': '0'}


@pytest.mark.parametrize(
  'environment',
  [
    {},
    BY_HAND | {'MOON_JAX_PROCESSES': '1'},
    SLURM | {'SLURM_STEP_NUM_TASKS': '1'},
    # One of several that have nothing to do with each other.
    SLURM | {'MOON_JAX_PROCESSES': '1'},
    # The script of a batch, before its `srun`.
    {'SLURM_JOB_ID': '17', 'SLURM_NTASKS': '8', 'SLURM_PROCID': '0'},
  ],
)
def test_one_process_is_alone(environment):
  assert rendezvous.detect(environment) is None


def test_by_hand():
  place = rendezvous.detect(BY_HAND)
  assert place == Place(('node1', 29400), count=3, index=2, wait=300)
  six = {'MOON_JAX_COORDINATOR': '[fe80::1]:7', 'MOON_JAX_WAIT': '20'}
  assert rendezvous.detect(BY_HAND | six) == Place(('fe80::1', 7), 3, 2, 20)


@pytest.mark.parametrize(
  ('nodes', 'first'),
  [
    ('node7', 'node7'),
    ('a1,b2', 'a1'),
    ('gpu[007-009,012],login1', 'gpu007'),
    ('n-1-[3,5]', 'n-1-3'),
  ],
)
def test_slurm_tells_all_but_a_port_which_its_job_decides(nodes, first):
  def found(**changes):
    return rendezvous.detect(SLURM | {'SLURM_STEP_NODELIST': nodes} | changes)

  place = found()
  assert (place.coordinator[0], place.count, place.index) == (first, 8, 5)
  assert 20000 <= place.coordinator[1] < 30000
  assert found(SLURM_PROCID='0').coordinator == place.coordinator
  assert found(SLURM_JOB_ID='18').coordinator != place.coordinator
  assert found(SLURM_STEP_ID='1').coordinator != place.coordinator


def test_open_mpi_with_a_coordinator():
  at = {'MOON_JAX_COORDINATOR': 'node1:29400'}
  assert rendezvous.detect(OPEN_MPI | at) == Place(('node1', 29400), 2, 0, 300)


@pytest.mark.parametrize(
  ('environment', 'said'),
  [
    (OPEN_MPI, "MOON_JAX_COORDINATOR='' must be host:port, of process 0."),
    (BY_HAND | {'MOON_JAX_COORDINATOR': 'node1'}, "'node1' must be host:port"),
    (BY_HAND | {'MOON_JAX_PROCESS': '3'}, r"PROCESS='3' must be in \[0, 2\]"),
    (BY_HAND | {'MOON_JAX_PROCESS': '-1'}, "PROCESS='-1' must be"),
    ({'MOON_JAX_PROCESSES': '2', 'MOON_JAX_COORDINATOR': 'a:1'}, "PROCESS='' must be"),
    (BY_HAND | {'MOON_JAX_PROCESSES': 'two'}, "PROCESSES='two' must be in"),
    (BY_HAND | {'MOON_JAX_WAIT': '0'}, "WAIT='0' must be in"),
  ],
)
def test_half_of_it_is_refused(environment, said):
  with pytest.raises(UsageError, match=said):
    rendezvous.detect(environment)


# --- meeting --------------------------------------------------------------------------


def meet_all(told, meanwhile=lambda port: None, wait=20):
  """Lets processes (count, index) meet, in threads: what each one got."""
  port, got = free_port(), {}

  def meet(number, count, index):
    try:
      found, peers = rendezvous.meet(Place(('localhost', port), count, index, wait))
      got[number] = found
      for peer in peers.values():
        peer.close()
    except RunError as error:
      got[number] = error

  places = enumerate(told)
  threads = [threading.Thread(target=meet, args=(n, *place)) for n, place in places]
  threads[0].start()
  meanwhile(port)
  for thread in threads[1:]:
    thread.start()
  for thread in threads:
    thread.join()
  return [got[number] for number in range(len(told))]


def connect(port):
  while True:
    with contextlib.suppress(ConnectionRefusedError):
      return socket.create_connection(('localhost', port))
    time.sleep(0.01)


def test_strangers_are_shown_out():
  def knock(port):
    with connect(port) as stranger:
      stranger.sendall(b'GET / HTTP/1.1\r\n\r\n')
    with connect(port) as stranger:
      rendezvous.send(stranger, rendezvous.VALUE, 'no place at all')
      stranger.recv(1)

  found = meet_all([(2, 0), (2, 1)], knock)
  assert found[0] == found[1]
  assert all(isinstance(host, Host) for host in found[1])


@pytest.mark.parametrize(
  ('told', 'said'),
  [
    ([(3, 0), (3, 1), (3, 1)], r'Process 1 on .*: there is one already, on '),
    ([(2, 0), (3, 1)], r'Process 1 on .*: it was told of 3 processes\.'),
  ],
)
def test_processes_that_do_not_fit_together(told, said):
  errors = meet_all(told)
  assert len({str(error) for error in errors}) == 1
  for error in errors:
    assert error.exit_code == ExitCode.USAGE
    with pytest.raises(RunError, match=said):
      raise error


def test_a_port_that_is_taken():
  with socket.create_server(('', 0)) as other:
    port = other.getsockname()[1]
    with pytest.raises(UsageError, match=f'cannot listen at port {port}: .*COORD'):
      rendezvous.meet(Place(('localhost', port), 2, 0, 1))


# --- GPUs -----------------------------------------------------------------------------

FOUR = {'CUDA_VISIBLE_DEVICES': '0,1,2,3', 'SLURM_GPUS_ON_NODE': '4'}


@pytest.mark.parametrize(
  ('beside', 'environment', 'own'),
  [
    (1, FOUR, None),  # one process for each node: all
    (4, FOUR, [2]),  # one for each GPU
    (2, FOUR, [0, 1]),
    (8, FOUR, None),  # more processes than GPUs: left to JAX, which says so
    # The starter gave each its own.
    (4, FOUR | {'CUDA_VISIBLE_DEVICES': '0'}, None),
    (2, FOUR | {'CUDA_VISIBLE_DEVICES': '0,1'}, None),
    (4, {'CUDA_VISIBLE_DEVICES': '2'}, None),
    (4, {'CUDA_VISIBLE_DEVICES': ''}, None),
  ],
)
def test_processes_of_a_host_share_its_gpus(monkeypatch, beside, environment, own):
  for name in FOUR:
    monkeypatch.delenv(name, raising=False)
  for name, value in environment.items():
    monkeypatch.setenv(name, value)
  names = ['a'] * beside + ['b'] * beside
  index = beside + (2 if beside > 2 else 0)
  assert jax_service.own_gpus(names, index) == own


def test_processes_share_cores_that_all_of_them_may_use(monkeypatch):
  there = [Host('a', [0, 1]), Host('a', [0, 1]), Host('a', [2, 3]), Host('b', [0, 1])]
  for index, sharing in enumerate((2, 2, 1, 1)):
    monkeypatch.setattr(hosts, '_group', hosts._Group(index, there, {}))
    assert hosts.sharing_cores() == sharing
