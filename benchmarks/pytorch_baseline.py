"""One federated round in sequential PyTorch: the baseline of the speed benchmark.

  python benchmarks/pytorch_baseline.py --workload=FILE.npz --algorithm=moon
    --threads=1 --repeats=5 --out=RESULT.npz

Clients train one after the other. Prints one JSON line; --out keeps the averaged
parameters, so that another implementation's result can be compared. With --turns each
timed round waits for a line on standard input (benchmarks/processes.py).

MOON's frozen networks run in every step, on the batch being trained. Without
augmentation their outputs could be kept from one epoch to the next; this script, like
MOON's public code, does not do so.
"""

# What was tried: MOON CNN, CIFAR-10, B = 64, 10 clients of unequal size, one core of a
# shared AMD EPYC with AVX-512, float32, torch 2.13.0. ms per step, FedAvg / MOON,
# medians of 5 rounds. Compare within a group only: the machine's load changed.
#
# Group 1, this script, channels_last; two runs, every variant in a process of its own:
#   pool before ReLU, eager             8.6, 7.5 / 15.1, 15.4  kept for FedAvg
#   pool before ReLU, torch.compile     7.9, 7.5 / 11.9, 11.8  kept for MOON
#   ReLU before pool, eager             9.1, 9.3 / 17.1, 17.4
#   ReLU before pool, torch.compile   11.3, 11.1 / 15.1, 15.6
# Compiling took 16 to 40 s when nothing was cached; 3 ms per MOON step repay that
# within about 13,000 steps, two rounds of the paper's CIFAR-10 setting (E = 10).
#
# Group 2, a bare training loop, eager, pool before ReLU, in turn in one process:
#   channels_last                       6.9 / 13.3  kept
#   contiguous                          7.9 / 16.3  base of the lines below
#   SGD foreach or single-tensor        within 1 % of fused; fused kept
#   in-place ReLU, index_select         within 3 %; not kept
#   oneDNN off                          13.2 / 20.9
#
# Group 3, the same loop, channels_last: max_pool2d 6.9 / 13.4, maximum of slices 11.3 /
# not tried (compiled 19.9 / 24.0), amax 13.6 / not tried.
#
# Group 4, this script, MOON, in turn in one process, CPU time, medians of 8 rounds:
#   inference_mode for the frozen networks   eager 14.8, compiled 12.1; kept
#   no_grad                                  eager 14.8, compiled 12.3; same parameters

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


class MoonCnn(nn.Module):
  """The CNN of MOON (arXiv:2103.16257): two convolutions, two layers, head."""

  def __init__(self, shapes):
    """shapes: name of a layer -> shape of its flax kernel."""
    super().__init__()
    for name, shape in shapes.items():
      if len(shape) == 4:
        layer = nn.Conv2d(shape[2], shape[3], kernel_size=shape[:2])
      else:
        layer = nn.Linear(*shape)
      self.add_module(name, layer)

  def forward(self, images):
    """[B, C, H, W] normalised pixels -> [B, D] representation, [B, Y] logits."""
    # relu(max) equals max(relu), on a quarter of the values.
    x = F.relu(F.max_pool2d(self.conv1(images), 2))
    x = F.relu(F.max_pool2d(self.conv2(x), 2))
    x = torch.flatten(x, 1)
    x = F.relu(self.fc1(x))
    x = F.relu(self.fc2(x))
    representation = self.head_output(F.relu(self.head_hidden(x)))
    return representation, self.classifier(representation)


# Layouts: flax kernels are [kh, kw, C_in, C_out] and [in, out]; torch's are
# [C_out, C_in, kh, kw] and [out, in].


def from_flax(arrays, prefix):
  """'<prefix>/<layer>/kernel' and '/bias' arrays -> state_dict of MoonCnn."""
  state = {}
  for name in layer_shapes(arrays):
    kernel = arrays[f'{prefix}/{name}/kernel']
    if kernel.ndim == 4:
      kernel = kernel.transpose(3, 2, 0, 1)
    elif name == 'fc1':
      height, width, channels = flattened_shape(arrays)
      kernel = kernel.reshape(height, width, channels, -1).transpose(3, 2, 0, 1)
      kernel = kernel.reshape(len(kernel), -1)
    else:
      kernel = kernel.T
    state[f'{name}.weight'] = torch.tensor(np.ascontiguousarray(kernel))
    state[f'{name}.bias'] = torch.tensor(arrays[f'{prefix}/{name}/bias'])
  return state


