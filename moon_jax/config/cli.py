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

With sweep, report, predict or export as the first word, it is that program:
python launch.py sweep --help.

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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from absl import flags

from moon_jax import __version__, catalog
from moon_jax import config as config_lib
from moon_jax.config.config_files import PROGRAM
from moon_jax.core.errors import UsageError
from moon_jax.core.flags import flag, option
from moon_jax.core.paths import expand, file_name

DEFAULT_CONFIG = 'configs/digits_moon.py'


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
  defaults = config_lib.flatten(config_lib.validate(config_lib.defaults()))
  values = config_lib.used_knobs(config_lib.flatten(config_lib.ordered(config)))
  changed = {
    name: value for name, value in values.items() if value != defaults.get(name)
  }
  return Request(config=config, workdir=workdir, command=command, changed=changed)


def fingerprint(request: Request) -> dict[str, Any]:
  """What must be equal in all processes of a run; it is JSON."""
  values = config_lib.flatten(config_lib.ordered(request.config))
  knobs = {flag(name): value for name, value in values.items()}
  parts = [catalog.describe(part) for part in catalog.registered_parts(values)]
  digests = {f'{part["kind"]} {part["name"]}': part['sha256'] for part in parts}
  versions = {name: importlib.metadata.version(name) for name in ('jax', 'numpy')}
  return {
    **knobs,
    option('workdir'): str(request.workdir),
    **digests,
    **versions,
    'moon_jax': __version__,
  }


def answer(argv: list[str]) -> str | None:
  """The text that the words ask for instead of a run, such as help or a list, or None.

  Raises:
    ConfigError: a list is asked for, and the file has no variants.
    UsageError: the last flag lacks its value, or a file of flags cannot be read.
  """
  choice = _split_words(argv).choice
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
  words = _split_words(argv)
  problems = []
  # absl takes the second of two words for the value, whatever it is.
  if words.workdir is not None and words.workdir[:1] in ('', '-'):
    problem = f'{option("workdir")} needs a value'
    if words.workdir:
      problem += f'; a folder of this name is {option("workdir", "./" + words.workdir)}'
    problems.append(f'{problem}.')
  settings = None
  with _noted(problems):
    settings = config_lib.load(words.choice)  # first, because it may register parts
  overrides, override_problems = _read_overrides(words.others)
  problems += override_problems
  given_values = {
    name: config_lib.from_word(name, word) for name, word in overrides.items()
  }
  if settings is not None:
    with _noted(problems):
      config = config_lib.validate(settings | given_values, set_by_user=given_values)
  if problems:
    raise config_lib.ConfigError(problems)
  if words.workdir:
    workdir = expand(words.workdir)
  else:
    workdir = _run_directory(words.choice, settings, config, given_values)
  return request(config, workdir, shlex.join([*PROGRAM, *argv]))


@contextlib.contextmanager
def _noted(problems: list[str]) -> Iterator[None]:
  """Adds the problems of a ConfigError to those already found."""
  try:
    yield
  except config_lib.ConfigError as error:
    problems += error.problems


class _Words(NamedTuple):
  """The words of a command line.

  Attributes:
    choice: FILE or FILE:VARIANT.
    workdir: the word of --workdir, or None.
    others: all other words.
  """

  choice: str
  workdir: str | None
  others: list[str]


def _split_words(argv: list[str]) -> _Words:
  kinds = {'config': str, 'workdir': str}
  others, values = read_flags(argv, kinds, known_only=True)
  choice = DEFAULT_CONFIG if values.config is None else values.config
  return _Words(choice=choice, workdir=values.workdir, others=others)


def _read_overrides(words: list[str]) -> tuple[dict[str, str], list[str]]:
  """['--config.seed=1', 'x'] -> {'seed': '1'} and a complaint about 'x'.

  Values stay words: `config.validate` reports all mistakes in them.
  """
  knobs = catalog.every_knob()
  kinds = {f'config.{name}': str for name in knobs}
  stray_words, values = read_flags(words, kinds, known_only=True)
  problems = []
  for word in stray_words:
    match = re.match(r'--?config\.([^=]*)', word)
    if match and match[1] not in knobs:
      problems.append(config_lib.unknown_knob(match[1]))
    else:
      problems.append(stray(word, ('workdir', 'flagfile')))
  overrides = {}
  for name in knobs:
    absl_flag = values[f'config.{name}']
    if absl_flag.present:
      overrides[name] = absl_flag.value
      # As with --workdir: such a value is the next flag.
      if absl_flag.value.startswith(option('config')):
        problems.append(f'{flag(name)} needs a value.')
  return overrides, problems


