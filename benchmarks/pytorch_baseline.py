"""One federated round in sequential PyTorch: the baseline of the speed benchmark.

  python -m benchmarks.pytorch_baseline --workload=FILE.npz --algorithm=moon
    --threads=1 --repeats=5 --out=RESULT.npz [--device=cuda]

Clients train one after the other. Before the timed rounds it tries both layouts, eager
and with torch.compile, and goes on with the fastest. Prints one JSON line; --out keeps
the averaged model, so that another implementation's result can be compared. With
--turns each timed round waits for a line on standard input (benchmarks/processes.py).

MOON's frozen networks run in every step, on the batch being trained, as in MOON's
public code. With --algorithm=moon_once they run once a round over all that a client
owns, as in the engine, which takes images without augmentation. Crops and flips are the
engine's arithmetic (moon_jax/data/augment.py) with draws of PyTorch's own, on images
that are normalised, and padded, before the timing. On a GPU, which holds all tensors,
torch.compile records CUDA graphs, and products of float32 are TF32, as in JAX.
"""

# Eager or torch.compile, ReLU before or after pooling: each start chooses (`fastest`).

import argparse
import itertools
import json
import math
import os
import shutil
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

from benchmarks import pytorch_networks as networks

BATCH = 64  # examples that the frozen networks see at a time, if once a round
MARGIN = 4  # pixels added on each side before the crop
NETWORKS = {
  'moon_cnn': networks.MoonCnn,
  'dco_cnn': networks.DcoCnn,
  'cnn_transformer': networks.CnnTransformer,
  'resnet18': networks.resnet18,
}


class Workload:
  """The arrays of FILE.npz as tensors of a device, outside the timing.

  Attributes:
    images: [M, H, W, C] float32 normalised pixels; with crops H and W are those of the
      padded images.
    side: side of the square training images, in pixels.
    labels: [M] int64 class indices.
    batches: per client, its batches in order: [<= B] int64 rows of `images`.
    weights: per client, its share of the average; they sum to 1.
    received: path of a leaf -> tensor, what every client starts from.
    previous: per client, the same of the model it trained last.
    crops: whether batches are cropped and flipped.
    network: its name.
    options: how it is built.
    mu, tau: weight and temperature of the contrastive term, no unit.
    sgd: keyword arguments of torch.optim.SGD.
  """

  def __init__(self, arrays, device='cpu'):
    clients, self.device = range(int(arrays['num_clients'])), torch.device(device)

    def moved(array):
      return networks.to_theirs(array).to(device)

    images = normalised(arrays['train_images'], arrays['mean'], arrays['std'])
    self.images = images.to(device)
    _, self.side, _, channels = self.images.shape
    self.crops = str(arrays['augmentation']) == 'crop_flip'
    if self.crops:
      images = F.pad(self.images.permute(0, 3, 1, 2), (MARGIN,) * 4, mode='reflect')
      self.images = images.permute(0, 2, 3, 1).contiguous()
    self.labels = torch.from_numpy(arrays['train_labels']).long().to(device)
    self.batches = [
      [
        torch.from_numpy(rows[:num_real]).long().to(device)
        for rows, num_real in zip(
          arrays[f'rows_{i}'], arrays[f'num_real_{i}'], strict=True
        )
      ]
      for i in clients
    ]
    self.weights = (arrays['num_examples'] / arrays['num_examples'].sum()).tolist()
    self.received = below('received/', arrays, moved)
    previous = below('previous/', arrays, np.asarray)
    self.previous = [
      {path: moved(stack[i]) for path, stack in previous.items()} for i in clients
    ]
    self.network = str(arrays['model'])
    self.options = {'side': self.side, 'channels': channels}
    self.options |= json.loads(str(arrays['options']))
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

  def batch(self, rows):
    """[B] -> [B, H, W, C] pixels, cropped and flipped if the workload is."""
    if not self.crops:
      return self.images[rows]
    here = {'device': self.device}
    down, right = torch.randint(2 * MARGIN + 1, (2, len(rows), 1), **here)
    flip = torch.rand(len(rows), 1, **here) < 0.5
    at = torch.arange(self.side, **here)
    y, x = down + at, right + torch.where(flip, at.flip(0), at)
    return self.images[rows[:, None, None], y[:, :, None], x[:, None, :]]


