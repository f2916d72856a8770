"""Writes what PyTorch computes for the networks of signals, volumes and words.

  python -m tests.golden.make_sequence_golden

Needs torch; `tests/models/test_sequences.py` only reads the file. As in make_golden.py,
weights are seeded, everything is float64, and the loss is sum(c * output).
"""

import pathlib

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from tests.golden import seeded

FILE = pathlib.Path(__file__).parent / 'sequences.npz'
CLASSES, WORDS, LENGTH = 5, 11, 7


def words():
  """[4, LENGTH]: texts of all lengths from 1, filled up with -1."""
  numbers = np.abs(seeded.numbers('words', (4, LENGTH)) * WORDS).astype(np.int32)
  lengths = np.array([LENGTH, 1, 4, LENGTH - 1])
  return np.where(np.arange(LENGTH) < lengths[:, None], numbers, -1)


class WithHead(nn.Module):
  """MOON's head of `width` units, and a classifier."""

  def __init__(self, features, width, representation):
    super().__init__()
    self.head_hidden = nn.Linear(features, width)
    self.head_output = nn.Linear(width, representation)
    self.classifier = nn.Linear(representation, CLASSES)

  def outputs(self, features):
    z = self.head_output(F.relu(self.head_hidden(features)))
    return z, self.classifier(z)


class Cnn(WithHead):
  """Convolutions in one or three dimensions with padding, each pooled."""

  def __init__(self, dimensions, channels, kernel, flat, norm='none'):
    super().__init__(12, 12, 6)
    conv = {1: nn.Conv1d, 3: nn.Conv3d}[dimensions]
    batch_norm = {1: nn.BatchNorm1d, 3: nn.BatchNorm3d}[dimensions]
    self.pool = {1: F.max_pool1d, 3: F.max_pool3d}[dimensions]
    self.count = len(channels) - 1
    for n in range(self.count):
      layer = conv(
        channels[n],
        channels[n + 1],
        kernel,
        padding=kernel // 2,
        bias=norm == 'none',
      )
      setattr(self, f'conv{n + 1}', layer)
      normalisation = nn.Identity()
      if norm == 'batch':
        normalisation = batch_norm(channels[n + 1])
      if norm == 'group':
        normalisation = nn.GroupNorm(2, channels[n + 1])
      setattr(self, f'norm{n + 1}', normalisation)
    self.fc1 = nn.Linear(flat, 12)

  def forward(self, examples):
    x = examples.movedim(-1, 1)
    for n in range(self.count):
      x = getattr(self, f'norm{n + 1}')(getattr(self, f'conv{n + 1}')(x))
      x = F.relu(self.pool(x, 2))
    return self.outputs(F.relu(self.fc1(x.movedim(1, -1).flatten(1))))


class Gru(WithHead):
  """An embedding, unless the inputs are signals, and torch's own GRU."""

  def __init__(self, inputs, vocabulary=0):
    super().__init__(12, 12, 6)
    self.embedding = nn.Embedding(vocabulary, inputs) if vocabulary else None
    self.gru = nn.GRU(inputs, 12, batch_first=True)

  def forward(self, sequences):
    if self.embedding is None:
      return self.outputs(self.gru(sequences)[1][0])
    lengths = (sequences >= 0).sum(1)
    packed = nn.utils.rnn.pack_padded_sequence(
      self.embedding(sequences.clamp(min=0)),
      lengths,
      batch_first=True,
      enforce_sorted=False,
    )
    return self.outputs(self.gru(packed)[1][0])


class Transformer(WithHead):
  """Torch's own encoder layers with a mask of padding, and the mean over words."""

  def __init__(self, width, layers):
    super().__init__(width, width, 6)
    self.embedding = nn.Embedding(WORDS, width)
    self.places = nn.Parameter(torch.zeros(LENGTH, width))
    self.layers = layers
    for n in range(layers):
      layer = nn.TransformerEncoderLayer(width, 2, 10, dropout=0.0, batch_first=True)
      setattr(self, f'encoder{n + 1}', layer)

  def forward(self, sequences):
    is_word = sequences >= 0
    x = self.embedding(sequences.clamp(min=0)) + self.places
    for n in range(self.layers):
      x = getattr(self, f'encoder{n + 1}')(x, src_key_padding_mask=~is_word)
    total = torch.where(is_word[..., None], x, 0.0).sum(1)
    return self.outputs(total / is_word.sum(1, keepdim=True))


