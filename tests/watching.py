"""Sees every file that is opened, also by HDF5, SQLite and Arrow: inotify of Linux."""

import contextlib
import ctypes
import os
import pathlib
import signal
import struct
from collections.abc import Callable, Iterator

import pytest

_OPENED = 0x20  # IN_OPEN of inotify; looking at a path without opening it is no event
_EVENT = struct.Struct('iIII')  # watch, kind, cookie, bytes of the name that follows


@contextlib.contextmanager
def openings(*paths: pathlib.Path) -> Iterator[Callable[[], list[str]]]:
  """Yields a function: what was opened of files, and in folders, since the last call.

  A folder is watched without the folders inside it.
  """
  system = ctypes.CDLL(None, use_errno=True)
  if not hasattr(system, 'inotify_init1'):
    pytest.skip('this system has no inotify')
  descriptor = system.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
  if descriptor < 0:
    raise OSError(ctypes.get_errno(), 'inotify_init1')
  watched = {}
  for path in paths:
    number = system.inotify_add_watch(descriptor, os.fsencode(path), _OPENED)
    if number < 0:
      raise OSError(ctypes.get_errno(), 'inotify_add_watch', str(path))
    watched[number] = path

  def opened():
    names = []
    with contextlib.suppress(BlockingIOError):
      while events := os.read(descriptor, 2**16):
        while events:
          number, _, _, size = _EVENT.unpack_from(events)
          name = events[_EVENT.size : _EVENT.size + size].rstrip(b'\0')
          names.append(str(watched[number] / os.fsdecode(name)))
          events = events[_EVENT.size + size :]
    return names

  try:
    yield opened
  finally:
    os.close(descriptor)


@contextlib.contextmanager
def within(seconds: int) -> Iterator[None]:
  """SIGALRM ends a test that waits longer."""
  earlier = signal.signal(signal.SIGALRM, lambda *_: pytest.fail('it waits'))
  signal.alarm(seconds)
  try:
    yield
  finally:
    signal.alarm(0)
    signal.signal(signal.SIGALRM, earlier)
