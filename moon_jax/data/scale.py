"""The scale of pictures: which numbers are black and white, and their grey levels."""

import math
import re
from collections.abc import Sequence

import numpy as np

from moon_jax import catalog
from moon_jax.core.flags import flag
from moon_jax.core.types import Scale

# The numbers of black and white if nothing declares them.
INTEGER_RANGE = (0.0, 255.0)
FLOAT_RANGE = (0.0, 1.0)
# Ranges that a message proposes, narrow ones first: grey levels of 1, 4, 8, 10, 12 and
# 16 bits, those of PyTorch's usual normalisation, and signed bytes.
_USUAL_RANGES = ((0, 1), (-1, 1), (0, 16), (0, 255), (-128, 127), (0, 1023), (0, 4095))
_USUAL_RANGES += ((0, 65535),)
# Images with at most so many of the 256 levels, or none that is darker than the middle,
# hardly have the range that their dtype says: a line of the output tells.
FEW_LEVELS = 16
_MIDDLE_LEVEL = 128


def scale_of(
  train_images: np.ndarray,
  declared_range: str = '',
  float_range: tuple[float, float] = FLOAT_RANGE,
) -> Scale:
  """The scale of a data set, by the dtype of its training images and `data.range`.

  >>> scale_of(np.zeros((1, 8, 8), 'float32'))
  Scale(low=0.0, high=1.0, dtype='float32', declared=False)
  >>> scale_of(np.zeros((1, 8, 8), 'float32'), '0,16')
  Scale(low=0.0, high=16.0, dtype='float32', declared=True)

  Args:
    train_images: an array of integers or floats; its values play no part.
    declared_range: value of the knob `data.range`, 'LOW,HIGH'; '': the dtype decides.
    float_range: the numbers of black and white in floats, if the dtype decides.
  """
  dtype = train_images.dtype
  if declared_range:
    low, high = catalog.range_of(declared_range)
  else:
    low, high = float_range if dtype.kind == 'f' else INTEGER_RANGE
  # Wider floats have no name that every machine knows.
  name = dtype.name if dtype.itemsize <= 8 else 'float64'
  return Scale(low, high, name, declared=bool(declared_range))


def is_valid_scale(scale: Scale) -> bool:
  """Whether a scale that was read from a file can be one.

  >>> is_valid_scale(Scale()), is_valid_scale(Scale(low=1.0, high=0.0))
  (True, False)
  """
  try:
    catalog.range_of(f'{scale.low},{scale.high}')
  except ValueError:
    return False
  return bool(re.fullmatch('u?int(8|16|32|64)|float(16|32|64)', scale.dtype))


def is_numeric(images: np.ndarray) -> bool:
  """Whether an array holds integers or floats."""
  return images.dtype.kind in 'iuf'


def is_on_scale(images: np.ndarray, scale: Scale) -> bool:
  """Whether images have the dtype that the scale asks for, and no number beyond it."""
  return _has_right_kind(images, scale) and _is_inside(images, scale)


def scale_fault(name: str, images: np.ndarray, scale: Scale) -> str:
  """Why images are not on the scale of their data set, and the remedy; '' if they are.

  Args:
    name: name of the images, for the message.
    images: an array of any type.
    scale: the scale of the training images.
  """
  if is_on_scale(images, scale):
    return ''
  described = f'{name} is {values_of(images)}'
  if not is_numeric(images):
    return f'{described}; pixels must be integers or floats'
  if fault := not_finite_fault(images):
    return f'{name} is {images.dtype}, and {fault}'
  if not _has_right_kind(images, scale):
    return (
      f'{described}, and the training images are {words_of(scale)}; save all with one '
      f'dtype and scale, or declare by {flag("data.range", "LOW,HIGH")} which numbers '
      'are black and white in all of them'
    )
  if scale.declared:
    extremes = np.array([images.min(), images.max(), scale.low, scale.high])
    return (
      f'{described}, beyond {_range_flag(scale.low, scale.high)}; '
      f'{_range_flag_around(extremes)} has room for it'
    )
  return (
    f'{described}, and not {words_of(scale)}; save all so, or '
    f'{_range_flag_around(images)} declares which numbers are black and white '
    'in all of them'
  )


def not_finite_fault(images: np.ndarray, noun: str = 'image') -> str:
  """How many numbers are NaN or infinite, and where; '' if none is.

  Args:
    images: an array of any type; its first axis counts the images.
    noun: what an example is.
  """
  if images.dtype.kind != 'f' or not images.ndim:
    return ''
  rows = np.nonzero(~np.isfinite(images))[0]
  if not rows.size:
    return ''
  return (
    f'{rows.size} of its numbers {"is" if rows.size == 1 else "are"} NaN or infinite, '
    f'first in {noun} {rows[0]} (counted from 0); every '
    f'{"pixel" if noun == "image" else "entry"} must be a number'
  )


def different_scales(names: Sequence[str], arrays: Sequence[np.ndarray]) -> str:
  """Says that no range serves all arrays, and the remedy; '' if one does.

  The narrowest range around all of them leaves a few levels to one of them then, but
  not to all.

  Args:
    names: names of the images, for the message.
    arrays: images of any type.
  """
  if not all(is_numeric(a) and a.size and not not_finite_fault(a) for a in arrays):
    return ''
  extremes = np.array([[float(a.min()), float(a.max())] for a in arrays])
  low, high = extremes.min(), extremes.max()
  if low == high:
    return ''
  whole = Scale(low, high, 'float64', declared=True)
  has_few_levels = [uses_few_levels(ends, whole) for ends in extremes]
  if len(set(has_few_levels)) == 1:
    return ''
  few, many = has_few_levels.index(True), has_few_levels.index(False)
  first, second = (f'{names[i]} is {values_of(arrays[i])}' for i in sorted((few, many)))
  return (
    f'{first}, and {second}. These seem to be different scales, and no '
    f'{flag("data.range")} serves both; bring all images to one scale'
  )


