"""Run directories with chosen accuracies, and what a report over them would hold."""

import csv
import io

from moon_jax.report import build, command, groups, runs
from moon_jax.report.request import Choice
from tests.run_directories import edit_json, write_run

# Accuracies after each round, of the seeds 0, 1 and 2.
FEDAVG = (
  [0.30, 0.50, 0.60, 0.70, 0.72, 0.74, 0.76],
  [0.20, 0.45, 0.55, 0.66, 0.71, 0.75, 0.78],
  [0.25, 0.52, 0.61, 0.69, 0.70, 0.73, 0.71],
)
MOON = (
  [0.30, 0.55, 0.70, 0.76, 0.80, 0.82, 0.81],
  [0.20, 0.40, 0.65, 0.74, 0.78, 0.79, 0.80],
  [0.25, 0.50, 0.68, 0.70, 0.74, 0.74, 0.74],
)


def write_runs(folder, runs_by_name, **metrics):
  """Writes runs of MOON, if they do not name another algorithm; returns the folder.

  Args:
    folder: the folder of the run directories.
    runs_by_name: name -> (accuracies, 'KNOB=VALUE ...').
    metrics: further columns of metrics.jsonl -> one value, of every round.
  """
  for name, (accuracies, words) in runs_by_name.items():
    knobs = dict(word.split('=', 1) for word in words.split())
    seed = int(knobs.pop('seed', 0))
    flags = [f'--config.{knob}={value}' for knob, value in knobs.items()]
    write_run(folder / name, accuracies, *flags, seed=seed, **metrics)
  return folder


def runs_of_seeds(algorithm, accuracies_by_seed):
  """A run of an algorithm for each seed, for `write_runs`."""
  return {
    f'{algorithm}-s{seed}': (accuracies, f'algorithm={algorithm} seed={seed}')
    for seed, accuracies in enumerate(accuracies_by_seed)
  }


def write_two_algorithms(folder):
  """The runs of FEDAVG and MOON."""
  write_runs(folder, runs_of_seeds('fedavg', FEDAVG))
  return write_runs(folder, runs_of_seeds('moon', MOON))


def change_config(run, **entries):
  """Changes entries of a run's config.json, those of `config` one by one."""

  def change(document):
    document['config'].update(entries.pop('config', {}))
    document.update(entries)

  edit_json(run / 'config.json', change)


class Collected:
  """What the files of a report would hold; nothing is drawn.

  Attributes:
    content: the content of the files.
  """

  def __init__(self, folder, flags=()):
    request = command.parse([str(folder), *flags, '--features=none'])
    self.content = build.collect(request)

  def table(self, name):
    (table,) = [
      table
      for section in self.content.sections
      for table in section.tables
      if table.name == name
    ]
    return table

  def rows(self, name):
    """The rows of a table as in its CSV: words."""
    return list(csv.DictReader(io.StringIO(self.table(name).csv())))

  def charts(self):
    return {chart.name: chart for chart in self.content.charts}


def settings_of(folder, group=None, over=('seed',)):
  return groups.settings(runs.find([folder], print), Choice(group, over, {}))
