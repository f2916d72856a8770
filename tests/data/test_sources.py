"""The loaders on good data, and one clear line for each kind of bad data."""

import io
import os
import pathlib

import numpy as np
import pytest
from PIL import Image

from moon_jax.data import sources
from moon_jax.data import tfds as tfds_source
from moon_jax.data.data_errors import DataError
from moon_jax.data.pixels import pixel_statistics
from tests.data.federations import as_rows, save_arrays
from tests.refusals import refused
from tests.watching import openings

PREPARED = pathlib.Path(__file__).parents[3] / 'shared/data/tfds'
needs_prepared = pytest.mark.skipif(
  not PREPARED.is_dir(), reason=f'no prepared TFDS data in {PREPARED}'
)


def load(source, **options):
  if source == 'tfds':
    options = {'dir': ''} | options
  return sources.load(source, **({'limit': 0} | options))


def check_dataset(dataset):
  for images, labels in (
    (dataset.train_images, dataset.train_labels),
    (dataset.test_images, dataset.test_labels),
  ):
    assert images.dtype == np.uint8
    assert labels.dtype == np.int32
    assert images.ndim == 4
    assert images.flags.c_contiguous
    assert labels.shape == images.shape[:1]
    assert 0 <= labels.min() <= labels.max() < dataset.num_classes
  assert dataset.mean.dtype == dataset.std.dtype == np.float32
  assert dataset.mean.shape == dataset.std.shape == dataset.train_images.shape[-1:]


# --- digits ---------------------------------------------------------------------------


def test_digits():
  dataset = load('digits')
  check_dataset(dataset)
  assert dataset.train_images.shape == (1438, 8, 8, 1)
  train, test = np.bincount(dataset.train_labels), np.bincount(dataset.test_labels)
  np.testing.assert_allclose(test / (train + test), 0.2, atol=0.005)
  # The split is a partition of scikit-learn's 1,797 examples, each with its own label.
  # Grey levels 0, 8 and 16 of 16 are 0, 127.5 (rounds to even: 128) and 255.
  from sklearn import datasets

  digits = datasets.load_digits()
  original = np.rint(digits.images * 255 / 16).astype(np.uint8)
  images = np.concatenate([dataset.train_images, dataset.test_images])
  labels = np.concatenate([dataset.train_labels, dataset.test_labels])
  assert as_rows(images, labels) == as_rows(original, digits.target)


# --- npz ------------------------------------------------------------------------------


def arrays():
  """Sorted by class: 3 classes, 20 training and 10 test examples of each."""
  return {
    'train_x': np.zeros((60, 4, 5, 3), np.uint8),
    'train_y': np.repeat(np.arange(3), 20),
    'test_x': np.zeros((30, 4, 5, 3), np.uint8),
    'test_y': np.repeat(np.arange(3), 10),
  }


def write(folder, **changes):
  """Writes the arrays with changes; returns the path."""
  path = folder / 'my_set.npz'
  save_arrays(path, arrays() | changes)
  return str(path)


@pytest.mark.parametrize('shape', [(4, 5, 3), (4, 5)])
def test_npz(shape, tmp_path):
  train_x = np.arange(60 * np.prod(shape)).astype(np.uint8).reshape((60, *shape))
  path = write(tmp_path, train_x=np.asfortranarray(train_x), test_x=train_x[:30])
  dataset = load('npz', path=path)
  check_dataset(dataset)
  assert (dataset.name, dataset.num_classes) == ('my_set', 3)
  images = dataset.train_images.reshape(train_x.shape)
  np.testing.assert_array_equal(images, train_x)
  np.testing.assert_array_equal(dataset.test_labels, np.repeat([0, 1, 2], 10))


# --- normalisation and limit ----------------------------------------------------------


