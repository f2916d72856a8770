"""The weights of torchvision's ResNets and MobileNetV2 under the names of our networks.

A file has the arrays of a PyTorch state dict, such as `layer1.0.conv1.weight`.
"""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

NETWORKS = ('resnet18', 'resnet50', 'mobilenet_v2')

# The end of a name in a state dict -> collection and name of the variable.
_PARAMS = {'weight': 'scale', 'bias': 'bias'}
_STATISTICS = {'running_mean': 'mean', 'running_var': 'var'}
_COUNTER = 'num_batches_tracked'  # of batches, which our networks do not count
# Layers that our designs for small images have in another form, or alone.
_OF_SMALL_DESIGNS = re.compile(r'stem|stage1_block1/conv1|.*/shortcut')


class Renamed(NamedTuple):
  """Weights under our names.

  Attributes:
    arrays: path of the variable -> array in our layout.
    unknown: names of arrays that no layer of our network has.
  """

  arrays: dict[str, np.ndarray]
  unknown: list[str]


def is_state_dict(names: Iterable[str]) -> bool:
  """Whether these are names of a PyTorch state dict, and not paths of variables."""
  names = list(names)
  return any(name.endswith('.weight') for name in names) and not any(
    name.startswith('params/') for name in names
  )


def renamed(model: str, arrays: Mapping[str, np.ndarray]) -> Renamed:
  """The arrays of torchvision's network under the names of ours.

  Args:
    model: one of NETWORKS.
    arrays: the state dict.
  """
  layer_of = _mobilenet_layer if model == 'mobilenet_v2' else _resnet_layer
  known, unknown = {}, []
  for name, array in arrays.items():
    prefix, _, kind = name.rpartition('.')
    if kind == _COUNTER:
      continue
    layer = layer_of(prefix)
    if not layer:
      unknown.append(name)
      continue
    is_norm = layer.endswith('/norm')
    if kind in _STATISTICS:
      known[f'batch_stats/{layer}/{_STATISTICS[kind]}'] = array
    elif is_norm and kind in _PARAMS:
      known[f'params/{layer}/{_PARAMS[kind]}'] = array
    elif kind == 'weight' and array.ndim in (2, 4):
      order = (2, 3, 1, 0) if array.ndim == 4 else (1, 0)
      known[f'params/{layer}/kernel'] = array.transpose(order)
    else:
      known[f'params/{layer}/{kind}'] = array
  return Renamed(arrays=known, unknown=unknown)


def may_be_drawn(layer: str, design: str) -> bool:
  """Whether a layer outside of the head may differ from torchvision's.

  It may in the designs for small images, which have another stem and a few layers more.
  """
  return design == 'small' and bool(_OF_SMALL_DESIGNS.match(layer))


def _resnet_layer(prefix: str) -> str:
  """'layer1.0.bn1' -> 'stage1_block1/conv1/norm'; '' if there is no such layer."""
  layer = {'conv1': 'stem/conv', 'bn1': 'stem/norm', 'fc': 'classifier'}.get(prefix, '')
  if match := re.fullmatch(r'layer(\d)\.(\d+)\.(conv|bn)(\d)', prefix):
    stage, block, kind, number = match.groups()
    part = 'conv' if kind == 'conv' else 'norm'
    layer = f'stage{stage}_block{int(block) + 1}/conv{number}/{part}'
  elif match := re.fullmatch(r'layer(\d)\.(\d+)\.downsample\.([01])', prefix):
    stage, block, number = match.groups()
    part = ('conv', 'norm')[int(number)]
    layer = f'stage{stage}_block{int(block) + 1}/shortcut/{part}'
  return layer


# torchvision's number of the first block of each stage, and its number after the last.
_FIRST_BLOCKS = (1, 2, 4, 7, 11, 14, 17, 18)
_OF_BLOCK = {
  '0.0': 'conv1/conv',
  '0.1': 'conv1/norm',
  '1.0': 'conv2/conv',
  '1.1': 'conv2/norm',
  '2': 'conv3/conv',
  '3': 'conv3/norm',
}
# The first block expands nothing, so it begins with the depthwise convolution.
_OF_FIRST_BLOCK = {
  '0.0': 'conv2/conv',
  '0.1': 'conv2/norm',
  '1': 'conv3/conv',
  '2': 'conv3/norm',
}


def _mobilenet_layer(prefix: str) -> str:
  """'features.2.conv.0.1' -> 'stage2_block1/conv1/norm'; '' if there is none."""
  if prefix == 'classifier.1':
    return 'classifier'
  if match := re.fullmatch(r'features\.(0|18)\.([01])', prefix):
    return f'{"stem" if match[1] == "0" else "last"}/{("conv", "norm")[int(match[2])]}'
  match = re.fullmatch(r'features\.(\d+)\.conv\.([\d.]+)', prefix)
  number = int(match[1]) if match else 0
  if not 1 <= number < _FIRST_BLOCKS[-1]:
    return ''
  stage = sum(first <= number for first in _FIRST_BLOCKS)
  block = number - _FIRST_BLOCKS[stage - 1] + 1
  names = _OF_FIRST_BLOCK if number == 1 else _OF_BLOCK
  part = names.get(match[2])
  return f'stage{stage}_block{block}/{part}' if part else ''
