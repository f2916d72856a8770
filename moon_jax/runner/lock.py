"""Locks a run directory for one process at a time, and says which one has it."""

import contextlib
import datetime
import fcntl
import os
import pathlib
import platform
from collections.abc import Iterator

from moon_jax.errors import UsageError
from moon_jax.runner import files

LOCK = '.lock'


@contextlib.contextmanager
def held(workdir: pathlib.Path) -> Iterator[None]:
  """Makes the run directory and holds its lock.

  The kernel releases the lock when the process ends, however it ends; the file stays
  and means nothing then.

  Raises:
    UsageError: the directory cannot be made, written to or locked, or another process
      is running in it.
  """
  try:
    workdir.mkdir(parents=True, exist_ok=True)
    # Not emptied: it tells who holds it. Unbuffered: what a full disk has refused is
    # not tried again when the file is closed.
    file = (workdir / LOCK).open('ab+', buffering=0)
  except OSError as error:
    problem = f'--workdir={str(workdir)!r} cannot be written: {error.strerror}.'
    raise UsageError(problem) from None
  with file:
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      file.seek(0)
      who = file.read().decode().strip() or 'it has just started'
      raise UsageError(
        f'Another process is running in {workdir}: {who}. Give this one a --workdir.'
      ) from None
    except OSError as error:  # some network file systems have no locks
      problem = f'--workdir={str(workdir)!r} cannot be locked: {error.strerror}.'
      raise UsageError(problem) from None
    now = datetime.datetime.now().astimezone().isoformat(' ', 'seconds')
    with files.writing(workdir / LOCK):
      file.truncate(0)
      who = f'process {os.getpid()} on {platform.node()}, started {now}\n'
      file.write(who.encode())
    yield
