"""Every text of a figure can be read: inside the picture, and over nothing else."""

import itertools

import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.text import Text
from matplotlib.transforms import Bbox
from PIL import Image

from moon_jax.report import figures, interactive
from moon_jax.report.charts import Line, LineChart, Matrix, Scatter, Spread, style_of
from tests.selection import few

# A warning of matplotlib that a layout fails is an error.
pytestmark = pytest.mark.filterwarnings('error')
SETTING = ', '.join(f'long_name_of_a_knob_{n}={n / 7:.3g}' for n in range(18))
SHORT = ['FedAvg', 'MOON', 'centralized']
LONG = [f'MOON, server_optimizer=yogi, server momentum=0.9, mu={n}' for n in range(16)]
# A $ would begin a formula; the name has no space to break a line at.
ODD = ['a$b$c', 'x' * 120]
NAMES = ['T-shirt/top', *ODD, 'ü\x1b[31m']  # of classes


def estimates(x, mean, std):
  return pd.DataFrame({'mean': mean, 'std': std, 'n': 3}, index=x)


def over_rounds(names, num_rounds=6):
  rounds = range(1, num_rounds + 1)
  points = estimates(rounds, [60.0 + number for number in rounds], 5.0)
  return LineChart(
    name='over_rounds',
    title=f'Test accuracy: {SETTING}',
    x_label='communication rounds',
    y_label='test accuracy, %',
    lines=[Line(name, points) for name in names],
  )


def sweep(num_values):
  x = range(num_values)
  return LineChart(
    name='sweep',
    title='Accuracy after 6 rounds',
    x_label='mu',
    y_label='test accuracy, %',
    lines=[
      Line('MOON, any mu', estimates(x, [50.0 + index for index in x], 2.0)),
      Line('FedAvg', estimates(x, 40.0, 1.0)),
      Line('SOLO', estimates(x, 30.0, np.nan)),
    ],
    ticks=[f'{0.00123 * (index + 1)}' for index in x],
  )


def test_a_line_is_seen_under_another():
  x = range(1, 7)
  mean = np.linspace(40.0, 90.0, 6)
  lines = [
    Line('FedAvg', estimates(x, mean, np.nan)),
    Line('MOON', estimates(x, mean - 5.0, np.nan)),
    Line('Ditto', estimates(x, mean + 0.1, np.nan)),
  ]
  chart = over_rounds(SHORT)._replace(lines=lines)
  (panel,) = figures.draw(chart, styles_of(chart)).axes
  below, alone, above = (line.get_linewidth() for line in panel.lines)
  assert below > 2 * above
  assert alone == above
  drawing = interactive.figure(chart, styles_of(chart))
  widths = {t.name: t.line.width for t in drawing.data if t.line.width is not None}
  assert widths['FedAvg'] > 2 * widths['Ditto'] == 2 * widths['MOON']
  hover = {t.name: t.hovertemplate for t in drawing.data if t.hovertemplate}
  assert hover['Ditto'].startswith('Ditto<br>≈ FedAvg<br>')
  assert '≈' not in hover['FedAvg'] + hover['MOON']
  # Many that are all the same do not fill the panel.
  crowd = over_rounds(LONG)
  (panel,) = figures.draw(crowd, styles_of(crowd)).axes
  assert max(line.get_linewidth() for line in panel.lines) < 12


def spread(names):
  groups = {name: np.linspace(40.0, 100.0, 10) for name in names}
  return spread_of(groups, f'Accuracy: {SETTING}')


def spread_of(groups, title='Accuracy'):
  names = {name: [f'site {i}' for i in range(len(groups[name]))] for name in groups}
  return Spread('clients', title, 'test accuracy, %', groups, names)


