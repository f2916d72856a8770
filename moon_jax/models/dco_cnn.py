"""The CNN of DCO-MOON: its representation is its logits."""

import flax.linen as nn

from moon_jax.models import layers
from moon_jax.types import Outputs


class DcoCnn(nn.Module):
  """Two 5x5 convolutions and two dense layers, the last one also the projection head.

  878,538 parameters for 32x32x3 images and 10 classes, 582,026 for 28x28x1.

  Attributes:
    num_classes: Y.
    convolution: a key of convolution.CHOICES.
  """

  num_classes: int
  convolution: str

  SIDES = (28, 32)

  @nn.compact
  def __call__(self, images, mask=None):
    """[B, H, W, C] float32 -> Outputs, D = Y; the same in training."""
    x = layers.pooled_convolutions(images, (32, 64), self.convolution)
    x = nn.relu(layers.dense(x, 512, 'fc1'))
    logits = layers.dense(x, self.num_classes, 'fc2')
    return Outputs(logits, logits, x)