def to_flax(state, arrays):
  """state_dict of MoonCnn -> 'params/<layer>/kernel' and '/bias' arrays."""
  flat = {}
  for name in layer_shapes(arrays):
    kernel = state[f'{name}.weight'].numpy()
    if kernel.ndim == 4:
      kernel = kernel.transpose(2, 3, 1, 0)
    elif name == 'fc1':
      height, width, channels = flattened_shape(arrays)
      kernel = kernel.reshape(-1, channels, height, width).transpose(2, 3, 1, 0)
      kernel = kernel.reshape(-1, kernel.shape[-1])
    else:
      kernel = kernel.T
    flat[f'params/{name}/kernel'] = np.ascontiguousarray(kernel)
    flat[f'params/{name}/bias'] = state[f'{name}.bias'].numpy()
  return flat


def layer_shapes(arrays):
  """Name of a layer -> shape of its flax kernel."""
  names = [key.split('/')[1] for key in arrays if key.startswith('params/')]
  return {name: arrays[f'params/{name}/kernel'].shape for name in sorted(set(names))}


def flattened_shape(arrays):
  """(H, W, C) of what fc1 flattens: after two convolutions and two 2x2 pools."""
  height, width = arrays['train_images'].shape[1:3]
  for name in ('conv1', 'conv2'):
    kernel_height, kernel_width, _, channels = arrays[f'params/{name}/kernel'].shape
    height = (height - kernel_height + 1) // 2
    width = (width - kernel_width + 1) // 2
  return height, width, channels


class Workload:
  """The arrays of FILE.npz as tensors, converted once and outside the timing.

  Attributes:
    images: [M, C, H, W] float32 normalised pixels, channels last in memory.
    labels: [M] int64 class indices.
    batches: per client, its batches in order: [<= B] int64 rows of `images`.
    weights: per client, its share of the average; they sum to 1.
    received: state_dict every client starts from.
    previous: per client, the state_dict it trained last.
    mu, tau: weight and temperature of the contrastive term, no unit.
    sgd: keyword arguments of torch.optim.SGD.
  """

  def __init__(self, arrays):
    clients = range(int(arrays['num_clients']))
    self.images = normalised(arrays['train_images'], arrays['mean'], arrays['std'])
    self.labels = torch.from_numpy(arrays['train_labels']).long()
    self.batches = [
      [
        torch.from_numpy(rows[:num_real]).long()
        for rows, num_real in zip(
          arrays[f'rows_{i}'], arrays[f'num_real_{i}'], strict=True
        )
      ]
      for i in clients
    ]
    self.weights = (arrays['num_examples'] / arrays['num_examples'].sum()).tolist()
    self.received = from_flax(arrays, 'params')
    previous = {key: arrays[key] for key in arrays if key.startswith('previous/')}
    self.previous = [
      from_flax(arrays | {key: stack[i] for key, stack in previous.items()}, 'previous')
      for i in clients
      if previous
    ]
    self.mu = float(arrays['mu'])
    self.tau = float(arrays['tau'])
    self.sgd = {
      'lr': float(arrays['learning_rate']),
      'momentum': float(arrays['momentum']),
      'weight_decay': float(arrays['weight_decay']),
      'fused': True,
    }

  def samples(self):
    """Examples processed in one round, all clients and epochs."""
    return sum(len(rows) for batches in self.batches for rows in batches)


def normalised(pixels, mean, std):
  """[M, H, W, C] uint8, [C], [C] in pixel / 255 -> [M, C, H, W] float32."""
  images = torch.from_numpy(pixels).float().div_(255)
  images.sub_(torch.tensor(mean).float()).div_(torch.tensor(std).float())
  # A view of H, W, C memory: this is what PyTorch calls channels_last.
  return images.permute(0, 3, 1, 2)


