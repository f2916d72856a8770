"""Starts launch.py as several processes of one run, connected over localhost."""

import contextlib
import itertools
import os
import socket

from moon_jax.platform.launchers import COORDINATOR, PROCESS, PROCESSES, WAIT
from tests.processes import LAUNCH, LIMIT_SECONDS, Running

# Ports below those that the system assigns; each test process starts at another one.
_ports = itertools.cycle(range(20000 + os.getpid() * 37 % 9000, 30000))

# Keeps compiled programs for other tests; not for a process that may be killed.
KEEP = {'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0'}


def free_port():
  """A port on which no program listens."""
  for port in _ports:
    with contextlib.suppress(OSError), socket.create_server(('', port)):
      return port


@contextlib.contextmanager
def started(
  folders,
  *words,
  program=(LAUNCH,),
  each=(),
  absent=(),
  wait=LIMIT_SECONDS,
  **environment,
):
  """A process in each folder but the absent ones; `each`: the words of each process."""
  each, count, port = each or [()] * len(folders), len(folders), free_port()
  both = {COORDINATOR: f'localhost:{port}', PROCESSES: f'{count}', WAIT: f'{wait}'}
  with contextlib.ExitStack() as stack:
    yield [
      stack.enter_context(
        Running(
          *(folder, *words, *own),
          program=program,
          **(environment | both | {PROCESS: f'{index}'}),
        )
      )
      for index, (folder, own) in enumerate(zip(folders, each, strict=True))
      if index not in absent
    ]


def finish(processes):
  """Waits for all processes: the output and the exit code of each."""
  return [process.finish() for process in processes]


def run(folders, *words, **more):
  """Runs the processes to their end, and keeps compiled programs for other tests."""
  with started(folders, *words, **KEEP, **more) as processes:
    return finish(processes)
