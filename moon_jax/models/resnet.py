"""ResNets (He et al. 2016, arXiv:1512.03385) with MOON's head.

The stem is one 3x3 convolution without pooling, for small images; or torchvision's, for
large ones: a 7x7 convolution of stride 2, then 3x3 max-pooling of stride 2. A
bottleneck's stride is in its 3x3
convolution, as in torchvision. Initial weights are also torchvision's: convolutions are
normal with variance 2 / fan_out, scales 1, biases 0, and dense layers have PyTorch's
default.

MOON's head keeps the features' width F: dense F -> F, ReLU, dense F -> 256, and the
classifier on these 256. With it ResNet-50 has the 28.25 M parameters that the paper's
code has for CIFAR-100:

  23,500,352  convolutions and batch normalisation, F = 2048
   4,196,352  2048 * 2048 + 2048
     524,544  2048 * 256 + 256
      25,700  256 * 100 + 100
  28,246,948
"""

import math

import flax.linen as nn

from moon_jax.models import convolution, initializers, layers
from moon_jax.models.convolution import pooling

# Network -> blocks of each of its stages.
BLOCKS = {'resnet18': (2, 2, 2, 2), 'resnet50': (3, 4, 6, 3)}


class _ConvNorm(nn.Module):
  """A convolution that keeps the size at stride 1, a normalisation, perhaps ReLU."""

  features: int
  size: int
  form: convolution.Form
  norm: str
  stride: int = 1
  relu: bool = False

  @nn.compact
  def __call__(self, x, mask):
    deviation = math.sqrt(2 / (self.size**2 * self.features))
    conv = layers.Conv(
      self.features,
      self.size,
      self.form,
      stride=self.stride,
      padding=self.size // 2,
      use_bias=False,
      kernel_init=initializers.normal(deviation),
      name='conv',
    )
    x = conv(x)
    if self.norm == 'group':
      x = layers.GroupNorm(self.form.channels, layers.GROUPS, name='norm')(x)
      return nn.relu(x) if self.relu else x
    return layers.BatchNorm(self.form.channels, self.relu, name='norm')(x, mask)


class _Block(nn.Module):
  """relu(F(x) + shortcut(x)), with F basic (3x3, 3x3) or bottleneck (1x1, 3x3, 1x1)."""

  width: int
  stride: int
  bottleneck: bool
  form: convolution.Form
  norm: str

  @nn.compact
  def __call__(self, x, mask):
    def conv_norm(x, features, size, name, stride=1, relu=False):
      layer = _ConvNorm(features, size, self.form, self.norm, stride, relu, name=name)
      return layer(x, mask)

    if self.bottleneck:
      features = 4 * self.width
      y = conv_norm(x, self.width, 1, 'conv1', relu=True)
      y = conv_norm(y, self.width, 3, 'conv2', self.stride, relu=True)
      y = conv_norm(y, features, 1, 'conv3')
    else:
      features = self.width
      y = conv_norm(x, features, 3, 'conv1', self.stride, relu=True)
      y = conv_norm(y, features, 3, 'conv2')
    if x.shape != y.shape:
      x = conv_norm(x, features, 1, 'shortcut', self.stride)
    return nn.relu(x + y)


class ResNet(nn.Module):
  """Stem, stages of blocks, mean over pixels, projection head, classifier.

  Attributes:
    num_classes: Y.
    convolution: a name for `convolution.choose`.
    blocks: blocks of each stage; the stages have 64, 128, 256, ... channels.
    bottleneck: whether blocks are bottlenecks, with four times as many output channels.
    norm: 'batch', or 'group', which normalises each example by itself.
    design: the stem: 'small', or 'torchvision'. Without a head the network is then
      torchvision's.
    head: 'mlp'; or 'none': the classifier is on the features.
    head_width: units of the head's hidden layer; 'auto': F.
    representation: D; without a head F.
  """

  num_classes: int
  convolution: str
  blocks: tuple[int, ...]
  bottleneck: bool
  norm: str = 'batch'
  design: str = 'small'
  head: str = 'mlp'
  head_width: int | str = 'auto'
  representation: int = 256

  @nn.compact
  def __call__(self, images, mask=None):
    """Maps images to Outputs.

    Args:
      images: [B, H, W, C] float32.
      mask: [B] 1.0 for a real example in training; None in evaluation.
    """
    form = convolution.choose(self.convolution, size=3, features=64)
    x = form.arranged(images)
    if self.design == 'torchvision':
      stem = _ConvNorm(64, 7, form, self.norm, stride=2, relu=True, name='stem')
      x = pooling.max_pool_3x3(stem(x, mask))
    else:
      x = _ConvNorm(64, 3, form, self.norm, relu=True, name='stem')(x, mask)
    for stage, num_blocks in enumerate(self.blocks):
      width = 64 * 2**stage
      for index in range(num_blocks):
        stride = 2 if stage > 0 and index == 0 else 1
        name = f'stage{stage + 1}_block{index + 1}'
        block = _Block(width, stride, self.bottleneck, form, self.norm, name=name)
        x = block(x, mask)
    features = form.arranged(x.mean(axis=(1, 2)))
    head_width = self.head_width
    if head_width == 'auto':
      head_width = features.shape[-1]
    if self.head == 'none':
      head_width = 0
    return layers.head_and_classifier(
      features, head_width, self.representation, self.num_classes
    )


def resnet18(*, num_classes: int, convolution: str, **options: int | str) -> ResNet:
  """ResNet-18; 11,565,386 parameters for RGB images and 10 classes."""
  return ResNet(
    num_classes, convolution, BLOCKS['resnet18'], bottleneck=False, **options
  )


def resnet50(*, num_classes: int, convolution: str, **options: int | str) -> ResNet:
  """ResNet-50; 28,246,948 parameters for RGB images and 100 classes."""
  return ResNet(
    num_classes, convolution, BLOCKS['resnet50'], bottleneck=True, **options
  )
