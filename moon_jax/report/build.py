"""In which order is a report made? Read it top to bottom in a minute."""

import json
import pathlib
import sys
from collections.abc import Mapping, Sequence

from moon_jax.errors import UsageError
from moon_jax.report.command import Request
from moon_jax.report.draw import charts, files
from moon_jax.report.draw.styles import Style
from moon_jax.report.numbers import groups, results
from moon_jax.report.numbers import table as table_lib
from moon_jax.report.page import page, sections
from moon_jax.report.page.sections import Section
from moon_jax.report.read import features, runs
from moon_jax.report.read.runs import Ending, Note, Run

PAGE, MANIFEST = 'index.html', 'report.json'
_FIGURES, _TABLES = 'figures', 'tables'


def make(request: Request) -> None:
  """Writes a report, and tells on stderr what it leaves out.

  Raises:
    UsageError: no run is left, or the folder cannot be written.
  """
  notes: list[str] = []

  def note(line: str) -> None:
    notes.append(line)
    print(line, file=sys.stderr)

  every = read(request, note)
  finished = [run for run in every if run.ending is Ending.FINISHED]
  settings = groups.settings(finished, request.choice)
  found = [(s, results.results(s, request.target)) for s in settings]
  for setting, numbers in found:
    for line in results.notes_on(setting, numbers, request.target):
      note(line)
  models = features.look_at(settings, request.features, note, say=print)
  parts = [
    sections.numbers(found, request.target),
    *(sections.curves(setting) for setting in settings),
    sections.sweeps(settings),
    sections.clients(models),
    sections.models(models),
    sections.runs(every, groups.varying(every)),
  ]
  head = page.Head(
    summary=_summary(every, finished, settings),
    common=groups.common(finished),
    notes=notes,
    command=request.command,
  )
  looks = charts.looks(settings, [c for part in parts for c in part.charts])
  shown = [part for part in parts if part.tables or part.charts]
  write(request.out, head, shown, looks)
  print(f'{head.summary}\nreport: {request.out / PAGE}')


def read(request: Request, note: Note) -> list[Run]:
  """The runs to report, at least one of them finished.

  Raises:
    UsageError: there is none.
  """
  below = ', '.join(map(str, request.folders))
  found = runs.find(request.folders, note)
  if not found:
    raise UsageError(f'No run was found below {below}.')
  chosen = groups.select(found, request.choice)
  kept = groups.without_duplicates(chosen, note)
  for line in filter(None, map(results.note_on, kept)):
    note(line)
  if not any(run.ending is Ending.FINISHED for run in kept):
    raise UsageError(f'No finished run is left of {len(found)} below {below}.')
  return kept


def _summary(every: Sequence[Run], finished: Sequence[Run], settings) -> str:
  series = sum(len(setting.series) for setting in settings)
  return (
    f'{len(finished)} finished of {len(every)} runs; {series} series in '
    f'{len(settings)} setting{"s" if len(settings) > 1 else ""}.'
  )


def write(
  out: pathlib.Path,
  head: page.Head,
  parts: Sequence[Section],
  looks: Mapping[str, Style],
) -> None:
  """Writes every file of a report, in place of those of the report before.

  Args:
    out: the folder.
    head: what stands above and below everything.
    parts: from the top.
    looks: label -> style of every series.

  Raises:
    UsageError: the folder cannot be written.
  """
  drawn = [chart for part in parts for chart in part.charts]
  try:
    _remove_last(out)
    for name in (_FIGURES, _TABLES):
      (out / name).mkdir(parents=True, exist_ok=True)
    chart_files = {c.name: files.write(c, out / _FIGURES, looks) for c in drawn}
    embedded = [chart for chart in drawn if isinstance(chart, charts.Scatter)]
    together = files.side_by_side(embedded, out / _FIGURES, 'tsne') if embedded else []
    table_files = {
      table.name: table_lib.write(table, out / _TABLES)
      for part in parts
      for table in part.tables
    }
    page.write(out / PAGE, head, parts, looks, chart_files, table_files)
    written = [f'{_FIGURES}/{n}' for names in chart_files.values() for n in names]
    written += [f'{_FIGURES}/{n}' for n in together]
    written += [f'{_TABLES}/{n}' for names in table_files.values() for n in names]
    content = {'command': head.command, 'notes': head.notes, 'files': [PAGE, *written]}
    (out / MANIFEST).write_text(json.dumps(content, indent=2) + '\n')
  except OSError as error:
    problem = f'--out={str(out)!r} cannot be written: {error.strerror}.'
    raise UsageError(problem) from None


def _remove_last(out: pathlib.Path) -> None:
  """Removes the files of the report before, so that none is left of other runs."""
  try:
    names = json.loads((out / MANIFEST).read_text())['files']
  except (FileNotFoundError, ValueError, KeyError, TypeError):
    return
  for name in names:
    # Nothing outside the folder, whatever the manifest says.
    if (out / name).resolve().is_relative_to(out.resolve()):
      (out / name).unlink(missing_ok=True)
