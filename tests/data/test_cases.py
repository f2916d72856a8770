"""Data as people have them: read correctly, or refused with advice that works."""

import io
import re

import numpy as np
import pytest
from PIL import Image

import moon_jax
from moon_jax.core.errors import UsageError
from moon_jax.data import partition, sources
from moon_jax.data.data_errors import DataError
from moon_jax.data.dataset import Split, arrays_dataset, split_fault
from moon_jax.data.example_forms import Reading
from moon_jax.data.federated import assembled
from moon_jax.data.scale import grey_levels, scale_of
from moon_jax.predict import inference
from tests.data.federations import datasets, save_arrays
from tests.data.test_sources import prepare, without_tensorflow
from tests.refusals import refused

Y = np.arange(12) % 3
X = np.random.default_rng(0).integers(0, 256, (12, 6, 5, 3), np.uint8)
X[0, 0, 0] = 0, 7, 255
NAMES = np.array(['cat', 'dog', 'owl'])


def loaded(x, y, declared_range=''):
  return arrays_dataset('it', 'it', (x, y, x, y), reading=Reading(declared_range))


# --- arrays ---------------------------------------------------------------------------

ONE_HOT = np.eye(3)[Y]
BLACK_OR_WHITE = 255 * (X > 127)
# Pixels -> what is made of them, or a text in the message.
PIXELS = [
  *((X.astype(kind), X) for kind in ('int64', 'int16')),
  *(((X / 255).astype(kind), X) for kind in ('float32', 'float64')),
  ((X > 127).astype('float32'), BLACK_OR_WHITE),
  (X.astype('int64') // 255, X // 255),
  (X > 127, 'train_x is bool; pixels must be integers or floats'),
  (X.astype('complex64'), 'train_x is complex64; pixels must be'),
]
ONE_WRONG = np.where(np.arange(X.size).reshape(X.shape) == X[:2].size, np.nan, X / 255)
TWO_WRONG = np.where(np.arange(X.size).reshape(X.shape) > X.size - 3, -np.inf, X / 255)
# Pixels of another range -> the range that the message proposes, and what is right.
OTHER_RANGES = [
  (X.astype('float32'), '0,255', X),
  (X.astype('uint16') * 257, '0,65535', X),
  (X.astype('int64') * 16, '0,4095', np.rint(X.astype('int64') * (16 * 255 / 4095))),
  (X.astype('int64') - 5, '-5,250', X),
  (X / 127.5 - 1, '-1,1', X),
  (np.rint(X * (16 / 255)), '0,16', np.rint(np.rint(X * (16 / 255)) * (255 / 16))),
  (X * 1e6, '0,255000000', X),
]


@pytest.mark.parametrize(('pixels', 'right'), PIXELS)
def test_pixels_become_grey_levels_or_are_refused(pixels, right):
  scale = scale_of(pixels)
  if isinstance(right, str):
    with refused(DataError, re.escape(right)):
      loaded(pixels, Y)
    with refused(UsageError, 'Convert them to these'):
      inference.as_batch(pixels, X.shape[1:], scale)
  else:
    np.testing.assert_array_equal(loaded(pixels, Y).train_images, right)
    batch = inference.as_batch(pixels, X.shape[1:], scale)
    np.testing.assert_array_equal(batch, right)
    of_older_run = inference.as_batch(pixels, X.shape[1:], None)
    np.testing.assert_array_equal(of_older_run, right)


@pytest.mark.parametrize(
  ('pixels', 'words'),
  [
    (ONE_WRONG, 'float64, and 1 of its numbers is NaN or infinite, first in image 2 '),
    (
      TWO_WRONG,
      'float64, and 2 of its numbers are NaN or infinite, first in image 11 ',
    ),
  ],
)
@pytest.mark.parametrize('declared_range', ['', '0,1'])
def test_numbers_that_are_not_finite_are_counted(pixels, words, declared_range):
  with refused(DataError, words):
    loaded(pixels, Y, declared_range)
  for scale in (scale_of(pixels, declared_range), None):
    with refused(UsageError, words):
      inference.as_batch(pixels, X.shape[1:], scale)


@pytest.mark.parametrize(('pixels', 'proposed', 'right'), OTHER_RANGES)
def test_the_range_that_a_message_proposes_is_accepted(pixels, proposed, right):
  words = f"from {pixels.min()} to {pixels.max()}, .*data.range='{proposed}' declares"
  with refused(DataError, words):
    loaded(pixels, Y)
  data = loaded(pixels, Y, proposed)
  np.testing.assert_array_equal(data.train_images, right)
  np.testing.assert_array_equal(grey_levels(pixels, data.scale), right)


# Labels -> what the advice of the message turns them into, or a text in the message.
LABELS = [
  (ONE_HOT, Y),
  (Y.astype('float32'), Y),
  (Y > 0, np.minimum(Y, 1)),
  (np.eye(3, dtype=int)[Y] | [1, 0, 0], ': row 1 names 2 classes, and an example must'),
  (ONE_HOT * 0.9, ''),
  (NAMES[Y], ': number the classes from 0, alike in all the data'),
  (Y + 0.5 * (Y == 2), ': a label is a class, and regression is not supported'),
]


@pytest.mark.parametrize(('labels', 'right'), LABELS)
def test_the_remedy_in_a_message_makes_valid_labels(labels, right):
  fault = split_fault(Split('x', X, 'y', labels))
  advice = re.fullmatch(r'y (is|has shape) .* not (\[M\]|integer)(.*)', fault)[3]
  remedy = re.fullmatch(r'; convert (it with|one-hot with) (.*)', advice)
  if isinstance(right, str):
    assert advice.startswith(right)
    assert bool(advice) == bool(right)
    assert not remedy
  else:
    converted = eval(remedy[2], {}, {'y': labels})  # as a reader of the message would
    np.testing.assert_array_equal(converted, right)
    assert not split_fault(Split('x', X, 'y', converted))


def test_labels_in_a_column_are_taken_as_they_are():
  dataset = loaded(X, Y[:, None])
  np.testing.assert_array_equal(dataset.train_labels, Y)
  user = assembled.make_user('it', 'me', X, Y[:, None])
  np.testing.assert_array_equal(user.labels, Y)


@pytest.mark.parametrize(
  ('shape', 'turned'),
  [
    ((3, 16, 12), True),
    ((1, 28, 28), True),
    ((4, 8, 8), True),
    ((3, 4, 4), True),
    ((16, 12, 3), False),
    ((1, 50, 3), False),  # an image of one row
    ((3, 8, 2), False),
    ((3, 8), False),
  ],
)
def test_channels_that_come_first_are_turned_and_it_is_said(shape, turned, capsys):
  x = np.random.default_rng(1).integers(0, 256, (12, *shape), np.uint8)
  images = loaded(x, Y).train_images
  right = x.transpose(0, 2, 3, 1) if turned else x.reshape(images.shape)
  np.testing.assert_array_equal(images, right)
  line = f'it: images [M, {", ".join(map(str, shape))}] have their channels first; '
  assert capsys.readouterr().err.count(line) == turned


def test_the_names_that_are_there_are_told(tmp_path):
  arrays = {'x_train': X, 'y_train': Y, 'a\x1b[31m': Y}
  save_arrays(tmp_path / 'keras.npz', arrays)
  with pytest.raises(DataError, match=r'lacks .* has x_train, y_train, a\\x1b') as e:
    sources.load('npz', limit=0, path=str(tmp_path / 'keras.npz'))
  assert str(e.value).isprintable()


# --- pictures -------------------------------------------------------------------------

SIDE = 32
NOISE = np.random.default_rng(2).integers(0, 256, (SIDE, SIDE, 3), np.uint8)
RGB = Image.fromarray(NOISE)
GREY = np.asarray(RGB.convert('L'))


def file_of(image, kind='PNG', **options):
  buffer = io.BytesIO()
  image.save(buffer, kind, **options)
  return buffer.getvalue()


def palette(colours, transparency=None):
  image = RGB.quantize(colours)
  table = np.array(image.getpalette(), np.uint8).reshape(-1, 3)
  options = {} if transparency is None else {'transparency': transparency}
  return file_of(image, **options), table[np.asarray(image)]


def turned():
  exif = Image.Exif()
  exif[0x0112] = 6  # EXIF: the top of the picture is at the right
  ramp = np.repeat(np.arange(0, 256, 8, np.uint8), SIDE * 3).reshape(NOISE.shape)
  data = file_of(Image.fromarray(ramp), 'JPEG', exif=exif, quality=95)
  return data, np.asarray(Image.open(io.BytesIO(data)))


CMYK = file_of(RGB.convert('CMYK'), 'JPEG')
ALPHA = np.dstack([NOISE, GREY])
# A file, and its colours.
PICTURES = {
  '1-bit': (file_of(RGB.convert('1')), np.asarray(RGB.convert('1').convert('L'))),
  'grey': (file_of(RGB.convert('L')), GREY),
  'grey with alpha': (file_of(Image.fromarray(ALPHA[..., 2:])), NOISE[..., 2]),
  'palette of 1 bit': palette(2),
  'palette of 2 bits': palette(4),
  'palette of 4 bits': palette(16),
  'palette of 8 bits': palette(200),
  'one is transparent': palette(16, transparency=3),
  'all are transparent': palette(16, transparency=bytes(range(16))),
  'alpha': (file_of(Image.fromarray(ALPHA)), NOISE),
  'CMYK': (CMYK, np.asarray(Image.open(io.BytesIO(CMYK)).convert('RGB'))),
  'WEBP': (file_of(RGB, 'WEBP', lossless=True), NOISE),
  'BMP': (file_of(RGB, 'BMP'), NOISE),
  'PPM': (file_of(RGB, 'PPM'), NOISE),
  'TIFF': (file_of(RGB, 'TIFF'), NOISE),
  'as it is': (file_of(RGB), NOISE),
}
TURNED = turned()


def colours_of(pixels):
  return np.stack([pixels] * 3, -1) if pixels.ndim == 2 else pixels


def folder(path, files, labels=None, mode=None):
  """Writes pictures like `save_to_disk`, the same in train and test."""
  kinds = {'image': datasets.Image(mode=mode), 'user': datasets.Value('int64')}
  kinds['label'] = datasets.ClassLabel(num_classes=3)
  columns = {
    'image': [{'bytes': data, 'path': None} for data in files],
    'user': [i % 2 for i in range(len(files))],
    'label': labels or [i % 3 for i in range(len(files))],
  }
  split = datasets.Dataset.from_dict(columns, datasets.Features(kinds))
  datasets.disable_progress_bars()
  datasets.DatasetDict(train=split, test=split).save_to_disk(str(path))
  return {'path': str(path), 'client': 'user', 'image': '', 'label': ''}


def read_folder(path, files, labels=None, mode=None):
  options = folder(path, files, labels, mode)
  data = sources.load('huggingface', limit=0, **options)
  order = np.argsort(np.arange(len(data.train_labels)) % 2, kind='stable')
  return data.train_images[np.argsort(order)]  # user by user -> as they were


def test_a_folder_of_all_kinds_is_coloured_and_upright(tmp_path):
  files, right = zip(*PICTURES.values(), strict=True)
  images = read_folder(tmp_path / 'all', [*files, TURNED[0]])
  np.testing.assert_array_equal(images[:-1], [*map(colours_of, right)])
  # The right side of the upright picture is at the top of the file.
  np.testing.assert_array_equal(images[-1], np.rot90(TURNED[1], -1))


@pytest.mark.parametrize(
  ('names', 'mode', 'channels'),
  [
    (['grey', '1-bit', 'grey with alpha'], None, 1),
    (['alpha'] * 3, None, 4),
    (['grey', 'alpha', 'grey'], None, 3),
    (['palette of 1 bit'] * 3, None, 3),
    (['grey'] * 3, 'RGB', 3),
    (['as it is'] * 3, 'L', 1),
  ],
)
def test_channels_are_the_declared_ones_or_all_files(names, mode, channels, tmp_path):
  files = [PICTURES[name][0] for name in names]
  images = read_folder(tmp_path / 'set', files, mode=mode)
  assert images.shape == (3, SIDE, SIDE, channels)


DEEP = file_of(Image.fromarray(GREY.astype(np.uint16) * 257))
DEEP_TIFF = file_of(Image.fromarray(GREY.astype(np.uint16)), 'TIFF')
DEEP_RGB = file_of(RGB)[:24] + b'\x10' + file_of(RGB)[25:]
BAD = [
  (DEEP, 'more than 8 bits in each channel'),
  (DEEP_RGB, 'more than 8 bits in each channel'),
  (DEEP_TIFF, 'more than 8 bits in each channel'),
  (file_of(RGB, 'GIF'), 'the image is none of PNG, JPEG, WEBP'),
  (b'hello', 'the image is none of PNG, JPEG, WEBP'),
  (file_of(RGB)[:-60], 'truncated'),
  (file_of(RGB.resize((8, 9))), r'the image has shape \(9, 8, 3\), not \(32, 32, 3\)'),
]


@pytest.mark.parametrize(('data', 'reason'), BAD)
def test_a_bad_picture_is_reported_with_its_row(data, reason, tmp_path, monkeypatch):
  files = [file_of(RGB)] * 4 + [data]
  message = f'row 4 of train cannot be used: .*{reason}'
  with pytest.raises(DataError, match=message) as caught:
    read_folder(tmp_path / 'set', files)
  assert '0x' not in str(caught.value)
  without_tensorflow(monkeypatch)
  prepare(tmp_path, 'cifar10', {'train': 3, 'test': 2}, {'image': data})
  with pytest.raises(
    DataError, match=f'test example 1 cannot be used: .*{reason}'
  ) as e:
    sources.load('tfds', limit=0, name='cifar10', dir=str(tmp_path))
  assert 'delete' not in str(e.value)


@pytest.mark.parametrize('label', [-1, None])
def test_a_label_that_is_no_class_is_reported_with_its_row(label, tmp_path):
  with pytest.raises(DataError, match=f'row 2 of train .* its label is {label}, not'):
    read_folder(tmp_path / 'set', [file_of(RGB)] * 4, [0, 1, label, 2])


@pytest.mark.parametrize('name', ['1-bit', 'all are transparent', 'alpha', 'turned'])
def test_tfds_has_the_colours_and_turns_nothing(name, tmp_path, monkeypatch):
  data, right = (PICTURES | {'turned': TURNED})[name]
  without_tensorflow(monkeypatch)
  prepare(tmp_path, 'cifar10', {'train': 3, 'test': 2}, {'image': data})
  dataset = sources.load('tfds', limit=0, name='cifar10', dir=str(tmp_path))
  np.testing.assert_array_equal(dataset.test_images[-1], colours_of(right))


# --- refused by the door --------------------------------------------------------------


@pytest.mark.usefixtures('own_parts')
@pytest.mark.parametrize(
  ('indices', 'offsets', 'message'),
  [
    ([0, 1, 2, 3], [0, 2, 2, 4], 'an example, and client 1 owns none'),
    ([0, 1, 2, 3], [0, 3, 1, 4], 'an example, and client 1 owns none'),
    ([0, 1, 2, -1], [0, 1, 2, 4], 'must give each of 4 examples'),
    ([0, 1, 2, 2], [0, 1, 2, 4], 'must give each of 4 examples'),
    ([0, 1, 2, 3], [1, 2, 3, 4], 'must give each of 4 examples'),
    ([0, 1, 2, 3], [0, 1, 2, 3], 'must give each of 4 examples'),
  ],
)
def test_a_registered_partition_that_is_none(indices, offsets, message):
  wrong_partition = moon_jax.Partition(np.array(indices), np.array(offsets))
  moon_jax.register_partition('mine', lambda labels, **options: wrong_partition)
  with pytest.raises(UsageError, match=message):
    partition.deal('mine', np.zeros(4, int), num_clients=3, min_size=1, seed=0)
