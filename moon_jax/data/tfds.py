"""TensorFlow Datasets; TensorFlow itself is needed to prepare a set, not to read it."""

import importlib.metadata
import importlib.util
import logging
import os
import pathlib
import re
import sys
import types
from unittest import mock

import numpy as np

from moon_jax.core.errors import did_you_mean
from moon_jax.core.types import Dataset
from moon_jax.data import decoded, npz
from moon_jax.data.arrays import PIXEL_STATISTICS, DataError, image_of, one_line
from moon_jax.data.federated import users

# TFDS stores these images lying on their side, as NIST does; here they are transposed.
TRANSPOSED = ('emnist',)
DOWNLOAD_RETRIES = 3  # with TFDS's ten it takes minutes to notice a missing network


def load_tfds(
  name: str, dir: str, client: str = '', *, prepare: bool = True
) -> Dataset:
  """Loads an image data set of TFDS, and prepares it first if necessary.

  A prepared set is data, whoever made it: only TFDS's own classes describe it.

  Reading needs no TensorFlow; downloading and preparing, once, does. The decoded images
  are kept in the user's cache folder.

  Args:
    name: TFDS name, e.g. 'cifar100' (its label is the fine one of two), 'svhn_cropped'
      (its split 'extra' is not used) or 'emnist/balanced'; ':1.2.3' may follow.
    dir: TFDS folder; '' is $TFDS_DATA_DIR, or else ~/tensorflow_datasets.
    client: the feature with the user id of an example; '': no feature.
    prepare: whether a missing set may be downloaded and prepared.

  Raises:
    DataError: the name is unknown, the set is not one of labelled uint8 images of one
      size with splits train and test, it cannot be prepared or read, or that feature
      has no user ids.
  """
  data_dir = os.path.expanduser(
    dir or os.environ.get('TFDS_DATA_DIR') or '~/tensorflow_datasets'
  )
  return decoded.kept(
    name,
    pathlib.Path(data_dir, re.match(r'\w*', name)[0]),  # where TFDS looks for it
    lambda: _decode(name, data_dir, client, prepare),
    client,
    importlib.metadata.version('tensorflow_datasets'),
  )


def _decode(name, data_dir, client, prepare):
  builder = _tfds_builder(name, data_dir, prepare)
  info = builder.info
  keys = _supervised_keys(name, info)
  if client and client not in info.features:
    raise DataError(
      f'--config.data.client={client!r} is not among the features of {name!r}: '
      f'{sorted(info.features)}.'
    )
  keys = (*keys, client)
  if lost := {'train', 'test'} - set(info.splits or ('train', 'test')):
    raise DataError(f'{name!r} has no split {min(lost)!r}; it has {[*info.splits]}.')
  _prepare(name, builder)
  with one_line(f'cannot read {info.data_dir}; delete it and prepare it again'):
    splits = [_read_split(builder, split, *keys) for split in ('train', 'test')]
  pairs, ids = zip(*splits, strict=True)
  arrays = [array for pair in pairs for array in pair]
  if info.name in TRANSPOSED:
    arrays[::2] = (images.transpose(0, 2, 1, 3) for images in arrays[::2])
  num_classes = int(info.features[keys[1]].num_classes)
  flag, statistics = f'--config.data.name={name!r}', PIXEL_STATISTICS.get(info.name)
  names = info.features[keys[1]].names
  data = npz.dataset(flag, info.name, arrays, num_classes, statistics, names)
  return users.named(flag, data, *ids)


def _refuse(module):
  raise DataError(f'A features.json names a class of {module!r}, not one of TFDS.')


_NO_IMPORTS = types.SimpleNamespace(import_module=_refuse)


