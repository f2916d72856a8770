"""No label of a picture covers another."""

import io
import warnings

import numpy as np
import pytest
from matplotlib import image
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from moon_jax.report import charts, figures, interactive, labels
from tests.selection import few


def crowd(num_classes, letters=12):
  """Points whose classes lie over each other, with long names."""
  rng = np.random.default_rng(num_classes)
  classes = np.arange(40 * num_classes) % num_classes
  return charts.Scatter(
    name='tsne',
    title='t-SNE',
    points=rng.normal(size=(len(classes), 2)),
    classes=classes,
    class_names=[f'{"type":x<{letters}}{index:02d}' for index in range(num_classes)],
  )


def test_labels_with_room_stay_where_they_are():
  anchors = np.array([[0.2, 0.2], [0.8, 0.8]])
  placement = labels.placed(anchors, np.full((2, 2), 0.1))
  np.testing.assert_allclose(placement.centres, anchors, atol=1e-3)
  assert placement.scale == 1


@pytest.mark.parametrize('num_labels', [1, 2, 20])
def test_labels_part_and_stay_inside(num_labels):
  anchors = np.full((num_labels, 2), 0.99)
  sizes = np.tile([0.3, 0.05], (num_labels, 1))
  placement = labels.placed(anchors, sizes)
  scaled = placement.scale * sizes
  assert not len(labels.overlapping(placement.centres, scaled))
  assert (placement.centres - scaled / 2 >= 0).all()
  assert (placement.centres + scaled / 2 <= 1).all()


@pytest.mark.parametrize('num_classes', few([10], [20]))
def test_no_name_covers_another_in_a_file(num_classes):
  chart = crowd(num_classes)
  figure = figures.tiled([chart] * 4)  # the smallest panels
  canvas = FigureCanvasAgg(figure)
  canvas.draw()
  renderer = canvas.get_renderer()
  for panel in figure.axes:
    # An annotation's own extent has its line in it.
    boxes = [Text.get_window_extent(text, renderer) for text in panel.texts]
    assert len(boxes) == num_classes
    for number, box in enumerate(boxes):
      assert not any(box.overlaps(other) for other in boxes[:number])


@pytest.mark.parametrize('num_classes', [10, 20])
def test_no_name_covers_another_on_the_page(num_classes):
  drawing = interactive.figure(crowd(num_classes), {})
  notes = drawing.layout.annotations
  assert len(notes) == num_classes
  length = np.ptp(crowd(num_classes).points, axis=0).max()
  pixels = np.array([(note.ax, note.ay) for note in notes]) / length * 330
  sizes = np.array(
    [[len(note.text[3:-4]) * 8 * note.font.size / 13, note.font.size] for note in notes]
  )
  assert not len(labels.overlapping(pixels, sizes))


def two_classes(num_points, spread):
  """Points of two classes, each a group that is far from the other."""
  classes = np.repeat([0, 1], num_points // 2)
  points = np.random.default_rng(0).normal(scale=spread, size=(num_points, 2))
  return charts.Scatter(
    name='tsne',
    title='t-SNE: MOON, seed=0',
    points=points + np.array([[-300.0, 40.0], [250.0, -200.0]])[classes],
    classes=classes,
    class_names=['hum', 'whistle'],
  )


@pytest.mark.parametrize(('num_points', 'spread'), [(18, 1e-3), (120, 20.0)])
@pytest.mark.parametrize('num_panels', [1, 4])
def test_names_of_groups_far_apart_stay_in_the_file(num_points, spread, num_panels):
  chart = two_classes(num_points, spread)
  figure = figures.tiled([chart] * num_panels)
  with warnings.catch_warnings():
    warnings.simplefilter('error')  # such as of axes that have no room
    file = io.BytesIO()
    figure.savefig(file, dpi=100, bbox_inches='tight')
  file.seek(0)
  height, width = image.imread(file, format='png').shape[:2]
  assert max(height, width) < 100 * (4.0 * num_panels)
  renderer = FigureCanvasAgg(figure).get_renderer()
  for panel in figure.axes:
    frame = panel.get_window_extent(renderer)
    assert frame.width > 50
    for text in panel.texts:
      # With the line that leads to the points of the class.
      box = text.get_window_extent(renderer)
      assert frame.x0 - 1 <= box.x0 <= box.x1 <= frame.x1 + 1
      assert frame.y0 - 1 <= box.y0 <= box.y1 <= frame.y1 + 1


@pytest.mark.parametrize(('num_points', 'spread'), [(18, 1e-3), (120, 20.0)])
def test_names_of_groups_far_apart_stay_on_the_page(num_points, spread):
  chart = two_classes(num_points, spread)
  low, high = chart.points.min(axis=0), chart.points.max(axis=0)
  margin = (high - low).max()
  notes = interactive.figure(chart, {}).layout.annotations
  assert [note.text for note in notes] == ['<b>hum</b>', '<b>whistle</b>']
  for note in notes:
    place = np.array([[note.x, note.y], [note.ax, note.ay]])
    assert (place >= (low + high - margin) / 2).all()
    assert (place <= (low + high + margin) / 2).all()


def test_many_classes_have_no_names_in_the_picture():
  assert not interactive.figure(crowd(30), {}).layout.annotations
  (panel,) = figures.tiled([crowd(30)]).axes
  assert not panel.texts
