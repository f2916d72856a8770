"""Pixels: the order of their axes, their mean and standard deviation."""

import sys
from typing import NamedTuple

import numpy as np

# Data set -> [C] mean and [C] standard deviation of pixel / 255 that the literature
# normalises with (CIFAR-10: Li et al. 2021). Other data use their own training split.
PIXEL_STATISTICS = {
  'cifar10': tuple(np.divide([(125.3, 123.0, 113.9), (63.0, 62.1, 66.7)], 255)),
  'cifar100': ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
  'fashion_mnist': ((0.2860,), (0.3530,)),
  'mnist': ((0.1307,), (0.3081,)),
}
CHANNELS = (1, 3, 4)


class PixelSums(NamedTuple):
  """Sums over examples: whole numbers, and so exact however the examples are split.

  Attributes:
    total: [H, W, C] float64, sums of the pixels.
    squares: [H, W, C] float64, sums of their squares.
  """

  total: np.ndarray
  squares: np.ndarray


def with_channels(images: np.ndarray, data_flag: str = '') -> np.ndarray:
  """[M, H, W], [M, H, W, C] or [M, C, H, W] -> [M, H, W, C].

  Args:
    images: axis 1 holds the channels if its size can be theirs and is the smallest. In
      [M, 1, W, 3], rows of pixels, axis 3 holds them.
    data_flag: flag of the data, for the line that says that they are turned; '': no
      line.
  """
  if images.ndim == 3:
    return images[..., None]
  _, first, height, last = images.shape
  channels_are_last = last in CHANNELS and last != height
  if channels_are_last or first not in CHANNELS or min(height, last) <= first:
    return images
  if data_flag:
    print(
      f'{data_flag}: images [M, {first}, {height}, {last}] have their channels first; '
      f'they are turned to [M, {height}, {last}, {first}].',
      file=sys.stderr,
    )
  return np.moveaxis(images, 1, -1)


def pixel_statistics(images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Mean and standard deviation of pixel / 255 in each channel.

  Args:
    images: [M, H, W, C] uint8.

  Returns:
    [C], [C] float64. The deviation is at least one grey level, 1 / 255, so that a
    constant channel can be divided by it.
  """
  return statistics_of(pixel_sums(images), len(images))


def pixel_sums(images: np.ndarray) -> PixelSums:
  """The sums of images [M, H, W, C] uint8."""
  # A square fits 16 bits: no float copy of the images. Examples first: 5 times faster.
  squares = np.square(images, dtype=np.uint16).sum(0, dtype=np.float64)
  return PixelSums(images.sum(0, dtype=np.float64), squares)


def statistics_of(sums: PixelSums, num_examples: int) -> tuple[np.ndarray, np.ndarray]:
  """`pixel_statistics` of examples with these sums."""
  mean = (sums.total / num_examples).mean((0, 1))
  square = (sums.squares / num_examples).mean((0, 1))
  return mean / 255, np.sqrt(np.maximum(square - mean**2, 1.0)) / 255


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
