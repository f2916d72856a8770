"""Which features of TensorFlow Datasets are an example, and how a record holds them."""

import zlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from moon_jax.core import files
from moon_jax.core.errors import nearest_name_hint, printable
from moon_jax.core.flags import flag
from moon_jax.data import texts
from moon_jax.data.data_errors import DataError, listed
from moon_jax.data.federated import assembled
from moon_jax.data.pictures import decode_picture

ALL_NUMBERS = '*'
_SUPPORTED = (
  'a class label (ClassLabel), and uint8 images of one size, tensors of numbers of one '
  'shape, or texts'
)


class ExampleFeatures(NamedTuple):
  """The features that are read.

  Attributes:
    names: names of the features of an example in a record; several are the columns of
      a table.
    kinds: TFDS's features with these names.
    label: name of the label.
    label_kind: TFDS's ClassLabel.
    shape: shape of an example; () of a text.
    dtype: dtype of an example.
  """

  names: tuple[str, ...]
  kinds: tuple[Any, ...]
  label: str
  label_kind: Any
  shape: tuple[int, ...]
  dtype: np.dtype

  @property
  def are_pictures(self) -> bool:
    """Whether the examples are encoded pictures."""
    return _is_picture(self.kinds[0])

  @property
  def are_texts(self) -> bool:
    """Whether the examples are texts."""
    return _is_text(self.kinds[0])

  @property
  def column_names(self) -> tuple[str, ...]:
    """The names of the columns, if the examples are rows of single numbers."""
    are_single_numbers = not self.are_texts and self.kinds[0].shape == ()
    return self.names if are_single_numbers else ()

  def reader(self) -> Callable[[Mapping[str, Any]], Any]:
    """A function: features of a record, by name -> the example."""
    if self.are_pictures:
      (name,) = self.names
      mode = {1: 'L', 3: 'RGB', 4: 'RGBA'}[self.shape[-1]]
      return lambda record: decode_picture(
        record[name].bytes_list.value[0], mode, self.shape
      )
    if self.are_texts:
      (name,) = self.names
      return lambda record: record[name].bytes_list.value[0].decode()
    encodings = [kind.to_json_content().encoding for kind in self.kinds]
    columns = list(zip(self.names, self.kinds, encodings, strict=True))

    def numbers(record):
      arrays = [
        _numbers(record[name], kind.shape, kind.np_dtype, encoding)
        for name, kind, encoding in columns
      ]
      return np.array(arrays, self.dtype).reshape(self.shape)

    return numbers


def choose(
  data_flag: str,
  info: Any,
  *,
  client: str = '',
  features: str = '',
  text: str = '',
  tokenizer: str = texts.NONE,
) -> ExampleFeatures:
  """The features of an example and its label.

  The supervised pair of the data set comes first: some sets have a second label
  (cifar100). Without it, the first image by name is the example, or the only tensor.

  Args:
    data_flag: flag of the data, for messages.
    info: TFDS's description of the data set.
    client: the feature of the user; '': none.
    features: value of `data.features`: names with commas between; a group of features
      stands for all in it, and '*' for all single numbers.
    text: value of `data.text`; '': the first text.
    tokenizer: value of `data.tokenizer`.

  Raises:
    DataError: the data set has no such features.
    KnobError: features are named for texts.
  """
  # In this order, because a description has them in another one in each process.
  kinds = dict(sorted(_flat(dict(info.features))))
  # A damaged description pairs others, and some sets have a whole group as an input.
  pair = [key for key in info.supervised_keys or () if isinstance(key, str)]
  keys = list(dict.fromkeys([*(key for key in pair if key in kinds), *kinds]))
  label = next((key for key in keys if _is_label(kinds[key])), None)
  if label is None:
    raise _unsupported(data_flag, kinds)
  texts.require_no_features(features, tokenizer)
  if features:
    names = _named(data_flag, features, kinds, client)
  elif tokenizer != texts.NONE:
    names = (_text(data_flag, text, pair, kinds, client),)
  else:
    names = (_evident(data_flag, pair, keys, kinds),)
  chosen = tuple(kinds[name] for name in names)
  if len(names) > 1:
    shape, dtype = (len(names),), np.result_type(*map(_dtype, chosen))
  else:
    shape, dtype = tuple(chosen[0].shape), _dtype(chosen[0])
  if _is_text(chosen[0]):
    dtype = np.dtype(object)
  elif not shape:  # a single number is a table of one column
    shape = (1,)
  return ExampleFeatures(
    names=names,
    kinds=chosen,
    label=label,
    label_kind=kinds[label],
    shape=shape,
    dtype=dtype,
  )


def _flat(group, prefix=''):
  """Yields (name in a record, feature), of groups in groups too."""
  from tensorflow_datasets import features

  for key, kind in group.items():
    if isinstance(kind, features.FeaturesDict):
      yield from _flat(dict(kind), f'{prefix}{key}/')
    else:
      yield prefix + key, kind


