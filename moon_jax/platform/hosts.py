"""Several processes, on one host or many, run one experiment, and end alike.

`jax.distributed` connects them, and JAX's collectives carry their messages. Only
process 0 has the run directory. All processes call `gather`, and what is built on it,
in the same order, from their main threads: a call waits for the other processes, and
for the earlier work of the devices.
"""

import atexit
import collections
import contextlib
import json
import os
import platform
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from moon_jax.core.errors import ExitCode, RunError, UsageError
from moon_jax.platform import launchers
from moon_jax.platform.launchers import Place

# Seconds of silence after which JAX ends the other processes. A sign of life is sent
# twice in that time, so a process may be stopped for a minute.
_HEARTBEAT = 150
_GRACE = 10.0  # seconds that a process waits for the others at its end

_place: Place | None = None
_names: list[str] = []


def is_first() -> bool:
  """Whether this is process 0, which has the run directory; true for a lone process."""
  return _place is None or _place.index == 0


def count() -> int:
  """How many processes share the run."""
  return _place.count if _place else 1


def names() -> list[str]:
  """The name of each process's host; [] for a lone process."""
  return _names


def sharing_cores(cores: int) -> int:
  """The number of processes that share the cores that this process may use.

  Args:
    cores: number of these cores.
  """
  return launchers.sharing_cores(_place, cores) if _place else 1


def gather(value: Any, error: RunError | None = None) -> list[Any]:
  """The value of each process, in order. Values are JSON.

  Args:
    value: value of this process.
    error: an error of this process, which ends all processes.

  Raises:
    RunError: `error`, or the error of another process.
  """
  told = [[value, None]]
  if _place:
    from jax.experimental.multihost_utils import process_allgather

    text = json.dumps([value, error and [str(error), error.exit_code]]).encode()
    longest = int(process_allgather(np.int32(len(text))).max())
    # A power of 2: each width compiles a program.
    padded = np.frombuffer(text.ljust(1 << longest.bit_length()), np.uint8)
    told = [json.loads(bytes(row)) for row in process_allgather(padded)]
  if error:
    error.everywhere = True
    raise error
  for index, (_, failed) in enumerate(told):
    if failed:
      raise _failure(index, *failed)
  return [value for value, _ in told]


def _failure(index, message, code):
  """The error of another process."""
  error = RunError(f'{_who(index)}: {message}' if index else message)
  error.exit_code, error.everywhere = ExitCode(code), True
  return error


def _who(index):
  return f'Process {index} on {_names[index]}'


@contextlib.contextmanager
def alike() -> Iterator[list[Any]]:
  """A RunError that one process raises inside is raised in all processes at the end.

  Yields:
    An empty list, to which each process may add. After the context it holds the lists
    of all processes.
  """
  error, told = None, []
  try:
    yield told
  except RunError as caught:
    if caught.everywhere:
      raise
    error = caught
  told[:] = gather([*told], error)


def decided(decide: Callable[[], Any]) -> Any:
  """The result of `decide` in process 0; it is JSON. Other processes do not call it.

  Raises:
    RunError: process 0 raised it; it is raised in every process.
  """
  with alike() as told:
    if is_first():
      told.append(decide())
  return told[0][0]


@contextlib.contextmanager
def by_first(context: contextlib.AbstractContextManager) -> Iterator[Any]:
  """Only process 0 enters the context; the others get None.

  Raises:
    RunError: process 0 raised it on entering; it is raised in every process.
  """
  with contextlib.ExitStack() as stack:
    with alike():
      entered = stack.enter_context(context) if is_first() else None
    yield entered


def from_first(tree: Any) -> Any:
  """Process 0's numpy arrays, bit for bit, in every process.

  Args:
    tree: tree of arrays; in other processes only the shapes and dtypes count.
  """
  if not _place:
    return tree
  import jax
  from jax.experimental.multihost_utils import broadcast_one_to_all

  # A sum of floats would change -0.0.
  sent = jax.tree.map(lambda leaf: np.asarray(leaf).ravel().view(np.uint8), tree)

  def received(data, leaf):
    return data.view(leaf.dtype).reshape(leaf.shape)

  return jax.tree.map(received, broadcast_one_to_all(sent), tree)


def require_same(what: str, given: Mapping[str, Any]) -> None:
  """Compares what the processes were given, name by name; values are JSON.

  Raises:
    UsageError: one process has another value than process 0; raised in every process.
  """
  first, *others = gather(dict(given))
  for index, other in enumerate(others, 1):
    pairs = {name: (first.get(name), other.get(name)) for name in first | other}
    parts = [f'{name}: {a!r} -> {b!r}' for name, (a, b) in pairs.items() if a != b]
    if parts:
      raise UsageError(
        f'{_who(index)} has another {what} than process 0: {"; ".join(parts)}.'
      )


@contextlib.contextmanager
def joined(execution: Any, given: Callable[[], Mapping[str, Any]]) -> Iterator[None]:
  """Inside, processes that were started together are one run. Does nothing for one.

  After the context, each of several processes has some seconds to end.

  Args:
    execution: the knobs `execution.*`: the devices that each process uses.
    given: returns what must be equal in all processes.

  Raises:
    UsageError: the processes were given different things, or have different numbers of
      devices.
    RunError: another process has ended.
  """
  if not (place := launchers.detect(os.environ)):
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

  from moon_jax.platform import devices

  name, seconds = place.launcher, f'{place.wait} s ({launchers.WAIT})'
  told = f'process {place.index} of {place.count} ({name}): waiting for all, at most '
  print(told + seconds, flush=True)
  late = f'Of {place.count} processes ({name}) not all came within {seconds}.'
  late = f'{late} {launchers.PROCESSES}=1 runs one alone.\n'
  # Checked before JAX, which would end with a stack trace.
  timer = _in(place.wait, _exit, ExitCode.FAILED, late)
  # JAX would take SIGTERM for itself.
  jax.config.update('jax_enable_preemption_service', False)
  try:
    jax.distributed.initialize(
      place.coordinator,
      place.count,
      place.index,
      launchers.own_gpus(place, len(devices.visible_gpus())),
      cluster_detection_method=place.method,
      initialization_timeout=place.wait + _HEARTBEAT,
      heartbeat_timeout_seconds=_HEARTBEAT,
    )
  except (RuntimeError, ValueError) as error:
    raise UsageError(
      f"JAX's coordinator cannot be started or found ({error}): give host:port of "
      f'process 0 by {launchers.COORDINATOR}, and a port that is free there.'
    ) from None
  finally:
    timer.cancel()
  _place = place
  devices.claim(execution.devices, deterministic=execution.deterministic)
  # All processes see the devices of all, so they end alike.
  of_each = collections.Counter(one.process_index for one in jax.devices())
  counts = [of_each[index] for index in range(place.count)]
  if min(counts) < max(counts):
    raise UsageError(
      f'The processes have {min(counts)} to {max(counts)} devices each, and need '
      'equally many: give all the same --config.execution.devices, and GPUs by '
      'CUDA_VISIBLE_DEVICES.'
    )


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
