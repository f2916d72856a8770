"""Writes what PyTorch computes with seeded weights: outputs, gradients, statistics.

  python -m tests.golden.make_golden

Needs torch; the tests only read the files. Everything is float64. The loss is
sum(c * output) over all outputs, with seeded c. Written from the papers with PyTorch's
own layers; only the leaves' names are those of moon_jax/models/, and images are
flattened channels last, as there.
"""

import pathlib

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from tests.golden import seeded

FOLDER = pathlib.Path(__file__).parent


def channels_first(images):
  return images.permute(0, 3, 1, 2)


def flatten(x):
  """[B, C, H, W] -> [B, H * W * C]."""
  return x.permute(0, 2, 3, 1).flatten(1)


class MoonCnn(nn.Module):
  """Li et al. 2021, section 4.1."""

  def __init__(self):
    super().__init__()
    self.conv1, self.conv2 = nn.Conv2d(3, 6, 5), nn.Conv2d(6, 16, 5)
    self.fc1, self.fc2 = nn.Linear(400, 120), nn.Linear(120, 84)
    self.head_hidden, self.head_output = nn.Linear(84, 84), nn.Linear(84, 256)
    self.classifier = nn.Linear(256, 10)

  def forward(self, images):
    x = F.max_pool2d(F.relu(self.conv1(channels_first(images))), 2)
    x = flatten(F.max_pool2d(F.relu(self.conv2(x)), 2))
    x = F.relu(self.fc2(F.relu(self.fc1(x))))
    z = self.head_output(F.relu(self.head_hidden(x)))
    return z, self.classifier(z)


class DcoCnn(nn.Module):
  """DCO-MOON's network, on 28x28x1."""

  def __init__(self):
    super().__init__()
    self.conv1, self.conv2 = nn.Conv2d(1, 32, 5), nn.Conv2d(32, 64, 5)
    self.fc1, self.fc2 = nn.Linear(1024, 512), nn.Linear(512, 10)

  def forward(self, images):
    x = F.max_pool2d(F.relu(self.conv1(channels_first(images))), 2)
    x = flatten(F.max_pool2d(F.relu(self.conv2(x)), 2))
    logits = self.fc2(F.relu(self.fc1(x)))
    return logits, logits


class CnnTransformer(nn.Module):
  """SA-MOON's network with one small encoder layer and no dropout."""

  def __init__(self, tokens):
    super().__init__()
    channels = (3, 32, 64, 128, 128, 256, 256)
    for i in range(1, 7):
      conv = nn.Conv2d(channels[i - 1], channels[i], 3, padding=1)
      setattr(self, f'conv{i}', conv)
      setattr(self, f'conv{i}_norm', nn.BatchNorm2d(channels[i]))
    self.encoder1 = encoder_layer(256, heads=8, feedforward=64)
    self.fc1, self.fc2 = nn.Linear(256 * tokens, 256), nn.Linear(256, 256)
    self.classifier = nn.Linear(256, 10)

  def forward(self, images):
    x = channels_first(images)
    for i in range(1, 7):
      x = F.relu(getattr(self, f'conv{i}_norm')(getattr(self, f'conv{i}')(x)))
      x = F.max_pool2d(x, 2) if i % 2 == 0 else x
    x = self.encoder1(x.flatten(2).transpose(1, 2))
    z = F.relu(self.fc2(F.relu(self.fc1(x.flatten(1)))))
    return z, self.classifier(z)


def encoder_layer(width, *, heads, feedforward):
  return nn.TransformerEncoderLayer(
    width, heads, feedforward, dropout=0.0, batch_first=True
  )


class ConvNorm(nn.Module):
  def __init__(self, inputs, outputs, size, stride=1):
    super().__init__()
    self.conv = nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)
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
  """He et al. 2016 with a 3x3 stem and MOON's head."""

  def __init__(self, block, counts, expansion):
    super().__init__()
    self.stem, inputs = ConvNorm(3, 64, 3), 64
    self.blocks = []
    for stage, count in enumerate(counts, 1):
      width = 32 * 2**stage
      for i in range(count):
        name = f'stage{stage}_block{i + 1}'
        setattr(self, name, block(inputs, width, 2 if stage > 1 and i == 0 else 1))
        self.blocks.append(name)
        inputs = width * expansion
    self.head_hidden, self.head_output = (
      nn.Linear(inputs, inputs),
      nn.Linear(inputs, 256),
    )
    self.classifier = nn.Linear(256, 10)

  def forward(self, images):
    x = F.relu(self.stem(channels_first(images)))
    for name in self.blocks:
      x = getattr(self, name)(x)
    z = self.head_output(F.relu(self.head_hidden(x.mean((2, 3)))))
    return z, self.classifier(z)


