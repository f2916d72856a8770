"""Grey pictures of 16 bits keep their numbers, in folders, tables and predictions."""

import csv
import io
import struct
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

import moon_jax
from moon_jax.core.errors import ExitCode, KnobError
from moon_jax.data import pictures
from moon_jax.data.data_errors import DataError
from moon_jax.predict import exported
from moon_jax.predict.command import main as predict
from tests.data.federations import load
from tests.refusals import refused

pytestmark = pytest.mark.usefixtures('quick_runs')


def numbers(seed, side=8):
  """A picture whose numbers differ by less than a grey level of 8 bits."""
  rng = np.random.default_rng(seed)
  return rng.integers(30_000, 30_200, (side, side), np.uint16)


def write(path, pixels):
  path.parent.mkdir(parents=True, exist_ok=True)
  Image.fromarray(pixels).save(path)


def folder_of(root, suffix='.png', dtype=np.uint16):
  """train/ and test/ with two classes; returns the pictures of each in their order."""
  pictures = {}
  for split, count in (('train', 12), ('test', 4)):
    for row in range(count):
      pixels = numbers(row) + np.uint16(100 * (row % 2))
      if dtype == np.uint8:
        pixels = (pixels >> 8).astype(np.uint8)
      write(root / split / f'class{row % 2}' / f'{row:02}{suffix}', pixels)
      pictures.setdefault(split, []).append(pixels)
  return pictures


def knobs_of(root):
  return {'data.source': 'imagefolder', 'data.path': str(root)}


def trained_run(folder, data_knobs):
  """The directory of a short run on some data."""
  knobs = data_knobs | {
    'num_clients': 2,
    'partition.name': 'iid',
    'partition.min_size': 1,
    'model': 'mlp',
    'algorithm': 'fedavg',
    'num_rounds': 2,
    'optimizer.learning_rate': 0.1,
    'logger': '',
    'execution.devices': 1,
  }
  run = folder / 'run'
  moon_jax.run(moon_jax.load_config('configs/base.py', knobs), run)
  return run


@pytest.mark.parametrize('suffix', ['.png', '.tif'])
def test_pictures_of_16_bits_keep_their_numbers(suffix, tmp_path, capsys):
  pictures = folder_of(tmp_path, suffix)
  for _ in range(2):  # decoded, and then kept
    data = load(knobs_of(tmp_path))
    assert data.train_images.dtype == np.uint16
    assert (data.form.kind, data.form.content) == ('picture', 'numbers')
    by_class = [*pictures['train'][::2], *pictures['train'][1::2]]
    np.testing.assert_array_equal(data.train_images[..., 0], by_class)
    np.testing.assert_allclose(data.mean, np.mean(by_class), rtol=1e-6)
    assert 'have 16 bits, and keep their numbers' in capsys.readouterr().err
  levels = load(knobs_of(tmp_path), range='0,65535')
  assert levels.train_images.dtype == np.uint8
  exact = np.stack(by_class) / 65535 * 255
  assert abs(levels.train_images[..., 0] - exact).max() <= 0.51
  resized = load(knobs_of(tmp_path), image_size=4)
  smaller = Image.fromarray(by_class[0].astype('f4')).resize((4, 4), Image.BILINEAR)
  np.testing.assert_array_equal(resized.train_images[0, ..., 0], np.rint(smaller))


def test_a_picture_of_another_depth_is_refused_by_name(tmp_path):
  folder_of(tmp_path)
  write(tmp_path / 'test/class0/00.png', np.zeros((8, 8), np.uint8))
  with refused(
    DataError, r"'test/class0/00.png' cannot|more than 8 bits.*others have 8"
  ):
    load(knobs_of(tmp_path))
  with refused(KnobError, 'is for arrays, and these are pictures'):
    load(knobs_of(tmp_path), axes='CHW')


def tiff(pixels, interpretation):
  """A TIFF of [H, W, C] uint16, which Pillow cannot write."""
  height, width, channels = pixels.shape
  tags = {
    256: width,
    257: height,
    258: 16,
    259: 1,  # not compressed
    262: interpretation,
    273: 200,  # where the pixels begin
    277: channels,
    278: height,
    279: pixels.nbytes,
  }
  entries = b''.join(
    struct.pack('<HHII', tag, 4, 1, number) for tag, number in tags.items()
  )
  if channels == 3:  # the bits of each are elsewhere
    entries = entries.replace(
      struct.pack('<HHII', 258, 4, 1, 16), struct.pack('<HHII', 258, 3, 3, 180)
    )
  head = b'II*\0' + struct.pack('<IH', 8, len(tags)) + entries + bytes(4)
  head = head.ljust(180, b'\0') + struct.pack('<HHH', 16, 16, 16)
  return head.ljust(200, b'\0') + pixels.astype('<u2').tobytes()


