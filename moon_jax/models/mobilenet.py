"""MobileNetV2 (Sandler et al. 2018, arXiv:1801.04381), for small or large images.

For small images the layers are those of FedDecorr's code. The stem and the second stage
have stride 1 (for ImageNet 2), so that images of 32x32 end as 4x4. ReLU replaces ReLU6.
A block of stride 1 whose channels change has a 1x1 convolution with batch normalisation
in the shortcut, where the paper has none. There is no projection head: the 1,280
numbers before the classifier are the representation. Initial weights are PyTorch's
default.

Torchvision's network is that of the paper: the two strides are 2, ReLU6, no convolution
in a shortcut and none that expands 32 channels to 32, dropout before the classifier.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from moon_jax.core.types import Outputs
from moon_jax.models import convolution, layers

# For each stage: expansion, channels, blocks, stride of its first block.
STAGES = (
  (1, 16, 1, 1),
  (6, 24, 2, 1),
  (6, 32, 3, 2),
  (6, 64, 4, 2),
  (6, 96, 3, 1),
  (6, 160, 3, 2),
  (6, 320, 1, 1),
)
# Only the second stage differs, by its stride.
TORCHVISION_STAGES = (STAGES[0], (6, 24, 2, 2), *STAGES[2:])
DROPOUT = 0.2  # torchvision's, before the classifier


class _ConvNorm(nn.Module):
  """A convolution without bias, then batch normalisation, and ReLU if there is one.

  Attributes:
    features: output channels; 0: one 3x3 kernel for each input channel.
    size: side of the kernel.
    form: form of the convolution.
    stride: stride of the window, in both directions.
    relu: whether negative outputs become 0.
  """

  features: int
  size: int
  form: convolution.Form
  stride: int = 1
  relu: bool = True

  @nn.compact
  def __call__(self, x, mask):
    if self.features:
      conv = layers.Conv(
        self.features,
        self.size,
        self.form,
        stride=self.stride,
        padding=self.size // 2,
        use_bias=False,
        name='conv',
      )
      x = conv(x)
    else:
      x = layers.Depthwise(self.form, self.stride, name='conv')(x)
    return layers.BatchNorm(self.form.channels, self.relu, name='norm')(x, mask)


def capped(x: jax.Array, is_torchvisions: bool) -> jax.Array:
  """The outputs of a ReLU; for torchvision's network those of ReLU6."""
  return jnp.minimum(x, 6) if is_torchvisions else x


class _Block(nn.Module):
  """1x1 to more channels, depthwise 3x3, 1x1 to fewer; at stride 1 added to the input.

  Attributes:
    expansion: factor of the number of channels between.
    features: output channels.
    stride: stride of the depthwise convolution.
    form: form of the other convolutions.
    is_torchvisions: whether it is torchvision's block.
  """

  expansion: int
  features: int
  stride: int
  form: convolution.Form
  is_torchvisions: bool = False

  @nn.compact
  def __call__(self, x, mask):
    channels, form = x.shape[self.form.channels], self.form
    y = x
    if self.expansion > 1 or not self.is_torchvisions:
      y = _ConvNorm(self.expansion * channels, 1, form, name='conv1')(y, mask)
      y = capped(y, self.is_torchvisions)
    y = capped(
      _ConvNorm(0, 3, form, self.stride, name='conv2')(y, mask), self.is_torchvisions
    )
    y = _ConvNorm(self.features, 1, form, relu=False, name='conv3')(y, mask)
    if self.stride > 1:
      return y
    if channels != self.features:
      if self.is_torchvisions:
        return y
      x = _ConvNorm(self.features, 1, form, relu=False, name='shortcut')(x, mask)
    return x + y


class MobileNetV2(nn.Module):
  """Stem, seven stages, 1x1 convolution, mean over pixels, classifier.

  2,296,922 parameters for RGB images and 10 classes.

  Attributes:
    num_classes: Y.
    convolution: a name for `convolution.choose`.
    design: 'small', or 'torchvision'.
    stages: see STAGES; () for those of the design.
  """

  num_classes: int
  convolution: str
  design: str = 'small'
  stages: tuple[tuple[int, int, int, int], ...] = ()

  @nn.compact
  def __call__(self, images, mask=None):
    """Maps images to Outputs, D = 1280.

    Args:
      images: [B, H, W, C] float32.
      mask: [B] 1.0 for a real example in training; None in evaluation.
    """
    is_torchvisions = self.design == 'torchvision'
    stages = self.stages or (TORCHVISION_STAGES if is_torchvisions else STAGES)
    form = convolution.choose(self.convolution, size=3, features=32)
    stem = _ConvNorm(32, 3, form, stride=2 if is_torchvisions else 1, name='stem')
    x = capped(stem(form.arranged(images), mask), is_torchvisions)
    for stage, (expansion, features, num_blocks, stage_stride) in enumerate(stages):
      for index in range(num_blocks):
        stride = stage_stride if index == 0 else 1
        name = f'stage{stage + 1}_block{index + 1}'
        block = _Block(expansion, features, stride, form, is_torchvisions, name=name)
        x = block(x, mask)
    x = capped(_ConvNorm(1280, 1, form, name='last')(x, mask), is_torchvisions)
    x = form.arranged(x.mean(axis=(1, 2)))
    kept = x
    if is_torchvisions:
      kept = layers.Dropout(DROPOUT)(x, deterministic=mask is None)
    logits = layers.dense(kept, self.num_classes, 'classifier')
    return Outputs(representation=x, logits=logits, features=x)
