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
  """[C, H, W, B] -> [features, H', W', B] with a bias; pooling halves H' and W'.

  Attributes:
    features: output channels.
    size: side of the kernel.
    form: a key of convolution.FORMS; it does not change the values.
    stride: of the window, in both directions.
    padding: 'VALID', or 'SAME' as in TensorFlow: H' = ceil(H / stride).
    pool: whether to keep only the largest of each 2x2 outputs.
  """

  features: int
  size: int
  form: str
  stride: int = 1
  padding: str = 'VALID'
  pool: bool = False

  @nn.compact
  def __call__(self, x):
    channels, height, width, _ = x.shape
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
    y = convolve(x, kernel, stride=self.stride, padding=padding, pool=self.pool)
    # The maximum of sums is the sum of the maximum, on a quarter of the pixels.
    return y + bias.reshape(-1, 1, 1, 1)


def batch_last(images: jax.Array) -> jax.Array:
  """[B, H, W, C] -> [C, H, W, B], the layout of the convolutions."""
  return images.transpose(3, 1, 2, 0)


def flatten(x: jax.Array) -> jax.Array:
  """[C, H, W, B] -> [B, H * W * C]."""
  return x.transpose(3, 1, 2, 0).reshape(x.shape[3], -1)


def head(x: jax.Array, width: int, representation: int) -> jax.Array:
  """[B, inputs] -> [B, representation]: MOON's two-layer projection head."""
  return dense(nn.relu(dense(x, width, 'head_hidden')), representation, 'head_output')
