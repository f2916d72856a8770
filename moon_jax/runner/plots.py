"""The pictures of a run.

It uses matplotlib's object API: pyplot would keep figures alive and look for a display.
"""

import math
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from moon_jax.core import files
from moon_jax.core.errors import printable
from moon_jax.runner import fonts
from moon_jax.runner.client_file import Clients

# Okabe and Ito 2008: colour-blind readers can tell these apart. Black and yellow are
# left out, because one of them is lost on a dark ground, the other on a light one.
PALETTE = ('#0072B2', '#D55E00', '#009E73', '#CC79A7', '#E69F00', '#56B4E9')
MOST_ANNOTATED = 20  # with more clients or classes the numbers do not fit
MOST_LINES = 10  # more clients over rounds are a heat map
MOST_CLIENTS = 200  # a picture shows a sample of at most this size
_MOST_LETTERS = 20  # letters shown of the name of a class


def curves(
  path: pathlib.Path, rounds: list[dict[str, Any]], title: str, terms: Iterable[str]
) -> None:
  """Draws test accuracy, and the losses, against rounds as a PNG.

  Args:
    path: path of the picture.
    rounds: the lines of metrics.jsonl, at least one with a test.
    title: title over both panels.
    terms: columns of the loss's terms, in nats like the losses.
  """
  figure = _figure(10, 4, title)
  accuracy, loss = figure.subplots(1, 2)
  _accuracy(accuracy, [line for line in rounds if 'test_accuracy' in line])
  _losses(loss, rounds, {'train_loss', 'test_loss', *terms})
  for panel in (accuracy, loss):
    panel.set(xlabel='communication rounds', xlim=(0.5, rounds[-1]['round'] + 0.5))
    panel.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    open_frame(panel)
  _save(figure, path, dpi=150)


def _save(figure: Figure, path: pathlib.Path, dpi: int) -> None:
  figure.dpi = dpi
  canvas = FigureCanvasAgg(figure)
  with files.replacing(path) as file:

    def write():
      file.seek(0)
      file.truncate()
      canvas.print_png(file)  # `savefig` would draw it twice

    fonts.saved(figure, write)


def _figure(width: float, height: float, title: str) -> Figure:
  figure = Figure(figsize=(width, height), layout='constrained')
  figure.suptitle(printable(title), parse_math=False)  # a name may hold $ signs
  return figure


def open_frame(panel: Axes) -> None:
  """Gives a panel a grid, and no frame at the top and the right."""
  panel.grid(alpha=0.3)
  panel.spines[['top', 'right']].set_visible(False)


def _accuracy(panel, tested):
  steps = [line['round'] for line in tested]
  mean = np.array([line['test_accuracy'] for line in tested])
  panel.plot(steps, mean, color=PALETTE[0], marker='.')
  panel.set_ylabel('test accuracy')
  if 'test_accuracy_std' in tested[0]:
    std = np.array([line['test_accuracy_std'] for line in tested])
    panel.fill_between(
      steps, mean - std, mean + std, color=PALETTE[0], alpha=0.2, linewidth=0
    )
    panel.set_ylabel('test accuracy, mean and std over clients')
  for column, label in (
    ('user_accuracy_worst_tenth', 'worst tenth of users'),
    ('user_accuracy_min', 'worst user'),
  ):
    if column in tested[-1]:
      panel.lines[0].set_label('all')
      measured = [line for line in tested if column in line]
      panel.plot(
        [line['round'] for line in measured],
        [line[column] for line in measured],
        color=PALETTE[1],
        marker='.',
        label=label,
      )
      panel.legend(frameon=False)
      break


def _losses(panel, rounds, names):
  panel.set_prop_cycle(color=PALETTE)
  for name in sorted(names, reverse=True):
    recorded = [line for line in rounds if name in line]
    steps = [line['round'] for line in recorded]
    losses = [line[name] for line in recorded]
    panel.plot(steps, losses, marker='.', label=name.removesuffix('_loss'))
  panel.set_ylabel('loss, nats; its terms without their weights')
  if panel.dataLim.ymin >= 0:  # a term of a user's algorithm may be negative
    panel.set_ylim(bottom=0)
  panel.legend(frameon=False)


