"""Keeps others out of a run directory whose file system cannot lock a file.

A process that works in the directory has a lease there: a file with a name of its own,
which says who the process is, and which it renews. Each process makes its lease first
and looks for others then, so of two that start at once at least one sees the other. A
stale lease is removed by its name, which no newer lease has.
"""

import contextlib
import datetime
import json
import os
import pathlib
import platform
import secrets
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from moon_jax.core import files
from moon_jax.core.errors import printable

PREFIX = '.lease-'
RENEW_SECONDS = 20.0
# After so long without a renewal a lease may be taken over.
LIMIT_SECONDS = 60.0
_NUM_LOOKS = 12  # while a lease is watched for LIMIT_SECONDS
_SETTLE_SECONDS = 5.0  # within which those that start at once see who stays
_MAX_BYTES = 1024
_MAX_LETTERS = 100  # of a text of a lease in a message


class Holder(NamedTuple):
  """A process, as its lease describes it.

  Attributes:
    host: name of the host.
    pid: id of the process there.
    started: when it made the lease, by the host's clock; for people.
    machine: the host since its last boot, and the namespace of ids; '' if unknown.
    birth: when the process began, in the system's words; '' if unknown.
  """

  host: str
  pid: int
  started: str
  machine: str
  birth: str

  def __str__(self):
    host = printable(self.host[:_MAX_LETTERS])
    started = printable(self.started[:_MAX_LETTERS])
    return f'process {self.pid} on {host}, started {started}'


UNKNOWN = Holder(host='an unknown host', pid=0, started='?', machine='', birth='')


class HeldError(Exception):
  """Another process holds a lease; the message says who, and when it was renewed."""


class LostError(Exception):
  """The lease of this process is gone."""


def this_process() -> Holder:
  """This process, for its lease."""
  birth, _ = _birth_and_state(os.getpid())
  return Holder(
    host=platform.node(),
    pid=os.getpid(),
    started=datetime.datetime.now().astimezone().isoformat(' ', 'seconds'),
    machine=_machine(),
    birth=birth,
  )


def _machine() -> str:
  """Names the host since its last boot, and the namespace of process ids."""
  try:
    boot = pathlib.Path('/proc/sys/kernel/random/boot_id').read_text().strip()
    return f'{boot} {os.readlink("/proc/self/ns/pid")}'
  except OSError:  # not Linux
    return ''


def _birth_and_state(pid: int) -> tuple[str, str]:
  """When a process began, and the letter of its state; '' if unknown."""
  try:
    text = pathlib.Path(f'/proc/{pid}/stat').read_text(errors='replace')
  except OSError:
    return '', ''
  state, *numbers = text.rpartition(')')[2].split()
  return numbers[18], state


def _is_alive(holder: Holder) -> bool:
  """Whether a process of this machine has not ended."""
  try:
    os.kill(holder.pid, 0)
  except ProcessLookupError:
    return False
  except PermissionError:  # another user's
    pass
  birth, state = _birth_and_state(holder.pid)
  return state not in ('Z', 'X') and birth in ('', holder.birth)


class Lease:
  """The lease of this process on a folder."""

  def __init__(self, folder: pathlib.Path):
    """Makes the file."""
    self.name = f'{PREFIX}{secrets.token_hex(8)}'
    self._holder = this_process()
    self._num_renewals = 0
    self._mutex = threading.Lock()
    # The folder may be moved; the lease stays in it.
    self._folder = os.open(folder, os.O_RDONLY)
    try:
      self._write(os.O_CREAT | os.O_EXCL)
    except BaseException:
      self.remove()
      raise

  def _write(self, flags=0):
    """Writes in place, so that the file is never empty once it has been written."""
    content = self._holder._asdict() | {'renewals': self._num_renewals}
    flags |= os.O_WRONLY | os.O_NOFOLLOW
    descriptor = os.open(self.name, flags, 0o644, dir_fd=self._folder)
    try:
      os.write(descriptor, json.dumps(content).encode().ljust(_MAX_BYTES))
      os.fsync(descriptor)
    finally:
      os.close(descriptor)
    self._renewed = time.monotonic()

  def renew(self) -> None:
    """Shows that this process lives.

    Raises:
      LostError: the lease is gone.
      OSError: it cannot be written.
    """
    with self._mutex:
      self._num_renewals += 1
      try:
        self._write()
      except FileNotFoundError:
        raise LostError from None

  def require(self) -> None:
    """Raises LostError if the lease is gone.

    After a standstill of this process the lease is renewed first. A file system that
    does not answer says nothing about the lease.
    """
    with contextlib.suppress(OSError):
      if time.monotonic() - self._renewed > 2 * RENEW_SECONDS:
        self.renew()
      try:
        os.stat(self.name, dir_fd=self._folder)
      except FileNotFoundError:
        raise LostError from None

  @contextlib.contextmanager
  def renewed_often(self) -> Iterator[None]:
    """Inside, a thread renews the lease."""
    has_ended = threading.Event()

    def renew_until_the_end():
      while not has_ended.wait(RENEW_SECONDS):
        try:
          self.renew()
        except LostError:
          return  # `require` says so
        except OSError:
          pass  # the next renewal may succeed

    thread = threading.Thread(target=renew_until_the_end, name='lease', daemon=True)
    thread.start()
    try:
      yield
    finally:
      has_ended.set()
      thread.join()

  def remove(self) -> None:
    """Removes the file."""
    with contextlib.suppress(OSError):
      os.unlink(self.name, dir_fd=self._folder)
    os.close(self._folder)


