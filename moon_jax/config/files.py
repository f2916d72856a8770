"""Loads config files: FILE, or FILE:VARIANT for one of its experiments."""

import os
import pathlib
import sys
import traceback
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, NamedTuple

import ml_collections

from moon_jax import catalog
from moon_jax.config.trees import flatten
from moon_jax.config.validation import ConfigError
from moon_jax.core.errors import UsageError, did_you_mean
from moon_jax.core.paths import expand

ROOT = pathlib.Path(__file__).parents[2]
LIST = 'list'
_PROGRAM = 'launch.py' if (ROOT / 'launch.py').is_file() else '-m moon_jax'
PROGRAM = ('python', *_PROGRAM.split())


class Variant(NamedTuple):
  """One experiment of a config file, chosen by `--config=FILE:NAME`.

  Attributes:
    setting: the setting, in a few words.
    reported: the paper's figure, top-1 test accuracy in per cent; '' if it has none.
    changes: dotted knob -> value, where it differs from the file's common setting.
  """

  setting: str
  reported: str
  changes: Mapping[str, Any]


def choose(
  config: ml_collections.ConfigDict, variants: Mapping[str, Variant], name: str
) -> ml_collections.ConfigDict:
  """The common setting of a config file, with the changes of one variant."""
  config.update_from_flattened_dict(variants[name].changes)
  return config


def load(choice: str) -> dict[str, Any]:
  """Runs a config file; a config file is code.

  Args:
    choice: FILE or FILE:VARIANT.

  Returns:
    dotted knob -> its value.

  Raises:
    ConfigError: there is no such file or variant, or the file fails.
  """
  path, variant = split(choice)
  module, words = _module(path), []
  if variant is not None:
    named, words = variants(path, module), [variant]
    if variant not in named:
      told = f'{path} has no variant {variant!r}; --config={path}:{LIST} prints them.'
      raise ConfigError([told + did_you_mean(variant, named)])
  config = _run(path, lambda: module.get_config(*words))
  if not isinstance(config, ml_collections.ConfigDict):
    kind = type(config).__name__
    problem = f'--config={path!r}: get_config() must return a ConfigDict, not {kind}.'
    raise ConfigError([problem])
  return _run(path, lambda: flatten(config.to_dict()))


def variants(path: str, module: ModuleType | None = None) -> Mapping[str, Variant]:
  """name -> experiment of a config file, which is run unless its module is given.

  Raises:
    ConfigError: there is no such file, it fails, or it has no variants.
  """
  named = getattr(module or _module(path), 'VARIANTS', None)
  if not isinstance(named, Mapping):
    raise ConfigError([f'--config={path!r} has no variants.'])
  return named


def list_variants(path: str) -> str:
  """The experiments of a config file: each one's command, setting and figure.

  Raises:
    ConfigError: there is no such file, it fails, or it has no variants.
  """
  rows = [('command', 'setting', 'reported accuracy, %')]
  for name, variant in variants(path).items():
    command = f'{" ".join(PROGRAM)} --config={path}:{name}'
    rows.append((command, variant.setting, variant.reported or '-'))
  first, second, _ = (max(map(len, column)) for column in zip(*rows, strict=True))
  return '\n'.join(f'{a:<{first}}  {b:<{second}}  {c}' for a, b, c in rows)


def split(choice: str) -> tuple[str, str | None]:
  """'configs/x.py:y' -> ('configs/x.py', 'y'); a file's own name may hold a colon."""
  path, colon, variant = choice.rpartition(':')
  return (path, variant) if colon and not _find(choice) else (choice, None)


def _find(path: str) -> pathlib.Path | None:
  """The file, also when called from another folder; None if there is none."""
  file = expand(path)
  # Not Path.is_file, which raises if the name is too long.
  return next((f for f in (file, ROOT / file) if os.path.isfile(f)), None)


def _module(path: str) -> ModuleType:
  file = _find(path)
  if file is None:
    near = sorted(f'configs/{p.name}' for p in (ROOT / 'configs').glob('[!_]*.py'))
    raise ConfigError([f'--config={path!r} is not a file.{did_you_mean(path, near)}'])
  module = ModuleType(f'config_{file.stem}')
  module.__file__ = str(file)
  catalog.forget_callbacks()
  sys.modules[module.__name__] = module  # a class in it expects this
  # Not imported: that would leave a __pycache__ beside the user's file, and would not
  # see an edit of the same length within a second.
  _run(path, lambda: exec(compile(file.read_bytes(), file, 'exec'), vars(module)))
  return module


def _run(path: str, code: Callable[[], Any]) -> Any:
  """Calls code of the config file; returns its result.

  Raises:
    ConfigError: the code raises an error.
  """
  try:
    return code()
  except (Exception, SystemExit) as error:
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(_find(path))]
    lines += [error.lineno] if isinstance(error, SyntaxError) else []
    where = f', line {lines[-1]}' if lines else ''
    kind = '' if isinstance(error, UsageError) else f'{type(error).__name__}: '
    message = f'{kind}{error}'.strip().partition('\n')[0]
    raise ConfigError([f'--config={path!r} failed{where}: {message}']) from None
