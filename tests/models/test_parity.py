"""The networks compute what PyTorch's layers compute: tests/golden/make_golden.py.

In float64, so that a difference is one of formula and not of rounding.
"""

import pathlib

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moon_jax.models import cnn_transformer, mobilenet, resnet
from moon_jax.models.cnn import DcoCnn, MoonCnn
from tests.golden import seeded
from tests.selection import few

FOLDER = pathlib.Path(__file__).parents[1] / 'golden'


def network(module, **options):
  return module(num_classes=10, convolution='library', **options)


STAGES = ((1, 16, 2, 1), (6, 24, 1, 2))
CASES = {
  'moon_cnn': (network(MoonCnn), (3, 32, 32, 3)),
  'dco_cnn': (network(DcoCnn), (3, 28, 28, 1)),
  'cnn_transformer': (
    network(
      cnn_transformer.CnnTransformer, layers=1, heads=8, feedforward=64, dropout=0.0
    ),
    (3, 16, 16, 3),
  ),
  'resnet18': (network(resnet.resnet18), (3, 16, 16, 3)),
  'bottlenecks': (
    network(resnet.ResNet, blocks=(2, 1), bottleneck=True),
    (3, 16, 16, 3),
  ),
  'moon_cnn_64': (network(MoonCnn, head='none'), (2, 64, 64, 3)),
  'grouped': (
    network(resnet.ResNet, blocks=(2, 1), bottleneck=True, norm='group', head='none'),
    (3, 16, 16, 3),
  ),
  'moon_cnn_batch': (network(MoonCnn, norm='batch'), (3, 32, 32, 3)),
  'dco_cnn_group': (network(DcoCnn, norm='group'), (3, 16, 16, 1)),
  'mobilenet_v2': (network(mobilenet.MobileNetV2, stages=STAGES), (3, 8, 8, 3)),
}


def seeded_variables(module, shape):
  """The variables, with the numbers that make_golden.py gives PyTorch."""

  def fill(path, leaf):
    keys = [part.key for part in path[1:]]  # without 'params' or 'batch_stats'
    return seeded.leaf('/'.join(keys), leaf.shape)

  with jax.enable_x64(False):
    boxed = jax.eval_shape(module.init, jax.random.key(0), jnp.zeros(shape))
  return jax.tree_util.tree_map_with_path(fill, nn.unbox(boxed))


def by_path(tree):
  return flax.traverse_util.flatten_dict(tree, sep='/')


def representation_and_logits(outputs):
  """What PyTorch's modules return."""
  return outputs.representation, outputs.logits


def computed(module, shape):
  """What make_golden.golden returns, from JAX."""
  images = seeded.numbers('images', shape)
  variables = seeded_variables(module, shape)

  def loss(params, images, variables):
    outputs, state = module.apply(
      variables | {'params': params},
      images,
      jnp.ones(len(images)),
      mutable=['batch_stats'],
    )
    outputs = representation_and_logits(outputs)
    weights = [seeded.numbers(f'output {i}', o.shape) for i, o in enumerate(outputs)]
    total = sum(jnp.sum(o * w) for o, w in zip(outputs, weights, strict=True))
    return total, (outputs, state)

  @jax.jit
  def run(variables, images):
    differentiate = jax.grad(loss, (0, 1), has_aux=True)
    gradients, (outputs, state) = differentiate(variables['params'], images, variables)
    evaluated = representation_and_logits(module.apply(variables | state, images))
    return outputs, gradients, state, evaluated

  outputs, (gradients, of_images), state, evaluated = run(variables, images)
  arrays = {f'output/{i}': output for i, output in enumerate(outputs)}
  arrays |= {f'evaluated/{i}': output for i, output in enumerate(evaluated)}
  arrays['gradient/images'] = seeded.summary('images', of_images)
  for path, leaf in by_path(gradients).items():
    arrays[f'gradient/{path}'] = seeded.summary(path, leaf)
  for path, leaf in by_path(state.get('batch_stats', {})).items():
    arrays[f'state/{path}'] = seeded.summary(path, leaf)
  return arrays


# The dearest, and those whose layers another case has.
SLOW = ['resnet18', 'grouped', 'bottlenecks']
SLOW += ['dco_cnn', 'moon_cnn_64', 'moon_cnn_batch']
PLAIN = [name for name in CASES if name not in SLOW]


@pytest.mark.parametrize('name', few(PLAIN, SLOW))
def test_outputs_gradients_and_statistics_equal_pytorchs(name):
  module, shape = CASES[name]
  with jax.enable_x64(True):
    arrays = computed(module, shape)
  with np.load(FOLDER / f'{name}.npz') as file:
    golden = dict(file)
  assert arrays.keys() == golden.keys()
  for name_of_array, expected in golden.items():
    # A gradient may vanish (a bias before a normalisation) but for rounding: 1e-8.
    np.testing.assert_allclose(
      arrays[name_of_array],
      expected,
      rtol=1e-6,
      atol=1e-6 * np.abs(expected).max() + 1e-8,
      err_msg=name_of_array,
    )