@contextlib.contextmanager
def held(folder: pathlib.Path, print_line: Callable[[str], None]) -> Iterator[Lease]:
  """Holds a lease on a folder, once no other process holds one.

  Args:
    folder: the folder.
    print_line: called with a line for each lease that is taken over, and for a wait.

  Raises:
    HeldError: another process holds one.
    OSError: the lease cannot be written.
  """
  require_none(folder, print_line)
  lease = Lease(folder)
  try:
    end = time.monotonic() + _SETTLE_SECONDS
    while others := [path for path in _leases(folder) if path.name != lease.name]:
      # Of those that start at once the first by name stays, and waits until the others
      # have seen it. One that does not go has been there before.
      with contextlib.suppress(FileNotFoundError):  # it has just gone
        if others[0].name < lease.name or time.monotonic() > end:
          raise HeldError(f'{_holder(others[0])}, which has just started')
      time.sleep(_SETTLE_SECONDS / 100)
    with lease.renewed_often():
      yield lease
  finally:
    lease.remove()


def require_none(folder: pathlib.Path, print_line: Callable[[str], None]) -> None:
  """Removes stale leases.

  Args:
    folder: the folder.
    print_line: see `held`.

  Raises:
    HeldError: a lease is not stale.
  """
  for path in _leases(folder):
    with contextlib.suppress(FileNotFoundError):  # its process has just removed it
      reason = _why_stale(path, print_line)
      print_line(f'{_holder(path)}, {reason}: its lease on {folder} is taken over')
      path.unlink()


def _leases(folder):
  return sorted(folder.glob(f'{PREFIX}*'))


def _holder(path: pathlib.Path) -> Holder:
  """The process that a lease names; UNKNOWN if it is written only in part."""
  try:
    content = json.loads(_content(path))
    holder = Holder(*(content[name] for name in Holder._fields))
    texts = (holder.host, holder.started, holder.machine, holder.birth)
    is_valid = all(isinstance(text, str) for text in texts)
    if is_valid and isinstance(holder.pid, int) and 0 < holder.pid < 2**31:
      return holder
  except FileNotFoundError:
    raise
  except (OSError, ValueError, KeyError, TypeError, RecursionError):
    pass
  return UNKNOWN


def _content(path):
  with files.opened(path) as file:
    return file.read(_MAX_BYTES)


def _why_stale(path: pathlib.Path, print_line: Callable[[str], None]) -> str:
  """Why a lease counts no more.

  Raises:
    HeldError: it counts.
    FileNotFoundError: it is gone.
  """
  holder = _holder(path)
  age = _age(path)
  last_renewal = f'which renewed its lease {max(age, 0):.0f} s ago'
  if holder.machine and holder.machine == _machine():
    if _is_alive(holder):
      raise HeldError(f'{holder}, {last_renewal}')
    return 'has ended'
  # Where files get their times from the hosts, and not from a server, the age is wrong
  # by what the clocks differ. So a lease that seems old is watched before it is taken.
  if abs(age) < LIMIT_SECONDS:
    raise HeldError(
      f'{holder}, {last_renewal}; after {LIMIT_SECONDS:.0f} s without a renewal the '
      'next start takes over'
    )
  print_line(f'{holder}, {last_renewal}: watching it for at most {LIMIT_SECONDS:.0f} s')
  first_content = _content(path)
  for _ in range(_NUM_LOOKS):
    time.sleep(LIMIT_SECONDS / _NUM_LOOKS)
    if _content(path) != first_content:
      raise HeldError(f'{holder}, which has just renewed its lease')
  return f'has not renewed its lease for {LIMIT_SECONDS:.0f} s'


def _age(path: pathlib.Path) -> float:
  """Seconds since a file was written, by the clock that gives files their times."""
  with tempfile.TemporaryFile(dir=path.parent, buffering=0) as file:
    file.write(b'.')
    os.fsync(file.fileno())
    now = os.fstat(file.fileno()).st_mtime
  return now - path.stat().st_mtime
