"""What every source has in common: one kind of Dataset, one kind of error."""

import contextlib
import io
from collections.abc import Iterable, Iterator

import numpy as np

from moon_jax.core.errors import UsageError
from moon_jax.core.types import Dataset


class DataError(UsageError):
  """The data cannot be used. The message is one line and says what to do."""


@contextlib.contextmanager
def one_line(what: str) -> Iterator[None]:
  """Makes any error a DataError: TFDS raises a dozen kinds, some of them pages long."""
  try:
    yield
  except (UsageError, MemoryError):
    raise
  except Exception as error:
    first_line = str(error).strip().partition('\n')[0]
    raise DataError(f'{what}: {type(error).__name__}: {first_line}') from error


def make_dataset(name, train, test, num_classes, statistics=None):
  """A Dataset of (images, labels) of each split; None computes the statistics."""

  train, test = (
    (np.ascontiguousarray(with_channels(x)), np.ascontiguousarray(y, np.int32))
    for x, y in (train, test)
  )
  scales = statistics or pixel_statistics(train[0])
  mean, std = (np.asarray(scale, np.float32) for scale in scales)
  return Dataset(name, *train, *test, num_classes, mean, std)


def with_channels(images: np.ndarray) -> np.ndarray:
  """[M, H, W] or [M, H, W, C] -> [M, H, W, C]."""
  return images if images.ndim == 4 else images[..., None]


def images_of(encoded: Iterable[bytes]) -> Iterator[np.ndarray]:
  """Decodes PNGs and JPEGs: yields [H, W] or [H, W, C]."""
  from PIL import Image

  for one in encoded:
    # Of two formats: Pillow would try each.
    yield np.asarray(Image.open(io.BytesIO(one), formats=('PNG', 'JPEG')))


def pixel_statistics(images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Mean and standard deviation of pixel / 255 in each channel.

  Args:
    images: [M, H, W, C] uint8.

  Returns:
    [C], [C] float64. The deviation is at least one grey level, 1 / 255, so that a
    constant channel can be divided by it.
  """
  return statistics_of(*pixel_sums(images), len(images))


def pixel_sums(images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """[M, H, W, C] uint8 -> sums over examples, of values and squares; [H, W, C] float64.

  They are whole numbers, and so exact however the examples are split.
  """
  # A square fits 16 bits: no float copy of the images. Examples first: 5 times faster.
  squares = np.square(images, dtype=np.uint16).sum(0, dtype=np.float64)
  return images.sum(0, dtype=np.float64), squares


def statistics_of(
  total: np.ndarray, squares: np.ndarray, num_examples: int
) -> tuple[np.ndarray, np.ndarray]:
  """`pixel_statistics` of examples with these `pixel_sums`."""
  mean = (total / num_examples).mean((0, 1))
  square = (squares / num_examples).mean((0, 1))
  return mean / 255, np.sqrt(np.maximum(square - mean**2, 1.0)) / 255
