"""Finds run directories below folders. It imports nothing slow."""

import pathlib
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from moon_jax import config as config_lib
from moon_jax.core import files, paths
from moon_jax.core.errors import RunError
from moon_jax.runner import run_files


def run_directories(
  root: pathlib.Path, on_error: Callable[[OSError], None] | None = None
) -> Iterator[pathlib.Path]:
  """The run directories below a folder; it looks for none inside another.

  Args:
    root: the folder, which may itself be a run directory.
    on_error: called with the error of each folder that cannot be listed.
  """
  for folder, subfolders, file_names in paths.walk(root, on_error=on_error):
    subfolders.sort()
    if run_files.CONFIG in file_names:
      subfolders.clear()
      yield pathlib.Path(folder)


class RecordedNames(NamedTuple):
  """Names in the config.json of some runs.

  Attributes:
    knobs: the knobs.
    algorithms: the algorithms.
  """

  knobs: set[str]
  algorithms: set[str]


def recorded_names(roots: Iterable[pathlib.Path]) -> RecordedNames:
  """The names that all runs below some folders have recorded."""
  names = RecordedNames(set(), set())
  for root in roots:
    for path in run_directories(root):
      try:
        saved = files.read_json(path / run_files.CONFIG) or {}
      except RunError:
        continue  # the report says that it is damaged
      knobs = config_lib.flatten(saved.get('config', {}))
      names.knobs.update(knobs)
      names.algorithms.add(str(knobs.get('algorithm')))
  return names
