"""Connects the processes of a run, and ends them when one of them has ended."""

import atexit
import collections
import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax

from moon_jax.core.errors import ExitCode, RunError, UsageError
from moon_jax.core.flags import flag
from moon_jax.platform import devices, hosts, launchers
from moon_jax.platform.launchers import ProcessGroup

# Seconds of silence after which JAX ends the other processes. A sign of life is sent
# twice in that time, so a process may be stopped for a minute.
_HEARTBEAT = 150
_GRACE = 10.0  # seconds that a process waits for the others at its end


@contextlib.contextmanager
def joined(
  group: ProcessGroup, execution: Any, fingerprint: Callable[[], Mapping[str, Any]]
) -> Iterator[None]:
  """Inside, processes that were started together are one run.

  After the context, each process has some seconds to end.

  Args:
    group: the processes.
    execution: the knobs `execution.*`: the devices that each process uses.
    fingerprint: returns what must be equal in all processes.

  Raises:
    UsageError: the processes have different fingerprints, or different numbers of
      devices.
    RunError: another process has ended.
  """
  exit_code = ExitCode.FAILED
  try:
    _connect(group)
    devices.claim(execution.devices, deterministic=execution.deterministic)
    _require_as_many_devices_each(group.count)
    hosts.exchange_names()
    shared = {**fingerprint(), 'processes': group.count}
    hosts.require_same('command or program', shared)
    yield
    exit_code = ExitCode.DONE
  except RunError as error:
    exit_code = error.exit_code
    raise
  except (RuntimeError, ValueError) as error:
    if 'Gloo' not in str(error):
      raise
    atexit.register(_exit, exit_code)  # before JAX waits for the others at its end
    reason = str(error).splitlines()[0]
    raise RunError(
      'Another process has ended, or cannot be reached; the same command goes on from '
      f'what was saved. {reason}'
    ) from None
  finally:
    _after(_GRACE, lambda: _exit(exit_code))


def _connect(group: ProcessGroup) -> None:
  """Connects this process with the others, by `jax.distributed`."""
  launcher = group.launcher
  patience = f'{group.wait_seconds} s ({launchers.WAIT})'
  print(
    f'process {group.index} of {group.count} ({launcher}): waiting for all, at most '
    f'{patience}',
    flush=True,
  )
  too_late = (
    f'Of {group.count} processes ({launcher}) not all came within {patience}. '
    f'{launchers.PROCESSES}=1 runs one alone.\n'
  )
  # Checked before JAX, which would end with a stack trace.
  timer = _after(group.wait_seconds, lambda: _exit(ExitCode.FAILED, too_late))
  # JAX would take SIGTERM for itself.
  jax.config.update('jax_enable_preemption_service', False)
  try:
    jax.distributed.initialize(
      group.coordinator,
      group.count,
      group.index,
      launchers.own_gpus(group, len(devices.visible_gpus())),
      cluster_detection_method=group.method,
      initialization_timeout=group.wait_seconds + _HEARTBEAT,
      heartbeat_timeout_seconds=_HEARTBEAT,
    )
  except (RuntimeError, ValueError) as error:
    raise UsageError(
      f"JAX's coordinator cannot be started or found ({error}): give host:port of "
      f'process 0 by {launchers.COORDINATOR}, and a port that is free there.'
    ) from None
  finally:
    timer.cancel()
  hosts.enter(group)


def _require_as_many_devices_each(num_processes: int) -> None:
  """Raises UsageError unless all processes have equally many devices.

  All processes see the devices of all, so they end alike.
  """
  num_devices = collections.Counter(device.process_index for device in jax.devices())
  counts = [num_devices[index] for index in range(num_processes)]
  if min(counts) < max(counts):
    raise UsageError(
      f'The processes have {min(counts)} to {max(counts)} devices each, and need '
      f'equally many: give all the same {flag("execution.devices")}, and GPUs by '
      'CUDA_VISIBLE_DEVICES.'
    )


def _after(seconds: float, act: Callable[[], None]) -> threading.Timer:
  timer = threading.Timer(seconds, act)
  timer.daemon = True
  timer.start()
  return timer


def _exit(code: int, line: str = '') -> None:
  for stream in filter(None, (sys.stdout, sys.stderr)):
    stream.flush()
  os.write(2, line.encode())
  os._exit(code)