def test_a_box_is_the_same_on_the_page_and_in_a_file():
  groups = {'FedAvg': np.array([0.0, 40.0, 41.0, 43.0, 44.0, 45.0, 48.0, 100.0])}
  chart = spread_of(groups)
  (panel,) = figures.draw(chart, styles_of(chart)).axes
  ends = sorted({float(x) for line in panel.lines for x in line.get_xdata()})
  (box,) = interactive.figure(chart, styles_of(chart)).data
  names = ('lowerfence', 'q1', 'median', 'q3', 'upperfence')
  assert ends == [float(box[name][0]) for name in names]
  # Of eight numbers, the quartiles lie at positions 1.75, 3.5 and 5.25 from 0.
  assert ends == [0.0, 40.75, 43.5, 45.75, 100.0]


def matrix(rows, columns):
  counts = np.arange(rows * columns).reshape(rows, columns)
  return Matrix(
    name='matrix',
    title=f'Confusion: {SETTING}',
    x_label='client',
    y_label='class',
    values=counts,
    unit='images',
  )


def scatters(number):
  points = np.random.default_rng(0).normal(size=(40, 2))
  classes = np.arange(40) % 4
  return [
    Scatter(f't{index}', f't-SNE: {index}, {SETTING}', points, classes)
    for index in range(number)
  ]


def test_ten_classes_have_ten_colours_and_their_names():
  (chart,) = scatters(1)
  names = [f'class-{letter}' for letter in 'abcdefghij']
  chart = chart._replace(classes=np.arange(40) % 10, class_names=names)
  (panel,) = figures.tiled([chart]).axes
  assert [text.get_text() for text in panel.texts] == names
  assert len({tuple(dots.get_facecolor()[0]) for dots in panel.collections}) == 10


def styles_of(chart):
  if isinstance(chart, LineChart):
    names = [line.label for line in chart.lines]
  else:
    names = chart.groups if isinstance(chart, Spread) else ()
  return {name: style_of(index) for index, name in enumerate(names)}


def drawn(chart):
  figure = figures.draw(chart, styles_of(chart))
  FigureCanvasAgg(figure).draw()
  return figure


def texts(figure):
  """The texts around the axes' contents, each with its box in pixels."""
  ignored = {text for panel in figure.axes for text in panel.texts}
  for panel in figure.axes:
    for axis in (panel.xaxis, panel.yaxis):
      lower, upper = sorted(axis.get_view_interval())
      for tick in axis.get_major_ticks():
        # matplotlib keeps ticks outside the view but does not draw them.
        if not lower <= tick.get_loc() <= upper:
          ignored.update((tick.label1, tick.label2))
  return [
    (text.get_text(), text.get_window_extent())
    for text in figure.findobj(Text)
    if text.get_visible() and text.get_text() and text not in ignored
  ]


def overlap(box, other_box):
  """Whether two boxes have more than an edge in common."""
  common = Bbox.intersection(box, other_box)
  return common is not None and min(common.width, common.height) > 1.0


def check_texts(figure):
  boxes = texts(figure)
  saved = figure.get_tightbbox().transformed(figure.dpi_scale_trans)
  for name, box in boxes:
    assert saved.x0 <= box.x0 + 1, name
    assert saved.y0 <= box.y0 + 1, name
    assert box.x1 <= saved.x1 + 1, name
    assert box.y1 <= saved.y1 + 1, name
  panels = [('axes', panel.get_window_extent()) for panel in figure.axes]
  for (name, box), (other_name, other_box) in itertools.combinations(boxes + panels, 2):
    assert not overlap(box, other_box), (name, other_name)


def inches(figure, panel):
  box = panel.get_window_extent()
  return box.width / figure.dpi, box.height / figure.dpi


# Of each kind the one with the most, or with the longest names.
FULL = [
  over_rounds([*LONG, *SHORT, *ODD]),
  sweep(24),
  spread([*LONG, *SHORT, *ODD]),
  matrix(100, 100),
  matrix(4, 4)._replace(rows=NAMES, columns=NAMES),
  scatters(1)[0]._replace(class_names=NAMES),
]
OTHERS = [
  over_rounds(SHORT),
  over_rounds(LONG),
  over_rounds(SHORT, num_rounds=1),
  sweep(3),
  spread(SHORT[:1]),
  matrix(10, 10),
  matrix(2, 2),
  matrix(60, 9)._replace(rows=[f'class {n:030d}' for n in range(60)]),
  *scatters(1),
]


