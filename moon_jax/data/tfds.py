"""TensorFlow Datasets; TensorFlow itself is needed to prepare a set, not to read it."""

import contextlib
import importlib.metadata
import importlib.util
import io
import logging
import os
import pathlib
import re
import sys
import types
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from moon_jax.core import files
from moon_jax.core.errors import nearest_name_hint
from moon_jax.core.flags import flag
from moon_jax.core.types import Dataset
from moon_jax.data import decoded, example_forms, texts, tfds_features
from moon_jax.data.data_errors import DataError, one_line
from moon_jax.data.dataset import arrays_dataset, checked_dataset
from moon_jax.data.example_forms import Reading
from moon_jax.data.federated import users
from moon_jax.data.pixels import PIXEL_STATISTICS
from moon_jax.data.texts import TextOptions

# TFDS stores these images lying on their side, as NIST does; here they are transposed.
TRANSPOSED = ('emnist',)
RECORDS_TOGETHER = 256  # are read in one call
DOWNLOAD_RETRIES = 3  # with TFDS's ten it takes minutes to notice a missing network


class _Split(NamedTuple):
  """The examples of a split.

  Attributes:
    examples: [M, H, W, C] uint8, or other numbers [M, ...], or texts [M].
    labels: [M] int32.
    user_ids: [M]; None if they are not asked for.
  """

  examples: np.ndarray
  labels: np.ndarray
  user_ids: np.ndarray | None


class _Request(NamedTuple):
  """What is asked for; see `load_tfds`."""

  name: str
  client: str
  reading: Reading
  features: str
  text: str
  tokenizer: str


def load_tfds(
  name: str,
  dir: str,
  client: str = '',
  *,
  prepare: bool = True,
  announce: Callable[[Dataset], None] | None = None,
  features: str = '',
  text: str = '',
  reading: Reading,
  text_options: TextOptions,
) -> Dataset:
  """Loads a labelled data set of TFDS, and prepares it first if necessary.

  A set is refused if its description names a class that is not TFDS's own, because TFDS
  would import it.

  Reading needs no TensorFlow; downloading and preparing a set, which is done once,
  needs it. What is decoded is kept in the user's cache folder, unless it is text.

  Args:
    name: TFDS name, e.g. 'cifar100' (its label is the fine one of two), 'svhn_cropped'
      (its split 'extra' is not used) or 'emnist/balanced'; ':1.2.3' may follow.
    dir: TFDS folder; '' is $TFDS_DATA_DIR, or else ~/tensorflow_datasets.
    client: the feature with the user id of an example; '': no feature.
    prepare: whether a missing set may be downloaded and prepared.
    announce: called before pictures are decoded, with the data set that will be
      returned; its images have shapes, but no pixels. Not called for other data, nor
      for pictures that are read in another way than usually.
    features: features of numbers, see `tfds_features.choose`; '': the image or the
      tensor of the data set.
    text: the feature of texts; '': that of the data set.
    reading: as in `npz.load_npz`.
    text_options: how texts are read, if the examples are these.

  Raises:
    DataError: the name is unknown, the set is not one of labelled examples of one size
      with splits train and test, it cannot be prepared or read, or that feature has no
      user ids.
  """
  request = _Request(
    name=name,
    client=client,
    reading=reading,
    features=features,
    text=text,
    tokenizer=text_options.tokenizer,
  )
  data_dir = os.path.expanduser(
    dir or os.environ.get('TFDS_DATA_DIR') or '~/tensorflow_datasets'
  )
  if text_options.has_texts:
    return _decode(request, data_dir, prepare, announce)
  return decoded.load_or_decode(
    name,
    pathlib.Path(data_dir, re.match(r'\w*', name)[0]),  # where TFDS looks for it
    lambda: _decode(request, data_dir, prepare, announce),
    client,
    tuple(reading),
    features,
    importlib.metadata.version('tensorflow_datasets'),
  )