def test_pixel_statistics_by_hand():
  # Channel 0 is 0 and 255 in equal parts: mean 0.5, deviation 0.5.
  # Channel 1 is constant, 51 / 255 = 0.2: its deviation is set to one grey level.
  # Channel 2 is 0, 0, 0, 102: mean 25.5 / 255 = 0.1,
  #   variance 3/4 * 0.1**2 + 1/4 * 0.3**2 = 0.03.
  images = np.array(
    [[[[0, 51, 0], [255, 51, 0]]], [[[255, 51, 0], [0, 51, 102]]]], np.uint8
  )
  mean, std = pixel_statistics(images)
  np.testing.assert_allclose(mean, [0.5, 0.2, 0.1])
  np.testing.assert_allclose(std, [0.5, 1 / 255, 0.03**0.5])


def test_limit_is_a_fixed_random_subset(tmp_path):
  # Every training image shows its own number.
  train_x = np.full((60, 4, 5, 3), np.arange(60)[:, None, None, None], np.uint8)
  path = write(tmp_path, train_x=train_x, test_x=np.full((30, 4, 5, 3), 255, np.uint8))
  small, same, large = (load('npz', path=path, limit=n) for n in (20, 20, 40))
  check_dataset(small)
  np.testing.assert_array_equal(small.train_images, same.train_images)
  rows = small.train_images[:, 0, 0, 0]
  assert len(set(rows)) == 20
  assert set(rows) < set(large.train_images[:, 0, 0, 0])
  # Images keep their labels, and the first 20 of class-sorted data are not the choice.
  np.testing.assert_array_equal(small.train_labels, rows // 20)
  assert set(small.train_labels) == set(small.test_labels) == {0, 1, 2}
  # A limit above a split's size keeps all of it.
  assert np.bincount(large.test_labels).tolist() == [10, 10, 10]
  # Statistics are of the whole training split.
  np.testing.assert_allclose(small.mean, (train_x / 255).mean((0, 1, 2)), rtol=1e-6)
  np.testing.assert_allclose(small.std, (train_x / 255).std((0, 1, 2)), rtol=1e-6)


OPENED = r'^cannot open --config.data.name=.* in .*; check both: '

# --- TFDS -----------------------------------------------------------------------------


@pytest.mark.parametrize(
  ('name', 'reason'),
  [
    ('cifr10', r"^--config.data.name='cifr10' is not .* mean 'cifar10'"),
    ('fashionmnist', "mean 'fashion_mnist'"),
    ('imdb_reviews', r"'imdb_reviews': .* are texts; --config.data.tokenizer='wordp"),
    ('cats_vs_dogs', r"one size, .* has 'image': Image.shape=.None, None, 3"),
    ('emnist/balance', f'{OPENED}ValueError: .*Config balance not .*match: balanced'),
    ('mnist:9.9.9', rf'{OPENED}AssertionError: .* version 9.9.9, only: 3\.'),
    ('', f'{OPENED}ValueError: Parsing builder name string  failed'),
    ('../mnist', rf'{OPENED}ValueError: Parsing builder name string \.\./mnist failed'),
  ],
)
def test_tfds_own_line_tells_what_is_wrong_with_a_name(tmp_path, name, reason):
  with refused(DataError, reason) as caught:
    load('tfds', name=name, dir=str(tmp_path))
  assert repr(name) in str(caught.value)


def without_tensorflow(monkeypatch):
  monkeypatch.setattr(tfds_source.importlib.util, 'find_spec', lambda name: None)


@pytest.mark.parametrize('has_flag', [True, False])
def test_tfds_missing_without_tensorflow(tmp_path, monkeypatch, has_flag):
  without_tensorflow(monkeypatch)
  flag, environment = tmp_path / 'flag', tmp_path / 'environment'
  monkeypatch.setenv('TFDS_DATA_DIR', str(environment))
  with pytest.raises(DataError) as caught:
    load('tfds', name='mnist', dir=str(flag) if has_flag else '')
  message = str(caught.value)
  folder = flag if has_flag else environment
  assert f"'mnist' is not prepared in {folder}/mnist/3." in message
  assert '--config.data.dir' in message
  assert 'pip install tensorflow' in message
  assert not list(tmp_path.iterdir())


def test_tfds_failed_download(tmp_path, monkeypatch, capsys):
  import tensorflow_datasets as tfds
  from tensorflow_datasets.core.download import downloader

  def fail(builder, file_format):
    assert file_format == 'array_record'
    assert downloader.MAX_RETRIES == tfds_source.DOWNLOAD_RETRIES
    raise OSError('Network is unreachable\nand so on')

  monkeypatch.setattr(tfds_source.importlib.util, 'find_spec', lambda name: 'found')
  monkeypatch.setattr(tfds.core.DatasetBuilder, 'download_and_prepare', fail)
  message = 'cannot prepare mnist in .*check the network.*Network is unreachable$'
  with pytest.raises(DataError, match=message):
    load('tfds', name='mnist', dir=str(tmp_path))
  assert f'Downloading and preparing mnist in {tmp_path}' in capsys.readouterr().err


def prepare(folder, name, sizes, last=()):
  """Writes a TFDS set of random examples as TFDS does; split -> its examples.

  `last` is what the last example of the split test has instead.
  """
  import tensorflow_datasets as tfds
  from array_record.python import array_record_module
  from tensorflow_datasets.core import naming, splits

  builder = tfds.builder(name, data_dir=str(folder), file_format='array_record')
  data_dir = pathlib.Path(builder.data_path)
  data_dir.mkdir(parents=True)
  rng, written, infos = np.random.default_rng(0), {}, []
  for split, size in sizes.items():
    files = naming.ShardedFileTemplate(
      dataset_name=builder.name,
      data_dir=data_dir,
      filetype_suffix='array_record',
      split=split,
    )
    infos.append(
      splits.SplitInfo(
        name=split, shard_lengths=[size], num_bytes=0, filename_template=files
      )
    )
    path = files.sharded_filepaths(num_shards=1)[0]
    writer = array_record_module.ArrayRecordWriter(str(path), 'group_size:1')
    written[split] = [random_example(builder.info.features, rng) for _ in range(size)]
    if last and split == 'test':
      written[split][-1] |= last
    for example in written[split]:
      writer.write(as_record(example))
    writer.close()
  builder.info.set_splits(splits.SplitDict(infos))
  builder.info.write_to_directory(data_dir)
  return written


def random_example(features, rng):
  from tensorflow_datasets import features as kinds

  example = {}
  for key, kind in features.items():
    if isinstance(kind, kinds.Image):
      example[key] = rng.integers(0, 256, kind.shape, np.uint8)
    elif isinstance(kind, kinds.ClassLabel):
      example[key] = int(rng.integers(kind.num_classes))
    else:
      example[key] = b'user %d' % rng.integers(3)
  return example


def as_record(example):
  from tensorflow_datasets.proto import tf_example_pb2

  record = tf_example_pb2.Example()
  for key, value in example.items():
    feature = record.features.feature[key]
    if isinstance(value, int):
      feature.int64_list.value.append(value)
    elif isinstance(value, bytes):
      feature.bytes_list.value.append(value)
    else:
      encoded = io.BytesIO()
      Image.fromarray(value.squeeze()).save(encoded, 'PNG')
      feature.bytes_list.value.append(encoded.getvalue())
  return record.SerializeToString()


@pytest.mark.parametrize(
  ('name', 'shape', 'num_classes'),
  [
    ('cifar100', (32, 32, 3), 100),
    ('svhn_cropped', (32, 32, 3), 10),
    ('emnist/letters', (28, 28, 1), 37),
  ],
)
def test_tfds_by_name(tmp_path, monkeypatch, name, shape, num_classes):
  without_tensorflow(monkeypatch)
  sizes = {'train': 12, 'test': 5} | ({'extra': 7} if name == 'svhn_cropped' else {})
  written = prepare(tmp_path, name, sizes)
  dataset = load('tfds', name=name, dir=str(tmp_path))
  check_dataset(dataset)
  assert dataset.num_classes == num_classes
  for split in ('train', 'test'):
    images, labels = (getattr(dataset, f'{split}_{x}') for x in ('images', 'labels'))
    assert images.shape == (sizes[split], *shape)
    # CIFAR-100 has two labels: the fine one is read.
    assert labels.tolist() == [example['label'] for example in written[split]]
    for image, example in zip(images, written[split], strict=True):
      upright = example['image']
      if name.startswith('emnist'):
        upright = np.stack([upright[:, column] for column in range(28)])
      np.testing.assert_array_equal(image, upright)
  measured = pixel_statistics(dataset.train_images)[0]
  is_known = not np.allclose(dataset.mean, measured, atol=1e-6)
  assert is_known == (name == 'cifar100')


# Published: counts of the test set's classes, and statistics of the training split.
MNIST = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009], (60_000, 28, 28, 1)
CIFAR10 = [1000] * 10, (50_000, 32, 32, 3)