# Column of clients.csv.gz -> title of its panel.
_TITLES_OF_CLIENTS = {
  'test_accuracy': "clients' own models on the whole test set",
  'user_accuracy': 'global model on the tests of each client',
  'local_accuracy': 'global model on the tests of each client',
  'tuned_accuracy': 'fine-tuned model on the tests of each client',
  'personal_accuracy': "clients' own models on their own tests",
}


def clients(path: pathlib.Path, history: Clients, title: str) -> None:
  """Draws the accuracy of each client over the tested rounds as a PNG.

  A few clients are lines, more are the rows of a heat map, from the lowest last
  accuracy. There is a panel for each tested model; if all users have accuracies, those
  that train have no panel of their own.

  Args:
    path: path of the picture.
    history: content of clients.csv.gz.
    title: title over all panels.
  """
  columns = [column for column in _TITLES_OF_CLIENTS if column in history.numbers]
  if 'user_accuracy' in columns and 'local_accuracy' in columns:
    columns.remove('local_accuracy')
  figure = _figure(6.0 * len(columns), 4.5, title)
  panels = figure.subplots(1, len(columns), squeeze=False).flat
  for panel, column in zip(panels, columns, strict=True):
    accuracies = history.numbers[column]
    has_numbers = np.flatnonzero(~np.isnan(accuracies).any(axis=0))
    names = [history.names[client] for client in has_numbers]
    panel.set(title=_TITLES_OF_CLIENTS[column], xlabel='communication rounds')
    draw = _client_lines if len(names) <= MOST_LINES else _client_map
    draw(panel, history.rounds, accuracies[:, has_numbers], names)
  _save(figure, path, dpi=150)


def _client_lines(panel, rounds, accuracies, names):
  """A line for each client; accuracies [R, V]."""
  for client, name in enumerate(names):
    panel.plot(
      rounds,
      accuracies[:, client],
      color=PALETTE[client % len(PALETTE)],
      linestyle='-' if client < len(PALETTE) else '--',
      marker='.',
      label=shortened(name),
    )
  panel.set_ylabel('accuracy')
  panel.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
  open_frame(panel)
  for text in panel.legend(frameon=False, fontsize=8).get_texts():
    text.set_parse_math(False)


def _client_map(panel, rounds, accuracies, names):
  """A row for each client, or for a sample of them; accuracies [R, V]."""
  order = np.argsort(accuracies[-1], kind='stable')
  drawn = order[clients_drawn(np.arange(len(order)))]
  matrix(
    panel,
    100 * accuracies[:, drawn].T,
    'accuracy, %',
    rows=[names[client] for client in drawn],
    columns=[str(number) for number in rounds],
  )
  panel.set_ylabel(name_of_rows(len(order)))


def name_of_rows(num_clients: int) -> str:
  """The label of clients that are sorted by their accuracy."""
  if num_clients <= MOST_CLIENTS:
    return 'client, from the lowest accuracy'
  return f'{MOST_CLIENTS} of {num_clients:,} clients, from the lowest accuracy'


def heat_map(
  path: pathlib.Path,
  counts: np.ndarray,
  title: str,
  class_names: Sequence[str] = (),
  client_names: Sequence[str] = (),
) -> None:
  """Draws counts [N, Y], a heat map below a bar of each client's total, as a PNG.

  The classes are numbered, unless class_names [Y] are given, and so are the clients,
  unless client_names [N] are. The clients are `clients_drawn`.
  """
  totals = counts.sum(1)
  drawn = clients_drawn(totals)
  width = float(np.clip(2.2 + 0.52 * len(counts), 5.0, 12.0))
  height = float(np.clip(2.0 + 0.32 * counts.shape[1], 4.0, 9.0))
  figure = _figure(width, height, title)
  bars, cells = figure.subplots(2, 1, sharex=True, height_ratios=(1, height - 1.5))
  bars.spines[['top', 'right']].set_visible(False)
  drawn_bars = bars.bar(np.arange(len(drawn)), totals[drawn], width=0.8, color='0.55')
  bars.set_ylabel('total')
  if len(counts) <= MOST_ANNOTATED:
    bars.bar_label(drawn_bars, fontsize=8, padding=1)
    bars.margins(y=0.3)
  cells.set(xlabel=name_of_columns(len(counts)), ylabel='class')
  drawn_names = [client_names[client] for client in drawn] if client_names else ()
  matrix(
    cells,
    counts[drawn].T,
    'training examples',
    rows=class_names,
    columns=drawn_names,
  )
  if len(counts) > MOST_CLIENTS and not client_names:
    cells.set_xticks([])  # a position in the sample is no client's number
  figure.align_ylabels([bars, cells])
  _save(figure, path, dpi=200)