def _evident(data_flag, pair, keys, kinds):
  """The name of an image or a tensor that nobody had to choose."""
  images = [key for key in keys if _is_picture(kinds[key])]
  arrays = [key for key in keys if _is_array(kinds[key]) and kinds[key].shape]
  paired = [key for key in pair if key in images or key in arrays]
  if paired or images:
    return (paired or images)[0]
  if any(_has_image_class(kind) for kind in kinds.values()):
    raise _unsupported(data_flag, kinds)
  if len(arrays) == 1:
    return arrays[0]
  columns = [key for key in keys if _is_array(kinds[key])]
  if columns:
    raise DataError(
      f'{data_flag} has several features of numbers, {listed(columns)}: '
      f'{flag("data.features", "NAME")} names one, or several with commas between that '
      f'are a row of a table; {flag("data.features", ALL_NUMBERS)} takes all single '
      'numbers.'
    )
  if any(map(_is_text, kinds.values())):
    raise texts.tokenizer_needed(data_flag)
  raise _unsupported(data_flag, kinds)


def _text(data_flag, text, pair, kinds, client):
  """The name of the texts."""
  names = [key for key, kind in kinds.items() if _is_text(kind) and key != client]
  if not names:
    raise DataError(
      f'{data_flag} has no texts, but {_described(kinds)}; '
      f'{flag("data.tokenizer", texts.NONE)} reads numbers and images.'
    )
  paired = [key for key in pair if key in names]
  if text or (len(names) > 1 and not paired):
    return assembled.text_name(data_flag, text, names)
  return (paired or names)[0]


def _named(data_flag, features, kinds, client):
  """The names of `data.features`, with all features in place of groups."""
  single_numbers = [
    key for key, kind in kinds.items() if _is_array(kind) and not kind.shape
  ]
  if features == ALL_NUMBERS:
    names = [name for name in single_numbers if name != client]
    if not names:
      raise DataError(
        f'{data_flag} has no single numbers for {flag("data.features", features)}; it '
        f'has {_described(kinds)}.'
      )
  else:
    names = []
    for name in features.split(','):
      members = [key for key in kinds if key == name or key.startswith(f'{name}/')]
      if not members:
        raise DataError(
          f'{data_flag} has no feature {name!r} of {flag("data.features")}; it has '
          f'{listed(kinds)}.{nearest_name_hint(name, [*kinds])}'
        )
      names += members
  for name in names:
    is_alone = len(names) == 1 and (_is_picture(kinds[name]) or _is_array(kinds[name]))
    if not (is_alone or name in single_numbers):
      what = 'numbers of one shape' if len(names) == 1 else 'a single number'
      raise DataError(
        f'{data_flag}: the feature {name!r} of {flag("data.features", features)} is '
        f'{_line(kinds[name])}, not {what}.'
      )
  return tuple(dict.fromkeys(names))


def _unsupported(data_flag, kinds):
  return DataError(
    f'{data_flag} must have {_SUPPORTED}, and has {_described(kinds)}; convert it for '
    f'{flag("data.source", "npz")}.'
  )


def _described(kinds: Mapping[str, Any]) -> str:
  return listed(f'{name!r}: {_line(kind)}' for name, kind in kinds.items())


def _line(kind):
  return printable(' '.join(repr(kind).split()))


def _is_label(kind):
  from tensorflow_datasets import features

  return isinstance(kind, features.ClassLabel)


def _has_image_class(kind):
  from tensorflow_datasets import features

  return isinstance(kind, features.Image)


def _is_picture(kind):
  return _has_image_class(kind) and None not in kind.shape and kind.np_dtype == np.uint8


def _is_text(kind):
  from tensorflow_datasets import features

  # With an encoder of its own it holds integers.
  return type(kind) is features.Text and kind.shape == ()


def _is_array(kind):
  """Whether it is a tensor of integers or floats of one shape, and nothing special.

  A single number may be true or false.
  """
  from tensorflow_datasets import features

  if type(kind) not in (features.Tensor, features.Scalar) or None in kind.shape:
    return False
  return np.dtype(kind.np_dtype).kind in ('iuf' if kind.shape else 'iufb')


def _dtype(kind):
  """The dtype of an example; true and false are 1 and 0."""
  dtype = np.dtype(kind.np_dtype)
  return np.dtype(np.uint8) if dtype.kind == 'b' else dtype


def _numbers(feature, shape, dtype, encoding):
  """The numbers of a tensor, as TFDS serializes them.

  Raises:
    ValueError: they have another number, or are beyond the dtype.
  """
  dtype = np.dtype(dtype)
  if encoding in ('bytes', 'zlib'):
    content = feature.bytes_list.value[0]
    if encoding == 'zlib':
      num_bytes = dtype.itemsize * int(np.prod(shape, dtype=int))
      content = files.unpacked(content, zlib.MAX_WBITS, num_bytes)
    return np.frombuffer(content, dtype).reshape(shape)
  if dtype.kind == 'f':
    return np.array(feature.float_list.value, np.float32).reshape(shape).astype(dtype)
  stored = np.array(feature.int64_list.value, np.int64).reshape(shape)
  if dtype == np.uint64:
    return stored.view(np.uint64)
  numbers = stored.astype(dtype)
  if not np.array_equal(numbers, stored):
    raise ValueError(f'it has integers beyond {dtype}')
  return numbers
