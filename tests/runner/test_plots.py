"""The pictures show the values that they are given."""

import numpy as np
import pytest
from matplotlib.axes import Axes
from PIL import Image

from moon_jax.runner import plots
from moon_jax.runner.client_file import Clients
from tests.selection import few


def pixels(path):
  """[H, W, 3] uint8; more than one colour."""
  with Image.open(path) as image:
    assert image.format == 'PNG'
    array = np.asarray(image.convert('RGB'))
  assert array.shape[0] >= 400
  assert array.shape[1] >= 600
  assert len(np.unique(array[::4, ::4, 0])) > 20
  return array


def share(array, colour):
  """The fraction of the pixels that have a colour, '#RRGGBB', but for rounding."""
  levels = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)])
  return np.mean(np.abs(array.astype(int) - levels).max(-1) <= 2)


def rounds(count, **columns):
  """Lines of metrics.jsonl with a test in every second round and the last."""
  lines = []
  for number in range(1, count + 1):
    line = {'round': number, 'train_loss': 1 / number, 'supervised_loss': 0.5 / number}
    if number % 2 == 0 or number == count:
      line |= {'test_accuracy': 1 - 0.5 / number, 'test_loss': 2 / number, **columns}
    lines.append(line)
  return lines


def draw_curves(tmp_path, lines, title='runs/a'):
  plots.curves(tmp_path / 'curves.png', lines, title, ['supervised_loss'])
  return pixels(tmp_path / 'curves.png')


BAND = '#cce3f0'  # a fifth of #0072B2 on white


@pytest.mark.parametrize('count', few([1], [2, 9]))
def test_curves(tmp_path, count):
  array = draw_curves(tmp_path, rounds(count))
  # The colours are of the training, test and supervised loss; there is no other part.
  for colour in plots.PALETTE[:3]:
    assert share(array, colour) > 1e-5
  assert share(array, plots.PALETTE[3]) == 0
  assert share(array, BAND) < 1e-3


@pytest.mark.parametrize('count', [2, 9])
def test_curves_show_the_spread_over_clients(tmp_path, count):
  # One tested round has a band without a width.
  lines = rounds(count, test_accuracy_std=0.1)
  array = draw_curves(tmp_path, lines)
  assert (share(array, BAND) > 0.01) == (count > 2)


def test_curves_follow_the_numbers(tmp_path):
  lines = rounds(9)
  before = draw_curves(tmp_path, lines)
  assert np.array_equal(draw_curves(tmp_path, lines), before)
  lines[3]['test_loss'] += 1
  assert not np.array_equal(draw_curves(tmp_path, lines), before)


def test_a_loss_below_zero_is_shown(tmp_path):
  lines = [line | {'supervised_loss': -2.0} for line in rounds(9)]
  assert share(draw_curves(tmp_path, lines), plots.PALETTE[2]) > 1e-3


def test_heat_map_has_clients_from_left_to_right_and_classes_downwards(tmp_path):
  # All examples of client 2 of 3 are of the first of two classes.
  counts = np.array([[0, 0], [0, 0], [50, 0]])
  plots.heat_map(tmp_path / 'a.png', counts, '')
  array = pixels(tmp_path / 'a.png')
  darkest = np.abs(array.astype(int) - (0x08, 0x30, 0x6B)).max(-1) <= 2
  height, width = darkest.shape
  # The colour bar, at the right, has a few dark pixels in each row of its top.
  dark = darkest[:, : int(0.75 * width)]
  rows, columns = np.nonzero(dark)
  assert dark.mean() > 0.02
  assert columns.min() > width / 3
  assert rows.max() < 0.75 * height


def test_clients_are_shown_all_or_from_the_least_to_the_most():
  assert plots.clients_drawn(np.array([5, 3, 4])).tolist() == [0, 1, 2]
  assert plots.clients_drawn(np.zeros(200)).tolist() == list(range(200))
  values = np.random.default_rng(0).permutation(399)
  # Every second value of 0 to 398.
  assert values[plots.clients_drawn(values)].tolist() == list(range(0, 399, 2))
  assert plots.name_of_columns(200) == 'client'
  assert plots.name_of_columns(1234567).startswith('200 of 1,234,567 clients, ')


