"""Rows of images."""

import numpy as np


def images_of_rows(images: np.ndarray, rows: np.ndarray) -> np.ndarray:
  """`images[rows]`; what has shapes but no pixels still takes no memory.

  Args:
    images: [M, ...] images, or one zero that `np.broadcast_to` repeats for all pixels;
      see `sources.load`.
    rows: [m] rows, or [M] bool.
  """
  has_pixels = any(images.strides) or not images.size
  if has_pixels:
    return images[rows]
  num_rows = len(np.arange(len(images))[rows])
  return np.broadcast_to(images.flat[0], (num_rows, *images.shape[1:]))
