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
  words_of_each=(),
  absent=(),
  wait=LIMIT_SECONDS,
  **environment,
):
  """A process in each folder but the absent ones.

  Args:
    folders: the folder of each process.
    *words: words of every process.
    program: the program.
    words_of_each: further words of each process.
    absent: indices of processes that are not started.
    wait: seconds to wait for all processes.
    **environment: further variables of every process.
  """
  environment[COORDINATOR] = f'localhost:{free_port()}'
  environment[PROCESSES] = f'{len(folders)}'
  environment[WAIT] = f'{wait}'
  processes = []
  with contextlib.ExitStack() as stack:
    for index, folder in enumerate(folders):
      if index in absent:
        continue
      own_words = words_of_each[index] if words_of_each else ()
      environment[PROCESS] = f'{index}'
      process = Running(folder, *words, *own_words, program=program, **environment)
      processes.append(stack.enter_context(process))
    yield processes


def finish(processes):
  """Waits for all processes: the output and the exit code of each."""
  return [process.finish() for process in processes]


def run(folders, *words, **options):
  """Runs the processes to their end, and keeps compiled programs for other tests."""
  with started(folders, *words, **KEEP, **options) as processes:
    return finish(processes)
