"""Makes tables and figures from run directories.

  python -m moon_jax.report FOLDER ... [flags]
  python -m moon_jax.report compare RUN RUN ... [--target=TARGET] [--config=FILE]

The first command finds every run below the folders and writes DIR/index.html (one file
that opens without a network), DIR/figures (PNG, PDF) and DIR/tables (CSV, Markdown,
LaTeX). The second command prints a table of the runs.

  --out=DIR        the folder of the report; default report
  --group=KNOBS    knobs that distinguish the lines of a plot, such as
                   algorithm,moon.mu; default the algorithm and its own knobs; other
                   knobs that differ make separate plots
  --over=KNOBS     knobs to average over, without those of --group; default seed
  --where=KNOB=VALUE,...
                   only runs with one of these values, or that lack the knob (not of
                   data); may be given several times
  --target=TARGET  an accuracy in (0, 1], or ALGORITHM@last or ALGORITHM@best: the mean
                   of its runs in the same setting; default fedavg@last
  --features=RUNS  runs whose trained model is examined (t-SNE, confusion matrix,
                   accuracy for each client): first of each series, all, none, or paths;
                   default first
  --rows=KNOB --columns=KNOB
                   adds a table of final accuracies by two knobs: --rows=algorithm
                   --columns=partition.beta has a row for each algorithm
  --config=FILE    a config file to run first: it registers parts that the runs use; may
                   be given several times

Exit codes: 0 done, 1 failed, 2 wrong usage or nothing to report, 130 Ctrl-C.
"""

import pathlib
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from moon_jax import config as config_lib
from moon_jax.config import cli
from moon_jax.core.errors import UsageError
from moon_jax.core.paths import expand
from moon_jax.report.groups import Choice
from moon_jax.report.models import FIRST
from moon_jax.report.naming import ALGORITHM
from moon_jax.report.results import BASELINE, WHICH, Target

_DEFAULTS = {
  'target': f'{BASELINE}@last',
  'out': 'report',
  'group': None,
  'over': 'seed',
  'features': FIRST,
  'rows': None,
  'columns': None,
}


class Request(NamedTuple):
  """A report.

  Attributes:
    folders: folders that hold runs.
    out: folder of the report; None for the table in the terminal.
    choice: how runs are grouped.
    target: the accuracy to reach.
    features: 'first', 'all', 'none', or paths of runs.
    command: the command line that repeats it.
    pivot: the knobs of the rows and of the columns of a further table; () for none.
  """

  folders: tuple[pathlib.Path, ...]
  out: pathlib.Path | None
  choice: Choice
  target: Target
  features: tuple[str, ...]
  command: str
  pivot: tuple[str, ...] = ()


def parse(argv: Sequence[str]) -> Request:
  """Reads the command line, and runs the file of --config.

  Args:
    argv: the words after `python -m moon_jax.report`.

  Raises:
    UsageError: a word is wrong.
  """
  is_table = list(argv[:1]) == ['compare']
  folders, values = _flags(argv[1:] if is_table else argv, is_table)
  request = Request(
    folders=tuple(map(expand, folders)),
    out=None if is_table else expand(values['out']),
    choice=_choice(values),
    target=_target(values['target']),
    features=tuple(values['features'].split(',')),
    command=shlex.join(['python', '-m', 'moon_jax.report', *argv]),
    pivot=_pivot(values),
  )
  for path in values['config']:
    config_lib.load(path)
  return request


def _flags(argv: Sequence[str], is_table: bool) -> tuple[list[str], dict[str, Any]]:
  """The folders, and the flags; flags that `compare` lacks have their defaults."""
  kinds = {'target': str, 'config': list}
  if not is_table:
    kinds |= dict.fromkeys(_DEFAULTS, str) | {'where': list}
  folders, values = cli.read_flags(argv, kinds)
  if not folders:
    raise UsageError(f'A {"RUN" if is_table else "FOLDER"} is missing; see --help.')
  given = values.flag_values_dict()
  told = {name: value for name, value in given.items() if value is not None}
  return folders, _DEFAULTS | {'where': []} | told


def _choice(values: Mapping[str, Any]) -> Choice:
  group = None if values['group'] is None else tuple(values['group'].split(','))
  if group is None and ALGORITHM in values['over'].split(','):
    raise UsageError(f'--over={values["over"]!r} needs a --group without {ALGORITHM}.')
  over = tuple(name for name in values['over'].split(',') if name not in (group or ()))
  return Choice(group, over, cli.values_of('where', values['where']))


def _pivot(values: Mapping[str, Any]) -> tuple[str, ...]:
  pair = values['rows'], values['columns']
  if pair == (None, None):
    return ()
  if None in pair or pair[0] == pair[1]:
    raise UsageError('--rows and --columns go together, each with another knob.')
  return pair


def _target(word: str) -> Target:
  algorithm, at, which = word.partition('@')
  if at and which in WHICH:
    return Target(None, algorithm, which)
  try:
    value = float(word)
  except ValueError:
    value = 0.0
  if not 0 < value <= 1:
    wanted = 'an accuracy in (0, 1], or ALGORITHM@last or ALGORITHM@best'
    raise UsageError(f'--target={word!r} must be {wanted}.')
  return Target(value)