@pytest.mark.slow
@needs_prepared
@pytest.mark.parametrize(
  ('name', 'published', 'mean', 'std'),
  [
    ('mnist', MNIST, [33.32], [78.57]),
    ('cifar10', CIFAR10, [125.3, 123.0, 113.9], [63.0, 62.1, 66.7]),
    ('fashion_mnist', ([1000] * 10, (60_000, 28, 28, 1)), [72.93], [90.02]),
  ],
)
def test_tfds_as_published(name, published, mean, std):
  dataset = load('tfds', name=name, dir=str(PREPARED))
  check_dataset(dataset)
  counts = np.bincount(dataset.test_labels).tolist()
  assert (counts, dataset.train_images.shape) == published
  np.testing.assert_allclose(255 * dataset.mean, mean, rtol=1e-3)
  np.testing.assert_allclose(255 * dataset.std, std, rtol=1e-3)
  actual = pixel_statistics(dataset.train_images)
  np.testing.assert_allclose(255 * actual[0], mean, atol=0.1)
  np.testing.assert_allclose(255 * actual[1], std, rtol=0.02)


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
  """The user's cache folder, empty in every test."""
  folder = tmp_path_factory.mktemp('cache')
  monkeypatch.setenv('XDG_CACHE_HOME', str(folder))
  return folder


