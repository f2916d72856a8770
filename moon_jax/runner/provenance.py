"""What a run records about where it ran: versions, processor, commit of the code."""

import functools
import importlib.metadata
import pathlib
import platform
import subprocess
from typing import Any

from moon_jax import __version__
from moon_jax.platform import cores

_PACKAGES = ('jax', 'jaxlib', 'flax', 'optax', 'orbax-checkpoint', 'numpy')


def versions() -> dict[str, str]:
  """The versions of Python, of moon_jax and of the packages that compute."""
  ours = {'python': platform.python_version(), 'moon_jax': __version__}
  return ours | {name: importlib.metadata.version(name) for name in _PACKAGES}


def devices() -> list[str]:
  """The kind of each device."""
  # Imported here: a run directory is checked before JAX is loaded.
  import jax

  return [f'{device.platform}: {device.device_kind}' for device in jax.devices()]


def kernels() -> str:
  """What computes the parts of the network that have kernels in C++: 'C++' or 'XLA'.

  '' if it has no such parts, as far as it has been traced.
  """
  from moon_jax.models import cpu_kernels

  if not cpu_kernels.were_needed():
    return ''
  return 'XLA' if cpu_kernels.fault() else 'C++'


def machine() -> dict[str, Any]:
  """The name of the processor, and the number of cores that the process may use."""
  return {'processor': _processor(), 'cores': cores.count_usable()}


def _processor() -> str:
  """The model of the processor; its architecture where Linux does not tell more."""
  path = pathlib.Path('/proc/cpuinfo')
  if path.exists():
    for line in path.read_text().splitlines():
      key, _, name = line.partition(': ')
      if key.startswith('model name'):
        return name
  return platform.machine()


@functools.cache  # A later commit does not change the code that was loaded.
def git_commit() -> str | None:
  """The commit of the code, with '+changes' if it was edited; None outside git.

  Code that is installed inside another repository has no commit there.
  """
  path = pathlib.Path(__file__)
  try:
    _git(path.parent, f'ls-files --error-unmatch {path.name}')
    return _git(
      path.parent, 'describe --always --abbrev=40 --dirty=+changes --exclude=*'
    )
  except (FileNotFoundError, subprocess.CalledProcessError):
    return None


def _git(folder: pathlib.Path, command: str) -> str:
  """What git prints; raises CalledProcessError if it fails."""
  words = ['git', '-C', str(folder), *command.split()]
  completed = subprocess.run(words, capture_output=True, text=True, check=True)
  return completed.stdout.strip()
