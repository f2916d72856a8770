"""Products of matrices in C++, against NumPy in float64."""

import functools
import itertools
import os
import shutil
import subprocess
import sys

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moon_jax.models import cpu_kernels, layers, products
from moon_jax.models.convolution import direct
from tests.selection import few

# m, n, k: one number; none; of less than a tile, of a tile and of several; sums in one
# part and in several; more rows and columns than are copied at a time.
SHAPES = [
  (1, 1, 1),
  (0, 3, 2),
  (3, 2, 0),
  (5, 7, 3),
  (14, 32, 16),
  (15, 33, 17),
  (29, 16, 257),
  (127, 300, 40),
  (253, 257, 600),
]
DEVICES_AT_ONCE = """
import jax, numpy as np
from moon_jax.models import products
rng = np.random.default_rng(0)
x, kernel = (np.float32(rng.normal(size=s)) for s in ((2, 64, 400), (2, 400, 120)))
alone = [np.asarray(jax.jit(products.affine)(*pair)) for pair in zip(x, kernel)]
mesh = jax.make_mesh((2,), ('devices',))
spread = [
  jax.device_put(a, jax.NamedSharding(mesh, jax.P('devices'))) for a in (x, kernel)
]
per_device = jax.jit(jax.shard_map(
  jax.vmap(products.affine), mesh=mesh, in_specs=jax.P('devices'),
  out_specs=jax.P('devices'),
))
for _ in range(20):
  np.testing.assert_array_equal(per_device(*spread), alone)
"""


@pytest.fixture(autouse=True)
def always_ours(monkeypatch):
  """Every shape is computed by our kernel."""
  if not shutil.which('c++'):
    pytest.skip('there is no C++ compiler c++')
  assert not cpu_kernels.fault()
  monkeypatch.setattr(products, '_is_faster', lambda m, n, k: True)


def normal(*shape, seed=0):
  return np.float32(np.random.default_rng(seed).normal(size=shape))


def assert_near(actual, exact, terms):
  """Within the rounding errors of a sum of so many terms."""
  assert actual.shape == exact.shape
  np.testing.assert_allclose(actual, exact, rtol=0, atol=1e-6 * (terms + 1) ** 0.5 * 6)


TRANSPOSED = [(0, 1), (1, 0), (1, 1)]
EMPTY = [shape for shape in SHAPES if 0 in shape]
PLAIN = [
  *((shape, (0, 0)) for shape in SHAPES),
  *zip(SHAPES[-3:], TRANSPOSED, strict=True),
]
PLAIN += itertools.product(EMPTY, TRANSPOSED)


@pytest.mark.parametrize(
  ('shape', 'transposed'), few(PLAIN, itertools.product(SHAPES, TRANSPOSED))
)
def test_a_product_of_odd_sizes_and_transposed_factors(shape, transposed):
  m, n, k = shape
  a, b = normal(m, k), normal(k, n, seed=1)
  factors = [
    np.ascontiguousarray(x.T) if turned else x
    for x, turned in zip((a, b), transposed, strict=True)
  ]
  transpose_a, transpose_b = map(bool, transposed)
  product = jax.jit(
    functools.partial(
      products.product, transpose_a=transpose_a, transpose_b=transpose_b
    )
  )
  assert_near(product(factors[0], factors[1]), np.float64(a) @ np.float64(b), k)


@pytest.mark.parametrize('rows', [3, 70])  # fewer and more than the inputs
def test_gradients_of_a_dense_layer(rows):
  x, kernel, gradient = normal(rows, 40), normal(40, 33), normal(rows, 33, seed=2)
  y, pull = jax.vjp(products.affine, x, kernel)
  assert_near(y, np.float64(x) @ kernel, 40)
  of_x, of_kernel = pull(gradient)
  assert_near(of_x, np.float64(gradient) @ kernel.T, 33)
  assert_near(of_kernel, np.float64(x).T @ gradient, rows)


def trained(x, kernel, gradients):
  """A kernel after some steps, in a scan, and the outputs of each step."""

  def step(kernel, gradient):
    y, pull = jax.vjp(products.affine, x, kernel)
    return kernel - 0.01 * pull(y * gradient)[1], y

  return jax.lax.scan(step, kernel, gradients)


