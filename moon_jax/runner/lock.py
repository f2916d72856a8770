"""Locks a run directory for one process at a time, and says which one has it."""

import contextlib
import datetime
import fcntl
import os
import pathlib
import platform
from collections.abc import Iterator

from moon_jax.core import files
from moon_jax.core.errors import UsageError

LOCK = '.lock'


class BusyError(UsageError):
  """Another process is running in the directory."""


@contextlib.contextmanager
def held(workdir: pathlib.Path) -> Iterator[None]:
  """Makes the run directory and holds its lock.

  The kernel releases the lock when the process ends, however it ends; the file stays
  and means nothing then.

  Raises:
    BusyError: another process is running in the directory.
    RunError: it cannot be made, written to or locked.
  """
  path = workdir / LOCK
  with contextlib.ExitStack() as stack:
    with files.writing(path):
      files.make_folder(workdir)
      # Not emptied: it tells who holds it. Unbuffered: what a full disk has refused is
      # not tried again when the file is closed.
      file = stack.enter_context(path.open('ab+', buffering=0))
      try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
      except BlockingIOError:
        who = path.read_text().strip() or 'it has just started'
        raise BusyError(
          f'Another process is running in {workdir}: {who}. Give this one a --workdir.'
        ) from None
      now = datetime.datetime.now().astimezone().isoformat(' ', 'seconds')
      who = f'process {os.getpid()} on {platform.node()}, started {now}\n'
      file.truncate(0)
      file.write(who.encode())
    yield
