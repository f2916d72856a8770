"""Loads config files: FILE, or FILE:VARIANT for one of its experiments."""

import inspect
import itertools
import os
import pathlib
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import ml_collections

from moon_jax import catalog
from moon_jax.config.configuration import flatten
from moon_jax.core.errors import ConfigError, UsageError, nearest_name_hint
from moon_jax.core.flags import option
from moon_jax.core.paths import expand

_PACKAGE = pathlib.Path(__file__).parents[1]
_CHECKOUT = _PACKAGE.parent
# A wheel has a copy of the folder configs/ of the checkout; setup.py says where.
_SHIPPED = _PACKAGE / '_shipped'
# The folder that holds our configs/.
HOME = _SHIPPED if _SHIPPED.is_dir() else _CHECKOUT
LIST = 'list'
_PROGRAM = 'launch.py' if (_CHECKOUT / 'launch.py').is_file() else '-m moon_jax'
PROGRAM = ('python', *_PROGRAM.split())


class CircularImportError(ConfigError):
  """Config files import each other.

  Attributes:
    files: the files, each of which imports the next one; the last imports the first.
  """

  def __init__(self, files: Sequence[str]):
    self.files = tuple(files)
    names = [os.path.basename(file) for file in (*files, files[0])]
    problem = (
      f'{option("config")}: the files {" -> ".join(names)} import each other: move '
      'what they share into another file, which imports none of them.'
    )
    super().__init__([problem])


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

  The callbacks that were registered before are forgotten.

  Args:
    choice: FILE or FILE:VARIANT.

  Returns:
    dotted knob -> its value.

  Raises:
    ConfigError: there is no such file or variant, or the file fails.
  """
  path, variant = split(choice)
  config_option = option('config', path)
  module = _run_config(path)
  arguments = []
  if variant is not None:
    variants_by_name = _variants_of(module, path)
    if variant not in variants_by_name:
      hint = nearest_name_hint(variant, variants_by_name)
      raise ConfigError(
        [
          f'{path} has no variant {variant!r}; '
          f'{option("config")}={path}:{LIST} prints them.{hint}'
        ]
      )
    arguments = [variant]
  file = pathlib.Path(module.__file__)
  config = _explained(config_option, file, lambda: module.get_config(*arguments))
  if not isinstance(config, ml_collections.ConfigDict):
    kind = type(config).__name__
    raise ConfigError(
      [f'{config_option}: get_config() must return a ConfigDict, not {kind}.']
    )
  return _explained(config_option, file, lambda: flatten(config.to_dict()))


def variants(path: str) -> Mapping[str, Variant]:
  """Runs a config file; returns its experiments by name.

  Raises:
    ConfigError: there is no such file, it fails, or it has no variants.
  """
  return _variants_of(_run_config(path), path)


def _variants_of(module: ModuleType, path: str) -> Mapping[str, Variant]:
  variants_by_name = getattr(module, 'VARIANTS', None)
  if not isinstance(variants_by_name, Mapping):
    raise ConfigError([f'{option("config", path)} has no variants.'])
  return variants_by_name


def list_variants(path: str) -> str:
  """The experiments of a config file: each one's command, setting and figure.

  Raises:
    ConfigError: there is no such file, it fails, or it has no variants.
  """
  rows = [('command', 'setting', 'reported accuracy, %')]
  for name, variant in variants(path).items():
    command = f'{" ".join(PROGRAM)} {option("config")}={path}:{name}'
    rows.append((command, variant.setting, variant.reported or '-'))
  command_width = max(len(command) for command, _, _ in rows)
  setting_width = max(len(setting) for _, setting, _ in rows)
  return '\n'.join(
    f'{command:<{command_width}}  {setting:<{setting_width}}  {reported}'
    for command, setting, reported in rows
  )


def split(choice: str) -> tuple[str, str | None]:
  """'configs/x.py:y' -> ('configs/x.py', 'y'); a file's own name may hold a colon."""
  path, colon, variant = choice.rpartition(':')
  if not colon or _first_file(_candidates(choice)):
    return choice, None
  return path, variant


