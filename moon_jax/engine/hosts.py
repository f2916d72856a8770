"""Several processes, on one host or many, run one experiment, and end alike.

`jax.distributed` connects them, and JAX's collectives carry what they tell each other.
Process 0 alone has the run directory. All processes call `gather`, and what is built on
it, in the same order, from their main threads: a call waits for the other processes,
and for what the devices were given before it.
"""

import atexit
import contextlib
import functools
import json
import os
import platform
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from moon_jax.errors import ExitCode, RunError, UsageError

COORDINATOR = 'MOON_JAX_COORDINATOR'  # host:port of process 0
PROCESSES, PROCESS = 'MOON_JAX_PROCESSES', 'MOON_JAX_PROCESS'  # how many, which one
WAIT = 'MOON_JAX_WAIT'  # seconds for all processes to come
_MOST = 2**16
# Seconds of silence after which JAX ends the other processes. A sign of life comes in
# each half of them, so that a process may be stopped for a minute.
_HEARTBEAT = 150
_GRACE = 10.0  # seconds that a process which ends waits for the others to end, too
_SHORT = 120  # bytes of JSON that are exchanged at once
_AT_A_TIME = 2**24  # bytes of arrays


class Launcher(NamedTuple):
  """What starts processes, and the variables in which it says so.

  Attributes:
    name: for messages.
    method: JAX's name for it.
    count: how many processes there are.
    index: which one this is.
    local: which one this is on its host; '' if nothing says so.
  """

  name: str
  method: str
  count: str
  index: str
  local: str


BY_HAND = Launcher(PROCESSES, 'deactivate', PROCESSES, PROCESS, '')
SLURM = Launcher(
  'SLURM', 'slurm', 'SLURM_STEP_NUM_TASKS', 'SLURM_PROCID', 'SLURM_LOCALID'
)
OPEN_MPI = Launcher(
  'Open MPI',
  'ompi',
  'OMPI_COMM_WORLD_SIZE',
  'OMPI_COMM_WORLD_RANK',
  'OMPI_COMM_WORLD_LOCAL_RANK',
)


class Place(NamedTuple):
  """Where a process stands among those of its run.

  Attributes:
    launcher: what started them.
    coordinator: host:port at which process 0 listens; None if JAX finds it.
    count: how many there are, above 1.
    index: of this one, from 0.
    beside: how many of them are on this host.
    local: which one of them this is.
    wait: seconds for all to come.
  """

  launcher: Launcher
  coordinator: str | None
  count: int
  index: int
  beside: int = 1
  local: int = 0
  wait: int = 300


_place: Place | None = None
_names: list[str] = []


def detect(environment: Mapping[str, str]) -> Place | None:
  """What the environment says about the processes of the run; None if this is alone.

  Raises:
    UsageError: it says half of it, or what cannot be.
  """

  def number(name, least, below, default=''):
    value = environment.get(name, default)
    if not (re.fullmatch('[0-9]{1,9}', value) and least <= int(value) < below):
      raise UsageError(f'{name}={value!r} must be in [{least}, {below - 1}].')
    return int(value)

  launchers = (one for one in (BY_HAND, SLURM, OPEN_MPI) if one.count in environment)
  launcher = next(launchers, None)
  count = number(launcher.count, 1, _MOST) if launcher else 1
  if count == 1:
    return None
  index, wait = number(launcher.index, 0, count), number(WAIT, 1, _MOST, '300')
  coordinator, beside, local = environment.get(COORDINATOR), 1, 0
  if coordinator is not None or launcher is BY_HAND:
    host = _host_of(coordinator or '')
  if launcher is not BY_HAND:
    beside, local = _beside(environment), number(launcher.local, 0, count, '0')
  elif host in ('localhost', '127.0.0.1', '::1'):
    beside, local = count, index
  return Place(launcher, coordinator, count, index, beside, local, wait)


def _host_of(address):
  """'node1' of 'node1:29400'."""
  host, _, port = address.rpartition(':')
  host = host.removeprefix('[').removesuffix(']')
  if host and re.fullmatch('[0-9]{1,5}', port) and 0 < int(port) < _MOST:
    with contextlib.suppress(UnicodeError):  # of 'a..b'
      return host.encode('idna').decode()
  raise UsageError(
    f'{COORDINATOR}={address!r} must be host:port of process 0, the port in '
    f'[1, {_MOST - 1}].'
  )


def _beside(environment):
  """How many processes are on this host; of SLURM's '4(x2),1' on its third one 1."""
  counts = environment.get('SLURM_STEP_TASKS_PER_NODE', '1')
  if 'OMPI_COMM_WORLD_LOCAL_SIZE' in environment:
    counts = environment['OMPI_COMM_WORLD_LOCAL_SIZE']
  each = re.findall(r'(\d+)(?:\(x(\d+)\))?', counts)
  nodes = [int(many) for many, times in each for _ in range(int(times or 1))]
  return nodes[int(environment.get('SLURM_NODEID', 0)) % len(nodes)]


