"""Makes a report: reads runs, puts them together, draws and writes."""

import sys
from collections.abc import Sequence

from moon_jax.core.errors import UsageError, printable
from moon_jax.report import (
  charts,
  groups,
  models,
  paper,
  pivot,
  report_files,
  results,
  sections,
)
from moon_jax.report.request import Request
from moon_jax.report.runs import Ending, Note, Run, find
from moon_jax.report.sections import Section


def write_report(request: Request) -> None:
  """Writes a report, and prints on stderr what it leaves out.

  Raises:
    UsageError: no run is left, or the folder cannot be written or holds something else.
  """
  # Refuses a folder of others before it works.
  report_files.files_of_last_report(request.out)
  report = collect(request)
  print(f'drawing {len(report.charts)} figures')
  report_files.write(request.out, report)
  print(f'{report.summary}\nreport: {printable(str(request.out / report_files.PAGE))}')


def collect(request: Request) -> report_files.Report:
  """The content of a report."""
  notes: list[str] = []

  def note(line: str) -> None:
    notes.append(line)
    print(line, file=sys.stderr)

  runs = read(request, note)
  target = results.with_known_algorithm(request.target, runs)
  finished = [run for run in runs if run.ending is Ending.FINISHED]
  diverged = [run for run in runs if run.ending is Ending.DIVERGED]
  settings = groups.settings(finished, request.choice, diverged)
  all_results = []
  for setting in settings:
    setting_results = results.results(setting, target)
    for line in results.notes_on(setting, setting_results, target):
      note(line)
    all_results.extend(setting_results)
  trained_models = models.trained_models(settings, request.features, note)
  all_sections = [
    sections.results(all_results, target),
    *_paper(settings, request),
    *_pivots(finished, request),
    *(sections.curves(setting) for setting in settings),
    sections.sweeps(settings),
    sections.each_client(settings, note),
    sections.class_shares(trained_models),
    sections.models(trained_models),
    sections.runs(runs, groups.varying(runs)),
  ]
  report_sections = sections.with_own_file_names(all_sections)
  all_charts = [chart for section in report_sections for chart in section.charts]
  return report_files.Report(
    summary=f'finished runs: {len(finished)} of {len(runs)}; series: '
    f'{len(all_results)}; settings: {len(settings)}.',
    common=groups.common(finished),
    notes=notes,
    command=request.command,
    sections=[part for part in report_sections if part.tables or part.charts],
    styles=charts.styles(settings, all_charts),
    formats=request.formats,
  )


def _paper(settings: Sequence[groups.Setting], request: Request) -> list[Section]:
  """The section of the table for a paper."""
  table = paper.table(settings, request.paper)
  return [] if table is None else [Section(table.title, tables=[table])]


def _pivots(finished: Sequence[Run], request: Request) -> list[Section]:
  """The section of the table by two knobs, if one is asked for."""
  if request.pivot is None:
    return []
  table = pivot.table(
    finished, request.pivot.row_knob, request.pivot.column_knob, request.choice
  )
  return [Section(table.title, tables=[table])]


def read(request: Request, note: Note) -> Sequence[Run]:
  """The runs to report, at least one of them finished.

  Raises:
    UsageError: there is none.
  """
  all_runs = find(request.folders, note)
  runs = groups.without_duplicates(groups.select(all_runs, request.choice), note)
  for run in runs:
    line = results.run_note(run)
    if line is not None:
      note(line)
  if not any(run.ending is Ending.FINISHED for run in runs):
    folders = ', '.join(map(str, request.folders))
    raise UsageError(f'There is no finished run among {len(all_runs)} below {folders}.')
  return runs
