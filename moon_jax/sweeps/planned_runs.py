"""The runs of a sweep: their names, their folders, and the commands that run them."""

import fnmatch
import itertools
import pathlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from moon_jax import catalog
from moon_jax import config as config_lib
from moon_jax.config import ConfigError, cli, unknown_knob
from moon_jax.core.flags import flag, option


class SweepRun(NamedTuple):
  """One run of a sweep.

  Attributes:
    name: name of its folder.
    argv: the words of `launch.py` that run it.
    request: the request that these words make.
  """

  name: str
  argv: list[str]
  request: cli.Request


def sweep_runs(
  choice: str,
  words: Sequence[str],
  over: Mapping[str, Sequence[str]],
  out: pathlib.Path,
) -> list[SweepRun]:
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
  knobs_of_words = dict(_knob_and_value(word) for word in words)
  set_twice = sorted(knobs_of_words.keys() & over.keys())
  if set_twice:
    names = ', '.join(set_twice)
    raise ConfigError([f'{option("over")} and {option("config")} both set {names}.'])
  runs = []
  problems: list[str] = []
  used_knobs: set[str] = set()
  for variant_choice in _variant_choices(choice):
    _, variant = config_lib.split(variant_choice)
    file_settings = config_lib.load(variant_choice)
    settings = config_lib.with_defaults(file_settings | knobs_of_words)
    try:
      all_changes = combinations(settings, over)
    except ConfigError as error:
      problems.extend(error.problems)
      unknown = knobs_of_words.keys() - catalog.every_knob().keys()
      problems.extend(unknown_knob(knob) for knob in sorted(unknown))
      used_knobs.update(over)  # its runs are not known
      continue
    used_knobs.update(*all_changes)
    for changes in all_changes:
      name = cli.name_of(variant, changes)
      argv = [
        f'{option("config")}={variant_choice}',
        *words,
        *(f'{flag(knob)}={value}' for knob, value in changes.items()),
        f'{option("workdir")}={out / name}',
      ]
      try:
        runs.append(SweepRun(name=name, argv=argv, request=cli.parse(argv)))
      except ConfigError as error:
        problems.extend(error.problems)
  problems.extend(unused(over, used_knobs))
  problems.extend(in_one_folder([run.name for run in runs]))
  if problems:
    raise ConfigError(dict.fromkeys(problems))
  return runs


def _knob_and_value(word: str) -> tuple[str, str]:
  """'--config.seed=1' -> ('seed', '1')."""
  knob, _, value = word.removeprefix(flag('')).partition('=')
  return knob, value


def combinations(
  settings: Mapping[str, Any], over: Mapping[str, Sequence[Any]]
) -> list[dict[str, Any]]:
  """The changes that make the runs of a sweep, in the order of the values.

  A knob that a run does not use multiplies only the runs that use it: over
  `algorithm=fedavg,moon` and `moon.mu=1,5` there are three runs. See `unused`.

  Args:
    settings: dotted knob -> value, of the common configuration.
    over: dotted knob -> the values that it takes.

  Returns:
    Dotted knob -> value, for each run.

  Raises:
    ConfigError: there is no such knob, or a value does not fit it.
  """
  all_knobs = catalog.every_knob()
  problems = [unknown_knob(knob) for knob in over if knob not in all_knobs]
  for knob, values in over.items():
    if isinstance(values, str) or not isinstance(values, Collection):
      problems.append(f'{option("over")}={knob} needs a list of values.')
    elif not len(values):
      problems.append(f'{option("over")}={knob} needs values.')
  if problems:
    raise ConfigError(problems)
  known_settings = {knob: settings[knob] for knob in settings if knob in all_knobs}
  given_values = [*known_settings.items()]
  given_values += [(knob, value) for knob, values in over.items() for value in values]
  problems = [
    problem
    for knob, value in given_values
    for problem in _problems_of_value(knob, value)
  ]
  if problems:
    raise ConfigError(problems)
  typed_settings = {knob: _typed(knob, value) for knob, value in known_settings.items()}
  typed_over = [[_typed(knob, value) for value in over[knob]] for knob in over]
  changes_of_runs = []
  typed_changes_of_runs = []  # in which 1 and 1.0 are one value
  for values, typed_values in zip(
    itertools.product(*over.values()), itertools.product(*typed_over), strict=True
  ):
    combination = dict(zip(over, values, strict=True))
    knobs = typed_settings | dict(zip(over, typed_values, strict=True))
    changes = {
      knob: value for knob, value in combination.items() if catalog.is_used(knob, knobs)
    }
    typed_changes = {knob: knobs[knob] for knob in changes}
    if typed_changes not in typed_changes_of_runs:
      typed_changes_of_runs.append(typed_changes)
      changes_of_runs.append(changes)
  return changes_of_runs


def unused(over: Iterable[str], used_knobs: Collection[str]) -> list[str]:
  """A line about each knob of a sweep that none of its runs uses.

  Args:
    over: the knobs that the sweep varies.
    used_knobs: the knobs in the changes that make its runs.
  """
  return [
    f'{option("over")}={knob}: no run of the sweep uses it.'
    for knob in over
    if knob not in used_knobs
  ]


def _typed(knob: str, value: Any) -> Any:
  """A value, or a word of a command line, as the knob's type.

  Raises:
    ConfigError: it does not fit.
  """
  if isinstance(value, str):
    value = config_lib.from_word(knob, value)
  return config_lib.convert(knob, value)


def _problems_of_value(knob: str, value: Any) -> tuple[str, ...]:
  try:
    _typed(knob, value)
  except ConfigError as error:
    return error.problems
  return ()


def in_one_folder(names: Sequence[str]) -> list[str]:
  """A line about runs with the same name, if there are any."""
  repeated_names = sorted({name for name in names if names.count(name) > 1})
  if not repeated_names:
    return []
  return [f'Several runs would be in {", ".join(repeated_names)}.']


def _variant_choices(choice: str) -> list[str]:
  """FILE:PATTERN as FILE:VARIANT, for each variant that matches."""
  path, pattern = config_lib.split(choice)
  if pattern is None or not set(pattern) & set('*?['):
    return [choice]
  names = fnmatch.filter(config_lib.variants(path), pattern)
  if not names:
    problem = f'{option("config", choice)}: no variant matches'
    raise ConfigError([f'{problem}; {option("config")}={path}:list prints them.'])
  return [f'{path}:{name}' for name in names]
