"""Checks the file that a program is asked to write, before anything slow is loaded."""

import os
import pathlib
from collections.abc import Sequence

from moon_jax.core import files
from moon_jax.core.errors import UsageError
from moon_jax.core.flags import option
from moon_jax.core.paths import expand

WEIGHT_SUFFIXES = ('.safetensors', '.npz')
# What a trained model is written as: also for PyTorch, and for ONNX.
MODEL_SUFFIXES = (*WEIGHT_SUFFIXES, '.py', '.onnx')


def require_output(
  option_name: str, word: str, suffixes: Sequence[str]
) -> pathlib.Path:
  """The path of a file that can be written; nothing is left.

  Args:
    option_name: the option of the command line that names it.
    word: the option's value.
    suffixes: the endings of a name that are allowed.

  Raises:
    UsageError: it has another ending, is a folder, its name is too long, or its folder
      is missing or cannot be written.
    RunError: the disk is full.
  """
  path = expand(word)
  given = option(option_name, word)
  if path.suffix not in suffixes:
    raise UsageError(f'{given} must end in {any_of(suffixes)}.')
  if not os.path.isdir(path.parent):  # Path.is_dir raises if a name is too long
    raise UsageError(f'{given}: there is no folder {str(path.parent)!r}.')
  files.require_writable(path.parent, option_name)
  require_short_name(option_name, word)
  if path.is_dir():
    raise UsageError(f'{given} is a folder.')
  return path


def any_of(words: Sequence[str]) -> str:
  """The words as a choice.

  >>> any_of(('.npz', '.py', '.onnx'))
  '.npz, .py or .onnx'
  """
  return ' or '.join(filter(None, (', '.join(words[:-1]), words[-1])))


def require_short_name(option_name: str, word: str) -> None:
  """Refuses a path if its name is too long for the file system.

  Args:
    option_name: the option of the command line that names it.
    word: the option's value.

  Raises:
    UsageError: it is too long with the ending under which it is written first.
  """
  path = expand(word)
  try:
    os.lstat(path.with_name(path.name + files.PARTIAL))
  except FileNotFoundError:
    pass
  except OSError as error:
    given = option(option_name, word)
    raise UsageError(f'{given} cannot be written: {error.strerror}.') from None