def below(prefix, arrays, convert):
  """The arrays whose name begins so, without the prefix."""
  return {
    name.removeprefix(prefix): convert(array)
    for name, array in arrays.items()
    if name.startswith(prefix)
  }


def normalised(pixels, mean, std):
  """[M, H, W, C] uint8, [C], [C] in pixel / 255 -> [M, H, W, C] float32."""
  images = torch.from_numpy(pixels).float().div_(255)
  return images.sub_(torch.tensor(mean).float()).div_(torch.tensor(std).float())


def load(module, leaves):
  """Copies tensors, by path, into a module."""
  for path, tensor in networks.leaves(module).items():
    tensor.copy_(leaves[path])


class Trainer:
  """Runs rounds; the three networks are built, and compiled, once."""

  def __init__(self, workload, *, algorithm, channels_last, compiled):
    self.workload = workload
    self.algorithm = algorithm
    self.layout = torch.channels_last if channels_last else torch.contiguous_format
    words = ('contiguous', 'channels last'), ('eager', 'compiled')
    self.name = f'{words[0][channels_last]}, {words[1][compiled]}'
    self.local, self.received, self.previous = (
      NETWORKS[workload.network](**workload.options).to(
        workload.device, memory_format=self.layout
      )
      for _ in range(3)
    )
    for frozen in (self.received, self.previous):
      frozen.eval().requires_grad_(False)
    losses = {'fedavg': self.fedavg_loss, 'moon': self.moon_loss}
    loss = losses.get(algorithm, self.moon_loss_of)
    mode = 'reduce-overhead' if workload.device.type == 'cuda' else None
    self.loss = torch.compile(loss, mode=mode) if compiled else loss

  def fedavg_loss(self, images, labels):
    """[B, C, H, W], [B] -> []: mean cross entropy, in nats."""
    _, logits = self.local(images)
    return F.cross_entropy(logits, labels)

  def moon_loss(self, images, labels):
    """[B, C, H, W], [B] -> []: cross entropy + mu * mean L_con, in nats.

    MOON eq. 3. -log(exp(a) / (exp(a) + exp(b))) is written as softplus(b - a).
    """
    return self.moon_loss_of(images, labels, *self.frozen(images))

  def frozen(self, images):
    """[B, C, H, W] -> [B, D], [B, D]: by the received and the previous model."""
    with torch.inference_mode():
      return self.received(images)[0], self.previous(images)[0]

  def moon_loss_of(self, images, labels, z_received, z_previous):
    """`moon_loss` with the frozen networks' representations [B, D]."""
    z, logits = self.local(images)
    positive = F.cosine_similarity(z, z_received)
    negative = F.cosine_similarity(z, z_previous)
    contrastive = F.softplus((negative - positive) / self.workload.tau).mean()
    return F.cross_entropy(logits, labels) + self.workload.mu * contrastive

  def train(self, client, batches):
    """Trains self.local on batches of rows, from the received model."""
    workload = self.workload
    load(self.local.train(), workload.received)
    if self.algorithm != 'fedavg':
      load(self.previous, workload.previous[client])
    known = self.known(batches) if self.algorithm == 'moon_once' else None
    optimizer = torch.optim.SGD(self.local.parameters(), **workload.sgd)
    for rows in batches:
      given = () if known is None else known[:, rows]
      loss = self.loss(self.images(rows), workload.labels[rows], *given)
      optimizer.zero_grad(set_to_none=True)
      loss.backward()
      optimizer.step()
    if workload.device.type == 'cuda':
      torch.cuda.synchronize()  # for the timing

  def images(self, rows):
    """[B] -> [B, C, H, W] in the layout."""
    images = self.workload.batch(rows).permute(0, 3, 1, 2)
    return images.contiguous(memory_format=self.layout)

  def known(self, batches):
    """[2, M, D]: what the frozen networks make of the rows in some batches."""
    every = torch.unique(torch.cat(batches))
    found = [torch.stack(self.frozen(self.images(r))) for r in every.split(BATCH)]
    known = found[0].new_zeros(2, len(self.workload.labels), found[0].shape[-1])
    known[:, every] = torch.cat(found, 1)
    return known

  def round(self):
    """Trains every client in turn; returns the weighted mean, path -> tensor."""
    load(self.received, self.workload.received)
    mean = {path: torch.zeros_like(v) for path, v in self.workload.received.items()}
    for client, batches in enumerate(self.workload.batches):
      self.train(client, batches)
      for path, value in networks.leaves(self.local).items():
        mean[path].add_(value, alpha=self.workload.weights[client])
    return mean

  def warm_up(self):
    """Trains on a batch of each size."""
    sizes = {len(rows): rows for batches in self.workload.batches for rows in batches}
    load(self.received, self.workload.received)
    # The largest batch comes first: it is the common one, and gets its own build.
    self.train(0, [sizes[size] for size in sorted(sizes, reverse=True)])

  def step_seconds(self, seconds=0.7):
    """Median time of a step on the largest batch, measured for some seconds."""
    largest = max(itertools.chain(*self.workload.batches), key=len)
    found = []
    while sum(found) < seconds:
      start = time.perf_counter()
      self.train(0, [largest])
      found.append(time.perf_counter() - start)
    return float(np.median(found))


