"""The runs of a sweep: their names, their folders, and the commands that run them."""

import fnmatch
import itertools
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from moon_jax import catalog
from moon_jax import config as config_lib
from moon_jax.config import ConfigError, cli, unknown_knob


class Cell(NamedTuple):
  """One run of a sweep.

  Attributes:
    name: name of its folder.
    argv: the words of `launch.py` that run it.
    request: the request that these words make.
  """

  name: str
  argv: list[str]
  request: cli.Request


def cells(
  choice: str,
  words: Sequence[str],
  over: Mapping[str, Sequence[str]],
  out: pathlib.Path,
) -> list[Cell]:
  """The runs of a sweep; nothing is written.

  Args:
    choice: FILE, FILE:VARIANT, or FILE:PATTERN for all variants whose names match it,
      such as 'fashion_mnist_*'.
    words: `--config.KNOB=VALUE` for every run.
    over: dotted knob -> words for its values.
    out: the folder of the run directories.

  Raises:
    ConfigError: every mistake in any run, one line each.
  """
  found, problems = [], []
  for one in _choices(choice):
    _, variant = config_lib.split(one)
    given = dict(word.removeprefix('--config.').split('=', 1) for word in words)
    if both := given.keys() & over.keys():
      raise ConfigError([f'--over and --config both set {", ".join(sorted(both))}.'])
    known = config_lib.with_defaults(config_lib.load(one) | given)
    for change in combinations(known, over):
      name = cli.name_of(variant, change)
      flags = [f'--config.{knob}={value}' for knob, value in change.items()]
      argv = [f'--config={one}', *words, *flags, f'--workdir={out / name}']
      try:
        found.append(Cell(name, argv, cli.parse(argv)))
      except ConfigError as error:
        problems += error.problems
  problems += in_one_folder([cell.name for cell in found])
  if problems:
    raise ConfigError(dict.fromkeys(problems))
  return found


def combinations(
  settings: Mapping[str, Any], over: Mapping[str, Sequence[Any]]
) -> list[dict[str, Any]]:
  """The changes that make the runs of a sweep, in the order of the values.

  A knob that a run does not use multiplies only the runs that use it: over
  `algorithm=fedavg,moon` and `moon.mu=1,5` there are three runs.

  Args:
    settings: dotted knob -> value, of the common configuration.
    over: dotted knob -> the values that it takes.

  Returns:
    Dotted knob -> value, for each run.

  Raises:
    ConfigError: there is no such knob, or no run uses it.
  """
  known = catalog.every_knob()
  problems = [unknown_knob(name) for name in over if name not in known]
  problems += [f'--over={name} needs values.' for name in over if not len(over[name])]
  if problems:
    raise ConfigError(problems)
  found = []
  for values in itertools.product(*over.values()):
    every = dict(zip(over, values, strict=True))
    change = {n: v for n, v in every.items() if catalog.used(n, settings | every)}
    if change not in found:
      found.append(change)
  if unused := [n for n in over if not any(n in change for change in found)]:
    raise ConfigError([f'--over={n}: no run of the sweep uses it.' for n in unused])
  return found


def in_one_folder(names: Sequence[str]) -> list[str]:
  """A line about runs with the same name, if there are any."""
  twice = sorted({name for name in names if names.count(name) > 1})
  return [f'Several runs would be in {", ".join(twice)}.'] if twice else []


def _choices(choice: str) -> list[str]:
  """FILE:PATTERN as FILE:VARIANT, for each that matches."""
  path, variant = config_lib.split(choice)
  if not variant or not set(variant) & set('*?['):
    return [choice]
  found = fnmatch.filter(config_lib.variants(path), variant)
  if not found:
    raise ConfigError(
      [f'--config={choice!r}: no variant matches; --config={path}:list prints them.']
    )
  return [f'{path}:{name}' for name in found]
