"""Makes the text of docs/experiments.md from its template and the kept runs."""

import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from moon_jax.core.errors import UsageError
from papers import ablation, curve, kept_runs, tables
from papers.estimates import endpoints, late_mean
from papers.kept_runs import KeptRun
from papers.markdown import Section
from papers.pictures import Pictures
from papers.rows import Row, rows_of

# Directive -> the words after it.
FORMS = {
  '@table': 'FILE: VARIANT ...',
  '@costs': 'FILE: VARIANT ...',
  '@compare': 'FILE: VARIANT ...',
  '@personal': 'FILE: VARIANT ...',
  '@unseen': 'FILE: VARIANT ...',
  '@tsne': 'FILE: VARIANT ...',
  '@figure': 'NAME FILE: VARIANT ...',
  '@drift': 'NAME FILE: VARIANT ...',
  '@attacks': 'NAME FILE: VARIANT ...',
  '@sweep': 'NAME KNOB FILE: VARIANT ...',
  '@curve': 'ALGORITHM ROUND',
  '@means': 'ROUND',
  '@differences': 'NAME ALGORITHM ROUND ROUND',
  '@partitions': 'ROUND',
  '@ablation': 'ROUND',
}
# A number in the text: {{late RUN}} or {{COLUMN@ROUND RUN}}.
_NUMBER = re.compile(r'\{\{([\w@]+) ([^}]+)\}\}')


class Paths(NamedTuple):
  """The files and folders of a page, all below the root of the repository."""

  template: pathlib.Path
  runs: pathlib.Path
  pictures: pathlib.Path
  page: pathlib.Path

  @classmethod
  def below(cls, root: pathlib.Path) -> 'Paths':
    """The paths below a root."""
    return cls(
      template=root / 'papers/experiments.in.md',
      runs=root / 'papers/runs',
      pictures=root / 'docs/images/experiments',
      page=root / 'docs/experiments.md',
    )

  def pictures_of_the_page(self, redraw: bool) -> Pictures:
    """The pictures, to be drawn or to be checked."""
    link = self.pictures.relative_to(self.page.parent).as_posix()
    return Pictures(self.pictures, link, redraw)


def page(paths: Paths, redraw: bool = False) -> str:
  """The text of the page.

  Args:
    paths: where the template, the runs and the pictures are.
    redraw: whether pictures of several runs are drawn; otherwise they are checked.

  Raises:
    UsageError: a run is damaged; a line asks for what is not there; a run is in no row.
  """
  if not paths.template.is_file():
    raise UsageError(f'{paths.template} is missing.')
  runs = kept_runs.read_all(paths.runs)
  pictures = paths.pictures_of_the_page(redraw)
  lines = []
  shown_names = set()
  for line in paths.template.read_text().splitlines():
    if line.startswith('@'):
      section = _section(line, runs, pictures)
      lines += section.lines
      shown_names |= section.run_names
    else:
      lines.append(_fill_numbers(line, runs))
  unshown_names = sorted(set(runs) - shown_names)
  if unshown_names:
    path = kept_runs.path_of(paths.runs, unshown_names[0])
    raise UsageError(
      f'{path} is in no row of experiments.in.md: name its variant there, or delete it.'
    )
  return re.sub('\n{3,}', '\n\n', '\n'.join(lines)) + '\n'


# --- numbers in the text --------------------------------------------------------------


def _fill_numbers(line: str, runs: Mapping[str, KeptRun]) -> str:
  return _NUMBER.sub(lambda match: _numbers(match, runs), line)


def _numbers(match: re.Match, runs: Mapping[str, KeptRun]) -> str:
  """The numbers of a run, or of ..._seed0,1,2, that {{QUANTITY RUN}} stands for."""
  quantity, names = match.groups()
  first_name, *other_seeds = names.split(',')
  run_names = [first_name]
  run_names += [re.sub(r'\d+$', seed, first_name) for seed in other_seeds]
  numbers = [_number(quantity, runs[name]) for name in run_names if name in runs]
  if None in numbers or len(numbers) < len(run_names):
    raise UsageError(f'experiments.in.md: no kept run has {match[0]}.')
  return ', '.join(numbers)


def _number(quantity: str, run: KeptRun) -> str | None:
  """The number in words; None if the run has no such number."""
  column, _, end = quantity.partition('@')
  if quantity == 'late':
    return f'{late_mean(run.accuracy()):.1f}'
  if not end.isdigit():
    return None
  mean = endpoints(run.column(column)).get(int(end))
  return None if mean is None else f'{mean:#.3g}'


# --- directives -----------------------------------------------------------------------


def _section(line: str, runs: Mapping[str, KeptRun], pictures: Pictures) -> Section:
  """The section that replaces a line of the template.

  Raises:
    UsageError: there is no such directive, or it has another form.
  """
  directive, *arguments = line.split()
  if directive not in FORMS:
    raise UsageError(f'experiments.in.md: there is no {directive!r}.')
  form = FORMS[directive]
  if not _has_form(arguments, form):
    raise UsageError(f'experiments.in.md: {line!r} must be {directive} {form}.')
  match directive, arguments:
    case '@curve', [algorithm, end]:
      return curve.curve_table(algorithm, int(end), runs)
    case '@means', [end]:
      return curve.mean_table(int(end), runs)
    case '@differences', [name, algorithm, *ends]:
      ends = [int(end) for end in ends]
      return curve.difference_picture(name, algorithm, ends, runs, pictures.picture)
    case '@partitions', [end]:
      return ablation.partition_table(int(end), runs)
    case '@ablation', [end]:
      return ablation.ablation_table(int(end), runs)
  file_place = form.split().index('FILE:')
  file = arguments[file_place].removesuffix(':')
  rows = rows_of(file, arguments[file_place + 1 :], runs)
  run_names = {run.name for row in rows for run in row.runs}
  return Section(_lines(directive, arguments, rows, pictures), run_names)


def _has_form(arguments: Sequence[str], form: str) -> bool:
  """Whether arguments have the number and the kinds of the words of a form."""
  words = form.removesuffix(' ...').split()
  is_long_enough = len(arguments) >= len(words)
  is_too_long = len(arguments) > len(words) and not form.endswith(' ...')
  if not is_long_enough or is_too_long:
    return False
  for argument, word in zip(arguments, words, strict=False):
    if word == 'ROUND' and not argument.isdigit():
      return False
    if (word == 'FILE:') != argument.endswith(':'):
      return False
  return True


def _lines(
  directive: str, arguments: Sequence[str], rows: Sequence[Row], pictures: Pictures
) -> list[str]:
  """The lines of a directive that shows rows."""
  match directive:
    case '@table':
      return tables.accuracies(rows)
    case '@costs':
      return tables.costs(rows)
    case '@compare':
      return tables.comparisons(rows)
    case '@personal':
      return tables.personal(rows)
    case '@unseen':
      return tables.unseen(rows)
    case '@tsne':
      return pictures.tsne(rows)
    case '@figure':
      return pictures.progress(arguments[0], rows)
    case '@drift':
      return pictures.drift(arguments[0], rows)
    case '@attacks':
      return pictures.attacks(arguments[0], rows)
    case '@sweep':
      return pictures.sweep(arguments[0], arguments[1], rows)
  raise ValueError(directive)
