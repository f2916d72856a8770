"""No label of a picture covers another."""

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from moon_jax.report import charts, figures, interactive, labels


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


@pytest.mark.parametrize('num_classes', [10, 20])
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


def test_many_classes_have_no_names_in_the_picture():
  assert not interactive.figure(crowd(30), {}).layout.annotations
  (panel,) = figures.tiled([crowd(30)]).axes
  assert not panel.texts