def own_gpus(place: Place, seen: int) -> list[int]:
  """This process's part of its host's GPUs; [] for all that it sees.

  Each of several processes on a host gets its part, unless their launcher has given it
  its own.

  Args:
    place: of the process.
    seen: how many GPUs it sees.
  """
  if 'SLURM_GPUS_ON_NODE' in os.environ:
    whole = seen == int(os.environ['SLURM_GPUS_ON_NODE'])
  else:
    whole = 'CUDA_VISIBLE_DEVICES' not in os.environ
  if place.beside == 1 or not whole or seen < place.beside:
    return []
  each = seen // place.beside
  return list(range(each * place.local, each * (place.local + 1)))


def is_first() -> bool:
  """Whether this is process 0, which alone has the run directory; so is a lone one."""
  return _place is None or _place.index == 0


def count() -> int:
  """How many processes share the run."""
  return _place.count if _place else 1


def names() -> list[str]:
  """The name of each process's host; none of a lone one."""
  return _names


def sharing_cores(cores: int) -> int:
  """How many of the processes share the cores that this one may use.

  Args:
    cores: how many these are; fewer than its host has for the job are its own.
  """
  if not _place:
    return 1
  there = int(os.environ.get('SLURM_CPUS_ON_NODE', os.cpu_count() or 1))
  own = _place.launcher is not BY_HAND and cores < there
  return 1 if own else _place.beside


@functools.cache
def _between():
  """Where the rows of an array are that has one of each process, and two programs.

  One makes such an array known to all processes, the other the sum of its rows.
  """
  import jax
  import numpy as np
  from jax.sharding import Mesh, NamedSharding, PartitionSpec

  firsts = {one.process_index: one for one in reversed(jax.devices())}
  mesh = Mesh(np.array([firsts[index] for index in sorted(firsts)]), ('processes',))
  rows, all_of_it = (
    NamedSharding(mesh, PartitionSpec(*axes)) for axes in (('processes',), ())
  )
  known = jax.jit(lambda rows: rows, out_shardings=all_of_it)
  summed = jax.jit(lambda rows: rows.sum(0, rows.dtype), out_shardings=all_of_it)
  return rows, known, summed


def _exchange(data, width, *, add=False):
  """The bytes of each process, filled up with 0 -> [P, width] uint8, or their sum."""
  import jax
  import numpy as np

  rows, known, summed = _between()
  mine = np.frombuffer(bytes(data).ljust(width, b'\0'), np.uint8)[None]
  given = jax.make_array_from_process_local_data(rows, mine)
  return np.asarray((summed if add else known)(given))


def gather(value: Any, error: RunError | None = None) -> list[Any]:
  """The value of each process, in order. Values are JSON.

  Args:
    value: of this process.
    error: what has gone wrong in this process, and ends all of them.

  Raises:
    RunError: `error`, or that of another process.
  """
  told = [[value, None]]
  if _place:
    data = json.dumps([value, error and [str(error), error.exit_code]]).encode()
    head = _exchange(len(data).to_bytes(8) + data[:_SHORT], 8 + _SHORT)
    sizes = [int.from_bytes(bytes(row[:8])) for row in head]
    rows = head[:, 8:]
    if max(sizes) > _SHORT:
      # A power of 2: each width compiles a program.
      rows = _exchange(data, 1 << max(sizes).bit_length())
    told = [json.loads(bytes(row[:n])) for row, n in zip(rows, sizes, strict=True)]
  if error:
    error.told = True
    raise error
  for index, (_, failed) in enumerate(told):
    if failed:
      raise _failure(index, *failed)
  return [value for value, _ in told]


def _failure(index, message, code):
  """The error of another process."""
  error = RunError(f'{_who(index)}: {message}' if index else message)
  error.exit_code, error.told = ExitCode(code), True
  return error


def _who(index):
  return f'Process {index} on {_names[index]}'


@contextlib.contextmanager
def alike() -> Iterator[None]:
  """A RunError that one process raises inside is raised in all that leave it."""
  error = None
  try:
    yield
  except RunError as caught:
    if caught.told:
      raise
    error = caught
  gather(None, error)


def decided(decide: Callable[[], Any]) -> Any:
  """What process 0 finds; it is JSON. The others learn it, and do not call `decide`.

  Raises:
    RunError: that of process 0, in every process.
  """
  value = error = None
  try:
    value = decide() if is_first() else None
  except RunError as caught:
    error = caught
  return gather(value, error)[0]


@contextlib.contextmanager
def by_first(context: contextlib.AbstractContextManager) -> Iterator[Any]:
  """Process 0 alone enters the context; the others get None.

  Raises:
    RunError: that process 0 raises when it enters, in every process.
  """
  with contextlib.ExitStack() as stack:
    entered = None
    with alike():
      if is_first():
        entered = stack.enter_context(context)
    yield entered