def import_config(path: str, *, relative_to: str | None = None) -> ModuleType:
  """Runs a config file for another one that builds on it; returns its module.

  >>> import_config('configs/digits_moon.py').get_config().num_rounds
  30

  A file never gets itself: a file of the user's may build on ours of the same name.

  Args:
    path: the file, as for `--config`: one in the working directory comes before ours.
    relative_to: `__file__` of the config file that asks. Then `path` is a file in the
      same folder, or one of our configs/ if that folder has none of this name.

  Raises:
    ConfigError: there is no such file, it fails, or it imports the file that asks.
  """
  if relative_to is None:
    candidates = _candidates(path)
  else:
    candidates = [pathlib.Path(relative_to).parent / path, HOME / 'configs' / path]
  asking_file = inspect.currentframe().f_back.f_globals.get('__file__', '')
  others = [file for file in candidates if not _is_same(file, asking_file)]
  file = _first_file(others)
  if file is None:
    missing = 'such file' if others == candidates else 'other file of this name'
    raise ConfigError([f'import_config({path!r}): there is no {missing}.'])
  return _module(f'import_config({path!r})', file)


def _candidates(path: str) -> list[pathlib.Path]:
  """Where the file of `--config` may be: the user's own comes before ours."""
  return [expand(path), HOME / path]


def _first_file(paths: list[pathlib.Path]) -> pathlib.Path | None:
  # Not Path.is_file, which raises if the name is too long.
  return next((path for path in paths if os.path.isfile(path)), None)


def _is_same(path: pathlib.Path, other: str) -> bool:
  return os.path.realpath(path) == os.path.realpath(other)


def _run_config(path: str) -> ModuleType:
  """Runs the file of `--config`; the callbacks of an earlier one are forgotten."""
  file = _first_file(_candidates(path))
  if file is None:
    ours = (HOME / 'configs').glob('[!_]*.py')
    hint = nearest_name_hint(path, sorted(f'configs/{file.name}' for file in ours))
    raise ConfigError([f'{option("config", path)} is not a file.{hint}'])
  catalog.forget_callbacks()
  return _module(option('config', path), file)


def _module(asked_by: str, file: pathlib.Path) -> ModuleType:
  """The module that a config file makes.

  Args:
    asked_by: what asks for the file, with which an error message begins.
    file: the config file.

  Raises:
    ConfigError: it fails.
  """
  module = ModuleType(f'config_{file.stem}')
  module.__file__ = str(file)
  sys.modules[module.__name__] = module  # a class in it expects this
  # Not imported: that would leave a __pycache__ beside the user's file, and would not
  # see an edit of the same length within a second.
  _explained(
    asked_by, file, lambda: exec(compile(file.read_bytes(), file, 'exec'), vars(module))
  )
  return module


def _explained(asked_by: str, file: pathlib.Path, code: Callable[[], Any]) -> Any:
  """Calls code of a config file; an error becomes one line that names its place.

  Raises:
    ConfigError: the code raises an error.
  """
  try:
    return code()
  except CircularImportError:
    raise
  except (Exception, SystemExit) as error:
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, RecursionError):
      circle = _circle([*traceback.extract_stack(), *frames])
      if circle:
        raise CircularImportError(circle) from None
    lines = [frame.lineno for frame in frames if frame.filename == str(file)]
    if isinstance(error, SyntaxError):
      lines.append(error.lineno)
    where = f', line {lines[-1]}' if lines else ''
    kind = '' if isinstance(error, UsageError) else f'{type(error).__name__}: '
    message = f'{kind}{error}'.strip().partition('\n')[0]
    raise ConfigError([f'{asked_by} failed{where}: {message}']) from None


def _circle(frames: Sequence[traceback.FrameSummary]) -> list[str]:
  """The config files that import each other; [] if there are none.

  Args:
    frames: the calls until the error, the innermost last.
  """
  calls_import = [frame.name == import_config.__name__ for frame in frames]
  if True not in calls_import:
    return []
  num_callers = len(frames) - 1 - calls_import[::-1].index(True)
  calling_files = [
    frame.filename
    for frame in frames[:num_callers]
    if _PACKAGE not in pathlib.Path(frame.filename).parents
  ]
  # A function may call another one of its file.
  calling_files = [file for file, _ in itertools.groupby(calling_files)]
  last_file = calling_files.pop() if calling_files else ''
  if last_file not in calling_files:
    return []
  num_files = calling_files[::-1].index(last_file) + 1
  return calling_files[-num_files:]
