"""Trains one federated-learning experiment and keeps its records.

  python launch.py [--config=FILE[:VARIANT]] [--workdir=DIR] [--config.KNOB=VALUE ...]

  --config=FILE   a Python file with get_config(); default configs/digits_moon.py
                  FILE:VARIANT is one of its experiments; FILE:list prints them.
  --workdir=DIR   the run directory; default runs/<config>-<algorithm>-s<seed>. A
                  variant, if there is one, replaces the algorithm, and each knob of
                  the command line that makes it another experiment is added:
                  runs/digits_moon-moon-moon.mu=5.0-s0.
                  The same command again resumes the run that is there.
  --flagfile=F    a file of further flags, one on each line.

A config file changes some of the values below. Example:

  python launch.py --config.algorithm=fedavg --config.seed=1 --workdir=runs/mine

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 no usable checkpoint, 4 diverged,
75 SIGTERM or SIGHUP, 130 Ctrl-C; after 75 and 130 the same command continues the run.
"""

import contextlib
import importlib.metadata
import pathlib
import re
import shlex
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from absl import flags

from moon_jax import __version__, catalog
from moon_jax import config as config_lib
from moon_jax.config.files import PROGRAM
from moon_jax.core.errors import UsageError
from moon_jax.core.paths import expand, file_name

DEFAULT_CONFIG = 'configs/digits_moon.py'
_OTHERS = ('--workdir', '--flagfile')  # flags beside --config


class Request(NamedTuple):
  """An experiment, and its run directory.

  Attributes:
    config: the experiment.
    workdir: the run directory.
    command: the command line that repeats (and resumes) it.
    changed: dotted name -> value of the knobs in use that differ from configs/base.py.
  """

  config: config_lib.Config
  workdir: pathlib.Path
  command: str
  changed: Mapping[str, Any]


def request(config: config_lib.Config, workdir: pathlib.Path, command: str) -> Request:
  """Completes a valid configuration to a request."""
  base = config_lib.flatten(config_lib.validate(config_lib.defaults()))
  chosen = config_lib.used(config_lib.flatten(config_lib.ordered(config)))
  changed = {name: value for name, value in chosen.items() if value != base.get(name)}
  return Request(config, workdir, command, changed)


def fingerprint(request: Request) -> dict[str, Any]:
  """What must be equal in all processes of a run; it is JSON."""
  knobs = config_lib.flatten(config_lib.ordered(request.config))
  parts = [catalog.describe(one) for one in catalog.registered(knobs)]
  return {
    **{f'--config.{name}': value for name, value in knobs.items()},
    '--workdir': str(request.workdir),
    **{f'{part["kind"]} {part["name"]}': part['sha256'] for part in parts},
    **{name: importlib.metadata.version(name) for name in ('jax', 'numpy')},
    'moon_jax': __version__,
  }


def answer(argv: list[str]) -> str | None:
  """The text that the words ask for instead of a run, such as help or a list, or None.

  Raises:
    ConfigError: a list is asked for, and the file has no variants.
    UsageError: the last flag lacks its value, or a file of flags cannot be read.
  """
  choice, _, _ = _own_flags(argv)
  path, _, variant = choice.rpartition(':')
  if {'-h', '--help'} & set(argv):
    if choice != DEFAULT_CONFIG:
      config_lib.load(choice)  # it may register parts
    return _help_text()
  return config_lib.list_variants(path) if variant == config_lib.LIST else None


def _help_text() -> str:
  """The usage, which is this module's docstring, and every knob of the catalog."""
  algorithms = textwrap.fill(f'Algorithms: {", ".join(catalog.names("algorithm"))}', 88)
  knobs = f'Knobs, with the values of configs/base.py:\n\n{config_lib.knob_table()}'
  return f'{__doc__}\n{algorithms}\n\n{knobs}'


def parse(argv: list[str]) -> Request:
  """Reads the command line.

  Args:
    argv: the words after the program's name.

  Returns:
    The experiment and its run directory; nothing is written.

  Raises:
    ConfigError: every mistake found, one line each.
    UsageError: the last flag lacks its value, or a file of flags cannot be read.
  """
  choice, place, words = _own_flags(argv)
  problems, settings, config, workdir = [], None, None, None
  # absl takes the second of two words for the value, whatever it is.
  if place is not None and place[:1] in ('', '-'):
    problems.append('--workdir needs a value.')
  with _noted(problems):
    settings = config_lib.load(choice)  # first, because it may register parts
  overrides, more = _read_overrides(words)
  problems += more
  with _noted(problems):
    if settings is not None:
      given = {name: config_lib.from_word(name, overrides[name]) for name in overrides}
      config = config_lib.validate(settings | given, given=given)
  if place:
    workdir = expand(place)
  elif config is not None:
    workdir = _run_directory(choice, settings, config, given)
  if problems:
    raise config_lib.ConfigError(problems)
  return request(config, workdir, shlex.join([*PROGRAM, *argv]))