def grey_levels(images: np.ndarray, scale: Scale) -> np.ndarray:
  """Images that are on the scale as uint8: `low` becomes 0, `high` 255, others between.

  Numbers between two grey levels are rounded to the nearer one.
  """
  range_of_scale = scale.low, scale.high
  if images.dtype.kind in 'iu' and range_of_scale == INTEGER_RANGE:
    return images.astype(np.uint8, copy=False)
  # In the training images' precision: an equal number is then rounded to the same level
  # in an array of another dtype. Float16 is too coarse: it has no number above 65504.
  precision = np.dtype(scale.dtype) if scale.dtype.startswith('float') else np.float64
  precision = np.promote_types(precision, np.float32)
  levels = images.astype(precision)
  levels -= scale.low
  levels *= 255 / (scale.high - scale.low)
  np.rint(levels, out=levels)
  return levels.clip(0, 255, out=levels).astype(np.uint8)


def numbers_of(levels: np.ndarray, scale: Scale) -> np.ndarray:
  """Grey levels as numbers of the scale: `grey_levels` of them are the same levels.

  Args:
    levels: uint8.
    scale: the scale of the data set.

  Returns:
    uint8 if the scale is that of grey levels, otherwise float32, or float64 where
    float32 is too coarse.
  """
  if (scale.low, scale.high) == INTEGER_RANGE:
    return levels
  every_level = np.arange(256, dtype=np.uint8)
  numbers = np.linspace(scale.low, scale.high, 256)
  rounded = numbers.astype(np.float32)
  if (grey_levels(rounded, scale) == every_level).all():
    numbers = rounded
  return numbers[levels]


def uses_few_levels(images: np.ndarray, scale: Scale) -> bool:
  """Whether images on the scale, which are not all alike, use few of its levels."""
  darkest, brightest = _extreme_levels(images, scale)
  return 0 < brightest - darkest <= FEW_LEVELS


def narrow_line(name: str, images: np.ndarray, scale: Scale) -> str:
  """A line for images that use little of their dtype's range; '' if they use more.

  Args:
    name: flag and name of the images.
    images: training images, on the scale.
    scale: their scale.
  """
  lowest, highest = images.min(), images.max()
  range_of_scale = scale.low, scale.high
  low, high = _range_around(images)
  is_usual_range_inside = scale.low <= low and high <= scale.high
  if not is_usual_range_inside or (low, high) == range_of_scale:
    low, high = min(lowest, 0), highest
  has_no_dark_pixel = _extreme_levels(images, scale)[0] >= _MIDDLE_LEVEL
  is_narrow = has_no_dark_pixel or uses_few_levels(images, scale)
  if not (is_narrow and low < high and (low, high) != range_of_scale):
    return ''
  return (
    f'{name} is {values_of(images)}, and is taken as {words_of(scale)}. If other '
    f'numbers are black and white, {_range_flag(low, high)} declares them.'
  )


def values_of(images: np.ndarray) -> str:
  """The dtype and the lowest and highest number, as in 'float64, from 0.0 to 16.0'."""
  if not is_numeric(images) or not images.size:
    return str(images.dtype)
  return f'{images.dtype}, from {images.min()} to {images.max()}'


def words_of(scale: Scale) -> str:
  """What images must hold, as in 'floats in [0, 1]'."""
  kind = 'floats' if scale.dtype.startswith('float') else 'integers'
  if scale.declared:
    kind = 'numbers'
  return f'{kind} in [{_text(scale.low)}, {_text(scale.high)}]'


def _extreme_levels(images, scale):
  """The darkest and the brightest level, as Python's numbers."""
  extremes = np.array([images.min(), images.max()])
  return grey_levels(extremes, scale).tolist()


def _has_right_kind(images, scale):
  is_float = images.dtype.kind == 'f'
  right_kind = scale.declared or is_float == scale.dtype.startswith('float')
  return is_numeric(images) and right_kind


def _is_inside(images, scale):
  if not images.size:
    return True
  low, high = scale.low, scale.high
  if images.dtype == np.uint8 and (low, high) == INTEGER_RANGE:
    return True
  if images.dtype.kind == 'f':
    # Float32's 0.1 is no larger than the 0.1 that is declared.
    with np.errstate(over='ignore'):
      low, high = images.dtype.type(low), images.dtype.type(high)
  return bool(low <= images.min() and images.max() <= high)  # NaN is not


def _range_around(images):
  """Whole numbers, low and high, around those of the images: a usual range if it fits.

  0 is always among them.
  """
  lowest, highest = images.min(), images.max()
  for low, high in _USUAL_RANGES:
    if low <= lowest and highest <= high:
      return low, high
  return math.floor(min(lowest, 0)), math.ceil(max(highest, 0))


def _range_flag_around(images):
  low, high = _range_around(images)
  return _range_flag(low, high)


def _range_flag(low, high):
  return flag('data.range', f'{_text(low)},{_text(high)}')


def _text(number):
  return str(int(number)) if number == int(number) else str(number)
