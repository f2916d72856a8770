"""Finds the processes that were started together, and what they share of a host."""

import os
import re
from collections.abc import Mapping
from typing import NamedTuple

from moon_jax.core.errors import UsageError

COORDINATOR = 'MOON_JAX_COORDINATOR'  # host:port of process 0
PROCESSES = 'MOON_JAX_PROCESSES'  # number of processes
PROCESS = 'MOON_JAX_PROCESS'  # index of this process
WAIT = 'MOON_JAX_WAIT'  # seconds to wait for all processes to start
_DEFAULT_WAIT = 300
_LIMIT = 2**16  # of numbers of processes, seconds and ports


class Launcher(NamedTuple):
  """A program that starts processes, and the environment variables that it sets.

  Attributes:
    name: its name; for processes that are started by hand, PROCESSES.
    method: JAX's name for it.
    coordinator: variable for the address of process 0.
    count: variable for the number of processes.
    index: variable for the index of this process.
    index_on_host: variable for its index on its host; '' if there is none.
  """

  name: str
  method: str
  coordinator: str
  count: str
  index: str
  index_on_host: str


BY_HAND = Launcher(
  name=PROCESSES,
  method='deactivate',
  coordinator=COORDINATOR,
  count=PROCESSES,
  index=PROCESS,
  index_on_host='',
)
SLURM = Launcher(
  name='SLURM',
  method='slurm',
  coordinator='SLURM_STEP_NODELIST',
  count='SLURM_STEP_NUM_TASKS',
  index='SLURM_PROCID',
  index_on_host='SLURM_LOCALID',
)
OPEN_MPI = Launcher(
  name='Open MPI',
  method='ompi',
  coordinator='OMPI_MCA_orte_hnp_uri',
  count='OMPI_COMM_WORLD_SIZE',
  index='OMPI_COMM_WORLD_RANK',
  index_on_host='OMPI_COMM_WORLD_LOCAL_RANK',
)
# The first whose variables are there has started the process: `mpirun` may run inside a
# step of SLURM, and starts its processes on other nodes by one.
LAUNCHERS = (BY_HAND, OPEN_MPI, SLURM)


class ProcessGroup(NamedTuple):
  """The processes of a run, and the place of this one among them.

  Attributes:
    launcher: name of the program that started the processes.
    method: method by which JAX finds them.
    coordinator: host:port at which process 0 listens; None if JAX finds it.
    count: number of processes, above 1.
    index: index of this process, from 0.
    wait_seconds: how long to wait for all processes.
    count_on_host: number of the processes that are on this host.
    index_on_host: index of this process among them.
  """

  launcher: str
  method: str
  coordinator: str | None
  count: int
  index: int
  wait_seconds: int = _DEFAULT_WAIT
  count_on_host: int = 1
  index_on_host: int = 0


def detect(environment: Mapping[str, str]) -> ProcessGroup | None:
  """What the environment says about the processes of the run; None for a lone process.

  Raises:
    UsageError: the variables are incomplete, or have impossible values.
  """
  started_by = (launcher for launcher in LAUNCHERS if launcher.count in environment)
  launcher = next(started_by, BY_HAND)
  count = _number(environment, launcher.count, 1, _LIMIT, default=1)
  if count == 1:
    return None
  coordinator = environment.get(COORDINATOR)
  host = ''
  if coordinator is not None or launcher.coordinator not in environment:
    host = _host_of(coordinator or '')
  index = _number(environment, launcher.index, 0, count)
  wait_seconds = _number(environment, WAIT, 1, _LIMIT, default=_DEFAULT_WAIT)
  if launcher.index_on_host:
    count_on_host = _count_on_host(environment)
    index_on_host = _number(environment, launcher.index_on_host, 0, count, default=0)
  elif host in ('localhost', '127.0.0.1', '::1'):
    count_on_host = count
    index_on_host = index
  else:
    count_on_host = 1
    index_on_host = 0
  return ProcessGroup(
    launcher=launcher.name,
    method=launcher.method,
    coordinator=coordinator,
    count=count,
    index=index,
    wait_seconds=wait_seconds,
    count_on_host=count_on_host,
    index_on_host=index_on_host,
  )


def _number(
  environment: Mapping[str, str],
  name: str,
  least: int,
  limit: int,
  default: int | None = None,
) -> int:
  """A variable's number, at least `least` and below `limit`."""
  text = environment.get(name, '' if default is None else str(default))
  if not (re.fullmatch('[0-9]{1,9}', text) and least <= int(text) < limit):
    raise UsageError(f'{name}={text!r} must be in [{least}, {limit - 1}].')
  return int(text)


def _host_of(address: str) -> str:
  """'node1' of 'node1:29400'."""
  match = re.fullmatch(r'\[?((?!.*\.\.).+?)\]?:([0-9]{1,5})', address)
  if not match or not 0 < int(match[2]) < _LIMIT:  # JAX would crash
    raise UsageError(
      f'{COORDINATOR}={address!r} must be host:port of process 0, the port in '
      f'[1, {_LIMIT - 1}].'
    )
  return match[1]


def _count_on_host(environment: Mapping[str, str]) -> int:
  """The number of processes on this host; for SLURM's '4(x2),1' on its third host 1."""
  counts = environment.get('SLURM_STEP_TASKS_PER_NODE', '1')
  if 'OMPI_COMM_WORLD_LOCAL_SIZE' in environment:
    counts = environment['OMPI_COMM_WORLD_LOCAL_SIZE']
  count_of_node = []
  for count, num_nodes in re.findall(r'(\d+)(?:\(x(\d+)\))?', counts):
    count_of_node += [int(count)] * int(num_nodes or 1)
  node = int(environment.get('SLURM_NODEID', 0))
  return count_of_node[node % len(count_of_node)]


def own_gpus(group: ProcessGroup, num_visible: int) -> list[int]:
  """This process's part of its host's GPUs; [] for all that it sees.

  Each of several processes on a host gets a part, unless their launcher has already
  given each process its own GPUs.

  Args:
    group: the processes of the run.
    num_visible: number of GPUs that it sees.
  """
  if 'SLURM_GPUS_ON_NODE' in os.environ:
    sees_all = num_visible == int(os.environ['SLURM_GPUS_ON_NODE'])
  else:
    sees_all = 'CUDA_VISIBLE_DEVICES' not in os.environ
  if group.count_on_host == 1 or not sees_all or num_visible < group.count_on_host:
    return []
  gpus_each = num_visible // group.count_on_host
  first_gpu = gpus_each * group.index_on_host
  return list(range(first_gpu, first_gpu + gpus_each))


def sharing_cores(group: ProcessGroup, cores: int) -> int:
  """The number of processes that share the cores: one, if each has cores of its own.

  Args:
    group: the processes of the run.
    cores: number of cores that it may use.
  """
  cores_of_host = int(os.environ.get('SLURM_CPUS_ON_NODE', os.cpu_count() or 1))
  if group.launcher == PROCESSES or cores >= cores_of_host:
    return group.count_on_host
  return 1