@contextlib.contextmanager
def _noted(problems: list[str]) -> Iterator[None]:
  """Adds the problems of a ConfigError to those already found."""
  try:
    yield
  except config_lib.ConfigError as error:
    problems += error.problems


def _own_flags(argv: list[str]) -> tuple[str, str | None, list[str]]:
  """--config and --workdir, and the other words."""
  kinds = {'config': str, 'workdir': str}
  words, values = read_flags(argv, kinds, known_only=True)
  choice = DEFAULT_CONFIG if values.config is None else values.config
  return choice, values.workdir, words


def _read_overrides(words: list[str]) -> tuple[dict[str, str], list[str]]:
  """['--config.seed=1', 'x'] -> {'seed': '1'} and a complaint about 'x'.

  Values stay words: `config.validate` reports all mistakes in them.
  """
  knobs, problems = catalog.every_knob(), []
  kinds = {f'config.{name}': str for name in knobs}
  rest, values = read_flags(words, kinds, known_only=True)
  for word in rest:
    name = re.match(r'--?config\.([^=]*)', word)
    is_unknown = name and name[1] not in knobs
    told = config_lib.unknown_knob(name[1]) if is_unknown else stray(word, *_OTHERS)
    problems.append(told)
  flags_of = {name: values[f'config.{name}'] for name in knobs}
  given = {name: flag.value for name, flag in flags_of.items() if flag.present}
  # As above: such a value is the next flag.
  lost = [name for name, word in given.items() if word.startswith('--config')]
  problems += [f'--config.{name} needs a value.' for name in lost]
  return given, problems


_DEFINE = {str: flags.DEFINE_string, list: flags.DEFINE_multi_string}
_DEFINE |= {int: flags.DEFINE_integer, bool: flags.DEFINE_boolean}


def read_flags(
  argv: Sequence[str], kinds: Mapping[str, type], *, known_only: bool = False
) -> tuple[list[str], flags.FlagValues]:
  """Reads the flags of a program.

  Args:
    argv: the words after the program's name.
    kinds: flag -> str, int, bool, or list if it may be given several times.
    known_only: whether unknown flags are returned among the words, and are no mistake.

  Returns:
    The words that are no flags, and the values; None, False or [] for a flag not given.

  Raises:
    UsageError: a flag is unknown, or lacks its value.
  """
  values = flags.FlagValues()
  for name, kind in kinds.items():
    default = kind() if kind in (bool, list) else None
    _DEFINE[kind](name, default, name, flag_values=values)
  try:
    return values(['moon_jax', *argv], known_only=known_only)[1:], values
  except (flags.Error, UnicodeDecodeError) as error:
    problem = str(error).removeprefix('ERROR:: ')
    raise UsageError(f'{problem}; see --help.') from None


def values_of(flag: str, words: Sequence[str]) -> dict[str, list[str]]:
  """['seed=0,1'] -> {'seed': ['0', '1']}, from the words of --over or --where.

  Raises:
    UsageError: a word has another form, or two have the same knob.
  """
  found: dict[str, list[str]] = {}
  for word in words:
    name, equals, listed = word.partition('=')
    if not equals:
      raise UsageError(f'--{flag}={word!r} must be KNOB=VALUE,VALUE.')
    if name in found:
      raise UsageError(f'--{flag} names {name!r} twice.')
    found[name] = [value.strip() for value in listed.split(',')]
  return found


def stray(word: str, *flags: str) -> str:
  """The complaint about a word that has no meaning, or about an unknown flag."""
  kind = 'an unknown flag' if word.startswith('-') else 'a stray word'
  flags += ('--config', *(f'--config.{name}' for name in catalog.every_knob()))
  is_file = kind == 'a stray word' and re.search(r'\.py(:|$)', word)
  meant = f' Did you mean --config={shlex.quote(word)}?' if is_file else ''
  hint = meant or catalog.did_you_mean(word.split('=')[0], flags)
  return f'{word!r} is {kind}; see --help.{hint}'


def name_of(variant: str | None, change: Mapping[str, Any]) -> str:
  """'moon-moon.mu=5-seed=0': the name of one run among others, for a file system."""
  told = [f'{name}={value}' for name, value in change.items() if name != 'algorithm']
  parts = filter(None, [variant, change.get('algorithm'), *told])
  return file_name('-'.join(parts)) or 'run'


def _run_directory(choice, settings, config, given):
  """runs/<config>-<algorithm>-<changes>-s<seed>; a variant replaces its algorithm.

  Args:
    choice: FILE or FILE:VARIANT.
    settings: dotted knob -> value, from the config file.
    config: the experiment.
    given: dotted knob -> value, from the command line.
  """
  path, variant = config_lib.split(choice)
  before = config_lib.with_defaults(settings)
  fixed = config_lib.identity(config_lib.flatten(config)).items()
  change = {n: v for n, v in fixed if n in given and given[n] != before[n]}
  if not variant or 'algorithm' in given:
    change['algorithm'] = config.algorithm
  change.pop('seed', None)
  name = f'{pathlib.Path(path).stem}-{name_of(variant, change)}-s{config.seed}'
  return pathlib.Path('runs', name)