class BatchNorm(nn.Module):
  def __init__(self):
    super().__init__()
    self.norm = nn.BatchNorm2d(5)

  def forward(self, x):
    return (self.norm(channels_first(x)).permute(0, 2, 3, 1),)


class EncoderLayer(nn.Module):
  def __init__(self):
    super().__init__()
    self.layer = encoder_layer(32, heads=4, feedforward=48)

  def forward(self, x):
    return (self.layer(x),)


RENAMED = {
  'self_attn/in_proj_weight': 'qkv/kernel',
  'self_attn/in_proj_bias': 'qkv/bias',
  'self_attn/out_proj/': 'output/',
  'running_mean': 'mean',
  'running_var': 'var',
}


def path_of(name, tensor):
  """PyTorch's 'fc1.weight' -> 'fc1/kernel'."""
  path = name.replace('.', '/')
  for theirs, ours in RENAMED.items():
    path = path.replace(theirs, ours)
  return path.replace('weight', 'kernel' if tensor.ndim > 1 else 'scale')


def to_ours(tensor):
  """[out, in, kh, kw] -> [kh, kw, in, out]; [out, in] -> [in, out]."""
  array = tensor.detach().numpy()
  return array.transpose(2, 3, 1, 0) if array.ndim == 4 else array.T


def fill(module):
  """Puts the seeded weights and running statistics in place."""
  for name, tensor in module.state_dict(keep_vars=True).items():
    if name.endswith('num_batches_tracked'):
      continue
    values = seeded.leaf(path_of(name, tensor), to_ours(tensor).shape)
    values = values.transpose(3, 2, 0, 1) if values.ndim == 4 else values.T
    tensor.data.copy_(torch.from_numpy(values.copy()))


def golden(module, shape):
  """Forward and backward in training mode, then forward in evaluation mode."""
  module = module.double()
  fill(module)
  images = torch.from_numpy(seeded.numbers('images', shape)).requires_grad_()
  outputs = module.train()(images)
  weights = [seeded.numbers(f'output {i}', o.shape) for i, o in enumerate(outputs)]
  pairs = zip(outputs, weights, strict=True)
  sum((output * torch.from_numpy(w)).sum() for output, w in pairs).backward()
  found = {f'output/{i}': o.detach().numpy() for i, o in enumerate(outputs)}
  for name, tensor in module.named_parameters():
    path = path_of(name, tensor)
    found[f'gradient/{path}'] = seeded.summary(path, to_ours(tensor.grad))
  found['gradient/images'] = seeded.summary('images', images.grad.numpy())
  for name, tensor in module.named_buffers():
    if not name.endswith('num_batches_tracked'):
      path = path_of(name, tensor)
      found[f'state/{path}'] = seeded.summary(path, tensor.numpy())
  with torch.no_grad():
    evaluated = module.eval()(images)
  found |= {f'evaluated/{i}': o.numpy() for i, o in enumerate(evaluated)}
  return found


CASES = {
  'moon_cnn': (MoonCnn, (3, 32, 32, 3)),
  'dco_cnn': (DcoCnn, (3, 28, 28, 1)),
  'cnn_transformer': (lambda: CnnTransformer(tokens=4), (3, 16, 16, 3)),
  'resnet18': (lambda: ResNet(BasicBlock, (2, 2, 2, 2), 1), (3, 16, 16, 3)),
  'bottlenecks': (lambda: ResNet(Bottleneck, (2, 1), 4), (3, 16, 16, 3)),
  'batch_norm': (BatchNorm, (4, 3, 2, 5)),
  'encoder_layer': (EncoderLayer, (2, 6, 32)),
}


def main():
  for name, (make, shape) in CASES.items():
    np.savez_compressed(FOLDER / f'{name}.npz', **golden(make(), shape))


if __name__ == '__main__':
  main()