def fastest(workload, algorithm, forms):
  """The trainer whose step is fastest, warm; name -> seconds of a step of all tried.

  Compiling may take a minute, and is tried in the layout that is faster without. All
  are timed in turn, thrice: what else the machine does should not choose.
  """
  tried, chosen, layouts = {}, [], (True, False)

  def best(trainers):
    for trainer in trainers:
      if trainer not in tried:
        trainer.warm_up()
        tried[trainer] = math.inf
    for trainer in 3 * trainers:
      tried[trainer] = min(tried[trainer], trainer.step_seconds())
    return [min(trainers, key=tried.get)]

  def made(channels_last, compiled):
    words = {'channels_last': channels_last, 'compiled': compiled}
    return Trainer(workload, algorithm=algorithm, **words)

  if False in forms:
    chosen = best([made(layout, False) for layout in layouts])
    layouts = [chosen[0].layout == torch.channels_last]
  if True in forms:
    try:
      chosen = best([*chosen, *(made(layout, True) for layout in layouts)])
    except Exception as error:  # a fault of torch.compile: the eager form counts
      if not chosen:
        raise
      print(f'torch.compile failed: {error}', file=sys.stderr)
  [trainer] = chosen
  return trainer, {one.name: seconds for one, seconds in tried.items()}


def parse_flags():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--workload', type=Path, required=True)
  parser.add_argument(
    '--algorithm', choices=('fedavg', 'moon', 'moon_once'), required=True
  )
  parser.add_argument('--threads', type=int, default=1)
  parser.add_argument('--device', default='cpu')
  parser.add_argument('--repeats', type=int, default=5, help='rounds that are timed')
  parser.add_argument('--turns', action='store_true', help='wait before each round')
  parser.add_argument('--out', type=Path, help='.npz for the averaged model')
  parser.add_argument(
    '--compile',
    action=argparse.BooleanOptionalAction,
    help='torch.compile; default: the faster, if there is a C++ compiler',
  )
  return parser.parse_args()


def main():
  flags = parse_flags()
  torch.set_num_threads(flags.threads)
  if flags.device == 'cuda':
    torch.set_float32_matmul_precision('high')  # TF32
  with np.load(flags.workload, allow_pickle=False) as file:
    workload = Workload(dict(file), flags.device)
  compiler = shutil.which(os.environ.get('CXX', 'g++')) is not None
  forms = {False, compiler} if flags.compile is None else {flags.compile}
  trainer, tried = fastest(workload, flags.algorithm, forms)

  seconds = []
  for _ in range(flags.repeats):
    if flags.turns:
      print('ready', flush=True)
      sys.stdin.readline()
    start = time.perf_counter()
    mean = trainer.round()
    seconds.append(time.perf_counter() - start)

  if flags.out:
    np.savez(flags.out, **{path: networks.to_ours(v) for path, v in mean.items()})
  report = {
    'seconds': seconds,
    'samples': workload.samples(),
    'samples_per_second': workload.samples() / float(np.median(seconds)),
    'threads': torch.get_num_threads(),
    'torch': torch.__version__,
    'form': trainer.name,
    'step_seconds': tried,
  }
  print(json.dumps(report))


if __name__ == '__main__':
  main()
