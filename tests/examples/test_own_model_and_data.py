"""MOON with the user's own parts: by the reference, and each part by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from moon_jax import catalog
from moon_jax import config as config_lib
from moon_jax.data.augment import augmenter
from moon_jax.engine import experiment as experiment_lib
from moon_jax.engine import programs
from tests import reference
from tests.examples import plain
from tests.world import largest_difference

pytestmark = pytest.mark.usefixtures('own_parts_of_the_file')

NUM_ROUNDS = 2
SGD = {'learning_rate': 0.05, 'momentum': 0.9, 'weight_decay': 1e-5}
OWN = {
  'num_clients': 5,
  'participation': 0.6,
  'partition.min_size': 3,
  'local_epochs': 1,
  'batch_size': 8,
  'data.limit': 64,
  'augmentation.name': 'none',
  'power_law.exponent': 2.0,
  'optimizer.learning_rate': 0.05,
  'execution.devices': '1',
}


def encode_rings(params, stats, images, training):
  """RingNet before its head, as the reference draws networks."""
  del training
  for layer, stride in (('Conv_0', 1), ('Conv_1', 2)):
    order, kernel = ('NHWC', 'HWIO', 'NHWC'), params[layer]['kernel']
    images = lax.conv_general_dilated(
      images, kernel, (stride, stride), 'SAME', dimension_numbers=order
    )
    images = jnp.maximum(images + params[layer]['bias'][None, None, None], 0)
  return jnp.reshape(images, (len(images), -1)), stats


def ring_head(params, features):
  names = {'head_hidden': 'Dense_0', 'head_output': 'Dense_1', 'classifier': 'Dense_2'}
  layers = {name: params[own] for name, own in names.items()}
  return reference.networks.projection_and_classifier(layers, features)


def test_moon_with_a_model_and_data_of_ones_own_is_the_references():
  settings = config_lib.load('examples/own_model_and_data.py') | OWN
  made = experiment_lib.build(config_lib.validate(settings))
  state = experiment_lib.initial_state(made)
  start = jax.device_get(state.server.variables['params'])
  inputs = [
    programs.round_inputs(made, index, made.planner.plan(index))
    for index in range(NUM_ROUNDS)
  ]
  run_round = programs.lower_programs(made, state, inputs[0])[0].compile()
  pixels, labels = map(np.asarray, made.train.examples[:2])
  whole = catalog.part('data', 'rings').function(noise=0.6)[0] / 255
  images = (pixels / 255 - whole.mean()) / whole.std()
  expected = reference.run(
    network=reference.Network(encode_rings, ring_head),
    params=start,
    images=images.astype(np.float32),
    labels=labels,
    rounds=list(plain.drawn(made.planner, NUM_ROUNDS)),
    num_clients=5,
    sizes=dict(enumerate(made.split.sizes.tolist())),
    **SGD | {'algorithm': 'moon', 'mu': 1.0, 'tau': 0.5},
  )
  for inputs_of_round, truth in zip(inputs, expected, strict=True):
    state, _ = run_round(state, *inputs_of_round, made.train)
    params = state.server.variables['params']
    assert largest_difference(params, truth.params) < 1e-5
  assert largest_difference(start, expected[-1].params) > 0.01


def test_the_initial_weights_are_flax_s_own():
  settings = config_lib.load('examples/own_model_and_data.py') | OWN
  made = experiment_lib.build(config_lib.validate(settings))
  weights = made.network.init(0)['params']
  assert all(not layer['bias'].any() for layer in weights.values())
  # LeCun's normal: a variance of 1 / inputs; 288 inputs, 64 outputs.
  assert float(weights['Dense_0']['kernel'].std()) == pytest.approx(288**-0.5, rel=0.05)
  # 3 * 3 * 4 + 4, 3 * 3 * 4 * 8 + 8, 288 * 64 + 64, 64 * 32 + 32, 32 * 4 + 4
  assert sum(leaf.size for leaf in jax.tree.leaves(weights)) == 21044


def own(kind, name):
  """A function that the third example registers."""
  config_lib.load('examples/own_model_and_data.py')
  return catalog.part(kind, name).function


def test_rings_are_where_their_labels_say():
  train_x, train_y, test_x, test_y = own('data', 'rings')(noise=0.0)
  assert (train_x.shape, test_x.shape) == ((800, 12, 12), (200, 12, 12))
  for images, labels in ((train_x, train_y), (test_x, test_y)):
    light = images / 255
    total = light.sum((1, 2))
    # 2 pi times the integral of r exp(-(r - R)^2), where the image holds all of it.
    for label, wanted in enumerate((16.75, 27.84, 38.98)):
      np.testing.assert_allclose(total[labels == label], wanted, rtol=0.04)
    assert total[labels == 3].min() > 41
    small = labels < 2
    across = (light.sum(1) @ np.arange(12) / total)[small]
    down = (light.sum(2) @ np.arange(12) / total)[small]
    for middle in (across, down):
      assert np.abs(middle - 5.5).max() < 1.1
      assert middle.std() == pytest.approx(3**-0.5, rel=0.2)
  noisy = own('data', 'rings')(noise=0.6)[0]
  assert np.abs(noisy / 255 - train_x / 255).mean() > 0.1


def test_power_law_by_hand():
  # 100 examples, 4 clients of at least 5: 80 to deal by 1, 1/2, 1/3, 1/4 of 25/12:
  # up to 38.4, 57.6, 70.4, 80, rounded 38, 58, 70, 80.
  deal = own('partition', 'power_law')
  split = deal(np.zeros(100, int), num_clients=4, min_size=5, seed=0, exponent=1.0)
  assert split.sizes.tolist() == [43, 25, 17, 15]
  assert sorted(split.indices) == list(range(100))
  equal = deal(np.zeros(100, int), num_clients=4, min_size=5, seed=0, exponent=0.0)
  assert equal.sizes.tolist() == [25] * 4


def test_quarter_turns_turn_each_image_by_itself():
  own('augmentation', 'quarter_turns')
  turn = augmenter('quarter_turns')
  images = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3, 1)
  rows = jnp.array([1, 0] * 40, jnp.int32)
  turned = np.asarray(turn(jax.random.key(0), jnp.asarray(images), rows))
  seen = set()
  for row, image in zip(rows, turned, strict=True):
    same = [np.array_equal(np.rot90(images[row], k), image) for k in range(4)]
    assert sum(same) == 1
    seen.add((int(row), same.index(True)))
  assert len(seen) == 8
