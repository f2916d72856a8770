"""A CNN of two convolutions over time, for signals such as those of a watch.

Two convolutions, each with max-pooling, then dense layers, are the usual network for
recognising activities from sensors (Wang et al. 2019, arXiv:1707.03502, section 3.2).
"""

import flax.linen as nn
import jax.numpy as jnp

from moon_jax.core.errors import UsageError
from moon_jax.models import layers


class Cnn1d(nn.Module):
  """Two convolutions with pooling, a dense layer, projection head, classifier.

  Attributes:
    num_classes: Y.
    channels: output channels of the first convolution; the second has twice as many.
    kernel: steps that a convolution sees, an odd number.
    width: units of the dense layer and of the head's hidden layer.
    representation: D.
    norm: normalisation after each convolution, before the pooling: 'none', 'batch', or
      'group', which normalises each example by itself.
  """

  num_classes: int
  channels: int
  kernel: int
  width: int
  representation: int
  norm: str = 'none'

  @nn.compact
  def __call__(self, signals, mask=None):
    """Maps signals to Outputs.

    Args:
      signals: [B, T, C] float32, T >= 4.
      mask: [B] 1.0 for a real example in training; None in evaluation.
    """
    if signals.shape[1] < 4:
      raise UsageError('a signal needs at least 4 steps')
    x = signals
    for number in (1, 2):
      features = number * self.channels
      has_bias = self.norm == 'none'
      x = convolution(x, features, self.kernel, f'conv{number}', use_bias=has_bias)
      x = layers.normalised(x, self.norm, mask, f'norm{number}')
      x = nn.relu(pooled(x))
    x = x.reshape(len(x), -1)
    x = nn.relu(layers.dense(x, self.width, 'fc1'))
    return layers.head_and_classifier(
      x, self.width, self.representation, self.num_classes
    )


def convolution(x, features, size, name, *, use_bias=True):
  """[B, T, C] -> [B, T, features]; zeros around the signal keep its length.

  The steps of a window side by side are the inputs of a dense layer: its kernel is
  [size * C, features]. Unlike a convolution of XLA's it stays a product if each lane
  has weights of its own.
  """
  steps = x.shape[1]
  padded = jnp.pad(x, ((0, 0), (size // 2, size // 2), (0, 0)))
  windows = [padded[:, first : first + steps] for first in range(size)]
  inputs = jnp.concatenate(windows, -1)
  return layers.dense(inputs, features, name, use_bias=use_bias)


def pooled(x):
  """[B, T, C] -> [B, T // 2, C], the larger of two steps, without an odd last one."""
  half = x.shape[1] // 2
  return jnp.maximum(x[:, : 2 * half : 2], x[:, 1 : 2 * half : 2])
