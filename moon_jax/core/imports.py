"""Imports a package without optional packages that it would load and not need."""

import contextlib
import importlib.abc
import sys
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def without(*packages: str) -> Iterator[None]:
  """Inside, an import of these packages fails in this thread: they seem not installed.

  A package that is loaded already stays. Later imports, and those of other threads, are
  as before.
  """
  hidden = _Hidden(packages)
  sys.meta_path.insert(0, hidden)
  try:
    yield
  finally:
    sys.meta_path.remove(hidden)


class _Hidden(importlib.abc.MetaPathFinder):
  """Fails to find packages; it is asked before any other finder."""

  def __init__(self, packages):
    self._packages, self._thread = packages, threading.get_ident()

  def find_spec(self, fullname, path, target=None):
    if fullname in self._packages and threading.get_ident() == self._thread:
      raise ModuleNotFoundError(f'{fullname} is hidden', name=fullname)
    return None  # the next finder is asked
