"""The papers' networks in PyTorch, with moon_jax's names of leaves. Imports only torch.

Written from the papers with PyTorch's own layers. benchmarks/pytorch_baseline.py trains
them, tests/golden/make_golden.py keeps what they compute. Each maps [B, C, H, W] pixels
to ([B, D] representation, [B, Y] logits) and flattens images channels last, as
moon_jax/models/ does, so that dense layers take the same weights.
"""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


def _flatten(x):
  """[B, C, H, W] -> [B, H * W * C]."""
  return x.permute(0, 2, 3, 1).flatten(1)


def _pooled(x):
  # relu(max) equals max(relu), and computes a quarter of the values.
  return F.relu(F.max_pool2d(x, 2))


def _norm(name, channels):
  """The normalisation of the name 'none', 'batch' or 'group'."""
  if name == 'batch':
    return nn.BatchNorm2d(channels)
  return nn.GroupNorm(2, channels) if name == 'group' else nn.Identity()


def _pixels(side):
  """The pixels of a square image after two 5x5 convolutions, each pooled."""
  return (((side - 4) // 2 - 4) // 2) ** 2


class MoonCnn(nn.Module):
  """Li et al. 2021, section 4.1; without the head NIID-Bench's CNN."""

  def __init__(self, side=32, channels=3, classes=10, *, head=True, norm='none'):
    super().__init__()
    self.conv1 = nn.Conv2d(channels, 6, 5, bias=norm == 'none')
    self.conv2 = nn.Conv2d(6, 16, 5, bias=norm == 'none')
    self.norm1, self.norm2 = _norm(norm, 6), _norm(norm, 16)
    self.fc1, self.fc2 = nn.Linear(16 * _pixels(side), 120), nn.Linear(120, 84)
    self.head = head
    if head:
      self.head_hidden, self.head_output = nn.Linear(84, 84), nn.Linear(84, 256)
    self.classifier = nn.Linear(256 if head else 84, classes)

  def forward(self, images):
    x = _pooled(self.norm1(self.conv1(images)))
    x = _flatten(_pooled(self.norm2(self.conv2(x))))
    z = F.relu(self.fc2(F.relu(self.fc1(x))))
    if self.head:
      z = self.head_output(F.relu(self.head_hidden(z)))
    return z, self.classifier(z)


class Mlp(nn.Module):
  """One hidden layer, MOON's head and the classifier."""

  def __init__(self, side=32, channels=3, classes=10, *, width=128, representation=64):
    super().__init__()
    self.encoder = nn.Linear(side * side * channels, width)
    self.head_hidden = nn.Linear(width, width)
    self.head_output = nn.Linear(width, representation)
    self.classifier = nn.Linear(representation, classes)

  def forward(self, images):
    hidden = F.relu(self.encoder(_flatten(images)))
    z = self.head_output(F.relu(self.head_hidden(hidden)))
    return z, self.classifier(z)


class DcoCnn(nn.Module):
  """DCO-MOON's network."""

  def __init__(self, side=32, channels=3, classes=10, *, norm='none'):
    super().__init__()
    self.conv1 = nn.Conv2d(channels, 32, 5, bias=norm == 'none')
    self.conv2 = nn.Conv2d(32, 64, 5, bias=norm == 'none')
    self.norm1, self.norm2 = _norm(norm, 32), _norm(norm, 64)
    self.fc1, self.fc2 = nn.Linear(64 * _pixels(side), 512), nn.Linear(512, classes)

  def forward(self, images):
    x = _pooled(self.norm1(self.conv1(images)))
    x = _flatten(_pooled(self.norm2(self.conv2(x))))
    logits = self.fc2(F.relu(self.fc1(x)))
    return logits, logits


class CnnTransformer(nn.Module):
  """SA-MOON's network; the dropout's places are those of moon_jax/models/."""

  def __init__(
    self,
    side=32,
    channels=3,
    classes=10,
    *,
    layers=6,
    heads=8,
    feedforward=2048,
    dropout=0.1,
  ):
    super().__init__()
    widths = (channels, 32, 64, 128, 128, 256, 256)
    for i in range(1, 7):
      conv = nn.Conv2d(widths[i - 1], widths[i], 3, padding=1)
      setattr(self, f'conv{i}', conv)
      setattr(self, f'conv{i}_norm', nn.BatchNorm2d(widths[i]))
    self.dropout, self.layers = nn.Dropout(dropout), layers
    for i in range(1, layers + 1):
      setattr(self, f'encoder{i}', encoder_layer(256, heads, feedforward, dropout))
    self.fc1 = nn.Linear(256 * (side // 8) ** 2, 256)
    self.fc2, self.classifier = nn.Linear(256, 256), nn.Linear(256, classes)

  def forward(self, x):
    for i in range(1, 7):
      x = F.relu(getattr(self, f'conv{i}_norm')(getattr(self, f'conv{i}')(x)))
      x = F.max_pool2d(x, 2) if i % 2 == 0 else x
      x = self.dropout(x) if i == 4 else x
    x = x.flatten(2).transpose(1, 2)
    for i in range(1, self.layers + 1):
      x = getattr(self, f'encoder{i}')(x)
    z = F.relu(self.fc2(F.relu(self.fc1(x.flatten(1)))))
    return z, self.classifier(z)


def encoder_layer(width, heads, feedforward, dropout=0.0):
  """PyTorch's own layer of a Transformer, [B, tokens, width] -> the same."""
  return nn.TransformerEncoderLayer(
    width, heads, feedforward, dropout=dropout, batch_first=True
  )


class ConvNorm(nn.Module):
  def __init__(self, inputs, outputs, size, stride=1, groups=1):
    super().__init__()
    self.conv = nn.Conv2d(
      inputs, outputs, size, stride, padding=size // 2, groups=groups, bias=False
    )
    self.norm = nn.BatchNorm2d(outputs)

  def forward(self, x):
    return self.norm(self.conv(x))


class BasicBlock(nn.Module):
  def __init__(self, inputs, outputs, stride):
    super().__init__()
    self.conv1 = ConvNorm(inputs, outputs, 3, stride)
    self.conv2 = ConvNorm(outputs, outputs, 3)
    if inputs != outputs:
      self.shortcut = ConvNorm(inputs, outputs, 1, stride)

  def forward(self, x):
    shortcut = self.shortcut(x) if hasattr(self, 'shortcut') else x
    return F.relu(self.conv2(F.relu(self.conv1(x))) + shortcut)


class Bottleneck(nn.Module):
  def __init__(self, inputs, width, stride):
    super().__init__()
    self.conv1 = ConvNorm(inputs, width, 1)
    self.conv2 = ConvNorm(width, width, 3, stride)
    self.conv3 = ConvNorm(width, 4 * width, 1)
    if inputs != 4 * width:
      self.shortcut = ConvNorm(inputs, 4 * width, 1, stride)

  def forward(self, x):
    shortcut = self.shortcut(x) if hasattr(self, 'shortcut') else x
    y = F.relu(self.conv2(F.relu(self.conv1(x))))
    return F.relu(self.conv3(y) + shortcut)


class ResNet(nn.Module):
  """He et al. 2016 with a 3x3 stem, and with MOON's head or without."""

  def __init__(self, block, counts, expansion, channels=3, classes=10, *, head=True):
    super().__init__()
    self.stem, inputs = ConvNorm(channels, 64, 3), 64
    self.blocks = []
    for stage, count in enumerate(counts, 1):
      width = 32 * 2**stage
      for i in range(count):
        name = f'stage{stage}_block{i + 1}'
        setattr(self, name, block(inputs, width, 2 if stage > 1 and i == 0 else 1))
        self.blocks.append(name)
        inputs = width * expansion
    self.head = head
    if head:
      self.head_hidden = nn.Linear(inputs, inputs)
      self.head_output = nn.Linear(inputs, 256)
    self.classifier = nn.Linear(256 if head else inputs, classes)

  def forward(self, images):
    x = F.relu(self.stem(images))
    for name in self.blocks:
      x = getattr(self, name)(x)
    z = x.mean((2, 3))
    if self.head:
      z = self.head_output(F.relu(self.head_hidden(z)))
    return z, self.classifier(z)


def with_group_norm(module):
  """The module with GroupNorm of two groups for each BatchNorm2d."""
  for name, child in module.named_children():
    if isinstance(child, nn.BatchNorm2d):
      setattr(module, name, nn.GroupNorm(2, child.num_features))
    else:
      with_group_norm(child)
  return module


class InvertedResidual(nn.Module):
  """As FedDecorr has it, with a convolution in the shortcut where channels change."""

  def __init__(self, inputs, outputs, expansion, stride):
    super().__init__()
    width, self.added = expansion * inputs, stride == 1
    self.conv1 = ConvNorm(inputs, width, 1)
    self.conv2 = ConvNorm(width, width, 3, stride, groups=width)
    self.conv3 = ConvNorm(width, outputs, 1)
    if self.added and inputs != outputs:
      self.shortcut = ConvNorm(inputs, outputs, 1)

  def forward(self, x):
    y = self.conv3(F.relu(self.conv2(F.relu(self.conv1(x)))))
    shortcut = self.shortcut(x) if hasattr(self, 'shortcut') else x
    return y + shortcut if self.added else y


# For each stage: expansion, channels, blocks, stride of its first block.
MOBILE_STAGES = (
  (1, 16, 1, 1),
  (6, 24, 2, 1),
  (6, 32, 3, 2),
  (6, 64, 4, 2),
  (6, 96, 3, 1),
  (6, 160, 3, 2),
  (6, 320, 1, 1),
)


class MobileNetV2(nn.Module):
  """Sandler et al. 2018, with the strides of FedDecorr for CIFAR; no head."""

  def __init__(self, stages, channels=3, classes=10):
    super().__init__()
    self.stem, inputs, self.blocks = ConvNorm(channels, 32, 3), 32, []
    for stage, (expansion, outputs, count, stride) in enumerate(stages, 1):
      for i in range(count):
        name = f'stage{stage}_block{i + 1}'
        block = InvertedResidual(inputs, outputs, expansion, 1 if i else stride)
        setattr(self, name, block)
        self.blocks.append(name)
        inputs = outputs
    self.last, self.classifier = ConvNorm(inputs, 1280, 1), nn.Linear(1280, classes)

  def forward(self, images):
    x = F.relu(self.stem(images))
    for name in self.blocks:
      x = getattr(self, name)(x)
    z = F.relu(self.last(x)).mean((2, 3))
    return z, self.classifier(z)


def resnet18(side=32, channels=3, classes=10):
  """Any side will do."""
  return ResNet(BasicBlock, (2, 2, 2, 2), 1, channels, classes)


def mobilenet_v2(side=32, channels=3, classes=10):
  """Any side will do."""
  return MobileNetV2(MOBILE_STAGES, channels, classes)


# Names of the leaves, and their axes.

_RENAMED = {
  'self_attn/in_proj_weight': 'qkv/kernel',
  'self_attn/in_proj_bias': 'qkv/bias',
  'self_attn/out_proj/': 'output/',
  'running_mean': 'mean',
  'running_var': 'var',
}


def leaves(module):
  """moon_jax's path of a leaf, 'fc1/kernel' -> the module's own tensor, to write to."""
  return {
    path_of(name, tensor): tensor
    for name, tensor in module.state_dict().items()
    if not name.endswith('num_batches_tracked')
  }


def path_of(name, tensor):
  """PyTorch's 'fc1.weight' -> 'fc1/kernel'."""
  path = name.replace('.', '/')
  for theirs, ours in _RENAMED.items():
    path = path.replace(theirs, ours)
  return path.replace('weight', 'kernel' if tensor.ndim > 1 else 'scale')


def to_ours(tensor):
  """[out, in, kh, kw] -> [kh, kw, in, out]; [out, in] -> [in, out]."""
  array = tensor.detach().cpu().numpy()
  return array.transpose(2, 3, 1, 0) if array.ndim == 4 else array.T


def as_ours(module):
  """moon_jax's path of a leaf -> the array as moon_jax has it."""
  return {path: to_ours(tensor) for path, tensor in leaves(module).items()}


def to_theirs(array):
  """The other way round, as a tensor."""
  array = array.transpose(3, 2, 0, 1) if array.ndim == 4 else array.T
  return torch.from_numpy(np.ascontiguousarray(array))