class Trainer:
  """Runs rounds; the three networks are built, and compiled, once."""

  def __init__(self, workload, shapes, *, algorithm, compiled):
    self.workload = workload
    self.algorithm = algorithm
    self.local, self.received, self.previous = (
      MoonCnn(shapes).to(memory_format=torch.channels_last) for _ in range(3)
    )
    for frozen in (self.received, self.previous):
      frozen.eval().requires_grad_(False)
    loss = self.moon_loss if algorithm == 'moon' else self.fedavg_loss
    self.loss = torch.compile(loss) if compiled else loss

  def fedavg_loss(self, images, labels):
    """[B, C, H, W], [B] -> []: mean cross entropy, in nats."""
    _, logits = self.local(images)
    return F.cross_entropy(logits, labels)

  def moon_loss(self, images, labels):
    """[B, C, H, W], [B] -> []: cross entropy + mu * mean L_con, in nats.

    MOON eq. 3. -log(exp(a) / (exp(a) + exp(b))) is written as softplus(b - a).
    """
    z, logits = self.local(images)
    with torch.inference_mode():
      z_received, _ = self.received(images)
      z_previous, _ = self.previous(images)
    positive = F.cosine_similarity(z, z_received)
    negative = F.cosine_similarity(z, z_previous)
    contrastive = F.softplus((negative - positive) / self.workload.tau).mean()
    return F.cross_entropy(logits, labels) + self.workload.mu * contrastive

  def train(self, client, batches):
    """Trains self.local on batches of rows, from the received parameters."""
    self.local.load_state_dict(self.workload.received)
    if self.algorithm == 'moon':
      self.previous.load_state_dict(self.workload.previous[client])
    optimizer = torch.optim.SGD(self.local.parameters(), **self.workload.sgd)
    for rows in batches:
      loss = self.loss(self.workload.images[rows], self.workload.labels[rows])
      optimizer.zero_grad(set_to_none=True)
      loss.backward()
      optimizer.step()

  def round(self):
    """Trains every client in turn; returns the weighted mean, a state_dict."""
    self.local.train()
    self.received.load_state_dict(self.workload.received)
    mean = {
      name: torch.zeros_like(value) for name, value in self.workload.received.items()
    }
    for client, batches in enumerate(self.workload.batches):
      self.train(client, batches)
      for name, value in self.local.state_dict().items():
        mean[name].add_(value, alpha=self.workload.weights[client])
    return mean

  def warm_up(self):
    """One step per batch size: a compiled loss may be rebuilt for a new size."""
    sizes = {len(rows): rows for batches in self.workload.batches for rows in batches}
    self.received.load_state_dict(self.workload.received)
    # The largest first: it is the common one, and gets a build of its own.
    self.train(0, [sizes[size] for size in sorted(sizes, reverse=True)])


def parse_flags():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--workload', type=Path, required=True)
  parser.add_argument('--algorithm', choices=('fedavg', 'moon'), required=True)
  parser.add_argument('--threads', type=int, default=1)
  parser.add_argument('--repeats', type=int, default=5, help='rounds that are timed')
  parser.add_argument('--turns', action='store_true', help='wait before each round')
  parser.add_argument('--out', type=Path, help='.npz for the averaged parameters')
  parser.add_argument(
    '--compile',
    action=argparse.BooleanOptionalAction,
    help='torch.compile, needs a C++ compiler; default: where it is faster, moon',
  )
  return parser.parse_args()


def main():
  flags = parse_flags()
  torch.set_num_threads(flags.threads)
  with np.load(flags.workload, allow_pickle=False) as file:
    arrays = dict(file)
  compiled = flags.algorithm == 'moon' if flags.compile is None else flags.compile
  workload = Workload(arrays)
  trainer = Trainer(
    workload, layer_shapes(arrays), algorithm=flags.algorithm, compiled=compiled
  )
  trainer.warm_up()

  seconds = []
  for _ in range(flags.repeats):
    if flags.turns:
      print('ready', flush=True)
      sys.stdin.readline()
    start = time.perf_counter()
    mean = trainer.round()
    seconds.append(time.perf_counter() - start)

  if flags.out:
    np.savez(flags.out, **to_flax(mean, arrays))
  report = {
    'seconds': seconds,
    'samples': workload.samples(),
    'samples_per_second': workload.samples() / float(np.median(seconds)),
    'threads': torch.get_num_threads(),
    'torch': torch.__version__,
    'compiled': compiled,
  }
  print(json.dumps(report))


if __name__ == '__main__':
  main()
