"""What did the user ask for? Flags -> a valid configuration and a run directory."""

import contextlib
import dataclasses
import os
import pathlib
import re
import shlex
import textwrap
from collections.abc import Iterator
from typing import Any, NamedTuple

from absl import flags

from moon_jax import config as config_lib

DEFAULT_CONFIG = 'configs/digits_moon.py'

_USAGE = """\
Trains one federated-learning experiment and keeps its records.

  python launch.py [--config=FILE[:VARIANT]] [--workdir=DIR] [--config.KNOB=VALUE ...]

  --config=FILE   a Python file with get_config(); default {default}
                  FILE:VARIANT is one of its experiments, FILE:list prints them.
  --workdir=DIR   the run directory; default runs/<config>-<algorithm>-s<seed>, with
                  the variant, if there is one, in place of its algorithm.
                  The same command again resumes the run that is there.

A config file changes some of the values below. Example:

  python launch.py --config.algorithm=fedavg --config.seed=1 --workdir=runs/mine

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 no usable checkpoint, 4 diverged,
75 SIGTERM or SIGHUP, 130 Ctrl-C; after the last two the same command goes on.

{algorithms}
Knobs, with the values of configs/base.py:

"""


class Request(NamedTuple):
  """A valid command line.

  Attributes:
    config: the experiment.
    workdir: where its records go.
    command: the command line that repeats (and resumes) it.
    changed: dotted name -> value of the knobs in use that differ from configs/base.py.
  """

  config: config_lib.Config
  workdir: pathlib.Path
  command: str
  changed: dict[str, Any]


def answer(argv: list[str]) -> str | None:
  """The text that the words ask for instead of a run, if they do: help, a list.

  Raises:
    ConfigError: the list is of a file that has none.
  """
  if {'-h', '--help'} & set(argv):
    return _help_text()
  choice = _read_flags(argv)[0].config
  if not choice.endswith(f':{config_lib.LIST}'):
    return None
  path, variant = config_lib.split(choice)
  return config_lib.list_variants(path) if variant else None


def _help_text() -> str:
  """The usage and every knob: configs/base.py is the only place that lists them."""
  base = config_lib.ROOT / 'configs/base.py'
  knob = re.compile(r'  config\.([\w.]+) = (.*?)  # (.*)')
  lines = [m.groups() for m in map(knob.fullmatch, base.read_text().splitlines()) if m]
  entries = [(f'  --config.{name}={value}', text) for name, value, text in lines]
  width = max(len(flag) for flag, _ in entries)
  rows = [f'{flag:<{width}}  {text}' for flag, text in entries]
  algorithms = textwrap.fill(f'Algorithms: {", ".join(config_lib.ALGORITHMS)}', 88)
  usage = _USAGE.format(default=DEFAULT_CONFIG, algorithms=algorithms)
  return usage + '\n'.join(rows)


def parse(argv: list[str]) -> Request:
  """Reads the command line.

  Args:
    argv: the words after the program's name.

  Returns:
    The experiment and its run directory; nothing is written.

  Raises:
    ConfigError: every mistake found, one line each.
  """
  values, rest, problems = _read_flags(argv)
  overrides, more = _split(rest)
  problems += more
  for name in ('config', 'workdir'):
    if values[name].present > 1:
      problems.append(f'--{name} is given twice.')
  if values.workdir == '':
    problems.append('--workdir needs a value.')
  directory = values.workdir
  with _noted(problems):
    config = _configure(values.config, overrides)
    directory = directory or _run_directory(values.config, config, overrides)
  with _noted(problems):
    workdir = _place(directory) if directory else None
  if problems:
    raise config_lib.ConfigError(problems)
  base = _flat(config_lib.validate(config_lib.load('configs/base.py')))
  chosen = config_lib.used(_flat(config))
  return Request(
    config=config,
    workdir=workdir,
    command=shlex.join(['python', 'launch.py', *argv]),
    changed={name: value for name, value in chosen.items() if value != base[name]},
  )


def _flat(config: config_lib.Config) -> dict[str, Any]:
  return config_lib.flatten(dataclasses.asdict(config))