def from_first(tree: Any) -> Any:
  """Process 0's numpy arrays, bit for bit, in every process.

  Args:
    tree: of arrays; of other processes' only the shapes and dtypes count.
  """
  if not _place:
    return tree
  import jax
  import numpy as np

  leaves, structure = jax.tree.flatten(tree)
  data = np.concatenate([np.ravel(leaf).view(np.uint8) for leaf in leaves])
  if not is_first():
    data[:] = 0
  for begin in range(0, len(data), _AT_A_TIME):
    part = data[begin : begin + _AT_A_TIME]
    part[:] = _exchange(part, _AT_A_TIME, add=True)[: len(part)]
  ends = np.cumsum([leaf.nbytes for leaf in leaves])[:-1]
  parts = zip(np.split(data, ends), leaves, strict=True)
  received = [part.view(leaf.dtype).reshape(leaf.shape) for part, leaf in parts]
  return jax.tree.unflatten(structure, received)


def require_same(what: str, given: Mapping[str, Any]) -> None:
  """Compares what the processes were given, name by name; values are JSON.

  Raises:
    UsageError: in every process, if one was given anything else than process 0.
  """
  first, *others = gather(dict(given))
  for index, other in enumerate(others, 1):
    pairs = {name: (first.get(name), other.get(name)) for name in first | other}
    parts = [f'{name}: {a!r} -> {b!r}' for name, (a, b) in pairs.items() if a != b]
    if parts:
      raise UsageError(
        f'{_who(index)} has another {what} than process 0: {"; ".join(parts)}.'
      )


def meet(mesh: Any) -> None:
  """Lets the devices of a mesh make their connections, before anything is compiled.

  For the first sum of some devices Gloo waits 30 seconds; later ones take their time.
  """
  if not _place:
    return
  import jax
  import numpy as np
  from jax.sharding import NamedSharding, PartitionSpec

  gather(None)  # all are here
  where = NamedSharding(mesh, PartitionSpec(*mesh.axis_names))
  ones = np.ones(mesh.size, np.int32)
  each = jax.make_array_from_callback(ones.shape, where, lambda index: ones[index])
  jax.jit(lambda each: each.sum())(each).block_until_ready()


@contextlib.contextmanager
def joined(execution: Any, given: Callable[[], Mapping[str, Any]]) -> Iterator[None]:
  """Inside, processes that were started together are one run. Does nothing for one.

  After it each of several has some seconds to end.

  Args:
    execution: the knobs of that name: which devices each process uses.
    given: what has to be the same in all of them.

  Raises:
    UsageError: they were given different things.
    RunError: another process has ended.
  """
  if not (place := detect(os.environ)):
    yield
    return
  code = ExitCode.FAILED
  try:
    _connect(place, execution)
    _names[:] = gather(platform.node())
    require_same('command or program', {**given(), 'processes': place.count})
    yield
    code = ExitCode.DONE
  except RunError as error:
    code = error.exit_code
    raise
  except (RuntimeError, ValueError) as error:
    if 'Gloo' not in str(error):
      raise
    atexit.register(_exit, code)  # before JAX waits for the others at its end
    reason = str(error).splitlines()[0]
    raise RunError(
      'Another process has ended, or cannot be reached; the same command goes on from '
      f'what was saved. {reason}'
    ) from None
  finally:
    _in(_GRACE, _exit, code)


def _connect(place, execution):
  global _place
  import jax

  from moon_jax.engine import devices

  name, seconds = place.launcher.name, f'{place.wait} s ({WAIT})'
  print(
    f'process {place.index} of {place.count} ({name}): waiting for all, at most '
    f'{seconds}',
    flush=True,
  )
  # Before JAX, which would end with a stack trace.
  timer = _in(
    place.wait,
    _exit,
    ExitCode.FAILED,
    f'Of {place.count} processes ({name}) not all came within {seconds}. '
    f'{PROCESSES}=1 runs one alone.\n',
  )
  # It would take SIGTERM for itself.
  jax.config.update('jax_enable_preemption_service', False)
  try:
    jax.distributed.initialize(
      place.coordinator,
      place.count,
      place.index,
      own_gpus(place, len(devices.visible_gpus())),
      cluster_detection_method=place.launcher.method,
      initialization_timeout=place.wait + _HEARTBEAT,
      heartbeat_timeout_seconds=_HEARTBEAT,
    )
  except (RuntimeError, ValueError) as error:
    raise UsageError(
      f"JAX's coordinator cannot be started or found ({error}): give host:port of "
      f'process 0 by {COORDINATOR}, and a port that is free there.'
    ) from None
  finally:
    timer.cancel()
  _place = place
  devices.claim(execution.devices, deterministic=execution.deterministic)


def _in(seconds, act, *given):
  timer = threading.Timer(seconds, act, given)
  timer.daemon = True
  timer.start()
  return timer


def _exit(code, line=''):
  for stream in filter(None, (sys.stdout, sys.stderr)):
    stream.flush()
  os.write(2, line.encode())
  os._exit(code)
