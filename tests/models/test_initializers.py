"""The first weights: their distributions by formula, and what each depends on."""

import jax
import numpy as np

from moon_jax import models

# U(-limit, limit) has the standard deviation limit / sqrt(3).
UNIFORM = 3**-0.5


def initial_variables(name, seed=0, **options):
  network = models.make(name, image_shape=(32, 32, 3), num_classes=10, **options)
  return network.init(seed)


def assert_uniform(leaf, limit, rtol=0.1):
  assert limit * 0.9 < np.abs(leaf).max() <= limit
  np.testing.assert_allclose(np.std(leaf), limit * UNIFORM, rtol=rtol)
  assert np.abs(np.mean(leaf)) < limit / 10


def test_mobilenets_depthwise_kernels_have_nine_inputs():
  block = initial_variables('mobilenet_v2')['params']['stage2_block1']
  assert_uniform(block['conv2']['conv']['kernel'], 1 / 3)


def test_kernels_and_biases_fill_pytorchs_range():
  params = initial_variables('moon_cnn')['params']
  # 5 * 5 * 3 inputs of the first convolution, and so on
  fans = {'conv1': 75, 'conv2': 150, 'fc1': 400, 'fc2': 120, 'head_hidden': 84}
  for layer, fan_in in fans.items():
    assert_uniform(params[layer]['kernel'], fan_in**-0.5)
    bias = np.asarray(params[layer]['bias'])
    assert np.abs(bias).max() <= fan_in**-0.5
    assert bias.std() > fan_in**-0.5 / 10


def test_resnets_weights_are_torchvisions():
  variables = initial_variables('resnet18')
  block = variables['params']['stage3_block1']
  # Normal with variance 2 / fan_out: 3x3 kernels, 256 channels out, 2 / (9 * 256).
  kernel, deviation = np.asarray(block['conv1']['conv']['kernel']), (2 / 2304) ** 0.5
  np.testing.assert_allclose(kernel.std(), deviation, rtol=0.01)
  assert np.abs(kernel.mean()) < deviation / 100
  assert np.abs(kernel).max() > 4 * deviation  # a uniform one ends at 1.7
  norm = block['conv1']['norm']
  statistics = variables['batch_stats']['stage3_block1']['conv1']['norm']
  for leaf in (norm['scale'], statistics['var']):
    np.testing.assert_array_equal(leaf, np.ones(256))
  for leaf in (norm['bias'], statistics['mean']):
    np.testing.assert_array_equal(leaf, np.zeros(256))
  assert_uniform(variables['params']['head_hidden']['kernel'], 512**-0.5, rtol=0.01)


def test_attentions_weights_are_those_of_pytorchs_layer():
  knobs = {'layers': 1, 'heads': 8, 'feedforward': 64, 'dropout': 0.1}
  layer = initial_variables('cnn_transformer', **knobs)['params']['encoder1']
  # Xavier for the three projections as one matrix: sqrt(6 / (256 + 768))
  assert_uniform(layer['qkv']['kernel'], (6 / 1024) ** 0.5, rtol=0.01)
  assert_uniform(layer['output']['kernel'], 256**-0.5, rtol=0.01)
  assert not np.any(layer['qkv']['bias'])
  assert not np.any(layer['output']['bias'])
  assert np.any(layer['linear1']['bias'])
  np.testing.assert_array_equal(layer['norm1']['scale'], np.ones(256))


def test_a_leaf_is_philoxs_stream_for_seed_purpose_and_path():
  entropy = np.random.SeedSequence([7, 0, *b'params/fc2/bias'])
  stream = np.random.Generator(np.random.Philox(entropy)).random(84, np.float32)
  limit = np.float32(120**-0.5)
  bias = initial_variables('moon_cnn', 7)['params']['fc2']['bias']
  np.testing.assert_allclose(bias, stream * 2 * limit - limit, atol=1e-7)


def test_the_stream_is_the_one_of_saved_runs():
  # The first numbers of seed 0 when this was written: a library may not change them.
  bias = initial_variables('moon_cnn')['params']['fc2']['bias']
  np.testing.assert_allclose(bias[:3], [-0.0213693, 0.027787, 0.0563801], atol=1e-7)


def test_what_is_drawn_has_the_shapes_that_were_told():
  network = models.make('resnet18', image_shape=(8, 8, 1), num_classes=3)
  drawn = jax.eval_shape(lambda variables: variables, network.init(0))
  assert drawn == network.shapes
  assert {leaf.dtype for leaf in jax.tree.leaves(drawn)} == {np.dtype(np.float32)}