def test_bits_depend_neither_on_lanes_nor_on_what_is_common_to_them():
  x, kernels = normal(10, 20, 37), normal(10, 37, 45)
  gradients = normal(10, 3, 20, 45)
  run = jax.jit(jax.vmap(trained))
  ten = run(x, kernels, gradients)
  for lanes in (1, 3):
    few = run(x[:lanes], kernels[:lanes], gradients[:lanes])
    for all_lanes, first_lanes in zip(ten, few, strict=True):
      np.testing.assert_array_equal(all_lanes[:lanes], first_lanes)
  in_two_axes = jax.jit(jax.vmap(jax.vmap(products.affine, (0, None)), (None, 0)))
  common = in_two_axes(x[:2], kernels[:3])
  assert common.shape == (3, 2, 20, 45)
  for i, kernel in enumerate(kernels[:3]):
    for j, images in enumerate(x[:2]):
      alone = jax.jit(products.affine)(images, kernel)
      np.testing.assert_array_equal(common[i, j], alone)


def test_a_donated_kernel_is_not_read_after_it_is_written():
  x, kernel = normal(20, 37), normal(37, 37)
  run = jax.jit(
    lambda x, kernel: kernel + products.affine(kernel, kernel).sum() * x[0, 0]
  )
  expected = run(x, kernel)
  donating = jax.jit(
    lambda x, kernel: kernel + products.affine(kernel, kernel).sum() * x[0, 0],
    donate_argnums=1,
  )
  np.testing.assert_array_equal(donating(x, jnp.array(kernel)), expected)


def test_what_is_no_number_stays_in_its_row():
  x, kernel = normal(20, 37), normal(37, 45)
  x[3, 36] = np.nan
  y = np.asarray(products.affine(x, kernel))
  assert np.isnan(y[3]).all()
  assert np.isfinite(np.delete(y, 3, axis=0)).all()


def test_the_place_in_memory_changes_no_bit():
  matrices = normal(5, 30, 31)  # 30 * 31 numbers: no multiple of a vector
  alike = np.repeat(matrices[:1], 5, axis=0)
  y = np.asarray(jax.jit(products.product)(alike, np.swapaxes(alike, 1, 2)))
  for matrix in y[1:]:
    np.testing.assert_array_equal(matrix, y[0])


@pytest.mark.slow
def test_two_devices_at_once_compute_the_same_bits():
  environment = os.environ | {
    'XLA_FLAGS': '--xla_force_host_platform_device_count=2',
    'JAX_PLATFORMS': 'cpu',
  }
  subprocess.run([sys.executable, '-c', DEVICES_AT_ONCE], env=environment, check=True)


def test_without_a_compiler_xla_computes_it(monkeypatch):
  x, kernel = normal(40, 50), normal(50, 60)
  ours = products.affine(x, kernel)
  monkeypatch.setattr(cpu_kernels, 'fault', lambda: 'there is none')
  assert 'ffi_call' not in str(jax.make_jaxpr(products.affine)(x, kernel))
  np.testing.assert_allclose(products.affine(x, kernel), ours, rtol=0, atol=1e-4)


@pytest.mark.parametrize(('inputs', 'is_ours'), [(511, False), (512, True)])
def test_only_large_layers_are_ours(inputs, is_ours):
  class Dense(nn.Module):
    @nn.compact
    def __call__(self, x):
      return layers.dense(x, 128, 'dense')

  x, params = normal(40, inputs), {'kernel': normal(inputs, 128), 'bias': normal(128)}
  apply = jax.make_jaxpr(lambda x: Dense().apply({'params': {'dense': params}}, x))
  assert ('ffi_call' in str(apply(x))) == is_ours


@pytest.mark.parametrize(
  ('stride', 'zeros', 'is_ours'), [(1, 0, 1), (2, 0, 0), (1, 1, 0)]
)
def test_convolutions_of_single_pixels_are_products(stride, zeros, is_ours):
  x, kernel = normal(2, 5, 6, 17), normal(1, 1, 17, 20, seed=1)
  padding = ((zeros, zeros), (zeros, zeros))

  def convolve(x, kernel):
    return direct.convolve(x, kernel, stride, padding)

  assert ('ffi_call' in str(jax.make_jaxpr(convolve)(x, kernel))) == is_ours
  y, pull = jax.vjp(convolve, x, kernel)
  gradient = y + normal(20, seed=2)[None, None, None]
  expected, expected_pull = jax.vjp(
    lambda x, kernel: jax.lax.conv_general_dilated(
      x,
      kernel,
      (stride, stride),
      padding,
      dimension_numbers=('NHWC', 'HWIO', 'NHWC'),
    ),
    x,
    kernel,
  )
  for ours, librarys in zip(
    (y, *pull(gradient)), (expected, *expected_pull(gradient)), strict=True
  ):
    np.testing.assert_allclose(ours, librarys, rtol=0, atol=1e-4)
