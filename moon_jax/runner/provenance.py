"""What a run records about where it ran: versions, processor, commit of the code."""

import functools
import importlib.metadata
import pathlib
import platform
import subprocess
from typing import Any

import joblib

from moon_jax import __version__

_PACKAGES = ('jax', 'jaxlib', 'flax', 'optax', 'orbax-checkpoint', 'numpy')


def versions() -> dict[str, str]:
  """The versions of Python, of moon_jax and of the packages that compute."""
  ours = {'python': platform.python_version(), 'moon_jax': __version__}
  return ours | {name: importlib.metadata.version(name) for name in _PACKAGES}


def machine() -> dict[str, Any]:
  """The name of the processor, and the number of cores that the process may use."""
  told = pathlib.Path('/proc/cpuinfo')
  lines = told.read_text().splitlines() if told.exists() else []
  names = [line.partition(': ')[2] for line in lines if line.startswith('model name')]
  processor = (names or [platform.machine()])[0]
  return {'processor': processor, 'cores': joblib.cpu_count()}


@functools.cache  # A later commit does not change the code that was loaded.
def git_commit() -> str | None:
  """The commit of the code, with '+changes' if it was edited; None outside git.

  Code that is installed inside another repository has no commit there.
  """
  path = pathlib.Path(__file__)
  describe = 'describe --always --abbrev=40 --dirty=+changes --exclude=*'
  try:
    for command in (f'ls-files --error-unmatch {path.name}', describe):
      words = ['git', '-C', str(path.parent), *command.split()]
      done = subprocess.run(words, capture_output=True, text=True, check=True)
  except (FileNotFoundError, subprocess.CalledProcessError):
    return None
  return done.stdout.strip()
