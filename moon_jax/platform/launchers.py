"""Finds the processes that were started together, and what they share of a host."""

import os
import re
from collections.abc import Mapping
from typing import NamedTuple

from moon_jax.core.errors import UsageError

COORDINATOR = 'MOON_JAX_COORDINATOR'  # host:port of process 0
PROCESSES, PROCESS = 'MOON_JAX_PROCESSES', 'MOON_JAX_PROCESS'  # how many, which one
WAIT = 'MOON_JAX_WAIT'  # seconds to wait for all processes to start
# A launcher: its name, JAX's name for it, and the environment variables for the address
# of process 0, the number of processes, this process's index, and its index on its
# host.
LAUNCHERS = (
  (PROCESSES, 'deactivate', COORDINATOR, PROCESSES, PROCESS, ''),  # by hand
  (
    *('SLURM', 'slurm', 'SLURM_STEP_NODELIST'),
    *('SLURM_STEP_NUM_TASKS', 'SLURM_PROCID', 'SLURM_LOCALID'),
  ),
  (
    *('Open MPI', 'ompi', 'OMPI_MCA_orte_hnp_uri'),
    *(f'OMPI_COMM_WORLD_{name}' for name in ('SIZE', 'RANK', 'LOCAL_RANK')),
  ),
)
_MOST = 2**16


class Place(NamedTuple):
  """The place of a process among the processes of its run.

  Attributes:
    launcher: name of the program that started them.
    method: method by which JAX finds them.
    coordinator: host:port at which process 0 listens; None if JAX finds it.
    count: number of processes, above 1.
    index: index of this process, from 0.
    wait: seconds to wait for all processes.
    beside: number of the processes that are on this host.
    local: index of this process among them.
  """

  launcher: str
  method: str
  coordinator: str | None
  count: int
  index: int
  wait: int = 300
  beside: int = 1
  local: int = 0


def detect(environment: Mapping[str, str]) -> Place | None:
  """What the environment says about the processes of the run; None for a lone process.

  Raises:
    UsageError: the variables are incomplete, or have impossible values.
  """

  def number(name, least, below, default=''):
    value = environment.get(name, default)
    if not (re.fullmatch('[0-9]{1,9}', value) and least <= int(value) < below):
      raise UsageError(f'{name}={value!r} must be in [{least}, {below - 1}].')
    return int(value)

  started = (one for one in LAUNCHERS if one[3] in environment)
  *names, found, count, index, local = next(started, LAUNCHERS[0])
  count = number(count, 1, _MOST, '1')
  if count == 1:
    return None
  coordinator, host = environment.get(COORDINATOR), ''
  if coordinator is not None or found not in environment:
    host = _host_of(coordinator or '')
  index, wait = number(index, 0, count), number(WAIT, 1, _MOST, '300')
  if local:
    there = _beside(environment), number(local, 0, count, '0')
  else:
    there = (count, index) if host in ('localhost', '127.0.0.1', '::1') else (1, 0)
  return Place(*names, coordinator, count, index, wait, *there)


def _host_of(address):
  """'node1' of 'node1:29400'."""
  found = re.fullmatch(r'\[?((?!.*\.\.).+?)\]?:([0-9]{1,5})', address)
  if not found or not 0 < int(found[2]) < _MOST:  # JAX would crash
    wanted = f'host:port of process 0, the port in [1, {_MOST - 1}]'
    raise UsageError(f'{COORDINATOR}={address!r} must be {wanted}.')
  return found[1]


def _beside(environment):
  """The number of processes on this host; for SLURM's '4(x2),1' on its third host 1."""
  counts = environment.get('SLURM_STEP_TASKS_PER_NODE', '1')
  if 'OMPI_COMM_WORLD_LOCAL_SIZE' in environment:
    counts = environment['OMPI_COMM_WORLD_LOCAL_SIZE']
  each = re.findall(r'(\d+)(?:\(x(\d+)\))?', counts)
  nodes = [int(many) for many, times in each for _ in range(int(times or 1))]
  return nodes[int(environment.get('SLURM_NODEID', 0)) % len(nodes)]


def own_gpus(place: Place, seen: int) -> list[int]:
  """This process's part of its host's GPUs; [] for all that it sees.

  Each of several processes on a host gets a part, unless their launcher has already
  given each process its own GPUs.

  Args:
    place: place of the process.
    seen: number of GPUs that it sees.
  """
  if 'SLURM_GPUS_ON_NODE' in os.environ:
    whole = seen == int(os.environ['SLURM_GPUS_ON_NODE'])
  else:
    whole = 'CUDA_VISIBLE_DEVICES' not in os.environ
  if place.beside == 1 or not whole or seen < place.beside:
    return []
  each = seen // place.beside
  return list(range(each * place.local, each * (place.local + 1)))


def sharing_cores(place: Place, cores: int) -> int:
  """The number of processes that share the cores: one, if each has cores of its own.

  Args:
    place: place of the process.
    cores: number of cores that it may use.
  """
  there = int(os.environ.get('SLURM_CPUS_ON_NODE', os.cpu_count() or 1))
  return place.beside if place.launcher == PROCESSES or cores >= there else 1
