"""A CNN of three convolutions in space, for volumes such as MedMNIST3D's."""

import itertools

import flax.linen as nn
import jax.numpy as jnp

from moon_jax.core.errors import UsageError
from moon_jax.models import layers


class Cnn3d(nn.Module):
  """Three 3x3x3 convolutions with pooling, a dense layer, head, classifier.

  Attributes:
    num_classes: Y.
    channels: output channels of the first convolution; the others have twice and four
      times as many.
    width: units of the dense layer and of the head's hidden layer.
    representation: D.
    norm: normalisation after each convolution, before the pooling: 'none', 'batch', or
      'group', which normalises each example by itself.
  """

  num_classes: int
  channels: int
  width: int
  representation: int
  norm: str = 'none'

  @nn.compact
  def __call__(self, volumes, mask=None):
    """Maps volumes to Outputs.

    Args:
      volumes: [B, D, H, W, C] float32, sides >= 8.
      mask: [B] 1.0 for a real example in training; None in evaluation.
    """
    if min(volumes.shape[1:4]) < 8:
      raise UsageError('each side of a volume must be at least 8')
    x = volumes
    for number, factor in enumerate((1, 2, 4), 1):
      features = factor * self.channels
      has_bias = self.norm == 'none'
      x = convolution(x, features, f'conv{number}', use_bias=has_bias)
      x = layers.normalised(x, self.norm, mask, f'norm{number}')
      x = nn.relu(pooled(x))
    x = x.reshape(len(x), -1)
    x = nn.relu(layers.dense(x, self.width, 'fc1'))
    return layers.head_and_classifier(
      x, self.width, self.representation, self.num_classes
    )


def convolution(x, features, name, *, use_bias=True):
  """[B, D, H, W, C] -> [B, D, H, W, features]: 3x3x3, zeros around the volume.

  As in `cnn_1d`, the 27 neighbours side by side are the inputs of a dense layer, whose
  kernel is [27 * C, features].
  """
  depth, height, width = x.shape[1:4]
  padded = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (1, 1), (0, 0)))
  neighbours = [
    padded[:, i : i + depth, j : j + height, k : k + width]
    for i, j, k in itertools.product(range(3), repeat=3)
  ]
  inputs = jnp.concatenate(neighbours, -1)
  return layers.dense(inputs, features, name, use_bias=use_bias)


def pooled(x):
  """[B, D, H, W, C] -> half of each side: the largest of 2x2x2, without odd ends."""
  for axis in (1, 2, 3):
    half = x.shape[axis] // 2
    pairs = jnp.moveaxis(x, axis, 0)[: 2 * half]
    x = jnp.moveaxis(jnp.maximum(pairs[::2], pairs[1::2]), 0, axis)
  return x
