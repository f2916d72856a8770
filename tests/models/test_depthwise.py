"""3x3 convolutions of each channel by itself in C++, against JAX's in float64."""

import shutil

import jax
import numpy as np
import pytest

from moon_jax.models import convolution, cpu_kernels, layers
from moon_jax.models.convolution import depthwise
from tests.selection import few

# Less than a vector, vectors, vectors and single numbers; sides of one pixel.
SHAPES = [(2, 1, 1, 3), (2, 4, 4, 16), (3, 5, 6, 37), (1, 9, 2, 32)]


@pytest.fixture(autouse=True)
def a_compiler():
  if not shutil.which('c++'):
    pytest.skip('there is no C++ compiler c++')
  assert not cpu_kernels.fault()


def arrays(shape, stride):
  """Images, a kernel and the gradient of the outputs."""
  rng = np.random.default_rng(0)
  batch, height, width, channels = shape
  outputs = (batch, -(-height // stride), -(-width // stride), channels)
  return [
    np.float32(rng.normal(size=sides))
    for sides in (shape, (3, 3, 1, channels), outputs)
  ]


def reference(x, kernel, stride):
  return jax.lax.conv_general_dilated(
    x,
    kernel,
    (stride, stride),
    ((1, 1), (1, 1)),
    dimension_numbers=('NHWC', 'HWIO', 'NHWC'),
    feature_group_count=x.shape[-1],
  )


@pytest.mark.parametrize('shape', SHAPES)
@pytest.mark.parametrize('stride', few([1, 2], [3]))
def test_outputs_and_gradients_equal_the_librarys(shape, stride):
  x, kernel, gradient = arrays(shape, stride)
  y, pull = jax.vjp(lambda x, k: depthwise.convolve(x, k, stride), x, kernel)
  with jax.enable_x64(True):
    expected, expected_pull = jax.vjp(
      lambda x, k: reference(x, k, stride), np.float64(x), np.float64(kernel)
    )
    expected_gradients = expected_pull(np.float64(gradient))
  for actual, exact in zip(
    (y, *pull(gradient)), (expected, *expected_gradients), strict=True
  ):
    assert actual.shape == exact.shape
    np.testing.assert_allclose(actual, exact, rtol=0, atol=3e-5)


def test_bits_do_not_depend_on_lanes():
  x, kernel, gradient = arrays((2, 5, 5, 21), 1)
  images = np.stack([x, 2 * x, x[::-1]])

  def step(x, kernel):
    y, pull = jax.vjp(lambda x, k: depthwise.convolve(x, k, 1), x, kernel)
    return y, pull(gradient)

  lanes = jax.jit(jax.vmap(step, (0, None)))(images, kernel)
  for i, image in enumerate(images):
    alone = jax.jit(step)(image, kernel)
    for leaf, leaf_of_lanes in zip(
      jax.tree.leaves(alone), jax.tree.leaves(lanes), strict=True
    ):
      np.testing.assert_array_equal(leaf_of_lanes[i], leaf)


@pytest.mark.parametrize('stride', [1, 2])
def test_a_layer_without_a_compiler_has_the_same_numbers(monkeypatch, stride):
  x, kernel, _ = arrays((2, 6, 6, 20), stride)
  layer = layers.Depthwise(convolution.FORMS['winograd'], stride)

  def apply(x):
    return layer.apply({'params': {'kernel': kernel}}, x)

  assert 'ffi_call' in str(jax.make_jaxpr(apply)(x))
  ours = apply(x)
  monkeypatch.setattr(cpu_kernels, 'fault', lambda: 'there is none')
  assert 'ffi_call' not in str(jax.make_jaxpr(lambda x: apply(x))(x))
  np.testing.assert_allclose(ours, apply(x), rtol=0, atol=1e-5)
