"""CNNs of two 5x5 convolutions: the MOON paper's, and DCO-MOON's.

The sides of the images are multiples of 4, at least 16.
"""

import flax.linen as nn

from moon_jax.core.types import Outputs
from moon_jax.models import layers


class _Cnn(nn.Module):
  """The fields that both CNNs have.

  Attributes:
    num_classes: Y.
    convolution: a name for `convolution.choose`.
    norm: normalisation after each convolution: 'none', 'batch', or 'group', which
      normalises each example by itself.
  """

  num_classes: int
  convolution: str
  norm: str = 'none'


class MoonCnn(_Cnn):
  """Two 5x5 convolutions, two dense layers, projection head, classifier.

  (Li et al. 2021, section 4.1, arXiv:2103.16257.) 92,626 parameters for 32x32x3 images
  and 10 classes.

  It is also MOONFlower's network, `tutorial_cnn`: the CNN of PyTorch's CIFAR-10
  tutorial (the same four layers) with a two-layer projection head of 256 outputs. The
  report leaves the width of that head's hidden layer open; with MOON's 84, which we
  take, the two are one network.

  Attributes:
    head: 'mlp'; or 'none', the classifier on the 84 features, which is the CNN of
      NIID-Bench (Li et al. 2022, arXiv:2102.02079).
    head_width: units of the head's hidden layer.
    representation: D; without a head 84.
  """

  head: str = 'mlp'
  head_width: int = 84
  representation: int = 256

  @nn.compact
  def __call__(self, images, mask=None):
    """Maps images to Outputs.

    Args:
      images: [B, H, W, C] float32.
      mask: [B] 1.0 for a real example in training; None in evaluation.
    """
    x = layers.pooled_convolutions(
      images, (6, 16), self.convolution, norm=self.norm, mask=mask
    )
    x = nn.relu(layers.dense(x, 120, 'fc1'))
    x = nn.relu(layers.dense(x, 84, 'fc2'))
    head_width = self.head_width if self.head == 'mlp' else 0
    return layers.head_and_classifier(
      x, head_width, self.representation, self.num_classes
    )


class DcoCnn(_Cnn):
  """Two 5x5 convolutions and two dense layers, the last one also the projection head.

  So the representation is the logits. It has 878,538 parameters for 32x32x3 images and
  10 classes, 582,026 for 28x28x1.
  """

  @nn.compact
  def __call__(self, images, mask=None):
    """[B, H, W, C] float32 -> Outputs, D = Y; the mask as in `MoonCnn`."""
    x = layers.pooled_convolutions(
      images, (32, 64), self.convolution, norm=self.norm, mask=mask
    )
    x = nn.relu(layers.dense(x, 512, 'fc1'))
    logits = layers.dense(x, self.num_classes, 'fc2')
    return Outputs(representation=logits, logits=logits, features=x)