@pytest.fixture
def small_mnist(tmp_path, monkeypatch):
  """The folder of a small prepared MNIST, which tests damage."""
  without_tensorflow(monkeypatch)
  prepare(tmp_path, 'mnist', {'train': 12, 'test': 5})
  return next((tmp_path / 'mnist').iterdir())


def load_mnist(folder):
  return load('tfds', name='mnist', dir=str(folder.parents[1]))


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'label': 10}, 'test_y holds 10, beyond 9'),
    ({'image': b'no picture'}, 'test example 4 cannot be used: .* is none of PNG'),
    (
      {'image': np.zeros((14, 14, 1), np.uint8)},
      r'test example 4 cannot be used: .* shape \(14, 14, 1\), not \(28, 28, 1\)',
    ),
    ({'label': b'3'}, 'cannot read .*; delete it and prepare it again: IndexError'),
    (None, 'cannot read .*; delete it and prepare'),
  ],
)
def test_tfds_example_that_does_not_fit(tmp_path, changes, message):
  sizes = {'train': 12, 'test': 0 if changes is None else 5}
  prepare(tmp_path, 'mnist', sizes, changes)
  with refused(DataError, message):
    load('tfds', name='mnist', dir=str(tmp_path))


def same(dataset, expected):
  return all(map(np.array_equal, dataset[1:5], expected[1:5]))


def test_a_tfds_set_is_decoded_once(small_mnist, cache, monkeypatch, tmp_path):
  moved = small_mnist.parent.rename(tmp_path / 'elsewhere')
  small_mnist.parent.symlink_to(moved)
  expected = load_mnist(small_mnist)
  (cached,) = (cache / 'moon_jax/data').iterdir()
  assert cached.stat().st_mode & 0o777 == 0o600
  assert {f.stat().st_mode & 0o777 for f in cached.parents[:2]} == {0o700}
  with monkeypatch.context() as patched:
    patched.setattr(tfds_source, '_tfds_builder', None)  # decoding would call it
    assert same(load_mnist(small_mnist), expected)
  # The bytes differ, but not the name, size and time of change: the content is
  # compared.
  path = next(small_mnist.glob('*train.array_record*'))
  data, times = path.read_bytes(), path.stat()
  path.write_bytes(bytes(len(data)))
  os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
  with pytest.raises(DataError, match='cannot read'):
    load_mnist(small_mnist)
  path.write_bytes(data)
  assert same(load_mnist(small_mnist), expected)
  (new_file,) = (cache / 'moon_jax/data').iterdir()
  assert new_file != cached


