"""Lines about tests that say less: training images among them, classes without any."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moon_jax.core.errors import ExitCode
from moon_jax.data import convert, overlap
from tests.data.federations import flags, load, save_arrays
from tests.data.layouts import knobs_of

RNG = np.random.default_rng(0)


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(
  shape=st.lists(st.integers(1, 7), min_size=1, max_size=3),
  dtype=st.sampled_from(['uint8', 'float32', 'int64']),
  num_levels=st.integers(1, 256),
  seed=st.integers(0, 99),
)
def test_shared_images_are_counted_exactly(shape, dtype, num_levels, seed):
  rng = np.random.default_rng(seed)
  train = rng.integers(0, num_levels, (12, *shape), np.uint8).astype(dtype)
  images = rng.integers(0, num_levels, (9, *shape), np.uint8).astype(dtype)
  images[rng.integers(0, 9, 3)] = train[rng.integers(0, 12, 3)]
  images[0] = train[0]
  images[0].flat[-1] += 1  # the centre alone is not enough
  training = {image.tobytes() for image in train}
  num_shared = sum(image.tobytes() in training for image in images)
  assert overlap.num_shared(train, images) == num_shared


def one_file(folder, test_images, test_labels=None, **more):
  train = RNG.integers(0, 256, (300, 6, 6, 1), np.uint8)
  images = test_images(train)
  if test_labels is None:
    test_labels = np.arange(len(images)) % 3
  arrays = {'train_x': train, 'train_y': np.arange(300) % 3}
  arrays |= {'test_x': images, 'test_y': test_labels}
  save_arrays(
    folder / 'set.npz', arrays | {key: make(train) for key, make in more.items()}
  )
  return knobs_of('npz', folder / 'set.npz')


def new_images(train):
  return RNG.integers(0, 256, (200, 6, 6, 1), np.uint8)


def with_shared(count):
  return lambda train: np.concatenate([new_images(train)[count:], train[:count]])


@pytest.mark.parametrize(
  ('count', 'line'),
  [
    (200, '200 of 200 test images are training images, too.'),
    (2, '2 of 200 test images are training images, too.'),
    (1, ''),  # a few are common
    (0, ''),
  ],
)
def test_a_test_set_of_training_images_is_one_line(count, line, tmp_path, capsys):
  knobs = one_file(tmp_path, with_shared(count))
  load(knobs)
  expected = f"--config.data.path='{tmp_path}/set.npz': {line}\n" if line else ''
  assert capsys.readouterr().err == expected


def test_a_validation_set_of_training_images_is_one_line(tmp_path, capsys):
  knobs = one_file(
    tmp_path,
    new_images,
    val_x=lambda train: train[:6],
    val_y=lambda train: np.arange(6) % 3,
  )
  load(knobs, limit=10)  # which part is kept does not matter
  (line,) = capsys.readouterr().err.splitlines()
  assert line.endswith(': 6 of 6 validation images are training images, too.')


@pytest.mark.parametrize('is_stored', [False, True])
def test_classes_without_a_test_example_are_named(is_stored, tmp_path, capsys):
  names = np.array(['cat', 'dog', 'owl', 'nobody'])
  knobs = one_file(
    tmp_path,
    new_images,
    test_labels=np.full(200, 1),
    class_names=lambda train: names,
    train_client=lambda train: np.arange(300) % 5,
  )
  if is_stored:
    assert convert.main([*flags(knobs), f'--out={tmp_path}/out']) == ExitCode.DONE
    knobs = knobs_of('records', tmp_path / 'out')
  capsys.readouterr()
  load(knobs)
  (line,) = capsys.readouterr().err.splitlines()
  assert line.endswith(': 2 of 4 classes have no test example: cat, owl.')
