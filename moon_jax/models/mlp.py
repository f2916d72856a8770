"""A small perceptron with MOON's projection head, for images of any size."""

import flax.linen as nn

from moon_jax.models import layers


class Mlp(nn.Module):
  """Flatten, one hidden layer, projection head, classifier on the representation.

  Attributes:
    num_classes: Y.
    width: units of each hidden layer.
    representation: D.
  """

  num_classes: int
  width: int
  representation: int

  @nn.compact
  def __call__(self, images, mask=None):
    """[B, H, W, C] float32 -> Outputs; the same in training."""
    x = images.reshape(images.shape[0], -1)
    x = nn.relu(layers.dense(x, self.width, 'encoder'))
    return layers.head_and_classifier(
      x, self.width, self.representation, self.num_classes
    )