def _decode(request, data_dir, prepare, announce):
  name, client, reading = request.name, request.client, request.reading
  data_flag = flag('data.name', name)
  builder = _tfds_builder(name, data_dir, prepare)
  info = builder.info
  with one_line(f'cannot read {info.data_dir}; delete it and prepare it again'):
    chosen = tfds_features.choose(
      data_flag,
      info,
      client=client,
      features=request.features,
      text=request.text,
      tokenizer=request.tokenizer,
    )
  if chosen.are_texts:
    texts.require_no_other_reading(reading)
  if chosen.column_names:
    reading = reading._replace(axes=example_forms.axes_of_columns(reading.axes))
  if client and client not in info.features:
    raise DataError(
      f'{flag("data.client", client)} is not among the features of {name!r}: '
      f'{sorted(info.features)}.'
    )
  missing_splits = {'train', 'test'} - set(info.splits or ('train', 'test'))
  if missing_splits:
    raise DataError(
      f'{name!r} has no split {min(missing_splits)!r}; it has {[*info.splits]}.'
    )
  _prepare(name, builder)
  are_usual_pictures = chosen.are_pictures and reading == Reading()
  remedy = f'cannot read {info.data_dir}; delete it and prepare it again'
  if announce and not client and are_usual_pictures:
    with one_line(remedy):
      known_before = _without_pixels(builder, chosen)
    announce(known_before)
  with one_line(remedy):
    train = _read_split(builder, 'train', chosen, client)
    test = _read_split(builder, 'test', chosen, client)
  label = chosen.label_kind
  arrays = train.examples, train.labels, test.examples, test.labels
  if are_usual_pictures:
    data = checked_dataset(
      data_flag,
      info.name,
      arrays,
      num_classes=int(label.num_classes),
      statistics=PIXEL_STATISTICS.get(info.name),
      class_names=label.names,
    )
  else:
    described = ', '.join(chosen.names)
    data = arrays_dataset(
      data_flag,
      info.name,
      arrays,
      reading=reading,
      num_classes=int(label.num_classes),
      class_names=label.names,
      array_names=(
        *(f'{described} of train', f'{chosen.label} of train'),
        *(f'{described} of test', f'{chosen.label} of test'),
      ),
      tokenizer=request.tokenizer,
    )._replace(feature_names=chosen.column_names)
  return users.named(data_flag, data, train.user_ids, test.user_ids)


def _tfds_builder(name, data_dir, prepare):
  name_flag = flag('data.name', name)
  with one_line(f'cannot open {name_flag} in {data_dir}; check both'):
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core import features, read_only_builder

    if not prepare:
      data_dir = os.path.abspath(data_dir)  # not gs://, which is no folder
    find = tfds.builder if prepare else read_only_builder.builder_from_files
    try:
      with _importing_no_class(features.feature), _opening_only_in(data_dir, name):
        # Without file_format, because with it another format is a bare ValueError.
        return find(name, data_dir=data_dir)
    except ModuleNotFoundError as error:
      if error.name != 'tensorflow':
        raise
      raise DataError(
        f'{name_flag} has features that TFDS cannot describe without TensorFlow, such '
        f'as sounds, and these are not read; {flag("data.source", "audiofolder")} '
        'reads WAV files.'
      ) from None
    except tfds.core.DatasetNotFoundError:
      # TFDS would fetch the community's list from the network.
      known_names = ()
      if prepare:
        known_names = tfds.list_builders(with_community_datasets=False)
      raise DataError(
        f'{name_flag} is not a TFDS data set, nor prepared in '
        f'{data_dir}.{nearest_name_hint(name, known_names)}'
      ) from None


@contextlib.contextmanager
def _importing_no_class(feature: types.ModuleType) -> Iterator[None]:
  """Inside, TFDS knows the classes of its own features, and imports no other.

  TFDS imports what the description of a set names. It chooses the folder of the set by
  the words of a name, by a default in a file, by `..` in either: so the import itself
  is taken away, and no folder is searched for names.

  Args:
    feature: the module of TFDS that imports them.
  """
  importing = feature.importlib
  feature.importlib = types.SimpleNamespace(import_module=_refuse_to_import)
  try:
    yield
  finally:
    feature.importlib = importing


@contextlib.contextmanager
def _opening_only_in(data_dir: str, name: str) -> Iterator[None]:
  """Inside, TFDS opens and lists what is in its package and in `data_dir`, no more.

  The files that describe a set name others: the default configuration is a folder, and
  the names of features are parts of the names of their files. TFDS opens all of them
  through one object of etils, of which two methods are exchanged here.

  Args:
    data_dir: folder of TFDS.
    name: name of the set, which may lead through `..`, because the user wrote it.

  Raises:
    OSError: something was refused, even if TFDS went on without it.
  """
  import tensorflow_datasets as tfds
  from etils.epath import backend

  package = pathlib.Path(tfds.__file__).parent
  folder = _absolute(data_dir, name)
  file_system = backend.os_backend
  refusals = []

  def guarded(read, read_inside):
    def read_guarded(path, *mode):
      if 'w' in mode or pathlib.Path(path).is_relative_to(package):
        return read(path, *mode)
      try:
        return read_inside(files.named(folder, _absolute(path, name)), *mode)
      except (FileNotFoundError, NotADirectoryError):
        raise  # some of the files that describe a set may be missing
      except OSError as error:
        refusals.append(error)
        raise

    return read_guarded

  file_system.open = guarded(file_system.open, _opened_description)
  file_system.listdir = guarded(file_system.listdir, os.listdir)
  try:
    yield
  finally:
    del file_system.open, file_system.listdir
  if refusals:
    raise refusals[0]


