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
  'mobilenet_v2': networks.mobilenet_v2,
  'mlp': networks.Mlp,
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
    clients = range(int(arrays['num_clients']))
    self.device = torch.device(device)

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
    shifts = torch.randint(2 * MARGIN + 1, (2, len(rows), 1), device=self.device)
    down, right = shifts
    flip = torch.rand(len(rows), 1, device=self.device) < 0.5
    pixels = torch.arange(self.side, device=self.device)
    y = down + pixels
    x = right + torch.where(flip, pixels.flip(0), pixels)
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
    layout_name = 'channels last' if channels_last else 'contiguous'
    self.name = f'{layout_name}, {"compiled" if compiled else "eager"}'
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
    z_received, z_previous = self.frozen(images)
    return self.moon_loss_of(images, labels, z_received, z_previous)

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
    is_once = self.algorithm == 'moon_once'
    representations = self.representations(batches) if is_once else None
    optimizer = torch.optim.SGD(self.local.parameters(), **workload.sgd)
    for rows in batches:
      images, labels = self.images(rows), workload.labels[rows]
      if is_once:
        z_received, z_previous = representations[:, rows]
        loss = self.loss(images, labels, z_received, z_previous)
      else:
        loss = self.loss(images, labels)
      optimizer.zero_grad(set_to_none=True)
      loss.backward()
      optimizer.step()
    if workload.device.type == 'cuda':
      torch.cuda.synchronize()  # for the timing

  def images(self, rows):
    """[B] -> [B, C, H, W] in the layout."""
    images = self.workload.batch(rows).permute(0, 3, 1, 2)
    return images.contiguous(memory_format=self.layout)

  def representations(self, batches):
    """[2, M, D]: what the frozen networks make of the rows in some batches."""
    used_rows = torch.unique(torch.cat(batches))
    z = torch.cat(
      [torch.stack(self.frozen(self.images(rows))) for rows in used_rows.split(BATCH)],
      dim=1,
    )
    z_of_rows = z.new_zeros(2, len(self.workload.labels), z.shape[-1])
    z_of_rows[:, used_rows] = z
    return z_of_rows

  def round(self):
    """Trains every client in turn; returns the weighted mean, path -> tensor."""
    load(self.received, self.workload.received)
    received = self.workload.received
    mean = {path: torch.zeros_like(tensor) for path, tensor in received.items()}
    for client, batches in enumerate(self.workload.batches):
      self.train(client, batches)
      for path, tensor in networks.leaves(self.local).items():
        mean[path].add_(tensor, alpha=self.workload.weights[client])
    return mean

  def warm_up(self):
    """Trains on a batch of each size."""
    sizes = {len(rows): rows for batches in self.workload.batches for rows in batches}
    load(self.received, self.workload.received)
    # The largest batch comes first: it is the common one, and gets its own build.
    self.train(0, [sizes[size] for size in sorted(sizes, reverse=True)])

  def step_seconds(self, seconds=0.7):
    """Median time of a step on the largest batch, measured for some seconds."""
    largest = max(itertools.chain.from_iterable(self.workload.batches), key=len)
    # On one core what other programs take counts for no form, as in the timed rounds.
    is_one_core = torch.get_num_threads() == 1 and self.workload.device.type == 'cpu'
    clock = time.process_time if is_one_core else time.perf_counter
    steps = []
    while sum(steps) < seconds:
      start = clock()
      self.train(0, [largest])
      steps.append(clock() - start)
    return float(np.median(steps))


def fastest(workload, algorithm, forms):
  """The trainer whose step is fastest, warm; name -> seconds of a step of all tried.

  Compiling may take a minute, and is tried in the layout that is faster without. All
  are timed in turn, thrice: what else the machine does should not choose.
  """
  step_seconds = {}  # trainer -> seconds

  def fastest_of(trainers):
    for trainer in trainers:
      if trainer not in step_seconds:
        trainer.warm_up()
        step_seconds[trainer] = math.inf
    for trainer in 3 * trainers:
      step_seconds[trainer] = min(step_seconds[trainer], trainer.step_seconds())
    return min(trainers, key=step_seconds.get)

  def make_trainer(channels_last, compiled):
    return Trainer(
      workload, algorithm=algorithm, channels_last=channels_last, compiled=compiled
    )

  trainer = None
  layouts = (True, False)
  if False in forms:
    trainer = fastest_of([make_trainer(layout, False) for layout in layouts])
    layouts = (trainer.layout == torch.channels_last,)
  if True in forms:
    try:
      compiled = [make_trainer(layout, True) for layout in layouts]
      trainer = fastest_of([trainer, *compiled] if trainer else compiled)
    except Exception as error:  # a fault of torch.compile: the eager form counts
      if not trainer:
        raise
      print(f'torch.compile failed: {error}', file=sys.stderr)
  seconds_by_name = {tried.name: seconds for tried, seconds in step_seconds.items()}
  return trainer, seconds_by_name


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
  trainer, step_seconds = fastest(workload, flags.algorithm, forms)

  seconds, cpu_seconds = [], []
  for _ in range(flags.repeats):
    if flags.turns:
      print('ready', flush=True)
      sys.stdin.readline()
    cpu_start, start = time.process_time(), time.perf_counter()
    mean = trainer.round()
    seconds.append(time.perf_counter() - start)
    cpu_seconds.append(time.process_time() - cpu_start)

  if flags.out:
    np.savez(flags.out, **{path: networks.to_ours(v) for path, v in mean.items()})
  report = {
    'seconds': seconds,
    'cpu_seconds': cpu_seconds,
    'samples': workload.samples(),
    'samples_per_second': workload.samples() / float(np.median(seconds)),
    'threads': torch.get_num_threads(),
    'torch': torch.__version__,
    'form': trainer.name,
    'step_seconds': step_seconds,
  }
  print(json.dumps(report))


if __name__ == '__main__':
  main()