@pytest.mark.parametrize(
  'chart',
  [*FULL, *(pytest.param(chart, marks=pytest.mark.slow) for chart in OTHERS)],
  ids=lambda chart: chart.name,
)
def test_texts_are_in_the_picture_and_over_nothing(chart):
  figure = drawn(chart)
  check_texts(figure)
  # The drawing stays visible, however long the title and the names are.
  width, height = inches(figure, figure.axes[0])
  assert width > 3.0
  assert height > (1.0 if isinstance(chart, Spread) else 2.2)


@pytest.mark.parametrize('number', few([1, 6], [9]))
def test_panels_beside_each_other(number):
  figure = figures.tiled(scatters(number))
  FigureCanvasAgg(figure).draw()
  assert len(figure.axes) == number
  check_texts(figure)
  sizes = {tuple(np.round(inches(figure, panel), 2)) for panel in figure.axes}
  assert len(sizes) == 1
  assert min(sizes.pop()) > 2.5
  rows = {round(panel.get_position().y0, 6) for panel in figure.axes}
  assert len(rows) == -(-number // 4)


@pytest.mark.parametrize('chart', [sweep(3), over_rounds(LONG)])
def test_a_legend_names_what_it_shows_wholly_and_in_order(chart):
  legend = drawn(chart).axes[0].get_legend()
  entries = []
  for handle, text in zip(legend.legend_handles, legend.get_texts(), strict=True):
    line = handle if hasattr(handle, 'get_color') else handle.get_children()[0]
    colour = to_hex(np.atleast_1d(line.get_color())[0]).upper()
    entries.append((' '.join(text.get_text().split()), colour))
  styles = styles_of(chart)
  assert entries == [(name, style.colour) for name, style in styles.items()]


@pytest.mark.parametrize(
  ('num_rounds', 'max_ticks'), few([(1, 1), (400, 12)], [(2, 2), (6, 6)])
)
def test_rounds_are_whole_numbers(num_rounds, max_ticks):
  figure = drawn(over_rounds(SHORT, num_rounds))
  axis = figure.axes[0].xaxis
  lower, upper = axis.get_view_interval()
  ticks = [tick for tick in axis.get_ticklocs() if lower <= tick <= upper]
  assert all(tick == int(tick) for tick in ticks)
  assert 1 <= len(ticks) <= max_ticks


def test_the_best_client_is_inside_the_axes():
  figure = drawn(spread(LONG[:9]))
  (panel,) = figure.axes
  assert panel.get_xlim()[1] > 101.0
  labels = [' '.join(text.get_text().split()) for text in panel.get_yticklabels()]
  assert labels == LONG[:9]
  # The first series is on top.
  tops = [text.get_window_extent().y0 for text in panel.get_yticklabels()]
  assert tops == sorted(tops, reverse=True)


def test_a_name_with_a_dollar_is_no_formula():
  figure = drawn(spread(['$a_b$', 'c']))
  assert not any(text.get_parse_math() for text in figure.axes[0].get_yticklabels())


@pytest.mark.slow
def test_a_file_holds_the_legend_too(tmp_path):
  figure = figures.draw(over_rounds(LONG), styles_of(over_rounds(LONG)))
  figures.save(figure, tmp_path, 'over_rounds', formats=('png', 'pdf'))
  assert {path.name for path in tmp_path.iterdir()} == {
    'over_rounds.png',
    'over_rounds.pdf',
  }
  with Image.open(tmp_path / 'over_rounds.png') as image:
    # At 200 dots per inch; the legend is beside the figure's own 6 inches.
    assert image.width > 200 * 8


def test_classes_named_by_numbers_are_names():
  """Plotly would place them by their values, and hide some."""
  names = ('0', '1', '10', '2')
  chart = matrix(4, 4)._replace(rows=names, columns=names)
  layout = interactive.figure(chart, styles={}).layout
  assert (layout.xaxis.type, layout.yaxis.type) == ('category', 'category')
