"""What an example is: its kind and axes, and the numbers that are not grey levels.

The dtype, the number of axes and the knobs decide, never the values of an array.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from moon_jax import catalog
from moon_jax.core.errors import KnobError
from moon_jax.core.flags import flag
from moon_jax.core.types import Form, Scale
from moon_jax.data.data_errors import DataError
from moon_jax.data.pixels import CHANNELS, with_channels
from moon_jax.data.scale import is_numeric, not_finite_fault, scale_fault, values_of

# Axes of an example -> its kind. T alone are words if they are integers.
KIND_OF_AXES = {
  'D': 'table',
  'T': 'signal',
  **dict.fromkeys(('TC', 'CT'), 'signal'),
  **dict.fromkeys(('HW', 'HWC', 'CHW'), 'picture'),
  **dict.fromkeys(('DHW', 'DHWC', 'CDHW'), 'volume'),
}
_NORMALIZE_OF_KIND = {
  'table': 'per_feature',
  'signal': 'per_channel',
  'volume': 'per_channel',
  'picture': 'per_channel',
  'words': 'none',
}
_PLURALS = {'table': 'tables', 'signal': 'signals', 'volume': 'volumes'} | {
  'picture': 'pictures',
  'words': 'words',
}
# Of texts whose words have no numbers yet, because they have no vocabulary.
TEXTS = Form(kind='words', axes='T', content='texts', normalize='none', dtype='object')
_ROWS_AT_A_TIME = 1000  # bounds the float64 in memory
# Float32 has 24 bits: numbers this many deviations from 0 keep a thousandth of one.
_FAR_FROM_ZERO = 2.0**13


class Reading(NamedTuple):
  """The knobs that say how arrays are read.

  Attributes:
    range: value of `data.range`.
    axes: value of `data.axes`.
    normalize: value of `data.normalize`.
  """

  range: str = ''
  axes: str = ''
  normalize: str = 'auto'


def plural(form: Form) -> str:
  """The kind, as in 'signals'."""
  return _PLURALS[form.kind]


def form_of(owner: str, name: str, examples: np.ndarray, reading: Reading) -> Form:
  """The form of a data set, by its first training array and the knobs.

  Args:
    owner: flag of the data, for messages.
    name: name of the array.
    examples: [M, ...] any type; its values play no part.
    reading: the knobs.

  Raises:
    DataError: the array can be read in several ways, or not as the knobs say.
  """
  described = f'{owner}: {name} has shape {examples.shape}'
  axes = reading.axes
  if axes and examples.ndim != 1 + len(axes):
    raise DataError(
      f'{described}, and {flag("data.axes", axes)} is for [M, {", ".join(axes)}].'
    )
  if not axes:
    axes = _evident_axes(described, examples)
  kind = KIND_OF_AXES.get(axes, 'picture')
  if axes == 'T' and examples.dtype.kind in 'iu':
    kind = 'words'
  if kind == 'picture' and reading.normalize == 'auto':
    return Form(axes=axes)
  normalize = reading.normalize
  if normalize == 'auto':
    normalize = _NORMALIZE_OF_KIND[kind]
  if kind == 'words' and normalize != 'none':
    raise DataError(
      f'{owner}: {flag("data.normalize", normalize)} is not for words, which are '
      f'numbers of a vocabulary: leave it out, or read numbers by '
      f'{flag("data.axes", "D")}.'
    )
  allowed = catalog.range_of(reading.range) if reading.range else ()
  if kind == 'words' and allowed and allowed[0] != 0:
    raise DataError(
      f'{owner}: {flag("data.range", reading.range)} must begin with 0, the first word.'
    )
  return Form(
    kind=kind,
    axes=axes,
    content='words' if kind == 'words' else 'numbers',
    normalize=normalize,
    dtype=examples.dtype.name,
    range=allowed,
  )


def axes_of_columns(axes: str) -> str:
  """The axes of rows of several columns, which are tables.

  Raises:
    KnobError: `data.axes` says that they are something else.
  """
  if axes not in ('', 'D'):
    raise KnobError('data.axes', axes, f'must be D with {flag("data.features")}.')
  return 'D'


def _evident_axes(described: str, examples: np.ndarray) -> str:
  """The axes of an array that can only be one thing; '' for a usual picture."""
  shape = examples.shape[1:]
  if len(shape) == 1:
    if examples.dtype.kind in 'iu':
      raise _ambiguous(
        described,
        examples,
        {'D': f'tables of {shape[0]} numbers', 'T': f'{shape[0]} words of a text'},
      )
    return 'D'
  if len(shape) == 3:
    first, height, last = shape
    is_usual = first in CHANNELS or last in CHANNELS
    if is_usual or last < min(first, height):
      return ''
    raise _ambiguous(
      described,
      examples,
      {
        'DHW': f'volumes of {first} x {height} x {last}',
        'HWC': f'pictures of {last} channels',
        'CHW': f'pictures of {first} channels',
      },
    )
  if len(shape) == 4:
    channels_may_be_first = shape[0] in CHANNELS
    if shape[-1] in CHANNELS and not channels_may_be_first:
      return 'DHWC'
    if channels_may_be_first and shape[-1] not in CHANNELS:
      return 'CDHW'
    raise _ambiguous(
      described,
      examples,
      {
        'DHWC': f'volumes of {shape[-1]} channels',
        'CDHW': f'volumes of {shape[0]} channels',
      },
    )
  if len(shape) != 2:
    raise DataError(
      f'{described}; an example is a picture [H, W] or [H, W, C], a volume [D, H, W] '
      'or [D, H, W, C], a signal [T, C], a row of a table [D] or words [T].'
    )
  return ''


def _ambiguous(described, examples, readings):
  ways = ', '.join(
    f'{flag("data.axes", axes)} ({words})' for axes, words in readings.items()
  )
  return DataError(
    f'{described} of {examples.dtype}, which can be read in {len(readings)} ways; one '
    f'of these decides: {ways}.'
  )


def notice_of(examples: np.ndarray, form: Form) -> str:
  """How an array was read that its author may have meant otherwise; '' if it is plain.

  Floats [M, A, B] are pictures, as ever; with sides of two lengths they may be signals.
  """
  if form.axes or examples.ndim != 3 or examples.dtype.kind != 'f':
    return ''
  height, width = examples.shape[1:]
  if height == width:
    return ''
  return (
    f'{examples.dtype} of shape {examples.shape} are read as grey pictures of '
    f'{height}x{width} pixels; {flag("data.axes", "TC")} reads signals of {height} '
    f'steps and {width} channels.'
  )


def has_axes(examples: np.ndarray, form: Form) -> bool:
  """Whether an array has as many axes as `arranged` takes."""
  if form.content == 'texts':
    return examples.ndim == 1
  if form.axes:
    return examples.ndim == 1 + len(form.axes)
  return examples.ndim in (3, 4)


def arranged(examples: np.ndarray, form: Form, data_flag: str = '') -> np.ndarray:
  """The examples with their channels last, as networks take them.

  Pictures [M, H, W, C], volumes [M, D, H, W, C], signals [M, T, C], tables [M, D] and
  words [M, T].

  Args:
    examples: in the order of the form's axes.
    form: what they are.
    data_flag: see `pixels.with_channels`.
  """
  if not form.axes:
    return with_channels(examples, data_flag)
  if form.kind in ('table', 'words'):
    return examples
  if 'C' not in form.axes:
    return examples[..., None]
  return np.moveaxis(examples, 1 + form.axes.index('C'), -1)


def as_in_source(examples: np.ndarray, form: Form) -> np.ndarray:
  """Arranged examples with the axes of the source: the inverse of `arranged`."""
  if not form.axes or form.kind in ('table', 'words'):
    return examples
  if 'C' not in form.axes:
    return examples[..., 0]
  return np.moveaxis(examples, -1, 1 + form.axes.index('C'))


def is_valid(form: Form, shape: tuple[int, ...]) -> bool:
  """Whether a form that was read from a file can be that of examples of a shape."""
  kinds = {'picture': 3, 'volume': 4, 'signal': 2, 'table': 1, 'words': 1}
  fits_axes = not form.axes or (
    KIND_OF_AXES.get(form.axes) in (form.kind, *['signal'] * (form.kind == 'words'))
  )
  has_content = form.content == ('words' if form.kind == 'words' else 'numbers') or (
    form.content == 'levels' and form.kind == 'picture'
  )
  return (
    kinds.get(form.kind) == len(shape)
    and fits_axes
    and has_content
    and re.fullmatch('u?int(8|16|32|64)|float(16|32|64)', str(form.dtype)) is not None
    and len(form.range) in (0, 2)
    and isinstance(form.vocabulary, int)
    and (form.kind != 'words' or 0 < form.vocabulary < 2**31)
  )


def scale_of_range(form: Form) -> Scale:
  """The range of a form as a scale, to which `scale_fault` holds arrays."""
  low, high = form.range
  return Scale(low, high, form.dtype, declared=True)


def numbers_fault(name: str, examples: np.ndarray, form: Form) -> str:
  """Why an array cannot stand beside the others, and the remedy; '' if it can.

  Args:
    name: name of the array, for the message.
    examples: an array of any type.
    form: form of the data, of numbers or words.
  """
  if form.content == 'texts':
    return ''
  described = f'{name} is {values_of(examples)}'
  if not is_numeric(examples):
    return f'{described}; examples must be integers or floats'
  if fault := not_finite_fault(examples, 'example'):
    return f'{name} is {examples.dtype}, and {fault}'
  if form.content == 'words':
    return _words_fault(described, examples, form)
  if form.range:
    return scale_fault(name, examples, scale_of_range(form))
  if (examples.dtype.kind == 'f') != form.dtype.startswith('float'):
    return (
      f'{described}, and the training examples are {form.dtype}; save all as integers '
      'or all as floats, on one scale'
    )
  return ''


def _words_fault(described, examples, form):
  if examples.dtype.kind not in 'iu':
    return f'{described}; words are integers, numbered from 0'
  if not examples.size:
    return ''
  if examples.min() < -1:
    return f'{described}; number the words from 0, and fill up with -1'
  last_word = form.range[1] if form.range else form.vocabulary - 1
  if last_word >= 0 and examples.max() > last_word:
    proposed = flag('data.range', f'0,{examples.max()}')
    return (
      f'{described}, and the last word is {int(last_word)}; {proposed} makes room for '
      'all of them'
    )
  return ''


def with_vocabulary(form: Form, training_examples: np.ndarray) -> Form:
  """The form of words that knows how many there are."""
  if form.content != 'words':
    return form
  last_word = form.range[1] if form.range else training_examples.max()
  return form._replace(vocabulary=max(int(last_word) + 1, 1))


def as_stored(arrays: Sequence[np.ndarray], form: Form) -> tuple[list, Form]:
  """Arrays of numbers in the one dtype that they have in memory and on the devices.

  It is their own: float32 for wider floats, and int32 for wider integers.

  Args:
    arrays: each without a fault.
    form: their form.

  Returns:
    The arrays, and the form with the dtype.

  Raises:
    OverflowError: a number is beyond the dtype.
  """
  dtype = np.result_type(*arrays)
  if dtype.itemsize > 4:
    # NumPy joins uint64 and int64 in float64.
    has_floats = any(array.dtype.kind == 'f' for array in arrays)
    dtype = np.dtype('float32' if has_floats else 'int32')
  stored = []
  for array in arrays:
    limits = np.finfo(dtype) if dtype.kind == 'f' else np.iinfo(dtype)
    if array.size and not (limits.min <= array.min() and array.max() <= limits.max):
      raise OverflowError(f'it is {values_of(array)}, and {dtype} ends at {limits.max}')
    stored.append(np.ascontiguousarray(array, dtype))
  return stored, form._replace(dtype=dtype.name)


def statistics_of_numbers(
  examples: np.ndarray, form: Form
) -> tuple[np.ndarray, np.ndarray]:
  """What is subtracted from the numbers, and what they are divided by.

  Args:
    examples: [M, ...] the training examples, arranged.
    form: their form. Mean and deviation are of each channel (or column), or of each
      number of an example; without normalisation they are 0 and 1, or map the declared
      range to 0 and 1.

  Returns:
    Two arrays of float64, [C] or of an example's shape. A deviation of 0 becomes 1.
  """
  if form.content == 'texts':
    return np.zeros(1), np.ones(1)
  channels = examples.shape[-1:]
  if form.content == 'words' or form.normalize == 'none':
    low, high = form.range if form.range and form.content == 'numbers' else (0, 1)
    return np.full(channels, low, float), np.full(channels, high - low, float)
  axes = (0,) if form.normalize == 'per_feature' else tuple(range(examples.ndim - 1))
  shape = examples.shape[1:] if form.normalize == 'per_feature' else channels
  total, squares = np.zeros(shape), np.zeros(shape)
  for rows in _chunks(examples):
    total += rows.sum(axes)
  count = examples.size // np.prod(shape, dtype=int)
  mean = total / count
  for rows in _chunks(examples):
    squares += np.square(rows - mean).sum(axes)
  std = np.sqrt(squares / count)
  return mean, np.where(std > 1e-12 * np.abs(mean), std, 1.0)


def _chunks(examples: np.ndarray) -> Iterator[np.ndarray]:
  for start in range(0, len(examples), _ROWS_AT_A_TIME):
    yield examples[start : start + _ROWS_AT_A_TIME].astype(np.float64)


def say_if_too_fine(
  data_flag: str, form: Form, mean: np.ndarray, std: np.ndarray
) -> None:
  """Prints a line if float32 cannot tell the numbers of a column or channel apart."""
  if form.content != 'numbers' or form.normalize == 'none':
    return
  # A deviation of 1 may stand for none: of a constant, or of numbers that are equal in
  # float32, in which whole numbers differ up to 2^24.
  nearest = np.where(std == 1.0, 2.0**24, _FAR_FROM_ZERO * std)
  is_far = np.abs(mean) > nearest
  if is_far.any():
    place = np.unravel_index(np.flatnonzero(is_far)[0], is_far.shape)
    print(
      f'{data_flag}: number {", ".join(map(str, place))} of the examples (counted from '
      f'0) is about {mean[place]:.9g}: float32 keeps little of what is between the '
      'examples. Subtract its mean before you save it, or leave a constant out.',
      file=sys.stderr,
    )