def test_a_tiff_of_which_pillow_would_read_less_is_refused():
  pixels = numbers(0)[..., None]
  black_is_zero = pictures.decode_picture(tiff(pixels, 1), pictures.DEEP)
  np.testing.assert_array_equal(black_is_zero, pixels)
  with refused(ValueError, 'has 16 bits, and 0 is white in it; save it inverted'):
    pictures.decode_picture(tiff(pixels, 0), pictures.DEEP)
  colours = np.repeat(pixels, 3, axis=2)
  with refused(ValueError, '8 bits in each channel; 16 bits are read of grey'):
    pictures.decode_picture(tiff(colours, 2), 'RGB')
  pages = [
    Image.fromarray(page) for page in pixels[..., 0].astype('u1').reshape(2, 4, 8)
  ]
  for pages_or_previews, is_stack in (
    (pages, True),
    ([pages[0].resize((2, 2))], False),
  ):
    file = io.BytesIO()
    pages[0].save(file, 'TIFF', save_all=True, append_images=pages_or_previews)
    if is_stack:
      with refused(ValueError, 'the image has 3 pages; save each as an image'):
        pictures.decode_picture(file.getvalue(), 'L')
    else:
      page = pictures.decode_picture(file.getvalue(), 'L')
      np.testing.assert_array_equal(page[..., 0], np.asarray(pages[0]))


def test_pictures_of_8_bits_are_what_they_were(tmp_path):
  pictures = folder_of(tmp_path, dtype=np.uint8)
  data = load(knobs_of(tmp_path))
  assert data.form == moon_jax.core.types.Form()
  by_class = [*pictures['train'][::2], *pictures['train'][1::2]]
  np.testing.assert_array_equal(data.train_images[..., 0], by_class)


def test_hugging_face_has_them_too(tmp_path):
  datasets = pytest.importorskip('datasets', reason='datasets is missing')
  pictures = [numbers(seed) for seed in range(4)]

  def encoded(pixels):
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, 'PNG')
    return {'bytes': buffer.getvalue(), 'path': None}

  features = datasets.Features(
    {'image': datasets.Image(), 'label': datasets.Value('int64')}
  )
  rows = {'image': [encoded(pixels) for pixels in pictures], 'label': [0, 1, 0, 1]}
  split = datasets.Dataset.from_dict(rows, features=features)
  datasets.DatasetDict(train=split, test=split).save_to_disk(tmp_path / 'it')
  knobs = {'data.source': 'huggingface', 'data.path': str(tmp_path / 'it')}
  data = load(knobs, client='')
  np.testing.assert_array_equal(data.train_images[..., 0], pictures)


def test_predictions_are_on_the_scale_of_training(tmp_path, capsys):
  folder_of(tmp_path / 'set')
  run = trained_run(tmp_path, knobs_of(tmp_path / 'set'))
  trained = moon_jax.load(run)
  images, labels = trained.test_data()
  assert images.dtype == np.uint16
  words = [f'--workdir={run}', f'--output={tmp_path}/out.csv']
  inputs = (
    [f'--input={tmp_path}/set/test'],
    [f'--input={tmp_path}/set', '--source=imagefolder'],
  )
  for input_flags in inputs:
    assert predict([*words, *input_flags]) == ExitCode.DONE
    with open(tmp_path / 'out.csv', newline='') as file:
      rows = list(csv.DictReader(file))
    predicted = [int(row['predicted'].removeprefix('class')) for row in rows]
    assert predicted == trained.predict(images).labels.tolist()
    assert [row['label'] for row in rows] == [f'class{label}' for label in labels]
  folder_of(tmp_path / 'shallow', dtype=np.uint8)
  capsys.readouterr()
  for input_flags, message in (
    ([f'--input={tmp_path}/shallow/test'], 'has 8 bits in each channel, and others'),
    (
      [f'--input={tmp_path}/shallow', '--source=imagefolder'],
      'pictures of grey levels and the model was trained on uint16 numbers',
    ),
  ):
    assert predict([*words, *input_flags]) == ExitCode.USAGE
    assert message in capsys.readouterr().err


def printed_by_the_file(folder, picture):
  """Class and probability that model.py in a folder prints for a picture."""
  process = subprocess.run(
    [sys.executable, 'model.py', picture],
    cwd=folder,
    check=True,
    capture_output=True,
    text=True,
  )
  _, class_name, _, probability = process.stdout.split()
  return class_name.removesuffix(','), float(probability)


def expected_of(model, picture):
  logits = model.predict(picture[None]).logits[0].astype(np.float64)
  label = int(logits.argmax())
  return f'class{label}', np.exp(logits)[label] / np.exp(logits).sum()


