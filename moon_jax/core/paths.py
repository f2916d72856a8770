"""Paths as users write them."""

import os
import pathlib


def expand(path: str | os.PathLike) -> pathlib.Path:
  """The path, with ~ replaced by the home folder, if there is one."""
  return pathlib.Path(os.path.expanduser(path))  # Path.expanduser raises for ~nobody