def _opened_description(path, mode):
  content = files.contents(path, files.MOST_TEXT_BYTES)
  return io.BytesIO(content) if 'b' in mode else io.StringIO(content.decode())


def _absolute(path, name):
  """The path from the root; `..` stays in it, and is refused, unless a name has it."""
  return pathlib.Path(os.path.abspath(path) if '..' in name else path).absolute()


def _refuse_to_import(module_name: str) -> None:
  raise DataError(
    f'The description of the data set names a class of {module_name!r}, not one of '
    'TFDS: that would run its code.'
  )


def _prepare(name, builder):
  """Downloads and prepares the set, unless it exists in the format that we read."""
  folder = builder.data_path
  if builder.info.splits:
    formats = {kind.value for kind in builder.info.available_file_formats()}
    if 'array_record' not in formats:
      raise DataError(
        f'{folder} is in the format {" and ".join(sorted(formats))}, not array_record; '
        f'prepare it in another {flag("data.dir")}, or delete it.'
      )
    return
  if folder.exists():
    raise DataError(f'{folder} is only half prepared; delete it and prepare it again.')
  if importlib.util.find_spec('tensorflow') is None:
    raise DataError(
      f'{flag("data.name", name)} is not prepared in {folder}; point '
      f'{flag("data.dir")} or TFDS_DATA_DIR at the folder that holds the prepared '
      f'{name}/, or pip install tensorflow to prepare it.'
    )
  print(f'Downloading and preparing {name} in {folder}, once.', file=sys.stderr)
  with one_line(f'cannot prepare {name} in {folder}; check the network and the disk'):
    from tensorflow_datasets.core.download import downloader

    downloader.MAX_RETRIES = DOWNLOAD_RETRIES
    logging.getLogger('urllib3').setLevel(logging.ERROR)  # hides its retries
    builder.download_and_prepare(file_format='array_record')


def _without_pixels(builder, chosen):
  """The data set as far as it is known before decoding: labels, and images' shapes."""
  shape = chosen.shape
  if builder.info.name in TRANSPOSED:
    shape = (shape[1], shape[0], *shape[2:])
  images, labels = {}, {}
  for split in ('train', 'test'):
    records = _records(builder, split)
    numbers = [
      feature[chosen.label].int64_list.value[0] for feature in _features(records)
    ]
    labels[split] = np.array(numbers, np.int32)
    # One zero of this shape: it takes no memory.
    images[split] = np.broadcast_to(np.uint8(0), (len(numbers), *shape))
  return Dataset(
    name=builder.info.name,
    train_images=images['train'],
    train_labels=labels['train'],
    test_images=images['test'],
    test_labels=labels['test'],
    num_classes=int(chosen.label_kind.num_classes),
    mean=np.zeros(shape[-1:], np.float32),
    std=np.ones(shape[-1:], np.float32),
  )


def _read_split(builder, split, chosen, client_key):
  """The examples of a split; '' as client_key asks for no user ids.

  It parses the records itself: TFDS's decoder, which also decodes features that are not
  needed and tries every image format that Pillow knows, takes twice as long.
  """
  records = _records(builder, split)
  examples = np.empty((len(records), *chosen.shape), chosen.dtype)
  example_of = chosen.reader()
  labels = np.empty(len(records), np.int32)
  user_ids = []
  for i, feature in enumerate(_features(records)):
    with one_line(f'{builder.data_dir}: {split} example {i} cannot be used'):
      examples[i] = example_of(feature)
    labels[i] = feature[chosen.label].int64_list.value[0]
    if client_key:
      user_ids += feature[client_key].int64_list.value
      user_ids += feature[client_key].bytes_list.value
  if builder.info.name in TRANSPOSED and chosen.are_pictures:
    examples = examples.transpose(0, 2, 1, 3)
  return _Split(
    examples=examples,
    labels=labels,
    user_ids=np.array(user_ids) if client_key else None,
  )


def _records(builder, split):
  """The encoded examples of a split, a sequence of bytes."""
  import tensorflow_datasets as tfds

  records = builder.as_data_source(
    split,
    deserialize_method=tfds.decode.DeserializeMethod.RAW_BYTES,
    file_format='array_record',
  )
  # A template in the description makes their names; none of them is open yet.
  folder = pathlib.Path(builder.data_dir).absolute()
  for shard in builder.info.splits[split].file_instructions:
    files.require_regular(files.named(folder, pathlib.Path(shard.filename).absolute()))
  return records


def _features(records):
  """Yields the features of each record: name -> Feature.

  Records are read together: one by one, reading takes as long as decoding.
  """
  from tensorflow_datasets.proto import tf_example_pb2

  for start in range(0, len(records), RECORDS_TOGETHER):
    rows = range(start, min(start + RECORDS_TOGETHER, len(records)))
    for record in records.__getitems__(rows):
      yield tf_example_pb2.Example.FromString(record).features.feature
