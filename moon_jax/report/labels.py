"""Places the labels of a picture so that none covers another."""

from typing import NamedTuple

import numpy as np

_SHRINKING = 0.85  # of the letters, until all labels fit
_SMALLEST = 0.3
_POSITIONS = 64  # tried along each axis of the panel
_ROUNDING = 1e-9


class Placement(NamedTuple):
  """Where labels stand.

  Attributes:
    centres: [L, 2] centres of the labels, as fractions of the panel from its lower left
      corner.
    scale: factor of the size of the letters; 1 if all labels fit.
  """

  centres: np.ndarray
  scale: float


def placed(anchors: np.ndarray, sizes: np.ndarray) -> Placement:
  """Places each label where it should be, or at the nearest free place in the panel.

  If they do not all fit, the letters become smaller.

  Args:
    anchors: [L, 2] where the centres of the labels should be, as fractions of the
      panel.
    sizes: [L, 2] width and height of each label, as fractions of the panel.
  """
  scale = 1.0
  while True:
    scaled_sizes = np.minimum(scale * sizes, 1.0)
    centres = _nearest_free(anchors, scaled_sizes)
    if scale < _SMALLEST or not len(overlapping(centres, scaled_sizes)):
      return Placement(centres=centres, scale=scale)
    scale *= _SHRINKING


def _nearest_free(anchors: np.ndarray, sizes: np.ndarray) -> np.ndarray:
  """The centres of labels that are placed one after the other.

  A label for which there is no room stays where it should be.
  """
  steps = np.linspace(0.0, 1.0, _POSITIONS)
  grid = np.stack(np.meshgrid(steps, steps), axis=-1).reshape(-1, 2)
  centres = np.empty_like(anchors, dtype=float)
  for label, (anchor, size) in enumerate(zip(anchors, sizes, strict=True)):
    wanted = np.clip(anchor, size / 2, 1 - size / 2)
    candidates = np.concatenate([wanted[None], size / 2 + (1 - size) * grid])
    distance = np.abs(candidates[:, None] - centres[:label])
    nearest = (size + sizes[:label]) / 2
    is_free = (distance >= nearest - _ROUNDING).any(axis=-1).all(axis=-1)
    way = np.linalg.norm(candidates - wanted, axis=-1)
    centres[label] = candidates[np.argmin(np.where(is_free, way, np.inf))]
  return centres


def overlapping(centres: np.ndarray, sizes: np.ndarray) -> np.ndarray:
  """[P, 2] the pairs of labels that cover each other."""
  distance = np.abs(centres[:, None] - centres)
  nearest = (sizes[:, None] + sizes) / 2
  covers = (distance < nearest - _ROUNDING).all(axis=-1)
  return np.argwhere(np.triu(covers, k=1))
