"""Layers that the networks share, initialised as in the papers' PyTorch code."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp

from moon_jax.models import convolution


def _uniform(fan_in: int):
  """U(-1/sqrt(fan_in), 1/sqrt(fan_in)): PyTorch's default for weights and biases."""
  limit = 1 / math.sqrt(fan_in)

  def init(key, shape, dtype=jnp.float32):
    return jax.random.uniform(key, shape, dtype, -limit, limit)

  return init


def dense(x: jax.Array, features: int, name: str) -> jax.Array:
  """[B, inputs] -> [B, features] affine map; call inside `nn.compact`."""
  init = _uniform(x.shape[-1])
  return nn.Dense(features, kernel_init=init, bias_init=init, name=name)(x)


class Conv(nn.Module):
  """[B, H, W, C] -> [B, H-size+1, W-size+1, features], as a matrix product.

  Attributes:
    features: output channels.
    size: side of the kernel.
  """

  features: int
  size: int

  @nn.compact
  def __call__(self, x):
    channels = x.shape[-1]
    init = _uniform(self.size * self.size * channels)
    shape = (self.size, self.size, channels, self.features)
    kernel = self.param('kernel', init, shape)
    bias = self.param('bias', init, (self.features,))
    return convolution.banded(x, kernel) + bias.reshape(1, 1, 1, -1)


def max_pool(x: jax.Array) -> jax.Array:
  """[B, H, W, C] -> [B, H/2, W/2, C]; H and W even.

  A reshape and a maximum: the gradient of `reduce_window` is several times slower on
  a CPU.
  """
  b, h, w, c = x.shape
  return x.reshape(b, h // 2, 2, w // 2, 2, c).max(axis=(2, 4))


def head(x: jax.Array, width: int, representation: int) -> jax.Array:
  """[B, inputs] -> [B, representation]: MOON's two-layer projection head."""
  return dense(nn.relu(dense(x, width, 'head_hidden')), representation, 'head_output')
