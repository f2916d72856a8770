"""Writes what PyTorch computes with seeded weights: outputs, gradients, statistics.

  python -m tests.golden.make_golden [NAME ...]

Needs torch; the tests only read the files. Everything is float64. The loss is
sum(c * output) over all outputs, with seeded c. The networks are those of
benchmarks/pytorch_networks.py.
"""

import pathlib
import sys

import numpy as np
import torch

from benchmarks import pytorch_networks as networks
from tests.golden import seeded

FOLDER = pathlib.Path(__file__).parent


def fill(module):
  """Puts the seeded weights and running statistics in place."""
  for path, tensor in networks.leaves(module).items():
    values = seeded.leaf(path, networks.to_ours(tensor).shape)
    tensor.copy_(networks.to_theirs(values))


def golden(module, shape):
  """Forward and backward in training mode, then forward in evaluation mode."""
  module = module.double()
  fill(module)
  images = torch.from_numpy(seeded.numbers('images', shape)).requires_grad_()
  channels_first = images.permute(0, 3, 1, 2)
  outputs = module.train()(channels_first)
  weights = [seeded.numbers(f'output {i}', o.shape) for i, o in enumerate(outputs)]
  pairs = zip(outputs, weights, strict=True)
  sum((output * torch.from_numpy(w)).sum() for output, w in pairs).backward()
  arrays = {f'output/{i}': o.detach().numpy() for i, o in enumerate(outputs)}
  for name, tensor in module.named_parameters():
    path = networks.path_of(name, tensor)
    arrays[f'gradient/{path}'] = seeded.summary(path, networks.to_ours(tensor.grad))
  arrays['gradient/images'] = seeded.summary('images', images.grad.numpy())
  for name, tensor in module.named_buffers():
    if not name.endswith('num_batches_tracked'):
      path = networks.path_of(name, tensor)
      arrays[f'state/{path}'] = seeded.summary(path, tensor.numpy())
  with torch.no_grad():
    evaluated = module.eval()(channels_first)
  arrays |= {f'evaluated/{i}': o.numpy() for i, o in enumerate(evaluated)}
  return arrays


STAGES = ((1, 16, 2, 1), (6, 24, 1, 2))
SMALL = {'layers': 1, 'heads': 8, 'feedforward': 64, 'dropout': 0.0}
CASES = {
  'moon_cnn': (networks.MoonCnn, (3, 32, 32, 3)),
  'dco_cnn': (lambda: networks.DcoCnn(28, 1), (3, 28, 28, 1)),
  'cnn_transformer': (lambda: networks.CnnTransformer(16, **SMALL), (3, 16, 16, 3)),
  'resnet18': (networks.resnet18, (3, 16, 16, 3)),
  'bottlenecks': (
    lambda: networks.ResNet(networks.Bottleneck, (2, 1), 4),
    (3, 16, 16, 3),
  ),
  'moon_cnn_64': (lambda: networks.MoonCnn(64, head=False), (2, 64, 64, 3)),
  'grouped': (
    lambda: networks.with_group_norm(
      networks.ResNet(networks.Bottleneck, (2, 1), 4, head=False)
    ),
    (3, 16, 16, 3),
  ),
  'moon_cnn_batch': (lambda: networks.MoonCnn(norm='batch'), (3, 32, 32, 3)),
  'dco_cnn_group': (lambda: networks.DcoCnn(16, 1, norm='group'), (3, 16, 16, 1)),
  'mobilenet_v2': (lambda: networks.MobileNetV2(STAGES), (3, 8, 8, 3)),
}


def main():
  for name in sys.argv[1:] or CASES:
    make_module, shape = CASES[name]
    np.savez_compressed(FOLDER / f'{name}.npz', **golden(make_module(), shape))


if __name__ == '__main__':
  main()