@contextlib.contextmanager
def _noted(problems: list[str]) -> Iterator[None]:
  """Adds the problems of a ConfigError to those already found."""
  try:
    yield
  except config_lib.ConfigError as error:
    problems += error.problems


def _read_flags(argv: list[str]) -> tuple[flags.FlagValues, list[str], list[str]]:
  """The values of --config and --workdir, the words that are left, and complaints."""
  values = flags.FlagValues()
  flags.DEFINE_string('config', DEFAULT_CONFIG, 'config file', flag_values=values)
  flags.DEFINE_string('workdir', None, 'run directory', flag_values=values)
  ours, rest, problems = [], [], []
  words = list(argv)
  while words:
    word = words.pop(0)
    match = re.fullmatch('--?(config|workdir)(=.*)?', word, re.DOTALL)
    if not match:
      # Kept from absl, which has flags of its own: --undefok hides a mistake.
      rest.append(word)
    elif match[2] is None and (not words or words[0].startswith('--')):
      problems.append(f'--{match[1]} needs a value.')
    else:
      ours.append(word if match[2] else f'{word}={words.pop(0)}')
  values(['launch.py', *ours])
  return values, rest, problems


def _run_directory(choice: str, config: config_lib.Config, overrides) -> str:
  """runs/<config>-<algorithm>-s<seed>, or with the variant if it sets the algorithm."""
  path, variant = config_lib.split(choice)
  what = [variant] if variant else []
  if not variant or 'algorithm' in overrides:
    what.append(config.algorithm)
  return f'runs/{"-".join([pathlib.Path(path).stem, *what])}-s{config.seed}'


def _place(directory: str) -> pathlib.Path:
  """The path of the run directory; it need not exist.

  Raises:
    ConfigError: no directory can be there.
  """
  path = config_lib.expand('workdir', directory)
  for place in (path, *path.parents):
    try:
      os.stat(place)
    except (FileNotFoundError, NotADirectoryError):
      continue
    except OSError as error:
      problem = f'--workdir={directory!r} cannot be used: {error.strerror}.'
      raise config_lib.ConfigError([problem]) from None
    if os.path.isdir(place):
      break
    what = 'is' if place == path else f'lies in {str(place)!r}, which is'
    raise config_lib.ConfigError([f'--workdir={directory!r} {what} a file.'])
  return path


def _split(words: list[str]) -> tuple[dict[str, str], list[str]]:
  """['--config.seed=1', 'x'] -> {'seed': '1'} and a complaint about 'x'."""
  overrides, problems = {}, []
  words = list(words)
  while words:
    word = words.pop(0)
    match = re.fullmatch(r'--?config\.([^=]+)(?:=(.*))?', word, re.DOTALL)
    if not match:
      kind = 'an unknown flag' if word.startswith('-') else 'a stray word'
      hint = config_lib.did_you_mean(word.split('=')[0], _all_flags())
      problems.append(f'{word!r} is {kind}; see --help.{hint}')
      continue
    name, value = match.groups()
    if value is None and words and not words[0].startswith('--'):
      value = words.pop(0)
    if value is None:
      problems.append(f'--config.{name} needs a value.')
    elif name in overrides:
      problems.append(f'--config.{name} is given twice.')
    else:
      overrides[name] = value
  return overrides, problems


def _all_flags() -> list[str]:
  return ['--config', '--workdir', *(f'--config.{name}' for name in config_lib.knobs())]


def _configure(path: str, overrides: dict[str, str]) -> config_lib.Config:
  """The config file's settings, changed by the command line's words."""
  known = [name for name in overrides if name in config_lib.knobs()]
  words = {name: config_lib.from_word(name, overrides[name]) for name in known}
  try:
    settings = config_lib.load(path)
  except config_lib.ConfigError as error:
    unknown = [config_lib.unknown_knob(n) for n in overrides if n not in known]
    raise config_lib.ConfigError([*error.problems, *unknown]) from None
  return config_lib.validate(settings | overrides | words, given=known)