def confusion_matrix(
  path: pathlib.Path,
  confusion: np.ndarray,
  title: str,
  class_names: Sequence[str] = (),
  unit: str = 'test examples',
) -> None:
  """Draws a confusion matrix [Y, Y], by class and predicted class, as a PNG.

  The classes are numbered, unless class_names [Y] are given. `unit` says what the
  numbers count.
  """
  side = float(np.clip(2.5 + 0.45 * len(confusion), 5.0, 12.0))
  figure = _figure(side + 1.0, side, title)
  cells = figure.subplots()
  cells.set(xlabel='predicted class', ylabel='true class')
  matrix(cells, confusion, unit, rows=class_names, columns=class_names)
  _save(figure, path, dpi=200)


def clients_drawn(values: np.ndarray) -> np.ndarray:
  """The clients that a picture shows: all in order, or MOST_CLIENTS sorted by value.

  Args:
    values: [N] value of each client.

  Returns:
    Their ids; if sorted, from the lowest value to the highest at equal distances.
  """
  if len(values) <= MOST_CLIENTS:
    return np.arange(len(values))
  positions = np.linspace(0, len(values) - 1, MOST_CLIENTS).round().astype(int)
  return np.argsort(values, kind='stable')[positions]


def name_of_columns(num_clients: int) -> str:
  """The label of `clients_drawn` if they are sorted by their number of examples."""
  if num_clients <= MOST_CLIENTS:
    return 'client'
  return f'{MOST_CLIENTS} of {num_clients:,} clients, from fewest to most examples'


def shortened(name: str) -> str:
  """The name of a class, short enough for a label of a picture."""
  name = printable(name)
  return name if len(name) <= _MOST_LETTERS else f'{name[: _MOST_LETTERS - 1]}…'


def matrix(
  panel: Axes,
  values: np.ndarray,
  unit: str,
  rows: Sequence[str] = (),
  columns: Sequence[str] = (),
) -> None:
  """Fills a panel with a heat map.

  Args:
    panel: the panel.
    values: [rows, columns] >= 0.
    unit: unit of the values.
    rows: names of the rows; without names they are numbered.
    columns: names of the columns, likewise.
  """
  image = panel.imshow(
    values, cmap='Blues', vmin=0, aspect='auto', interpolation='nearest'
  )
  for axis, names in ((panel.xaxis, columns), (panel.yaxis, rows)):
    step = math.ceil(len(names) / MOST_ANNOTATED) or 1
    labels = [shortened(name) for name in names[::step]]
    if labels:
      axis.set_ticks(range(0, len(names), step), labels, parse_math=False)
    else:
      axis.set_major_locator(MaxNLocator(nbins=20, integer=True))
  if columns:
    panel.tick_params('x', labelrotation=90)
  panel.figure.colorbar(image, ax=panel, label=unit, pad=0.02)
  if max(values.shape) <= MOST_ANNOTATED:
    for (row, column), value in np.ndenumerate(values):
      # The top of the colour map is dark.
      colour = 'white' if value > 0.6 * values.max() else 'black'
      panel.text(
        column,
        row,
        f'{value:.0f}',
        color=colour,
        fontsize=8,
        ha='center',
        va='center',
        in_layout=False,  # it is inside the panel, and measuring it takes long
      )
