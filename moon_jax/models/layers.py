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
  """[B, H, W, C] -> [B, H', W', features] with a bias.

  Attributes:
    features: output channels.
    size: side of the kernel.
    form: a key of convolution.FORMS; it does not change the values.
    stride: of the window, in both directions.
    padding: 'VALID', or 'SAME' as in TensorFlow: H' = ceil(H / stride).
  """

  features: int
  size: int
  form: str
  stride: int = 1
  padding: str = 'VALID'

  @nn.compact
  def __call__(self, x):
    _, height, width, channels = x.shape
    init = _uniform(self.size * self.size * channels)
    shape = (self.size, self.size, channels, self.features)
    kernel = self.param('kernel', init, shape)
    bias = self.param('bias', init, (self.features,))
    if self.padding == 'SAME':
      padding = tuple(
        convolution.same_padding(side, self.size, self.stride)
        for side in (height, width)
      )
    else:
      padding = ((0, 0), (0, 0))
    convolve = convolution.FORMS[self.form]
    product = convolve(x, kernel, stride=self.stride, padding=padding)
    return product + bias.reshape(1, 1, 1, -1)


def max_pool(x: jax.Array) -> jax.Array:
  """[B, H, W, C] -> [B, H/2, W/2, C]; H and W even.

  A reshape and a maximum: the gradient of `reduce_window` is several times slower on a
  CPU. Pooling before the ReLU gives the same and leaves it a quarter of the work.
  """
  b, h, w, c = x.shape
  return x.reshape(b, h // 2, 2, w // 2, 2, c).max(axis=(2, 4))


def head(x: jax.Array, width: int, representation: int) -> jax.Array:
  """[B, inputs] -> [B, representation]: MOON's two-layer projection head."""
  return dense(nn.relu(dense(x, width, 'head_hidden')), representation, 'head_output')
