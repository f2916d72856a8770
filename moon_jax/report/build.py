"""Makes a report: reads runs, puts them together, draws and writes."""

import sys
from collections.abc import Sequence

from moon_jax.core import files as core_files
from moon_jax.core.errors import UsageError
from moon_jax.report import charts, files, groups, models, pivot, results, sections
from moon_jax.report.command import Request
from moon_jax.report.runs import Ending, Note, Run, find


def make(request: Request) -> None:
  """Writes a report, and prints on stderr what it leaves out.

  Raises:
    UsageError: no run is left, or the folder cannot be written.
  """
  core_files.require_writable(request.out, 'out')
  report = collect(request)
  print(f'drawing {len(report.charts)} figures')
  files.write(request.out, report)
  print(f'{report.summary}\nreport: {request.out / files.PAGE}')


def collect(request: Request) -> files.Report:
  """The content of a report."""
  notes: list[str] = []

  def note(line: str) -> None:
    notes.append(line)
    print(line, file=sys.stderr)

  every = read(request, note)
  target = results.named(request.target, every)
  finished = [run for run in every if run.ending is Ending.FINISHED]
  settings = groups.settings(finished, request.choice)
  found = []
  for setting in settings:
    own = results.results(setting, target)
    for line in results.notes_on(setting, own, target):
      note(line)
    found += own
  looked_at = models.look_at(settings, request.features, note)
  pivots = []
  if request.pivot:
    table = pivot.table(finished, *request.pivot, request.choice)
    pivots = [sections.Section(table.title, tables=[table])]
  parts = [
    sections.results(found, target),
    *pivots,
    *map(sections.curves, settings),
    sections.sweeps(settings),
    sections.clients(looked_at),
    sections.models(looked_at),
    sections.runs(every, groups.varying(every)),
  ]
  return files.Report(
    summary=f'finished runs: {len(finished)} of {len(every)}; series: {len(found)}; '
    f'settings: {len(settings)}.',
    common=groups.common(finished),
    notes=notes,
    command=request.command,
    sections=[part for part in parts if part.tables or part.charts],
    looks=charts.looks(settings, [chart for part in parts for chart in part.charts]),
  )


def read(request: Request, note: Note) -> Sequence[Run]:
  """The runs to report, at least one of them finished.

  Raises:
    UsageError: there is none.
  """
  found = find(request.folders, note)
  kept = groups.without_duplicates(groups.select(found, request.choice), note)
  for line in filter(None, map(results.note_on, kept)):
    note(line)
  if not any(run.ending is Ending.FINISHED for run in kept):
    below = ', '.join(map(str, request.folders))
    raise UsageError(f'There is no finished run among {len(found)} below {below}.')
  return kept
