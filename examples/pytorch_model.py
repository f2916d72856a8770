"""A trained `moon_cnn` in PyTorch, from a file of weights.

  python -m moon_jax.export runs/cifar10_moon-moon-s0 --output=moon.safetensors

and in Python, from the root of the repository,

  from examples import pytorch_model
  model = pytorch_model.load('moon.safetensors')

The layouts differ in two ways, for every network. First, the kernel of a convolution is
[H, W, inputs, outputs] in the file and [outputs, inputs, H, W] in PyTorch, and that of
a dense layer is [inputs, outputs] in the file and [outputs, inputs] in PyTorch. Second,
features are flattened in the order [H, W, C] by this package and [C, H, W] by PyTorch,
so `forward` permutes the axes before it flattens.
"""

import json

import torch
from torch import nn

from moon_jax.core import weights


class MoonCnn(nn.Module):
  """The layers of `moon_jax.models.cnn.MoonCnn`, by the same names."""

  def __init__(self, shapes, image_facts):
    """Takes name of a layer -> shape of its kernel, and `images` of the metadata."""
    super().__init__()
    for name, (*window, inputs, outputs) in shapes.items():
      size = window[:1]
      kind = nn.Conv2d if window else nn.Linear
      self.add_module(name, kind(inputs, outputs, *size))
    for name in ('mean', 'std'):
      self.register_buffer(name, torch.tensor(image_facts[name]).reshape(1, -1, 1, 1))
    scale = image_facts['scale']
    self.black, self.white = scale['low'], scale['high']

  def forward(self, images):
    """[B, C, H, W], numbers as in the run's data -> logits [B, Y]."""
    levels = (images.double() - self.black) * (255 / (self.white - self.black))
    x = (levels.round().float() / 255 - self.mean) / self.std
    for convolution in (self.conv1, self.conv2):
      x = nn.functional.max_pool2d(convolution(x), 2).relu()
    x = x.permute(0, 2, 3, 1).flatten(1)
    for layer in (self.fc1, self.fc2, self.head_hidden):
      x = layer(x).relu()
    return self.classifier(self.head_output(x))


def load(path):
  """Returns the model in a file of weights, in evaluation mode."""
  arrays, metadata = weights.read(path)
  image_facts = json.loads(metadata['images'])
  kernels, state = {}, {}
  for name, array in arrays.items():
    _, layer, kind = name.split('/')  # params/conv1/kernel
    tensor = torch.from_numpy(array)
    if kind == 'bias':
      state[f'{layer}.bias'] = tensor
      continue
    kernels[layer] = array.shape
    order = (3, 2, 0, 1) if array.ndim == 4 else (1, 0)
    state[f'{layer}.weight'] = tensor.permute(order)
  model = MoonCnn(kernels, image_facts)
  buffers = {'mean': model.mean, 'std': model.std}
  model.load_state_dict(state | buffers)
  return model.eval()


def logits(model, images):
  """Maps images [M, H, W, C] to logits [M, Y] float32, both NumPy arrays."""
  with torch.no_grad():
    return model(torch.from_numpy(images).permute(0, 3, 1, 2)).numpy()
