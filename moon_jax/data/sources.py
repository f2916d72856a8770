"""Data sets by the source's name, whole or in part."""

import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from moon_jax import catalog
from moon_jax.core.flags import flag
from moon_jax.core.types import Dataset
from moon_jax.data import layouts, overlap
from moon_jax.data.data_errors import listed
from moon_jax.data.dataset import registered_dataset
from moon_jax.data.drawn_test import TestDraw
from moon_jax.data.example_forms import Reading
from moon_jax.data.federated import assembled, users
from moon_jax.data.texts import TextOptions

# Trait of a source -> the argument that holds a record of several of its knobs.
RECORDS = (
  ('arrays', 'reading', Reading),
  ('drawn', 'test_draw', TestDraw),
  ('texts', 'text_options', TextOptions),
)
# Share of a split that may occur in training without a line: many data sets have a few
# examples twice, or blank ones.
_SMALL_OVERLAP = 0.01


def load(
  source: str,
  *,
  limit: int,
  announce: Callable[[Dataset], None] | None = None,
  describes_tests: bool = True,
  **options: str | int | float | bool,
) -> Dataset:
  """Loads a data set, or a fixed pseudo-random part of it.

  Lines say how many test examples are training examples, too, and which classes have
  no test example, unless they are not asked for.

  Args:
    source: name of the source in the catalog.
    limit: most examples to keep of each split, by whole users if it has user ids; 0
      keeps all. The choice does not depend on the run's seed; see `users.limited`.
    announce: called by `tfds` before pictures are decoded, with the data set that will
      be returned; its images have shapes, but no pixels.
    describes_tests: whether these lines are printed.
    **options: the knobs of the source.

  Returns:
    The data set; mean and standard deviation are those of the whole training split.
    Texts are texts still: `texts.learn` and `texts.in_words` make words of them.

  Raises:
    DataError: the data are missing or unusable.
  """
  if announce and source == 'tfds':
    options['announce'] = lambda data: announce(_limited(data, limit))
  # A knob of a registered source may be called so, too, and mean something else.
  is_registered = catalog.part('data', source).registered
  path = '' if is_registered else options.get('path', '')
  with layouts.hint_at_other_source(source, path):
    dataset = read(source, **options)
    if isinstance(dataset, assembled.Federation):
      dataset = assembled.dataset_of(dataset)
  if describes_tests:
    for notice in _notices(dataset):
      print(f'{data_flag_of(source, options)}: {notice}', file=sys.stderr)
  return _limited(dataset, limit)


def _limited(dataset: Dataset, limit: int) -> Dataset:
  return users.limited(dataset, limit) if limit else dataset


def _notices(dataset: Dataset) -> Iterator[str]:
  """What makes tests say less, in sentences."""
  splits = {'test': dataset.test_images, 'validation': dataset.validation_images}
  noun = 'images' if dataset.form.kind == 'picture' else 'examples'
  for name, images in splits.items():
    if images is None or dataset.stored:
      continue
    num_shared = overlap.num_shared(dataset.train_images, images)
    if num_shared and num_shared >= _SMALL_OVERLAP * len(images):
      yield (
        f'{num_shared:,} of {len(images):,} {name} {noun} are training {noun}, too.'
      )
  is_trained = np.zeros(dataset.num_classes, bool)
  if dataset.stored:
    is_trained = dataset.stored.class_counts.any(0)
  else:
    is_trained[dataset.train_labels] = True
  is_trained[dataset.test_labels] = False
  untested_classes = np.flatnonzero(is_trained)
  if untested_classes.size:
    names = dataset.class_names or range(dataset.num_classes)
    yield (
      f'{len(untested_classes)} of {dataset.num_classes} classes have no test example: '
      f'{listed(names[number] for number in untested_classes)}.'
    )


def read(
  source: str, **options: str | int | float | bool
) -> Dataset | assembled.Federation:
  """The content of a source, whole or user by user; see `load`."""
  part = catalog.part('data', source)
  if part.registered:
    reading = _record(Reading, options)
    return registered_dataset(source, part.build(tuple, **options), reading)
  for trait, name, kind in RECORDS:
    if part.has(trait):
      options[name] = _record(kind, options)
  return part.build(tuple, **options)


def _record(kind: type[tuple], options: dict) -> tuple:
  """A record of those options that are its fields, which are taken out of the others.

  >>> options = {'path': 'a.npz', 'axes': 'TC'}
  >>> _record(Reading, options), options
  (Reading(range='', axes='TC', normalize='auto'), {'path': 'a.npz'})
  """
  defaults = kind._field_defaults
  return kind._make(options.pop(name, defaults[name]) for name in kind._fields)


def text_options_of(options: Mapping[str, str | int | float | bool]) -> TextOptions:
  """The knobs of texts among those of a source."""
  return _record(TextOptions, dict(options))


def data_flag_of(source: str, options: Mapping[str, str | int | float | bool]) -> str:
  """The flag that says which data they are, for messages."""
  data_flag = flag('data.source', source)
  if catalog.part('data', source).registered:
    return data_flag  # its knobs are in a group of its own
  for knob in ('name', 'path'):
    if options.get(knob):
      data_flag = flag(f'data.{knob}', options[knob])
  return data_flag


def digest(dataset: Dataset) -> str:
  """SHA-256 of the arrays, with their shapes and users, in hexadecimal.

  Validation examples count if there are some. So do the form of data that are no grey
  levels in the usual order, and what their numbers are normalised by. Texts count as
  they are in the data; of texts that have become words, these and the vocabulary do.
  """
  total = hashlib.sha256((dataset.stored.digest if dataset.stored else '').encode())
  if dataset.words:
    total.update(json.dumps(dataset.words).encode())
  if dataset.form.content != 'levels':
    total.update(f'{tuple(dataset.form)}'.encode())
    total.update(dataset.mean.tobytes() + dataset.std.tobytes())
  arrays = (
    *(dataset.train_images, dataset.train_labels),
    *(dataset.test_images, dataset.test_labels),
    *(dataset.train_clients, dataset.test_clients, dataset.clients),
    *(dataset.validation_images, dataset.validation_labels),
  )
  for array in arrays:
    if array is None:
      continue
    total.update(f'{array.dtype}{array.shape}'.encode())
    if array.dtype == object:
      for text in array:
        content = text.encode('utf-8', 'surrogatepass')
        total.update(f'{len(content)} '.encode() + content)
    else:
      total.update(np.ascontiguousarray(array))
  return total.hexdigest()
