"""Batch normalisation for a CPU, with or without ReLU: one call forward, one backward.

batch_norm.cc has the arithmetic, in float32; it computes one lane after the other, so
the bits depend neither on lanes nor on devices.
"""

import functools

import jax
import jax.numpy as jnp

from moon_jax.models import cpu_kernels


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def normalise(
  x: jax.Array, mask: jax.Array, scale: jax.Array, bias: jax.Array, relu: bool
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """scale * (x - mean) / sqrt(var + 1e-5) + bias, of the real examples' statistics.

  Args:
    x: [B, H, W, C] float32.
    mask: [B] float32, 1.0 for a real example, 0.0 for filler.
    scale: [C] float32.
    bias: [C] float32.
    relu: whether negative outputs become 0.

  Returns:
    The outputs, as x, also of filler; [C] mean and [C] biased variance, 0 if no example
    is real.

  Raises:
    RuntimeError: there is a `cpu_kernels.fault`.
  """
  outputs, _ = _forward(x, mask, scale, bias, relu)
  return outputs


def _forward(x, mask, scale, bias, relu):
  per_channel = jax.ShapeDtypeStruct(scale.shape, jnp.float32)
  results = (jax.ShapeDtypeStruct(x.shape, jnp.float32), per_channel, per_channel)
  y, mean, variance = cpu_kernels.call(
    'batch_norm',
    results,
    x,
    mask,
    scale,
    bias,
    vmap_method='broadcast_all',
    relu=[relu],
  )
  return (y, mean, variance), (x, mask, mean, variance, scale, bias)


def _backward(relu, saved, gradients):
  x, mask, mean, variance, scale, bias = saved
  y_gradient, mean_gradient, variance_gradient = gradients
  per_channel = jax.ShapeDtypeStruct(scale.shape, jnp.float32)
  results = (jax.ShapeDtypeStruct(x.shape, jnp.float32), per_channel, per_channel)
  x_gradient, scale_gradient, bias_gradient = cpu_kernels.call(
    'of_batch_norm',
    results,
    x,
    mask,
    mean,
    variance,
    scale,
    bias,
    y_gradient,
    mean_gradient,
    variance_gradient,
    vmap_method='broadcast_all',
    relu=[relu],
  )
  return x_gradient, jnp.zeros_like(mask), scale_gradient, bias_gradient


normalise.defvjp(_forward, _backward)
