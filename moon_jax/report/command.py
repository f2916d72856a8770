"""What did the user ask for? Words -> what to report."""

import argparse
import importlib.util
import pathlib
import shlex
from collections.abc import Sequence
from typing import NamedTuple, NoReturn

from moon_jax import config as config_lib
from moon_jax.errors import UsageError
from moon_jax.report.numbers.groups import Choice
from moon_jax.report.numbers.naming import ALGORITHM
from moon_jax.report.numbers.results import BASELINE, BEST, LAST, Target

_LIBRARIES = ('jinja2', 'matplotlib', 'plotly', 'rich', 'scipy', 'sklearn', 'tabulate')
_ABOUT = """\
Makes tables and figures from run directories.

  python -m moon_jax.report FOLDER ... [--out=DIR] [--group=KNOBS] [--over=KNOBS]
                            [--target=TARGET] [--where=KNOB=VALUE] [--features=RUNS]
  python -m moon_jax.report compare RUN RUN ... [--target=TARGET]

The first finds every run below the folders and writes DIR/index.html (one file, opens
without a network), DIR/figures (PNG, PDF) and DIR/tables (CSV, Markdown, LaTeX). The
second prints a table of the runs.
"""
_MORE = 'Exit codes: 0 done, 2 wrong usage or nothing to report, 130 Ctrl-C.'
FIRST, ALL, NONE = 'first', 'all', 'none'


class Request(NamedTuple):
  """A report.

  Attributes:
    folders: that hold runs.
    out: where the report goes; None for the table in the terminal.
    choice: how runs are put together.
    target: the accuracy to reach.
    features: 'first', 'all', 'none', or paths of runs.
    command: the command line that repeats it.
  """

  folders: tuple[pathlib.Path, ...]
  out: pathlib.Path | None
  choice: Choice
  target: Target
  features: tuple[str, ...]
  command: str


class _Parser(argparse.ArgumentParser):
  def error(self, message: str) -> NoReturn:
    raise UsageError(f'{message}; see --help.')


def parse(argv: Sequence[str]) -> Request:
  """Reads the command line; --help prints and exits.

  Args:
    argv: the words after `python -m moon_jax.report`.

  Raises:
    UsageError: a word is wrong, or a library is not installed.
  """
  is_table = list(argv[:1]) == ['compare']
  values = _parser(is_table).parse_args(argv[1:] if is_table else argv)
  request = Request(
    folders=tuple(config_lib.expand('', folder) for folder in values.folders),
    out=None if is_table else _out(values.out),
    choice=Choice(group=None, over=('seed',), where={})
    if is_table
    else _choice(values),
    target=_target(values.target),
    features=(NONE,) if is_table else _words('features', values.features),
    command=shlex.join(['python', '-m', 'moon_jax.report', *argv]),
  )
  _require_libraries()
  return request


def _parser(is_table: bool) -> argparse.ArgumentParser:
  parser = _Parser(
    prog='python -m moon_jax.report',
    usage=argparse.SUPPRESS,
    description=_ABOUT,
    epilog=_MORE,
    formatter_class=argparse.RawDescriptionHelpFormatter,
    allow_abbrev=False,
  )
  name = 'RUN' if is_table else 'FOLDER'
  parser.add_argument('folders', nargs='+', metavar=name, help='holds runs, or is one')
  parser.add_argument(
    '--target',
    default=f'{BASELINE}@{LAST}',
    help='accuracy in (0, 1], or ALGORITHM@last or ALGORITHM@best: the mean of its '
    'runs in the same setting (default: %(default)s)',
  )
  if is_table:
    return parser
  parser.add_argument('--out', default='report', help='folder (default: %(default)s)')
  parser.add_argument(
    '--group',
    help='knobs that tell the lines of a plot apart, such as algorithm,moon.mu '
    '(default: the algorithm and its own knobs); other knobs that differ make plots',
  )
  parser.add_argument(
    '--over', default='seed', help='knobs to average over (default: %(default)s)'
  )
  parser.add_argument(
    '--where',
    action='append',
    default=[],
    metavar='KNOB=VALUE[,VALUE]',
    help='only runs with one of these values; may be given several times',
  )
  parser.add_argument(
    '--features',
    default=FIRST,
    metavar='RUNS',
    help='runs whose trained model is looked at (t-SNE, confusion matrix, accuracy for '
    'each client): first of each series, all, none, or paths (default: %(default)s)',
  )
  return parser


def _out(word: str) -> pathlib.Path:
  path = config_lib.expand('out', word)
  if not word or (path.exists() and not path.is_dir()):
    raise UsageError(f'--out={word!r} must be a folder.')
  return path


def _choice(values: argparse.Namespace) -> Choice:
  where: dict[str, tuple[str, ...]] = {}
  for word in values.where:
    name, equals, wanted = word.partition('=')
    if not name or not equals or '=' in wanted:
      raise UsageError(
        f'--where={word!r} must be KNOB=VALUE or KNOB=VALUE,VALUE; give --where once '
        'for each knob.'
      )
    if name in where:
      raise UsageError(f'--where names {name!r} twice.')
    where[name] = tuple(wanted.split(','))
  group = None if values.group is None else _words('group', values.group)
  over = _words('over', values.over)
  if ALGORITHM in over and group is None:
    raise UsageError(f'--over={values.over!r} needs --group, without {ALGORITHM}.')
  if both := set(group or ()) & set(over):
    raise UsageError(f'--group and --over both name {", ".join(sorted(both))}.')
  return Choice(group, over, where)


def _words(flag: str, text: str) -> tuple[str, ...]:
  words = tuple(word.strip() for word in text.split(','))
  if not all(words):
    raise UsageError(f'--{flag}={text!r} must be words with commas between them.')
  return words


def _target(word: str) -> Target:
  wanted = 'an accuracy in (0, 1], or ALGORITHM@last or ALGORITHM@best'
  algorithm, at, which = word.partition('@')
  if at:
    if algorithm not in config_lib.ALGORITHMS or which not in (LAST, BEST):
      hint = config_lib.did_you_mean(algorithm, config_lib.ALGORITHMS)
      raise UsageError(f'--target={word!r} must be {wanted}.{hint}')
    return Target(None, algorithm, which)
  try:
    value = float(word)
  except ValueError:
    value = 0.0
  if not 0 < value <= 1:
    raise UsageError(f'--target={word!r} must be {wanted}.')
  return Target(value)


def _require_libraries() -> None:
  missing = [name for name in _LIBRARIES if importlib.util.find_spec(name) is None]
  if missing:
    raise UsageError(
      f'A report needs {", ".join(missing)}: pip install -r requirements-report.txt'
    )
