"""The pictures of the page: of several runs together, and the t-SNE of single runs."""

import functools
import hashlib
import pathlib
from collections.abc import Callable, Mapping, Sequence

from moon_jax import catalog
from moon_jax import config as config_lib
from moon_jax.core import files
from moon_jax.core.errors import UsageError
from moon_jax.report import features
from moon_jax.report.runs import class_names, read_arrays
from moon_jax.runner import run_directory
from papers import draw
from papers.estimates import spread
from papers.rows import Row, last_of


class Pictures:
  """Draws pictures of several runs, or checks that the pictures show these runs.

  Curves and sweeps show no run with another number of rounds than its variant's.

  Attributes:
    folder: the folder of the pictures, docs/images/experiments.
    link: this folder as the page names it.
    redraw: whether pictures are drawn; otherwise they are checked.
  """

  def __init__(self, folder: pathlib.Path, link: str, redraw: bool):
    self.folder = folder
    self.link = link
    self.redraw = redraw

  def progress(self, name: str, rows: Sequence[Row]) -> list[str]:
    """'@figure NAME FILE: VARIANT ...': the training curves of the runs."""
    return self._curves(name, rows, draw.PROGRESS)

  def drift(self, name: str, rows: Sequence[Row]) -> list[str]:
    """'@drift NAME FILE: VARIANT ...': MOON's term, its cosines, the clients' drift."""
    return self._curves(name, rows, draw.DRIFT)

  def _curves(
    self, name: str, rows: Sequence[Row], panels: Sequence[draw.Panel]
  ) -> list[str]:
    runs_by_title = {
      row.title: [run.rounds for run in row.runs]
      for row in rows
      if row.has_full_length()
    }
    drawing = functools.partial(draw.side_by_side, panels=panels)
    return self.picture(name, runs_by_title, drawing, '; '.join(runs_by_title))

  def sweep(self, name: str, knob: str, rows: Sequence[Row]) -> list[str]:
    """'@sweep NAME KNOB FILE: VARIANT ...': the last accuracies over a knob.

    Raises:
      UsageError: there is no such knob.
    """
    knobs = config_lib.flatten(config_lib.defaults())
    if knob not in knobs:
      hint = catalog.did_you_mean(knob, knobs)
      raise UsageError(f'experiments.in.md: there is no knob {knob!r}.{hint}')
    rows_of_points = [row for row in rows if row.has_full_length()]
    if len({row.runs[0].knobs[knob] for row in rows_of_points}) < 2:
      return []  # one point shows no effect
    points = {}
    for column in ('test_accuracy', 'train_accuracy'):
      for row in rows_of_points:
        last = last_of(run.accuracy(column) for run in row.runs)
        if last.n == len(row.runs):
          point = (row.runs[0].knobs[knob], last.mean, spread(last))
          points.setdefault(column.replace('_', ' '), []).append(point)
    drawing = functools.partial(draw.over_knob, knob=knob)
    return self.picture(name, points, drawing, f'accuracy over {knob}')

  def attacks(self, name: str, rows: Sequence[Row]) -> list[str]:
    """'@attacks NAME FILE: VARIANT ...': the mean of five tests over the attackers.

    There is a panel for each attack. The last words of a variant's setting name the
    server's rule. A variant without an attack is the point at 0 in each panel.
    """
    rows_with_runs = [row for row in rows if row.runs]
    panels = {_attack_of(row): {} for row in rows_with_runs}
    panels.pop('none', None)
    for row in rows_with_runs:
      attack = _attack_of(row)
      accuracy = row.late_accuracy()
      fraction = 0.0 if attack == 'none' else row.runs[0].knobs['attack.fraction']
      rule = row.variant.setting.rpartition(', ')[2]
      for panel in panels if attack == 'none' else [attack]:
        points = panels[panel].setdefault(rule, [])
        points.append((fraction, accuracy.mean, spread(accuracy)))
    caption = 'accuracy over the fraction of attackers'
    return self.picture(name, panels, draw.under_attack, caption)

  def picture(
    self, name: str, content: Mapping, drawing: Callable[..., None], caption: str
  ) -> list[str]:
    """The line that shows a picture; none if there is nothing to show.

    Args:
      name: name of the picture.
      content: what it shows.
      drawing: draws it: (path, content, digest).
      caption: the words that stand for the picture.

    Raises:
      UsageError: the picture shows something else, and is not to be drawn.
    """
    if not content:
      return []
    path = self.folder / f'{name}.png'
    digest = hashlib.sha256(repr(content).encode()).hexdigest()
    if self.redraw:
      files.make_folder(self.folder)
      drawing(path, content, digest)
    elif draw.digest_of(path) != digest:
      raise UsageError(f'{path} does not show these runs: run python -m papers.build.')
    return [f'![{name}: {caption}]({self.link}/{name}.png)']

  # --- one run --------------------------------------------------------------------

  def tsne(self, rows: Sequence[Row]) -> list[str]:
    """'@tsne FILE: VARIANT ...': the t-SNE of the runs that have one."""
    images = [
      f'![t-SNE of {row.variant.setting}, seed {run.seed}]'
      f'({self.link}/{self._tsne_path(run.name).name})'
      for row in rows
      for run in row.runs
      if self._tsne_path(run.name).exists()
    ]
    return [' '.join(images)]

  def _tsne_path(self, run_name: str) -> pathlib.Path:
    return self.folder / f'{run_name}_tsne.png'

  def draw_tsne(self, run: pathlib.Path) -> None:
    """Draws the t-SNE of a run directory's final model, if a report has computed it."""
    path = self._tsne_path(run.resolve().name)
    path.unlink(missing_ok=True)
    description = files.read_json(run / run_directory.CONFIG) or {}
    num_rounds = description['config']['num_rounds']
    arrays = read_arrays(run / features.CACHE, features.KINDS)
    if arrays and arrays['round'] == num_rounds:
      files.make_folder(self.folder)
      draw.representations(
        path=path,
        embedded=arrays['embedded'],
        classes=arrays['classes'],
        names=class_names(description, len(arrays['confusion'])),
        title=f'{run.resolve().name}, after {num_rounds} rounds',
      )


def _attack_of(row: Row) -> str:
  return row.runs[0].knobs['attack.name']
