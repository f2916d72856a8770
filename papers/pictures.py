"""The pictures of the page: drawn, or checked against the kept runs."""

import hashlib
import pathlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from moon_jax.core import files
from moon_jax.core.errors import UsageError
from papers import draw
from papers.curve import COLUMNS, TITLES, Curve
from papers.draw import Curves, Differences, Points
from papers.partitions import effective_classes
from papers.rows import Row, reported_by


class Pictures:
  """Draws pictures of several runs, or checks that the pictures show these runs.

  Attributes:
    folder: the folder of the pictures, docs/images/experiments.
    link: this folder as the page names it.
    redraw: whether pictures are drawn; otherwise they are checked.
  """

  def __init__(self, folder: pathlib.Path, link: str, redraw: bool):
    self.folder = folder
    self.link = link
    self.redraw = redraw

  def progress(self, name: str, rows: Sequence[Row], alt: str) -> list[str]:
    """The training curves of the rows whose runs have the knobs of their variant."""
    curves = [
      Curves(row.title, _style_of(row), [run.rounds for run in row.runs])
      for row in rows
      if row.runs and not row.changes()
    ]
    return self._picture(name, curves, draw.side_by_side, alt)

  def differences(self, name: str, curves: Mapping[str, Curve], alt: str) -> list[str]:
    """The differences of algorithms to FedAvg over the skew, with the paper's."""
    panels = []
    for algorithm, curve in curves.items():
      reported = {}
      if figure := reported_by(f'moon_cvpr21:{algorithm}'):
        fedavg = reported_by('moon_cvpr21:fedavg')
        reported['beta 0.5'] = figure.mean - fedavg.mean
      notes = {column: curve.divergence_words(column) for column in COLUMNS}
      judgements = curve.judgements()
      panels.append(
        Differences(
          title=TITLES[algorithm],
          style=algorithm,
          by_row={column: curve.comparison(column) for column in COLUMNS},
          pooled_half_widths={
            column: judgement.pooled_half_width
            for column, judgement in judgements.items()
          },
          reported=reported,
          notes={column: words for column, words in notes.items() if words},
        )
      )
    return self._picture(name, panels, draw.forest, alt)

  def skew(
    self,
    name: str,
    moon: Curve,
    class_counts: Mapping[str, np.ndarray],
    alt: str,
  ) -> list[str]:
    """Accuracies of FedAvg and MOON over the effective classes of a client."""
    fedavg_points, moon_points = [], []
    for column_name, column in COLUMNS.items():
      stem = column.choice.format('fedavg').replace(':', '_')
      for pair in moon.pairs[column_name].itertuples():
        classes = effective_classes(class_counts[f'{stem}_seed{pair.seed}'])
        # Processors differ in the last digit of a logarithm, and so would the digest.
        classes = round(classes, 6)
        fedavg_points.append((classes, pair.second))
        moon_points.append((classes, pair.first))
    series = [
      Points('FedAvg', 'fedavg', fedavg_points),
      Points(TITLES['moon'], 'moon', moon_points),
    ]
    return self._picture(name, series, draw.scattered, alt)

  def attacks(self, name: str, rows: Sequence[Row], alt: str) -> list[str]:
    """The mean of five tests over the fraction of attackers, a panel an attack.

    A variant without an attack is the point at 0 in each panel.
    """
    rows_with_runs = [row for row in rows if row.runs]
    attack_names = dict.fromkeys(_knob(row, 'attack.name') for row in rows_with_runs)
    attack_names.pop('none', None)
    panels = {attack: {} for attack in attack_names}
    for row in rows_with_runs:
      attack = _knob(row, 'attack.name')
      fraction = 0.0 if attack == 'none' else _knob(row, 'attack.fraction')
      title = row.variant.setting.rpartition(', ')[2]
      point = (fraction, row.late_accuracy().mean)
      for panel in panels if attack == 'none' else [attack]:
        points = panels[panel].setdefault(title, Points(title, _style_of(row), []))
        points.points.append(point)
    content = {attack: [*points.values()] for attack, points in panels.items()}
    return self._picture(name, content, draw.under_attack, alt)

  def _picture(
    self,
    name: str,
    content: Sequence | Mapping,
    drawing: Callable[..., None],
    alt: str,
  ) -> list[str]:
    """The line that shows a picture; none if there is nothing to show.

    Args:
      name: name of the picture.
      content: what it shows.
      drawing: draws it: (path, content, digest).
      alt: what is seen, for those who do not see it.

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
    return [f'![{alt}]({self.link}/{name}.png)']


def _style_of(row: Row) -> str:
  """The style of a row's algorithm; MOON with mu 1 has one of its own."""
  algorithm = _knob(row, 'algorithm')
  is_mu_1 = algorithm == 'moon' and _knob(row, 'moon.mu') == 1.0
  return 'mu_1' if is_mu_1 and row.name.endswith('mu_1') else algorithm


def _knob(row: Row, name: str):
  return row.runs[0].knobs[name]