def _tfds_builder(name, data_dir, prepare):
  with one_line(f'cannot open --config.data.name={name!r} in {data_dir}; check both'):
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core import features, read_only_builder

    if not prepare:
      data_dir = os.path.abspath(data_dir)  # not gs://, which is no folder
    find = tfds.builder if prepare else read_only_builder.builder_from_files
    try:
      # TFDS would import whatever module the features.json of the set names.
      with mock.patch.object(features.feature, 'importlib', _NO_IMPORTS):
        # Without file_format, because with it another format is a bare ValueError.
        return find(name, data_dir=data_dir)
    except tfds.core.DatasetNotFoundError:
      # TFDS would fetch the community's list from the network.
      known = tfds.list_builders(with_community_datasets=False) if prepare else ()
      raise DataError(
        f'--config.data.name={name!r} is not a TFDS data set, nor prepared in '
        f'{data_dir}.{did_you_mean(name, known)}'
      ) from None


def _supervised_keys(name, info):
  """Names of the features that are the image and the label."""
  from tensorflow_datasets import features as kinds

  def first(kind):
    # Some sets have a second label (cifar100): the supervised pair comes first.
    names = [*(info.supervised_keys or ()), *info.features]
    return next((key for key in names if isinstance(info.features[key], kind)), None)

  image_key, label_key = first(kinds.Image), first(kinds.ClassLabel)
  image = dict(info.features).get(image_key)
  one_size = image and None not in image.shape and image.np_dtype == np.uint8
  if not one_size or label_key is None:
    raise DataError(
      f'--config.data.name={name!r} must have uint8 images of one size and a class '
      f'label, and has {dict(info.features)}; convert it for --config.data.source=npz.'
    )
  return image_key, label_key


def _prepare(name, builder):
  """Downloads and prepares the set, unless it exists in the format that we read."""
  folder = builder.data_path
  if builder.info.splits:
    formats = {kind.value for kind in builder.info.available_file_formats()}
    if 'array_record' not in formats:
      raise DataError(
        f'{folder} is in the format {" and ".join(sorted(formats))}, not array_record; '
        'prepare it in another --config.data.dir, or delete it.'
      )
    return
  if folder.exists():
    raise DataError(f'{folder} is only half prepared; delete it and prepare it again.')
  if importlib.util.find_spec('tensorflow') is None:
    raise DataError(
      f'--config.data.name={name!r} is not prepared in {folder}; point '
      '--config.data.dir or TFDS_DATA_DIR at the folder that holds the prepared '
      f'{name}/, or pip install tensorflow to prepare it.'
    )
  print(f'Downloading and preparing {name} in {folder}, once.', file=sys.stderr)
  with one_line(f'cannot prepare {name} in {folder}; check the network and the disk'):
    from tensorflow_datasets.core.download import downloader

    downloader.MAX_RETRIES = DOWNLOAD_RETRIES
    logging.getLogger('urllib3').setLevel(logging.ERROR)  # hides its retries
    builder.download_and_prepare(file_format='array_record')


def _read_split(builder, split, image_key, label_key, client_key=''):
  """([M, H, W, C] uint8, [M] int32), and the users' ids [M], or None if not asked for.

  It parses the records itself: TFDS's decoder, which also decodes features that are not
  needed and tries every image format that Pillow knows, takes twice as long.
  """
  import tensorflow_datasets as tfds
  from tensorflow_datasets.proto import tf_example_pb2

  source = builder.as_data_source(
    split,
    deserialize_method=tfds.decode.DeserializeMethod.RAW_BYTES,
    file_format='array_record',
  )
  shape = builder.info.features[image_key].shape
  mode = {1: 'L', 3: 'RGB', 4: 'RGBA'}[shape[-1]]
  images = np.empty((len(source), *shape), np.uint8)
  labels, ids = np.empty(len(source), np.int32), []
  for i in range(len(source)):
    feature = tf_example_pb2.Example.FromString(source[i]).features.feature
    with one_line(f'{builder.data_dir}: {split} example {i} cannot be used'):
      images[i] = image_of(feature[image_key].bytes_list.value[0], mode, shape)
    labels[i] = feature[label_key].int64_list.value[0]
    if client_key:
      one = feature[client_key]
      ids += [*one.int64_list.value, *one.bytes_list.value]
  return (images, labels), np.array(ids) if client_key else None
