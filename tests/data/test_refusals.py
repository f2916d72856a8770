"""Data that are refused: one table of layouts, what is broken, and what is said.

A message is one line. It names the flag, and the data by their path, and has the values
that a user needs; its other words are free.
"""

import json
import os
import pathlib
import pickle
import shutil
import sqlite3
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest

from moon_jax.core.types import Dataset
from moon_jax.data.data_errors import DataError
from moon_jax.data.dataset import ARRAY_NAMES
from moon_jax.data.federated import user_records
from tests import processes
from tests.data import federations, layouts
from tests.data.federations import h5py, load, save_arrays
from tests.data.test_sources import prepare, without_tensorflow

FEDERATION = federations.make_federation()
NUM_TRAIN, NUM_TEST = 52, 26


# --- layouts of this table ------------------------------------------------------------


def plain_npz(folder, federation):
  return layouts.one_file(folder, federation, ARRAY_NAMES[:4])


def npz_with_validation(folder, federation):
  options = plain_npz(folder, federation)
  images = np.zeros((9, 8, 8), np.uint8)
  change_arrays(val_x=images, val_y=np.arange(9) % 4)(folder / 'set.npz')
  return options


def mnist_of_tfds(folder, federation):
  prepare(folder, 'mnist', {'train': 12, 'test': 5})
  return {'data.source': 'tfds', 'data.name': 'mnist', 'data.dir': str(folder)}


# --- what is broken -------------------------------------------------------------------


def break_nothing(path):
  """Breaks nothing: the options are wrong."""


def remove(pattern):
  def change(path):
    for match in sorted(path.glob(pattern)):
      shutil.rmtree(match) if match.is_dir() else match.unlink()

  return change


def copy(name, new_name):
  def change(path):
    copy_one = shutil.copytree if (path / name).is_dir() else shutil.copy
    copy_one(path / name, path / new_name)

  return change


def write(name, content=b''):
  def change(path):
    (path / name).parent.mkdir(exist_ok=True)
    (path / name).write_bytes(content)

  return change


def rewrite(pattern, new_content):
  """The content of one file becomes a function of it; None removes the file."""

  def change(path):
    file = path
    if pattern:
      (file,) = path.glob(pattern)
    content = file.read_bytes()
    file.unlink()
    if new_content:
      file.write_bytes(new_content(content))

  return change


def cut(pattern, num_bytes):
  return rewrite(pattern, lambda content: content[:-num_bytes])