_DEFINE = {
  str: flags.DEFINE_string,
  list: flags.DEFINE_multi_string,
  int: flags.DEFINE_integer,
  bool: flags.DEFINE_boolean,
}


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


def round_choice(word: str | None) -> int | str | None:
  """The round that --round=best or --round=N means; None for the newest.

  Raises:
    UsageError: it is neither.
  """
  if word is None or word == 'best':
    return word
  if not (word.isdecimal() and word.isascii()):
    raise UsageError(
      f'{option("round", word)} must be best, or the number of a round that is kept.'
    )
  return int(word)


def values_of(option_name: str, words: Sequence[str]) -> dict[str, list[str]]:
  """['seed=0,1'] -> {'seed': ['0', '1']}, from the words of --over or --where.

  Raises:
    UsageError: a word has another form, or two have the same knob.
  """
  values_by_knob: dict[str, list[str]] = {}
  for word in words:
    knob, equals, listed = word.partition('=')
    if not equals:
      raise UsageError(f'{option(option_name, word)} must be KNOB=VALUE,VALUE.')
    if knob in values_by_knob:
      raise UsageError(f'{option(option_name)} names {knob!r} twice.')
    values_by_knob[knob] = [value.strip() for value in listed.split(',')]
  return values_by_knob


def stray(word: str, option_names: Iterable[str]) -> str:
  """The complaint about a word that has no meaning, or about an unknown flag.

  Args:
    word: the word.
    option_names: the options of the program other than --config and the knobs.
  """
  if word.startswith('-'):
    kind = 'an unknown flag'
  else:
    kind = 'a stray word'
    if re.search(r'\.py(:|$)', word):
      meant = f'{option("config")}={shlex.quote(word)}'
      return f'{word!r} is {kind}; see --help. Did you mean {meant}?'
  flags_there_are = [
    *(option(name) for name in option_names),
    option('config'),
    *(flag(name) for name in catalog.every_knob()),
  ]
  hint = catalog.did_you_mean(word.split('=')[0], flags_there_are)
  if not hint and not word.startswith('-'):
    hint = ' A value with spaces needs quotes.'
  return f'{word!r} is {kind}; see --help.{hint}'


def name_of(variant: str | None, changes: Mapping[str, Any]) -> str:
  """'moon-moon.mu=5-seed=0': the name of one run among others, for a file system.

  Args:
    variant: the experiment of the config file, or None.
    changes: dotted knob -> value, where the run differs from the others.
  """
  names = [variant, changes.get('algorithm')]
  names += [f'{knob}={value}' for knob, value in changes.items() if knob != 'algorithm']
  return file_name('-'.join(filter(None, names))) or 'run'


def _run_directory(
  choice: str,
  settings: Mapping[str, Any],
  config: config_lib.Config,
  given_values: Mapping[str, Any],
) -> pathlib.Path:
  """runs/<config>-<algorithm>-<changes>-s<seed>; a variant replaces its algorithm.

  Args:
    choice: FILE or FILE:VARIANT.
    settings: dotted knob -> value, from the config file.
    config: the experiment.
    given_values: dotted knob -> value, from the command line.
  """
  path, variant = config_lib.split(choice)
  file_values = config_lib.with_defaults(settings)
  identity = config_lib.identity(config_lib.flatten(config))
  changes = {
    knob: value
    for knob, value in identity.items()
    if knob in given_values and given_values[knob] != file_values[knob]
  }
  if not variant or 'algorithm' in given_values:
    changes['algorithm'] = config.algorithm
  changes.pop('seed', None)
  name = f'{pathlib.Path(path).stem}-{name_of(variant, changes)}-s{config.seed}'
  return pathlib.Path('runs', name)
