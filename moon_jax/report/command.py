"""Makes tables and figures from run directories.

  python -m moon_jax.report FOLDER ... [flags]
  python -m moon_jax.report compare RUN RUN ... [--target=TARGET] [--config=FILE]

The first command finds every run below the folders and writes DIR/index.html (one file
that opens without a network), DIR/figures (PNG) and DIR/tables (CSV, Markdown, LaTeX).
The second command prints a table of the runs.

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
  --features=RUNS  runs whose trained model is analysed (t-SNE, confusion matrix,
                   accuracy for each client): first of each series, all, none, or paths;
                   default first
  --paper=COLUMNS  what the table for a paper has of each method: columns of
                   metrics.jsonl, such as test_accuracy,personal_accuracy_min; default
                   test_accuracy, and the mean over clients' own tests if there are any
  --rows=KNOB --columns=KNOB
                   adds a table of final accuracies by two knobs: --rows=algorithm
                   --columns=partition.beta has a row for each algorithm
  --formats=png,pdf,svg
                   formats of the files of figures; default png
  --config=FILE    a config file to run first: it registers parts that the runs use; may
                   be given several times

Exit codes: 0 done, 1 failed, 2 wrong usage or nothing to report, 75 SIGTERM
or SIGHUP, 130 Ctrl-C.
"""

import os
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from moon_jax import catalog
from moon_jax import config as config_lib
from moon_jax.config import cli
from moon_jax.core import files
from moon_jax.core.errors import UsageError
from moon_jax.core.flags import option
from moon_jax.core.paths import expand
from moon_jax.report.directories import recorded_names, run_directories
from moon_jax.report.naming import ALGORITHM, DIGESTS
from moon_jax.report.request import (
  ALL,
  BASELINE,
  FIRST,
  FORMATS,
  NONE,
  TARGET_ROUNDS,
  Choice,
  Pivot,
  Request,
  Target,
)
from moon_jax.runner import run_files

# Flag -> what `cli.read_flags` takes it for.
_COMPARE_FLAGS = {'target': str, 'config': list}
_REPORT_FLAGS = {
  'target': str,
  'out': str,
  'group': str,
  'over': str,
  'where': list,
  'features': str,
  'paper': str,
  'rows': str,
  'columns': str,
  'formats': str,
  'config': list,
}
_DEFAULTS = {
  'target': f'{BASELINE}@last',
  'out': 'report',
  'group': None,
  'over': 'seed',
  'where': [],
  'features': FIRST,
  'paper': None,
  'rows': None,
  'columns': None,
  'formats': 'png',
  'config': [],
}


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
    formats=_formats(flags['formats']),
    paper=() if flags['paper'] is None else tuple(flags['paper'].split(',')),
  )
  for path in flags['config']:
    config_lib.load(path)
  return request


def check(request: Request) -> None:
  """Finds the mistakes that need no records of rounds; it loads no slow library.

  Raises:
    UsageError: a folder or run is missing, the report cannot be written, or no run can
      have a name of the command line.
  """
  if request.out is not None:
    files.require_writable(request.out, 'out')
  for folder in request.folders:
    if not os.path.isdir(folder):  # Path.is_dir raises if the name is too long
      raise UsageError(f'{str(folder)!r} is not a folder.')
  if not any(any(run_directories(folder)) for folder in request.folders):
    folders = ', '.join(map(str, request.folders))
    raise UsageError(f'No run was found below {folders}.')
  _require_known_names(request)
  if request.features not in ((FIRST,), (ALL,), (NONE,)):
    for word in request.features:
      if not os.path.isfile(expand(word) / run_files.CONFIG):
        words = option('features', word)
        raise UsageError(f'{words} is not among the finished runs.')


def _require_known_names(request: Request) -> None:
  """Checks names that are not in the catalog: a run may have registered them."""
  names_by_option = {
    'where': tuple(request.choice.where),
    'group': request.choice.group or (),
    'over': request.choice.over,
  }
  if request.pivot is not None:
    names_by_option |= {
      'rows': (request.pivot.row_knob,),
      'columns': (request.pivot.column_knob,),
    }
  knobs = {*catalog.every_knob(), *DIGESTS}
  algorithms = set(catalog.names('algorithm'))
  named_knobs = {name for names in names_by_option.values() for name in names}
  if named_knobs <= knobs and request.target.algorithm in algorithms:
    return
  recorded = recorded_names(request.folders)
  for option_name, names in names_by_option.items():
    for name in names:
      if name not in knobs | recorded.knobs:
        hint = catalog.did_you_mean(name, knobs | recorded.knobs)
        raise UsageError(f'{option(option_name)}: no run has a setting {name!r}.{hint}')
  if request.target.algorithm not in algorithms | recorded.algorithms:
    catalog.part(ALGORITHM, request.target.algorithm)  # raises


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


def _formats(word: str) -> tuple[str, ...]:
  """The formats of figures, each once."""
  formats = tuple(dict.fromkeys(word.split(',')))
  if not set(formats) <= set(FORMATS):
    raise UsageError(
      f'{option("formats", word)} must be names of {", ".join(FORMATS)}, with commas '
      'between.'
    )
  return formats


def _target(word: str) -> Target:
  algorithm, separator, round_name = word.partition('@')
  if separator and round_name in TARGET_ROUNDS:
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
