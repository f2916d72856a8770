"""A user's own model, data, partition and augmentation: each part by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moon_jax import catalog, models
from moon_jax import config as config_lib
from moon_jax.data.augment import augmenter

pytestmark = pytest.mark.usefixtures('own_parts_of_the_file')


def test_the_initial_weights_are_flax_s_own():
  module = registered_function('model', 'ring_net')(num_classes=4, channels=8)
  weights = models.of_module(module, (12, 12, 1)).init(0)['params']
  assert all(not layer['bias'].any() for layer in weights.values())
  # LeCun's normal: a variance of 1 / inputs; 288 inputs, 64 outputs.
  assert float(weights['Dense_0']['kernel'].std()) == pytest.approx(288**-0.5, rel=0.05)
  # 3 * 3 * 4 + 4, 3 * 3 * 4 * 8 + 8, 288 * 64 + 64, 64 * 32 + 32, 32 * 4 + 4
  assert sum(leaf.size for leaf in jax.tree.leaves(weights)) == 21044


def registered_function(kind, name):
  """A function that examples/own_model_and_data.py registers."""
  config_lib.load('examples/own_model_and_data.py')
  return catalog.part(kind, name).function


def test_rings_are_where_their_labels_say():
  train_x, train_y, test_x, test_y = registered_function('data', 'rings')(noise=0.0)
  assert (train_x.shape, test_x.shape) == ((800, 12, 12), (200, 12, 12))
  for images, labels in ((train_x, train_y), (test_x, test_y)):
    total = (images / 255).sum((1, 2))
    # 2 pi times the integral of r exp(-(r - R)^2), where the image holds all of it.
    for label, expected_total in enumerate((16.75, 27.84, 38.98)):
      np.testing.assert_allclose(total[labels == label], expected_total, rtol=0.04)
    assert total[labels == 3].min() > 41
  noisy = registered_function('data', 'rings')(noise=0.6)[0]
  assert np.abs(noisy / 255 - train_x / 255).mean() > 0.1


def test_power_law_by_hand():
  # 100 examples, 4 clients of at least 5: 80 to deal by 1, 1/2, 1/3, 1/4 of 25/12:
  # up to 38.4, 57.6, 70.4, 80, rounded 38, 58, 70, 80.
  deal = registered_function('partition', 'power_law')
  split = deal(np.zeros(100, int), num_clients=4, min_size=5, seed=0, exponent=1.0)
  assert split.sizes.tolist() == [43, 25, 17, 15]
  assert sorted(split.indices) == list(range(100))
  equal = deal(np.zeros(100, int), num_clients=4, min_size=5, seed=0, exponent=0.0)
  assert equal.sizes.tolist() == [25] * 4


def test_quarter_turns_turn_each_image_by_itself():
  registered_function('augmentation', 'quarter_turns')
  turn = augmenter('quarter_turns')
  images = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3, 1)
  rows = jnp.array([1, 0] * 40, jnp.int32)
  turned = np.asarray(turn(jax.random.key(0), jnp.asarray(images), rows))
  turns = set()
  for row, image in zip(rows, turned, strict=True):
    is_turn = [np.array_equal(np.rot90(images[row], k), image) for k in range(4)]
    assert sum(is_turn) == 1
    turns.add((int(row), is_turn.index(True)))
  assert len(turns) == 8
