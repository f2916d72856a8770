"""The CNN of the MOON paper (Li et al. 2021, section 4.1, arXiv:2103.16257)."""

import flax.linen as nn

from moon_jax.models import layers
from moon_jax.types import Outputs


class MoonCnn(nn.Module):
  """Two 5x5 convolutions, two dense layers, projection head, classifier.

  92,626 parameters for 32x32x3 images and 10 classes.

  It is also MOONFlower's network, `tutorial_cnn`: the CNN of PyTorch's CIFAR-10
  tutorial (the same four layers) with a two-layer projection head of 256 outputs. The
  report leaves the width of that head's hidden layer open; with MOON's 84, which we
  take, the two are one network.

  Attributes:
    num_classes: Y.
    convolution: a key of convolution.CHOICES.
  """

  num_classes: int
  convolution: str

  SIDES = (28, 32)

  @nn.compact
  def __call__(self, images, mask=None):
    """[B, H, W, C] float32 -> Outputs, D = 256; the same in training."""
    x = layers.pooled_convolutions(images, (6, 16), self.convolution)
    x = nn.relu(layers.dense(x, 120, 'fc1'))
    x = nn.relu(layers.dense(x, 84, 'fc2'))
    z = layers.head(x, 84, 256)
    return Outputs(z, layers.dense(z, self.num_classes, 'classifier'), x)
