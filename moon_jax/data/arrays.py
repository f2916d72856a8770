"""What all data sources share: one kind of Dataset, one kind of error."""

import contextlib
import io
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from moon_jax.core.errors import UsageError, printable
from moon_jax.core.types import Dataset

# Data set -> [C] mean and [C] standard deviation of pixel / 255 that the literature
# normalises with (CIFAR-10: Li et al. 2021). Other data uses its own training split.
PIXEL_STATISTICS = {
  'cifar10': tuple(np.divide([(125.3, 123.0, 113.9), (63.0, 62.1, 66.7)], 255)),
  'cifar100': ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
  'fashion_mnist': ((0.2860,), (0.3530,)),
  'mnist': ((0.1307,), (0.3081,)),
}
# The pixels that `grey_levels` makes uint8, for a message.
PIXELS = 'uint8, whole numbers to 255, or floats in [0, 1]'
FORMATS = ('PNG', 'JPEG', 'WEBP', 'BMP', 'PPM', 'TIFF')  # Pillow may try no others
_DEEP = 'the image has more than 8 bits in each channel'
_GREY, _CHANNELS = ('1', 'L', 'LA'), (1, 3, 4)


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
    first_line = re.sub(' at 0x[0-9a-f]+', '', str(error).strip().partition('\n')[0])
    raise DataError(f'{what}: {type(error).__name__}: {first_line}') from error


def listed(names: Iterable[Any]) -> str:
  """The first names that some data have, for a message."""
  return ', '.join(printable(str(name)) for name in [*names][:20]) or 'nothing'


def make_dataset(name, train, test, num_classes, statistics=None, class_names=()):
  """A Dataset of (images, labels) of each split; statistics None: they are computed.

  Names that do not name `num_classes` different classes are left out.
  """
  train, test = (
    (np.ascontiguousarray(with_channels(x)), np.ascontiguousarray(y, np.int32))
    for x, y in (train, test)
  )
  scales = statistics or pixel_statistics(train[0])
  mean, std = (np.asarray(scale, np.float32) for scale in scales)
  names = tuple(map(str, class_names))
  names = names if len(set(names)) == len(names) == num_classes else ()
  return Dataset(name, *train, *test, num_classes, mean, std, class_names=names)


def with_channels(images: np.ndarray, flag: str = '') -> np.ndarray:
  """[M, H, W], [M, H, W, C] or [M, C, H, W] -> [M, H, W, C].

  Args:
    images: axis 1 holds the channels if its size can be theirs and is the smallest. In
      [M, 1, W, 3], rows of pixels, axis 3 holds them.
    flag: flag of the data, for the line that says that they are turned; '': no line.
  """
  if images.ndim == 3:
    return images[..., None]
  _, first, height, last = images.shape
  is_last = last in _CHANNELS and last != height
  if is_last or first not in _CHANNELS or min(height, last) <= first:
    return images
  if flag:
    told = f'{flag}: images [M, {first}, {height}, {last}] have their channels first; '
    told += f'they are turned to [M, {height}, {last}, {first}].'
    print(told, file=sys.stderr)
  return np.moveaxis(images, 1, -1)


def grey_levels(images: np.ndarray) -> np.ndarray:
  """Pixels as uint8: floats in [0, 1] are rounded, whole numbers to 255 are kept.

  Each array is judged alone: floats of 0 and 1 are in [0, 1]. An array with other
  pixels is returned as it is.
  """
  if images.dtype == np.uint8 or images.dtype.kind not in 'iuf' or not images.size:
    return images
  low, high = images.min(), images.max()
  if not 0 <= low <= high <= 255:  # NaN is not
    return images
  if images.dtype.kind == 'f' and high <= 1:
    return np.rint(255 * images).astype(np.uint8)
  levels = images.astype(np.uint8)
  return levels if (levels == images).all() else images


def image_of(
  encoded: bytes,
  mode: str,
  shape: tuple | None = None,
  *,
  upright: bool = False,
  side: int = 0,
) -> np.ndarray:
  """Decodes a picture.

  Args:
    encoded: the bytes of the picture, in one of FORMATS.
    mode: Pillow's name of the channels of the result, e.g. 'L', 'RGB', 'RGBA'.
    shape: shape that the result must have; None: any.
    upright: whether the picture is turned as its EXIF data say.
    side: pixels of each side after resizing, bilinearly; 0: not resized.

  Returns:
    [H, W, C].

  Raises:
    Exception: of any class, if the bytes are no such picture.
  """
  from PIL import Image, ImageOps

  image = _opened(encoded)
  if upright:
    image = ImageOps.exif_transpose(image)
  if image.mode == 'P':  # converted to RGB at once, Pillow warns of transparency
    image = image.convert('RGBA')
  image = image if image.mode == mode else image.convert(mode)
  if side:
    image = image.resize((side, side), Image.Resampling.BILINEAR)
  pixels = np.atleast_3d(image)
  if shape and pixels.shape != shape:
    raise ValueError(f'the image has shape {pixels.shape}, not {shape}; resize all')
  return pixels


def mode_of(encoded: Iterable[bytes]) -> str:
  """The mode to convert pictures to: 'L' or 'RGBA' if all have it, otherwise 'RGB'."""
  found = set()
  for one in encoded:
    try:
      mode = _opened(one).mode
    except Exception:  # decoding names the picture
      continue
    found.add('L' if mode in _GREY else mode)
    if found not in ({'L'}, {'RGBA'}):
      break
  return found.pop() if found in ({'L'}, {'RGBA'}) else 'RGB'


def _opened(encoded):
  from PIL import Image, UnidentifiedImageError

  if encoded[:1] + encoded[24:25] == b'\x89\x10':  # PNG's first byte, and its depth
    raise ValueError(_DEEP)
  try:
    image = Image.open(io.BytesIO(encoded), formats=FORMATS)
  except UnidentifiedImageError:
    raise ValueError(f'the image is none of {", ".join(FORMATS)}') from None
  if image.mode[0] in 'IF':
    raise ValueError(_DEEP)
  return image


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