@pytest.mark.parametrize('declared_range', ['', '0,65535'])
def test_the_file_for_pytorch_reads_16_bits(declared_range, tmp_path):
  folder_of(tmp_path / 'set')
  knobs = knobs_of(tmp_path / 'set') | {'data.range': declared_range}
  model = moon_jax.load(trained_run(tmp_path, knobs))
  model.save(tmp_path / 'model.py')
  text = (tmp_path / 'model.py').read_text()
  assert 'CHANNELS, HEIGHT, WIDTH = (1, 8, 8)\n' in text
  assert "must be grey and have 16 bits.')\n" in text
  pytest.importorskip('torch', reason='no torch')
  images, _ = model.test_data()
  first = 'set/test/class0/00.png'
  class_name, probability = printed_by_the_file(tmp_path, first)
  expected_name, expected_probability = expected_of(model, images[0])
  assert class_name == expected_name
  assert probability == pytest.approx(expected_probability, abs=1e-4)
  write(tmp_path / 'shallow.png', np.zeros((8, 8), np.uint8))
  with pytest.raises(subprocess.CalledProcessError) as caught:
    printed_by_the_file(tmp_path, 'shallow.png')
  assert caught.value.stderr.endswith('must be grey and have 16 bits.\n')


def test_the_file_for_pytorch_turns_pictures_as_the_run_did(tmp_path, monkeypatch):
  pytest.importorskip('torch', reason='no torch')
  folder_of(tmp_path / 'set', dtype=np.uint8)
  model = moon_jax.load(trained_run(tmp_path, knobs_of(tmp_path / 'set')))
  picture = np.arange(64, dtype=np.uint8).reshape(8, 8) * 4
  exif = Image.Exif()
  exif[0x0112] = 6  # to be turned by 90 degrees clockwise
  Image.fromarray(picture).save(tmp_path / 'turned.png', exif=exif)
  write(tmp_path / 'deep.png', numbers(0))
  for turns, pixels in ((False, picture), (True, np.rot90(picture, -1))):
    monkeypatch.setattr(exported, 'turns_pictures', lambda config, turns=turns: turns)
    model.save(tmp_path / 'model.py')
    _, probability = printed_by_the_file(tmp_path, 'turned.png')
    _, expected = expected_of(model, pixels[..., None])
    assert probability == pytest.approx(expected, abs=1e-4)
    with pytest.raises(subprocess.CalledProcessError) as caught:
      printed_by_the_file(tmp_path, 'deep.png')
    assert caught.value.stderr.endswith('must have 8 bits in each channel.\n')
    (tmp_path / 'model.py').unlink()
    (tmp_path / 'model_weights.safetensors').unlink()


def test_a_model_of_16_bit_numbers_takes_pictures_of_16_bits_only(tmp_path, capsys):
  pictures = folder_of(tmp_path / 'set')
  labels = np.arange(len(pictures['test'])) % 2
  np.savez(
    tmp_path / 'set.npz',
    x_train=np.stack(pictures['train'])[..., None],
    y_train=np.arange(len(pictures['train'])) % 2,
    x_test=np.stack(pictures['test'])[..., None],
    y_test=labels,
  )
  knobs = {
    'data.source': 'npz',
    'data.path': str(tmp_path / 'set.npz'),
    'data.normalize': 'per_channel',
  }
  run = trained_run(tmp_path, knobs)
  images, _ = moon_jax.load(run).test_data()
  words = [f'--workdir={run}', f'--output={tmp_path}/out.csv']
  assert predict([*words, f'--input={tmp_path}/set/test/class0']) == ExitCode.DONE
  with open(tmp_path / 'out.csv', newline='') as file:
    predicted = [int(row['predicted']) for row in csv.DictReader(file)]
  of_class_0 = moon_jax.load(run).predict(images[labels == 0]).labels.tolist()
  assert predicted == of_class_0
  folder_of(tmp_path / 'shallow', dtype=np.uint8)
  assert predict([*words, f'--input={tmp_path}/shallow/test']) == ExitCode.USAGE
  assert 'has 8 bits in each channel' in capsys.readouterr().err


def test_the_range_of_arrays_is_not_that_of_pictures(tmp_path):
  """Arrays of 10 bits, with the channel first, and the same grey levels in files."""
  levels = np.random.default_rng(0).integers(0, 256, (8, 8, 8), np.uint8)
  for row, pixels in enumerate(levels):
    for split in ('train', 'test'):
      write(tmp_path / f'set/{split}/class{row // 4}/{row}.png', pixels)
  arrays = np.rint(levels[:, None] * (1023 / 255)).astype(np.uint16)
  labels = np.arange(8) // 4
  path = tmp_path / 'set.npz'
  np.savez(path, train_x=arrays, train_y=labels, test_x=arrays, test_y=labels)
  knobs = {'data.source': 'npz', 'data.path': str(tmp_path / 'set.npz')}
  run = trained_run(tmp_path, knobs | {'data.range': '0,1023', 'data.axes': 'CHW'})
  rows = []
  for words in (
    [f'--input={tmp_path}/set.npz'],
    [f'--input={tmp_path}/set', '--source=imagefolder'],
  ):
    flags = [f'--workdir={run}', f'--output={tmp_path}/out.csv', *words]
    assert predict(flags) == ExitCode.DONE
    with open(tmp_path / 'out.csv', newline='') as file:
      rows.append(list(csv.DictReader(file)))
  assert rows[0] == rows[1]
