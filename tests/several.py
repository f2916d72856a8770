"""Starts launch.py as several processes of one run, connected over localhost."""

import contextlib
import itertools
import os
import socket

from moon_jax.engine.rendezvous import COORDINATOR, PROCESS, PROCESSES, WAIT
from tests.processes import LAUNCH, LIMIT_SECONDS, Running

# Below the ports that the system gives away, from another one in each test process.
_ports = itertools.cycle(range(20000 + os.getpid() * 37 % 9000, 30000))


def free_port():
  """A port at which nobody listens."""
  for port in _ports:
    with contextlib.suppress(OSError), socket.create_server(('', port)):
      return port


def places(count, wait=LIMIT_SECONDS):
  """The environment of each of so many processes."""
  both = {COORDINATOR: f'localhost:{free_port()}', PROCESSES: f'{count}'}
  return [{**both, PROCESS: f'{index}', WAIT: f'{wait}'} for index in range(count)]


@contextlib.contextmanager
def started(folders, *words, program=(LAUNCH,), each=(), **environment):
  """The processes, one in each of the folders; `each` has words of one alone."""
  each = each or [()] * len(folders)
  with contextlib.ExitStack() as stack:
    zipped = zip(folders, places(len(folders)), each, strict=True)
    yield [
      stack.enter_context(
        Running(folder, *words, *own, program=program, **environment, **place)
      )
      for folder, place, own in zipped
    ]


def finish(processes):
  """Waits for all: what each has written, and its exit code."""
  return [process.finish() for process in processes]


def run(folders, *words, **more):
  """Runs the processes to their end; what they compile is kept for other tests."""
  keep = {'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0'}
  with started(folders, *words, **keep, **more) as processes:
    return finish(processes)
