"""Augmentation against numpy's padding and slicing, given the same draws."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moon_jax.data import augment, device_split
from tests.selection import few

M, B, C = 7, 256, 2
RANDOM = np.random.default_rng(0).integers(0, 256, (M, 6, 9, C), np.uint8)
ROWS = np.random.default_rng(1).integers(0, M, B).astype(np.int32)
PADDINGS = ('reflect', 'zero')
NAMES = [('flip', 'reflect'), *(('crop_flip', pad) for pad in PADDINGS)]
DRAWS = {'flip': augment._draw_flip, 'crop_flip': augment._draw_crop_flip}


@functools.cache
def compiled(name, padding):
  options = {'padding': padding} if name == 'crop_flip' else {}
  return jax.jit(augment.augmenter(name, **options))


def augmented(name, padding, images=RANDOM, rows=ROWS, seed=0):
  return np.asarray(compiled(name, padding)(jax.random.key(seed), images, rows))


@functools.cache
def draws(name):
  """(down, right, flip) of every position, drawn one by one; offsets from -4 to 4."""
  draw = jax.jit(lambda b: DRAWS[name](jax.random.fold_in(key, b)))
  key = jax.random.key(0)
  one_by_one = (jax.device_get(draw(b)) for b in range(B))
  return [tuple(int(part) for part in draw) for draw in one_by_one]


def plainly(image, draw, mode):
  """Pad, crop, mirror, as one would write it by hand."""
  down, right, flip = draw
  height, width, _ = image.shape
  padded = np.pad(image, ((4, 4), (4, 4), (0, 0)), mode=mode)
  top, left = 4 + down, 4 + right
  crop = padded[top : top + height, left : left + width]
  return crop[:, ::-1] if flip else crop


@pytest.mark.parametrize(('name', 'padding'), NAMES)
def test_equals_pad_crop_and_mirror(name, padding):
  images = augmented(name, padding)
  assert images.dtype == np.uint8
  assert images.shape == (B, 6, 9, C)
  mode = {'reflect': 'reflect', 'zero': 'constant'}[padding]
  pairs = zip(ROWS, draws(name), strict=True)
  expected = [plainly(RANDOM[row], draw, mode) for row, draw in pairs]
  np.testing.assert_array_equal(images, expected)


@pytest.mark.parametrize('side', few([1, 4], [2]))
def test_an_image_smaller_than_the_margin_is_reflected_again(side):
  images = np.arange(2 * side * 3, dtype=np.uint8).reshape(2, side, 3, 1)
  reflected = augmented('crop_flip', 'reflect', images, np.zeros(B, np.int32))
  expected = [plainly(images[0], d, 'reflect') for d in draws('crop_flip')]
  np.testing.assert_array_equal(reflected, expected)


def test_every_crop_occurs_about_as_often_and_flips_half_the_time():
  numbered_pixels = 1 + np.arange(6 * 9, dtype=np.uint8).reshape(1, 6, 9, 1)
  crops = augmented('crop_flip', 'zero', numbered_pixels, np.zeros(81 * 200, np.int32))
  kinds, counts = np.unique(crops.reshape(-1, 6 * 9), axis=0, return_counts=True)
  assert len(kinds) == 9 * 9 * 2
  # 100 of each of the 162 expected, standard deviation 10.
  assert 55 < counts.min() < counts.max() < 145
  mirrored = (np.diff(crops[..., 0].astype(int)) == -1).any((1, 2))
  assert mirrored.mean() == pytest.approx(0.5, abs=4 * 0.5 / np.sqrt(len(crops)))
  flips = [flip for _, _, flip in draws('flip')]
  assert np.mean(flips) == pytest.approx(0.5, abs=4 * 0.5 / np.sqrt(B))
  assert {draw[:2] for draw in draws('flip')} == {(0, 0)}


def test_each_sample_has_its_own_draw_and_only_key_and_place_decide():
  copies = np.full(B, 3, np.int32)
  crop = functools.partial(augmented, 'crop_flip', 'reflect', RANDOM)
  crops, same_seed, other_seed = (crop(copies, seed) for seed in (0, 0, 1))
  # 256 draws leave out (161 / 162)**256 = 0.2 of the 162 kinds.
  assert len({image.tobytes() for image in crops}) > 110
  np.testing.assert_array_equal(crops, same_seed)
  assert (crops != other_seed).any(axis=(1, 2, 3)).mean() > 0.9
  # Neither the size of the batch nor its other rows matter.
  rows = np.array([3, 5, 3], np.int32)
  smaller_batch = crop(rows)
  np.testing.assert_array_equal(smaller_batch[2], crops[2])


@pytest.mark.parametrize('padding', PADDINGS)
def test_a_batch_is_normalised_after_its_augmentation(padding):
  mean, std = np.array([0.4, 0.5], np.float32), np.array([0.3, 0.2], np.float32)
  labels = np.arange(M, dtype=np.int32)
  split = jax.device_put(device_split.DeviceSplit(RANDOM, labels, mean, std))
  crop = compiled('crop_flip', padding)
  key, rows = jax.random.key(0), ROWS[:32]
  batch = split.batch(rows, jnp.int32(5), functools.partial(crop, key))
  pixels = augmented('crop_flip', padding)[:32]
  np.testing.assert_allclose(batch.images, (pixels / 255 - mean) / std, atol=1e-6)
  plain = split.batch(rows, jnp.int32(5))
  np.testing.assert_allclose(plain.images, (RANDOM[rows] / 255 - mean) / std, atol=1e-6)
  for gathered in (batch, plain):
    np.testing.assert_array_equal(gathered.labels, rows)
    np.testing.assert_array_equal(gathered.mask, np.arange(32) < 5)


SIGNALS = np.random.default_rng(2).standard_normal((M, 6, C)).astype(np.float32)


def test_half_of_the_signals_are_reversed_in_time():
  flipped = jax.jit(augment.augmenter('time_flip'))(jax.random.key(0), SIGNALS, ROWS)
  chosen = SIGNALS[ROWS]
  is_flipped = (np.asarray(flipped) == chosen[:, ::-1]).all((1, 2))
  is_same = (np.asarray(flipped) == chosen).all((1, 2))
  np.testing.assert_array_equal(is_flipped, ~is_same)
  assert 100 < is_flipped.sum() < 156


def jittered(examples, deviations, sigma=0.5):
  add_noise = augment.augmenter('jitter', deviations=deviations, jitter_sigma=sigma)
  noisy = jax.jit(add_noise)(jax.random.key(0), examples, ROWS)
  assert noisy.dtype == examples.dtype
  return np.asarray(noisy) - examples[ROWS].astype(np.float64)


@pytest.mark.parametrize('dtype', few([np.float32, np.int16], [np.float16]))
def test_noise_has_the_deviation_of_each_channel(dtype):
  deviations = np.array([40, 400], np.float32)
  noise = jittered((100 * SIGNALS).astype(dtype), deviations)
  np.testing.assert_allclose(noise.std((0, 1)), deviations / 2, rtol=0.1)
  # Each position in the batch, step and channel has noise of its own.
  columns = np.corrcoef(noise.reshape(B, -1), rowvar=False)
  assert abs(columns - np.eye(len(columns))).max() < 0.3
  assert len(np.unique(noise.round(6), axis=0)) == B
  assert not jittered((100 * SIGNALS).astype(dtype), deviations, sigma=0.0).any()


def test_noise_on_whole_numbers_stays_within_their_dtype():
  edges = np.full((M, 6, C), 32_767, np.int16)
  noise = jittered(edges, np.full(C, 1000, np.float32))
  assert noise.max() == 0
  assert noise.min() < -100
