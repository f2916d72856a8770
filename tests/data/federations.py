"""One small federation, written in each layout by the library that defines it.

But FedJAX's databases are written here: the library is not among the tests' packages.
"""

import contextlib
import sqlite3
import zlib

import numpy as np
import pytest

from moon_jax.core.errors import ExitCode
from moon_jax.data import convert, dataset_files, sources

datasets = pytest.importorskip('datasets', reason='datasets is missing')
h5py = pytest.importorskip('h5py', reason='h5py is missing')
pandas = pytest.importorskip('pandas', reason='pandas is missing')
msgpack = pytest.importorskip('msgpack', reason='msgpack is missing')

CLASSES = 4
# Name of a user -> numbers of training and test examples; the last only tests.
SIZES = {
  'f0003_11': (12, 5),
  'f0001_41': (7, 2),
  'ü..\x1b[31m': (30, 9),
  'f0002_02': (3, 4),
  'f0009_09': (0, 6),
}


def make_federation(seed=0):
  """split -> user -> images [n, 8, 8] uint8, labels [n] int32."""
  rng = np.random.default_rng(seed)
  federation = {'train': {}, 'test': {}}
  for name, sizes in SIZES.items():
    for split, size in zip(federation, sizes, strict=True):
      if size:
        labels = np.arange(size, dtype=np.int32) % CLASSES
        images = rng.integers(0, 60, (size, 8, 8), np.uint8)
        # Classes differ, so that something is learned.
        images[np.arange(size), labels] += 150
        federation[split][name] = images, labels
  return federation


def in_colour(federation):
  """The federation in three colours, the third of them inverted."""
  return {
    split: {name: (np.stack([x, x, 255 - x], -1), y) for name, (x, y) in users.items()}
    for split, users in federation.items()
  }


def mixed(users):
  """images [M, 8, 8], labels [M] and ids [M], with the examples in random order."""
  images = np.concatenate([images for images, _ in users.values()])
  labels = np.concatenate([labels for _, labels in users.values()])
  ids = np.repeat(list(users), [len(labels) for _, labels in users.values()])
  order = np.random.default_rng(1).permutation(len(labels))
  return images[order], labels[order], ids[order]


def load(knobs, **changes):
  """The data set of a source and its knobs; of texts, all that train have words."""
  options = {'limit': 0}
  if knobs['data.source'] == 'imagefolder':
    options |= {'test_fraction': 0.0, 'test_seed': 0, 'image_size': 0}
  options |= {name.removeprefix('data.'): value for name, value in knobs.items()}
  options |= changes
  data = sources.load(**options)
  if data.form.content != 'texts':
    return data
  return dataset_files.with_words_of_training(data, knobs['data.source'], options)


def flags(knobs):
  return [f'--config.{name}={value}' for name, value in knobs.items()]


def as_rows(images, labels):
  """Images with their labels, in another order."""
  return sorted((x.tobytes(), int(y)) for x, y in zip(images, labels, strict=True))


def save_arrays(path, arrays):
  """Writes an .npz file; an array that is None is left out."""
  np.savez(path, **{key: array for key, array in arrays.items() if array is not None})


def npz(folder, federation):
  """One file for all users."""
  arrays = {}
  for split, users in federation.items():
    names = (f'{split}_x', f'{split}_y', f'{split}_client')
    arrays |= dict(zip(names, mixed(users), strict=True))
  save_arrays(folder / 'users.npz', arrays)
  return {'data.source': 'npz', 'data.path': str(folder / 'users.npz')}


def files(folder, federation):
  """One file for each user; the file has a number, and the user's name is inside."""
  users_folder = folder / 'users'
  users_folder.mkdir()
  for number, name in enumerate(federation['train'] | federation['test']):
    arrays = {'client': np.array(name)}
    for split, users in federation.items():
      if name in users:
        arrays[f'{split}_x'], arrays[f'{split}_y'] = users[name]
    save_arrays(users_folder / f'{number}.npz', arrays)
  return {'data.source': 'folder', 'data.path': str(users_folder)}


def as_femnist(images):
  """Grey levels as in FEMNIST: float32 in [0, 1]."""
  return (images / 255).astype(np.float32)


def _two_files(source, folder):
  paths = {split: str(folder / f'{source}_{split}') for split in ('train', 'test')}
  knobs = {'data.path': paths['train'], 'data.test_path': paths['test']}
  return paths, {'data.source': source} | knobs


def hdf5(folder, federation, pixels=as_femnist):
  """As fed_emnist_train.h5 and fed_emnist_test.h5."""
  paths, knobs = _two_files('hdf5', folder)
  for split, users in federation.items():
    with h5py.File(paths[split], 'w') as file:
      examples = file.create_group('examples')
      for name, (images, labels) in users.items():
        user = examples.create_group(name)
        user.create_dataset('pixels', data=pixels(images))
        user.create_dataset('label', data=labels)
  return knobs


def packed(arrays):
  """Name -> array, in msgpack as FedJAX 0.0.17 writes it."""

  def packed_array(array):
    content = array.shape, array.dtype.name, array.tobytes()
    return msgpack.ExtType(1, msgpack.packb(content))

  return msgpack.packb(arrays, default=packed_array, strict_types=True)


def sqlite(folder, federation, pixels=as_femnist):
  """As FedJAX's federated_emnist_train.sqlite and ..._test.sqlite."""
  paths, knobs = _two_files('sqlite', folder)
  for split, users in federation.items():
    rows = [
      (
        name.encode(),
        zlib.compress(packed({'pixels': pixels(images), 'label': labels})),
        len(labels),
      )
      for name, (images, labels) in users.items()
    ]
    with contextlib.closing(sqlite3.connect(paths[split])) as file, file:
      file.execute(
        'CREATE TABLE federated_data (client_id BLOB NOT NULL PRIMARY KEY, '
        'data BLOB NOT NULL, num_examples INTEGER NOT NULL)'
      )
      file.executemany('INSERT INTO federated_data VALUES (?, ?, ?)', rows)
  return knobs


def huggingface(folder, federation, *, encoded=True):
  """As `save_to_disk` of a DatasetDict: PNG, or arrays."""
  from PIL import Image

  splits = {}
  for split, users in federation.items():
    images, labels, ids = mixed(users)
    features = {
      'image': datasets.Array2D(images.shape[1:], images.dtype.name),
      'character': datasets.ClassLabel(num_classes=CLASSES),
      'writer': datasets.Value('string'),
    }
    if encoded:
      features['image'] = datasets.Image()
    columns = {
      'image': list(map(Image.fromarray, images)) if encoded else images,
      'character': labels,
      'writer': ids,
    }
    splits[split] = datasets.Dataset.from_dict(columns, datasets.Features(features))
  datasets.disable_progress_bars()
  datasets.DatasetDict(splits).save_to_disk(str(folder / 'saved'))
  return {
    'data.source': 'huggingface',
    'data.path': str(folder / 'saved'),
    'data.client': 'writer',
    'data.label': 'character',
  }


def arrays(folder, federation):
  """`huggingface` with arrays in place of encoded images."""
  return huggingface(folder, federation, encoded=False)


def converted(folder, federation):
  """Records that `moon_jax.data.convert` makes of `npz`."""
  out = folder / 'records'
  assert (
    convert.main([*flags(npz(folder, federation)), f'--out={out}']) == ExitCode.DONE
  )
  return {'data.source': 'records', 'data.path': str(out)}


LAYOUTS = (npz, files, hdf5, sqlite, huggingface, arrays)