def halve(pattern=''):
  return rewrite(pattern, lambda content: content[: len(content) // 2])


def flip_a_bit(name):
  """One bit in the middle of a file: no more than a checksum can tell."""
  return lambda path: processes.flip(path / name)


def garble(pattern=''):
  """An eighth of the file is replaced, in pieces, so that much of it looks right."""

  def garbled(content):
    content = bytearray(content)
    for start in range(0, len(content), 512):
      content[start : start + 64] = b'?' * 64
    return bytes(content)

  return rewrite(pattern, garbled)


def change_arrays(name='', **changes):
  """The arrays of an .npz file, with changes; None leaves an array out."""

  def change(path):
    file = path / name if name else path
    arrays = dict(np.load(file)) if file.exists() else {}
    save_arrays(file, arrays | changes)

  return change


def pickle_client(name, client):
  """A client of PFLlib is another object than a dict of arrays."""
  return change_arrays(name, data=np.array(client, object))


def replace_by_folder(path):
  path.unlink()
  path.mkdir()


def change_hdf5(change_file):
  def change(path):
    with h5py.File(path, 'r+') as file:
      change_file(file)

  return change


def put_in_hdf5(name, array):
  def change_file(file):
    del file[f'examples/f0003_11/{name}']
    file[f'examples/f0003_11/{name}'] = array

  return change_file


def without_hdf5_examples(file):
  put_in_hdf5('pixels', np.zeros((0, 8, 8), 'f4'))(file)
  put_in_hdf5('label', np.zeros(0, 'i4'))(file)


def declare_terabytes(file):
  del file['examples/f0003_11/pixels']
  file.create_dataset(
    'examples/f0003_11/pixels',
    shape=(12, 2**19, 2**19),
    dtype='u1',
    chunks=(1, 4096, 4096),
  )


def rename_pixels(file):
  file.move('examples/f0003_11/pixels', 'examples/f0003_11/pics')


def run_sql(script):
  def change(path):
    connection = sqlite3.connect(path)
    connection.executescript(script)
    connection.close()

  return change


def leave_changes_beside(path):
  """A copy of a database whose last change is still in its write-ahead log."""
  writer = sqlite3.connect(path)
  writer.execute('PRAGMA journal_mode=WAL')
  writer.execute('DELETE FROM federated_data')
  writer.commit()
  log = path.with_name(f'{path.name}-wal')
  content = log.read_bytes()
  writer.close()
  log.write_bytes(content)


def without_test_split(content):
  info = json.loads(content)
  info['splits'] = [split for split in info['splits'] if split['name'] == 'train']
  return json.dumps(info).encode()


# --- the table ------------------------------------------------------------------------


class Refusal(NamedTuple):
  """What is refused.

  Attributes:
    layout: writes good data: (folder, federation) -> knobs.
    change: breaks the data; it gets their path.
    parts: texts that the message must have.
    options: knobs that are changed.
  """

  layout: Callable
  change: Callable
  parts: tuple[str, ...]
  options: dict


def row(layout, change, *parts, **options):
  refusal = Refusal(layout, change, parts, options)
  return pytest.param(refusal, id=f'{layout.__name__}: {", ".join(parts)}')


def rows(layout, table):
  """A row for each entry (change, part, ...) of a table."""
  return [row(layout, change, *parts) for change, *parts in table]


def pixels(*shape):
  return np.zeros(shape, np.uint8)


LARGE_LABELS = np.arange(NUM_TRAIN, dtype=np.uint64) % 4
LARGE_LABELS[-1] = 2**63 + 5  # a table up to it would take gigabytes
NPZ = [
  (change_arrays(train_y=None), 'train_y'),
  (change_arrays(train_x=np.full((NUM_TRAIN, 8, 8), -1.0)), 'train_x', '-1.0'),
  (change_arrays(train_x=pixels(NUM_TRAIN, 64)), 'train_x', '(52, 64)'),
  (change_arrays(test_y=np.zeros(NUM_TEST)), 'test_y', "test_y.astype('int32')"),
  (change_arrays(train_y=np.arange(51) % 4), 'train_x', '52', 'train_y', '51'),
  (change_arrays(test_x=pixels(0, 8, 8), test_y=np.zeros(0, int)), 'test_x', ' 0 '),
  (change_arrays(test_x=pixels(NUM_TEST, 8, 9, 1)), '(52, 8, 8, 1)', '(26, 8, 9, 1)'),
  (change_arrays(train_y=np.arange(NUM_TRAIN) % 4 - 1), 'train_y[0]', '-1'),
  (change_arrays(test_y=np.arange(NUM_TEST) % 5), 'test_y', ' 4,', 'train_y'),
  (change_arrays(train_y=np.zeros(NUM_TRAIN, int)), 'train_y', 'one class'),
  (change_arrays(train_y=np.arange(NUM_TRAIN) % 2 * 2), 'train_y', 'no 1'),
  (change_arrays(train_y=LARGE_LABELS), 'train_y', 'no 4'),
  (change_arrays(class_names=np.zeros(4)), 'class_names'),
  (rewrite('', lambda content: b''), 'np.savez'),
  (halve(), 'np.savez'),
  (lambda path: path.unlink(), 'No such file'),
]
VALIDATION = [
  (change_arrays(val_y=None), 'val_x', 'val_y'),
  (change_arrays(val_y=np.full(9, 9)), 'val_y', ' 9,', 'train_y'),
  (change_arrays(val_x=pixels(9, 8, 9)), 'val_x', '(9, 8, 9, 1)'),
  (change_arrays(val_x=np.full((9, 8, 8), 1.5)), 'val_x', '1.5'),
]

BATCH = 'cifar-10-batches-py/test_batch'
IDX_IMAGES = 'MNIST/raw/train-images-idx3-ubyte'
LEAF_FILE = 'train/all_data_0_niid_train.json'
LEAF_TEXT = {'users': ['a'], 'user_data': {'a': {'x': ['1.jpg'], 'y': [0]}}}
FOREIGN = [
  row(layouts.imagefolder, remove('test'), 'train', 'data.test_fraction=0.2'),
  row(layouts.imagefolder, remove('train/ant'), "'ant'"),
  row(layouts.imagefolder, write('train/eel/a.gif'), "'eel'"),
  row(layouts.imagefolder, write('train/ant/a.bmp', b'BM'), 'ant/a.bmp'),
  row(layouts.imagefolder, break_nothing, 'data.test_fraction', test_fraction=0.1),
  row(layouts.imagefolder, write('train/ant/x/a.jpg'), "'ant'", "'x'"),
  row(layouts.imagefolder, copy('train', 'Train_images'), 'train', 'Train_images'),
  row(layouts.tiny_imagenet, write('val/val_annotations.txt', b'a'), 'ValueError'),
  row(layouts.domainnet, write('f_train.txt', b'a/b 0'), 'folder of images by class'),
  row(layouts.domainnet, write('f_train.txt', b'a/ant/b 3'), 'f_train.txt', "'ant'"),
  row(layouts.mnist, break_nothing, "data.name='fashon_mnist'", name='fashon_mnist'),
  row(layouts.mnist, remove('MNIST'), 'mnist', 'MNIST/raw'),
  row(layouts.mnist, cut(IDX_IMAGES, 1), 'train-images-idx3-ubyte'),
  row(layouts.cifar10, cut(BATCH, 9), 'cifar10', 'EOFError'),
  row(layouts.cifar10, write(BATCH, pickle.dumps(print)), 'items'),
  row(layouts.cifar10, write(BATCH, pickle.dumps({})), "'data'"),
  row(layouts.parquet, remove('data'), 'train', 'test'),
  row(layouts.parquet, break_nothing, 'img', 'data.label', label='it'),
  row(layouts.parquet, remove('data/test-00001*'), 'test', '[0]', '2'),
  row(layouts.parquet, remove('data/test*'), 'data.test_fraction=0.2'),
  row(layouts.leaf, write(LEAF_FILE, b'[1'), LEAF_FILE),
  row(layouts.leaf, write(LEAF_FILE, json.dumps(LEAF_TEXT).encode()), "'a'", 'text'),
  row(layouts.leaf, remove('test'), 'test/*.json'),
  row(layouts.pfllib, remove('test'), 'test/0.npz'),
  row(layouts.pfllib, write('train/9.npz', b'a'), 'train/9.npz'),
  row(layouts.pfllib, copy('train/0.npz', 'train/00.npz'), "'0'", 'twice'),
  row(layouts.pfllib, pickle_client('train/9.npz', print), 'train/9.npz', 'TypeError'),
  row(layouts.pfllib, pickle_client('train/9.npz', {'x': 'a'}), 'train/9.npz', "'y'"),
  row(layouts.pfllib, change_arrays('train/9.npz', x=pixels(3)), 'train/9.npz', ' x '),
]

OTHER_LABELS = put_in_hdf5('label', np.zeros(11, 'i4'))
OTHER_SHAPE = put_in_hdf5('pixels', np.zeros((12, 8, 9), 'u1'))
HDF5 = [
  (change_hdf5(lambda file: file.move('examples', 'data')), "'examples'"),
  (
    change_hdf5(lambda file: file.create_dataset('examples/x', data=[1])),
    'examples/<client>',
  ),
  (change_hdf5(rename_pixels), 'pics', 'data.image'),
  (change_hdf5(OTHER_LABELS), 'f0003_11', '12', '11'),
  (change_hdf5(without_hdf5_examples), 'f0003_11', 'no examples'),
  (change_hdf5(OTHER_SHAPE), '(8, 9)', '(8, 8)'),
  (change_hdf5(declare_terabytes), "'f0003_11'", '3,072 GiB', 'memory'),
  (
    change_hdf5(lambda file: file.pop('examples/ü..\x1b[31m/label')),
    'pixels',
    'data.label',
  ),
]
ONE_USER = "WHERE client_id = CAST('f0003_11' AS BLOB)"
ENDLESS_VIEW = """CREATE VIEW federated_data AS
  WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)
  SELECT 'a' AS client_id, x'00' AS data, 1 AS rowid FROM n WHERE i < 0"""
TRIGGER = 'CREATE TRIGGER t AFTER INSERT ON federated_data BEGIN SELECT 1; END'
SQLITE = [
  (run_sql('DROP TABLE federated_data'), 'federated_data'),
  (run_sql(f"UPDATE federated_data SET data = x'00' {ONE_USER}"), 'f0003_11'),
  (run_sql('DELETE FROM federated_data'), 'train examples'),
  (leave_changes_beside, 'sqlite_train-wal'),
  (lambda path: os.mkfifo(f'{path}-wal'), 'sqlite_train-wal'),
  (run_sql(f'DROP TABLE federated_data; {ENDLESS_VIEW}'), 'view', 'federated_data'),
  (run_sql(ENDLESS_VIEW.replace('federated_data', 'v')), 'view', "'v'"),
  (run_sql(TRIGGER), 'trigger', "'t'"),
  (run_sql('CREATE VIRTUAL TABLE f USING fts5(a)'), 'virtual table', "'f'"),
  (
    run_sql('ALTER TABLE federated_data ADD COLUMN g AS (hex(data))'),
    'generated column',
    "'g'",
  ),
]
# For both kinds of file.
DAMAGE = [
  halve(),
  rewrite('', lambda content: b''),
  rewrite('', lambda content: b'hello'),
  garble(),
  lambda path: path.unlink(),
  replace_by_folder,
]


def add_user(name):
  """Adds the file of a user with one image."""
  return change_arrays(
    'bad.npz', train_x=pixels(1, 8, 8), train_y=np.zeros(1, int), client=np.array(name)
  )


USER_FILES = [
  (change_arrays('bad.npz', client=np.array('x')), 'bad.npz', 'train_x', 'test_x'),
  (change_arrays('bad.npz', train_x=pixels(1, 8, 8)), 'bad.npz', 'train_y'),
  (change_arrays('bad.npz', client=np.array(['x', 'y'])), 'bad.npz', 'client'),
  (add_user('f0003_11'), 'f0003_11', 'twice'),
  # The ids 7 and '7' would become one user.
  (add_user(7), "'7'", 'numbers', 'text'),
]
HUGGINGFACE = [
  row(federations.huggingface, break_nothing, "'x'", 'image, character', client='x'),
  row(federations.huggingface, break_nothing, 'character', 'data.label', label=''),
  row(federations.huggingface, break_nothing, "'image'", client='image'),
  row(federations.huggingface, remove('t*'), 'train', 'test'),
  row(federations.huggingface, cut('train/*.arrow', 500), 'saved'),
]
RECORDS = [
  flip_a_bit(user_records.INDEX),
  flip_a_bit(user_records.RECORDS),
  halve(user_records.INDEX),
  halve(user_records.RECORDS),
  garble(user_records.INDEX),
  garble(user_records.RECORDS),
  write(user_records.INDEX),
  write(user_records.RECORDS),
  remove(user_records.INDEX),
  remove(user_records.RECORDS),
]
INFO = 'mnist/*/dataset_info.json'
TEST_RECORDS = 'mnist/*/*test.array_record*'
TFDS = [
  (rewrite(INFO, lambda text: text.replace(b'array_record', b'tfrecord')), 'tfrecord'),
  (remove(INFO), 'half prepared'),
  (rewrite(INFO, without_test_split), "'test'", "'train'"),
  (rewrite(INFO, lambda content: b'{}'), "data.name='mnist'"),
  (remove('mnist/*/*train.array_record*'), 'No such'),
  (cut(TEST_RECORDS, 1000), 'delete it'),
  (garble(TEST_RECORDS), 'delete it'),
]
ROWS = [
  *rows(plain_npz, NPZ),
  *rows(npz_with_validation, VALIDATION),
  *FOREIGN,
  *rows(federations.hdf5, HDF5),
  *rows(federations.sqlite, SQLITE),
  *(row(federations.hdf5, change) for change in DAMAGE),
  *(row(federations.sqlite, change) for change in DAMAGE),
  *rows(federations.files, USER_FILES),
  row(federations.files, remove('*'), '.npz'),
  row(federations.files, lambda path: shutil.rmtree(path), 'folder of .npz files'),
  *HUGGINGFACE,
  *(row(federations.converted, change) for change in RECORDS),
  *rows(mnist_of_tfds, TFDS),
]


@pytest.fixture(scope='module')
def originals(tmp_path_factory):
  """Writes each layout once: layout -> its folder and its knobs."""
  written = {}

  def original(layout):
    if layout not in written:
      folder = tmp_path_factory.mktemp('original')
      written[layout] = folder, layout(folder, FEDERATION)
    return written[layout]

  return original


@pytest.mark.parametrize('refusal', ROWS)
def test_what_is_refused_is_said_in_one_line(refusal, originals, tmp_path, monkeypatch):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  original, original_knobs = originals(refusal.layout)
  folder = tmp_path / 'copy'
  shutil.copytree(original, folder)
  knobs = {
    name: value.replace(str(original), str(folder)) if isinstance(value, str) else value
    for name, value in original_knobs.items()
  }
  without_tensorflow(monkeypatch)
  path = knobs.get('data.path') or knobs['data.dir']
  refusal.change(pathlib.Path(path))
  with pytest.raises(DataError) as caught:
    read_all(load(knobs, **refusal.options))
  message = str(caught.value)
  # What is found broken only when examples are read is named without a flag.
  if refusal.layout not in (federations.converted, mnist_of_tfds):
    assert message.startswith('--config.data.')
  assert path in message or 'mnist' in message
  for part in refusal.parts:
    assert part in message
  assert message.isprintable()  # one line, whose characters command no terminal
  # The source that was asked for is not recommended again.
  assert f'read by --config.data.source={knobs["data.source"]!r}' not in message


def read_all(dataset: Dataset):
  """Reads what stays on disk, too."""
  if dataset.stored:
    dataset.stored.read(dataset.stored.records)