# The numbers of flat: 9 steps are pooled to 4 and 2; sides 8, 9 and 10 to 1.
CASES = {
  'cnn_1d': (lambda: Cnn(1, (3, 4, 8), 5, 2 * 8), seeded.numbers('signals', (4, 9, 3))),
  'cnn_3d': (
    lambda: Cnn(3, (2, 3, 6, 12), 3, 12),
    seeded.numbers('volumes', (3, 8, 9, 10, 2)),
  ),
  'cnn_1d_batch': (
    lambda: Cnn(1, (3, 4, 8), 5, 2 * 8, 'batch'),
    seeded.numbers('signals', (4, 9, 3)),
  ),
  'cnn_1d_group': (
    lambda: Cnn(1, (3, 4, 8), 5, 2 * 8, 'group'),
    seeded.numbers('signals', (4, 9, 3)),
  ),
  'cnn_3d_batch': (
    lambda: Cnn(3, (2, 4, 8, 16), 3, 16, 'batch'),
    seeded.numbers('volumes', (3, 8, 9, 10, 2)),
  ),
  'gru_of_signals': (lambda: Gru(3), seeded.numbers('signals', (4, 9, 3))),
  'gru_of_words': (lambda: Gru(5, WORDS), words()),
  'transformer': (lambda: Transformer(8, 2), words()),
}
_RENAMED = {
  'gru/weight_ih_l0': 'gru/input/kernel',
  'gru/bias_ih_l0': 'gru/input/bias',
  'gru/weight_hh_l0': 'gru/hidden_kernel',
  'gru/bias_hh_l0': 'gru/hidden_bias',
  'embedding/weight': 'embedding_table',
  'self_attn/in_proj_weight': 'qkv/kernel',
  'self_attn/in_proj_bias': 'qkv/bias',
  'self_attn/out_proj/': 'output/',
}


def path_of(name, tensor):
  """PyTorch's 'fc1.weight' -> 'fc1/kernel'."""
  path = name.replace('.', '/')
  for theirs, ours in _RENAMED.items():
    path = path.replace(theirs, ours)
  return path.replace('weight', 'kernel' if tensor.ndim > 1 else 'scale')


def to_ours(path, tensor):
  """[out, in, *window] -> [window * in, out]; tables of vectors stay as they are."""
  array = tensor.detach().numpy()
  if path in ('embedding_table', 'places'):
    return array
  if array.ndim == 1:
    return array
  return np.moveaxis(array, (0, 1), (-1, -2)).reshape(-1, len(array))


def fill(module):
  """Puts the seeded weights in place."""
  for name, tensor in module.named_parameters():
    path = path_of(name, tensor)
    numbers = seeded.leaf(path, to_ours(path, tensor).shape)
    if tensor.ndim > 1 and path not in ('embedding_table', 'places'):
      window = tensor.shape[2:]
      numbers = numbers.reshape((*window, tensor.shape[1], tensor.shape[0]))
      numbers = np.moveaxis(numbers, (-1, -2), (0, 1)).copy()
    with torch.no_grad():
      tensor.copy_(torch.from_numpy(numbers))


def golden(module, examples):
  """Outputs and gradients."""
  module = module.double().train()
  fill(module)
  inputs = torch.from_numpy(examples)
  if examples.dtype == np.float64:
    inputs.requires_grad_()
  else:
    inputs = inputs.long()
  outputs = module(inputs)
  weights = [seeded.numbers(f'output {i}', o.shape) for i, o in enumerate(outputs)]
  pairs = zip(outputs, weights, strict=True)
  sum((output * torch.from_numpy(w)).sum() for output, w in pairs).backward()
  arrays = {f'output/{i}': o.detach().numpy() for i, o in enumerate(outputs)}
  for name, tensor in module.named_parameters():
    path = path_of(name, tensor)
    arrays[f'gradient/{path}'] = seeded.summary(path, to_ours(path, tensor.grad))
  if examples.dtype == np.float64:
    arrays['gradient/examples'] = seeded.summary('examples', inputs.grad.numpy())
  return arrays


def main():
  arrays = {}
  for case, (make_module, examples) in CASES.items():
    for name, array in golden(make_module(), examples).items():
      arrays[f'{case}:{name}'] = array
  np.savez_compressed(FILE, **arrays)


if __name__ == '__main__':
  main()
