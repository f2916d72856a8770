"""MobileNetV2 (Sandler et al. 2018, arXiv:1801.04381) for small images.

The layers are those of FedDecorr's code. The stem and the second stage have stride 1
(for ImageNet 2), so that images of 32x32 end as 4x4. ReLU replaces ReLU6. A block of
stride 1 whose channels change has a 1x1 convolution with batch normalisation in the
shortcut, where the paper has none. There is no projection head: the 1,280 numbers
before the classifier are the representation. Initial weights are PyTorch's default.
"""

import flax.linen as nn

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


class _ConvNorm(nn.Module):
  """A convolution without bias, then batch normalisation, and ReLU if there is one.

  Attributes:
    features: output channels; 0: one 3x3 kernel for each input channel.
    size: side of the kernel.
    form: form of the convolution.
    stride: stride of a depthwise convolution; the others have 1.
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
        padding=self.size // 2,
        use_bias=False,
        name='conv',
      )
      x = conv(x)
    else:
      x = layers.Depthwise(self.form, self.stride, name='conv')(x)
    return layers.BatchNorm(self.form.channels, self.relu, name='norm')(x, mask)


class _Block(nn.Module):
  """1x1 to more channels, depthwise 3x3, 1x1 to fewer; at stride 1 added to the input.

  Attributes:
    expansion: factor of the number of channels between.
    features: output channels.
    stride: stride of the depthwise convolution.
    form: form of the other convolutions.
  """

  expansion: int
  features: int
  stride: int
  form: convolution.Form

  @nn.compact
  def __call__(self, x, mask):
    channels, form = x.shape[self.form.channels], self.form
    y = _ConvNorm(self.expansion * channels, 1, form, name='conv1')(x, mask)
    y = _ConvNorm(0, 3, form, self.stride, name='conv2')(y, mask)
    y = _ConvNorm(self.features, 1, form, relu=False, name='conv3')(y, mask)
    if self.stride > 1:
      return y
    if channels != self.features:
      x = _ConvNorm(self.features, 1, form, relu=False, name='shortcut')(x, mask)
    return x + y


class MobileNetV2(nn.Module):
  """Stem, seven stages, 1x1 convolution, mean over pixels, classifier.

  2,296,922 parameters for RGB images and 10 classes.

  Attributes:
    num_classes: Y.
    convolution: a name for `convolution.choose`.
    stages: see STAGES.
  """

  num_classes: int
  convolution: str
  stages: tuple[tuple[int, int, int, int], ...] = STAGES

  @nn.compact
  def __call__(self, images, mask=None):
    """Maps images to Outputs, D = 1280.

    Args:
      images: [B, H, W, C] float32.
      mask: [B] 1.0 for a real example in training; None in evaluation.
    """
    form = convolution.choose(self.convolution, size=3, features=32)
    x = _ConvNorm(32, 3, form, name='stem')(form.arranged(images), mask)
    for stage, (expansion, features, num_blocks, stage_stride) in enumerate(
      self.stages
    ):
      for index in range(num_blocks):
        stride = stage_stride if index == 0 else 1
        name = f'stage{stage + 1}_block{index + 1}'
        x = _Block(expansion, features, stride, form, name=name)(x, mask)
    x = _ConvNorm(1280, 1, form, name='last')(x, mask)
    x = form.arranged(x.mean(axis=(1, 2)))
    return layers.outputs(
      x, head_width=0, representation=0, num_classes=self.num_classes
    )