def test_the_bars_of_many_clients_are_those_of_the_clients_below(tmp_path, monkeypatch):
  drawn, bar = [], Axes.bar
  monkeypatch.setattr(Axes, 'bar', lambda *w, **k: drawn.append(w) or bar(*w, **k))
  totals = np.random.default_rng(0).permutation(399)
  plots.heat_map(tmp_path / 'a.png', totals[:, None], '')
  ((_, _, heights),) = drawn
  assert heights.tolist() == list(range(0, 399, 2))


def test_any_name_can_be_a_title(tmp_path):
  title = '$_$ 50 % \\frac{'
  draw_curves(tmp_path, rounds(2), title)
  plots.heat_map(tmp_path / 'a.png', np.ones((2, 2), int), title)


# --- each client over the rounds ------------------------------------------------------


def history(num_clients, num_rounds=3, **numbers):
  rng = np.random.default_rng(0)
  return Clients(
    names=[f'site {number} $x$' for number in range(num_clients)],
    training_examples=np.ones(num_clients),
    test_examples=np.ones(num_clients, np.int64),
    rounds=np.arange(1, num_rounds + 1),
    numbers=numbers or {'user_accuracy': rng.random((num_rounds, num_clients))},
  )


def drawn_clients(tmp_path, monkeypatch, clients):
  """The panels of the picture."""
  panels = []
  save = plots._save

  def keep(figure, path, dpi):
    panels.extend(axes for axes in figure.axes if axes.get_xlabel())
    save(figure, path, dpi)

  monkeypatch.setattr(plots, '_save', keep)
  plots.clients(tmp_path / 'clients.png', clients, 'runs/a')
  pixels(tmp_path / 'clients.png')
  return panels


def test_few_clients_are_lines_with_their_names(tmp_path, monkeypatch):
  clients = history(5)
  (panel,) = drawn_clients(tmp_path, monkeypatch, clients)
  assert [text.get_text() for text in panel.get_legend().get_texts()] == clients.names
  for client, line in enumerate(panel.lines):
    assert (
      line.get_ydata().tolist() == clients.numbers['user_accuracy'][:, client].tolist()
    )


def test_many_clients_are_a_heat_map_from_the_lowest_accuracy(tmp_path, monkeypatch):
  clients = history(300)
  (panel,) = drawn_clients(tmp_path, monkeypatch, clients)
  (image,) = panel.images
  last_round = np.asarray(image.get_array())[:, -1]
  assert last_round.shape == (200,)
  accuracy = 100 * clients.numbers['user_accuracy'][-1]
  assert last_round[[0, -1]].tolist() == [accuracy.min(), accuracy.max()]
  assert (np.diff(last_round) >= 0).all()
  assert panel.get_ylabel() == '200 of 300 clients, from the lowest accuracy'


def test_each_tested_model_has_a_panel_of_the_clients_that_have_it(
  tmp_path, monkeypatch
):
  of_users = np.full((3, 4), 0.5)
  of_clients = of_users.copy()
  of_clients[:, 3] = np.nan  # a user who does not train
  clients = history(
    4,
    user_accuracy=of_users,
    local_accuracy=of_clients,
    personal_accuracy=of_clients,
  )
  panels = drawn_clients(tmp_path, monkeypatch, clients)
  assert [len(panel.lines) for panel in panels] == [4, 3]


def test_the_partition_has_the_names_of_the_clients(tmp_path, monkeypatch):
  figures = []
  save = plots._save

  def keep(figure, path, dpi):
    figures.append(figure)
    save(figure, path, dpi)

  monkeypatch.setattr(plots, '_save', keep)
  names = ['north', 'rural $x$']
  plots.heat_map(tmp_path / 'a.png', np.ones((2, 3), int), '', client_names=names)
  (figure,) = figures
  labels = [label.get_text() for label in figure.axes[1].get_xticklabels()]
  assert labels == names