def test_another_name_or_way_of_a_set_is_kept_beside_it(small_mnist, cache, tmp_path):
  files, folder = cache / 'moon_jax/data', small_mnist.parents[1]
  for may_prepare in (True, False):
    load('tfds', name='mnist', dir=str(folder), prepare=may_prepare)
  assert len(list(files.iterdir())) == 1
  # TFDS finds the set, but this is not the folder that TFDS looks into.
  (folder / 'MNIST').mkdir()
  (folder / 'MNIST/raw').touch()
  load('tfds', name='MNIST', dir=str(folder))
  assert len(list(files.iterdir())) == 1
  # A set of the same name is in another folder.
  prepare(tmp_path / 'other', 'mnist', {'train': 7, 'test': 5})
  other = next((tmp_path / 'other/mnist').iterdir())
  sizes = [
    len(load_mnist(version).train_labels) for version in (small_mnist, other) * 2
  ]
  assert sizes == [12, 7, 12, 7]
  assert len(list(files.iterdir())) == 2


def test_what_was_prepared_meanwhile_is_kept_only_where_nothing_was(
  small_mnist, cache, monkeypatch
):
  decode = tfds_source._decode

  def decode_and_touch(request, data_dir, prepare, announce):
    with (small_mnist / 'more').open('a') as file:
      file.write('more')
    return decode(request, data_dir, prepare, announce)

  monkeypatch.setattr(tfds_source, '_decode', decode_and_touch)
  for _ in range(2):  # the time of the file changes while it is decoded
    load_mnist(small_mnist)
    assert not list((cache / 'moon_jax/data').iterdir())


@pytest.mark.parametrize('end', [0, -2000, -1])
def test_a_torn_copy_of_a_tfds_set_is_decoded_again(small_mnist, cache, end):
  expected = load_mnist(small_mnist)
  (cached,) = (cache / 'moon_jax/data').iterdir()
  content_before = cached.read_bytes()
  spoilt = bytearray(content_before)
  spoilt[len(content_before) // 2] ^= 1  # among the pixels
  for content in (content_before[:end], spoilt):
    cached.write_bytes(content)
    assert same(load_mnist(small_mnist), expected)
    assert len(cached.read_bytes()) == len(content_before)


def test_without_a_cache_folder_a_tfds_set_is_decoded(small_mnist, cache):
  (cache / 'moon_jax').write_text('no folder')
  expected = load_mnist(small_mnist)
  assert same(load_mnist(small_mnist), expected)


def test_a_cache_where_others_may_write_is_not_used(small_mnist, cache, capsys):
  expected = load_mnist(small_mnist)
  folder = cache / 'moon_jax/data'
  (kept,) = folder.iterdir()
  folder.chmod(0o770)
  with openings(folder) as opened:
    assert same(load_mnist(small_mnist), expected)
    assert not [path for path in opened() if path.startswith(str(kept))]
  kept.unlink()
  assert same(load_mnist(small_mnist), expected)
  assert list(folder.iterdir()) == []
  assert 'nobody else may write there' in capsys.readouterr().err


def test_images_of_another_version_are_decoded_anew(small_mnist, cache, monkeypatch):
  load_mnist(small_mnist)
  before = list((cache / 'moon_jax/data').iterdir())
  monkeypatch.setattr(tfds_source.decoded, '__version__', '0')
  load_mnist(small_mnist)
  assert list((cache / 'moon_jax/data').iterdir()) != before
