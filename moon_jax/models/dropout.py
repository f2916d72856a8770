"""Dropout for a CPU, in one pass forward and one back.

dropout.cc has the arithmetic. XLA's draws go through memory many times; these stay in
registers, and are the same, bit by bit, whatever the number of lanes.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from moon_jax.models import cpu_kernels


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def dropped(x: jax.Array, key_data: jax.Array, rate: float) -> jax.Array:
  """x / (1 - rate) where `jax.random.bernoulli(key, 1 - rate, x.shape)`, elsewhere 0.

  Args:
    x: float32 of any shape.
    key_data: [2] uint32, `jax.random.key_data` of a Threefry key.
    rate: probability that a number is dropped, in (0, 1).

  Raises:
    RuntimeError: there is a `cpu_kernels.fault`.
  """
  keep = np.float32(1.0 - rate)
  # A draw is a whole number below 2^23; JAX divides it by 2^23 and compares.
  bound = math.ceil(float(keep) * 2**23)
  # XLA multiplies by the reciprocal of a constant divisor.
  factor = np.float32(1.0) / keep
  y = cpu_kernels.call(
    'dropout',
    jax.ShapeDtypeStruct((x.size,), jnp.float32),
    x.reshape(-1),
    key_data,
    vmap_method='broadcast_all',
    bound_and_factor=(bound, int(factor.view(np.uint32))),
  )
  return y.reshape(x.shape)


def _forward(x, key_data, rate):
  return dropped(x, key_data, rate), key_data


def _backward(rate, key_data, gradient):
  return dropped(gradient, key_data, rate), None


dropped.defvjp(_forward, _backward)
