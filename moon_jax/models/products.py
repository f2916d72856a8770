"""Products of matrices for a CPU: those of large dense layers and 1x1 convolutions.

products.cc has the arithmetic, in float32, on the thread that calls it. It takes the
place of XLA's products where docs/performance.md finds it faster. Each product is
computed by itself, whatever else is in the batch, so its bits depend neither on lanes
nor on devices.
"""

import jax
import jax.numpy as jnp

from moon_jax.models import cpu_kernels

LEAST_WEIGHTS = 2**16


def are_for(x: jax.Array, features: int) -> bool:
  """Whether a dense layer has these products: a large one, in float32, on a CPU.

  A small layer, such as those of `moon_cnn`, gains nothing and needs no compiler. A GPU
  has the program that it had.

  Args:
    x: [..., inputs].
    features: number of outputs.
  """
  is_large = x.shape[-1] * features >= LEAST_WEIGHTS
  return is_large and x.dtype == jnp.float32 and jax.default_backend() == 'cpu'


def product(
  a: jax.Array,
  b: jax.Array,
  *,
  transpose_a: bool = False,
  transpose_b: bool = False,
) -> jax.Array:
  """a b, by the faster of two forms. It has no gradient of its own; see `affine`.

  Args:
    a: [..., m, k] float32, or with `transpose_a` [..., k, m].
    b: [..., k, n] float32, or with `transpose_b` [..., n, k]; the same leading axes.
    transpose_a: whether a's last two axes change places.
    transpose_b: whether b's last two axes change places.

  Returns:
    [..., m, n], sums over k.
  """
  k, m = a.shape[-2:] if transpose_a else a.shape[:-3:-1]
  n = b.shape[-2] if transpose_b else b.shape[-1]
  if _is_faster(m, n, k) and not cpu_kernels.fault():
    shape = jax.ShapeDtypeStruct((*a.shape[:-2], m, n), jnp.float32)
    return cpu_kernels.call(
      'product',
      shape,
      a,
      b,
      vmap_method='expand_dims',
      transposed=(transpose_a, transpose_b),
    )
  of_a, of_b = 'km' if transpose_a else 'mk', 'nk' if transpose_b else 'kn'
  return jnp.einsum(f'...{of_a},...{of_b}->...mn', a, b)


def _is_faster(m: int, n: int, k: int) -> bool:
  """Whether [m, k] [k, n] is faster by our kernel than by XLA's."""
  return min(m, n, k) >= 32 or (min(m, n, k) >= 16 and max(m, n, k) >= 2**13)


@jax.custom_vjp
def affine(x: jax.Array, kernel: jax.Array) -> jax.Array:
  """x kernel, with gradients g kernel' and x' g.

  Args:
    x: [N, inputs] float32.
    kernel: [inputs, features] float32.

  Returns:
    [N, features].
  """
  return product(x, kernel)


def _forward(x, kernel):
  return product(x, kernel), (x, kernel)


def _backward(saved, gradient):
  x, kernel = saved
  # g kernel' = (kernel g')', where the gradient and the product are transposed, or else
  # the kernel is. The bits are the same.
  if gradient.size + x.size < kernel.size:
    x_gradient = product(kernel, gradient, transpose_b=True).T
  else:
    x_gradient = product(gradient, kernel, transpose_b=True)
  # As [inputs, features]: JAX's gradient is [features, inputs], which the optimizer
  # would read with a stride.
  return x_gradient, product(x, gradient, transpose_a=True)


affine.defvjp(_forward, _backward)


def dot_general(x, kernel, dimensions, precision=None):
  """`affine` of [..., inputs], as `nn.Dense` calls it."""
  del dimensions, precision  # the last axis of x and the first of the kernel
  rows = affine(x.reshape(-1, len(kernel)), kernel)
  return rows.reshape((*x.shape[:-1], -1))
