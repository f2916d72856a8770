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
from moon_jax.report.results import ACCURACY_AT, BASELINE, Target

# Flag -> what `cli.read_flags` takes it for.
_COMPARE_FLAGS = {'target': str, 'config': list}
_REPORT_FLAGS = {
  'target': str,
  'out': str,
  'group': str,
  'over': str,
  'where': list,
  'features': str,
  'rows': str,
  'columns': str,
  'config': list,
}
_DEFAULTS = {
  'target': f'{BASELINE}@last',
  'out': 'report',
  'group': None,
  'over': 'seed',
  'where': [],
  'features': FIRST,
  'rows': None,
  'columns': None,
  'config': [],
}


class Pivot(NamedTuple):
  """The knobs of a table by two knobs.

  Attributes:
    row_knob: the knob of --rows.
    column_knob: the knob of --columns.
  """

  row_knob: str
  column_knob: str


class Request(NamedTuple):
  """A report.

  Attributes:
    folders: folders that hold runs.
    out: folder of the report; None for the table in the terminal.
    choice: how runs are grouped.
    target: the accuracy to reach.
    features: 'first', 'all', 'none', or paths of runs.
    command: the command line that repeats it.
    pivot: the knobs of a further table; None for none.
  """

  folders: tuple[pathlib.Path, ...]
  out: pathlib.Path | None
  choice: Choice
  target: Target
  features: tuple[str, ...]
  command: str
  pivot: Pivot | None = None


def parse(argv: Sequence[str]) -> Request:
  """Reads the command line, and runs the file of --config.

  Args:
    argv: the words after `python -m moon_jax.report`.

  Raises:
    UsageError: a word is wrong.
  """
  is_comparison = list(argv[:1]) == ['compare']
  if is_comparison:
    folders, flags = _read_flags(argv[1:], _COMPARE_FLAGS)
  else:
    folders, flags = _read_flags(argv, _REPORT_FLAGS)
  if not folders:
    raise UsageError(
      f'A {"RUN" if is_comparison else "FOLDER"} is missing; see --help.'
    )
  request = Request(
    folders=tuple(map(expand, folders)),
    out=None if is_comparison else expand(flags['out']),
    choice=_choice(flags['group'], flags['over'], flags['where']),
    target=_target(flags['target']),
    features=tuple(flags['features'].split(',')),
    command=shlex.join(['python', '-m', 'moon_jax.report', *argv]),
    pivot=_pivot(flags['rows'], flags['columns']),
  )
  for path in flags['config']:
    config_lib.load(path)
  return request


def _read_flags(
  argv: Sequence[str], kinds: Mapping[str, type]
) -> tuple[list[str], dict[str, Any]]:
  """The words that are no flags, and each flag's value or default."""
  words, values = cli.read_flags(argv, kinds)
  set_flags = {
    name: value
    for name, value in values.flag_values_dict().items()
    if value is not None
  }
  return words, _DEFAULTS | set_flags


def _choice(group: str | None, over: str, where: Sequence[str]) -> Choice:
  group_knobs = None if group is None else tuple(group.split(','))
  over_knobs = over.split(',')
  if group_knobs is None and ALGORITHM in over_knobs:
    raise UsageError(f'--over={over!r} needs a --group without {ALGORITHM}.')
  return Choice(
    group=group_knobs,
    over=tuple(knob for knob in over_knobs if knob not in (group_knobs or ())),
    where=cli.values_of('where', where),
  )


def _pivot(row_knob: str | None, column_knob: str | None) -> Pivot | None:
  if row_knob is None and column_knob is None:
    return None
  if row_knob is None or column_knob is None or row_knob == column_knob:
    raise UsageError('--rows and --columns go together, each with another knob.')
  return Pivot(row_knob, column_knob)


def _target(word: str) -> Target:
  algorithm, separator, round_name = word.partition('@')
  if separator and round_name in ACCURACY_AT:
    return Target(accuracy=None, algorithm=algorithm, round=round_name)
  try:
    accuracy = float(word)
  except ValueError:
    accuracy = 0.0
  if not 0 < accuracy <= 1:
    raise UsageError(
      f'--target={word!r} must be an accuracy in (0, 1], or ALGORITHM@last or '
      'ALGORITHM@best.'
    )
  return Target(accuracy)
