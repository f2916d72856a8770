"""One round of the workload in FedJAX (arXiv:2108.02117), by its own FedAvg.

  python -m benchmarks.peers.fedjax_round --workload=FILE.npz --repeats=5

for a Python that has requirements-fedjax.txt, and not moon_jax. FILE is one of
benchmarks/engine.py without momentum and weight decay. Prints one JSON line; with
--turns each timed round waits for a line on standard input (benchmarks/processes.py).
"""

import functools

import fedjax
import haiku as hk
import jax
import numpy as np
from fedjax.algorithms import fed_avg

from benchmarks.peers import rounds

_DENSE = {
  'fc1': 120,
  'fc2': 84,
  'head_hidden': 84,
  'head_output': 256,
  'classifier': 10,
}
_RENAMED = {'kernel': 'w', 'bias': 'b'}


def network(batch):
  """Li et al. 2021, section 4.1: [B, 32, 32, 3] pixels -> [B, 10] logits."""
  x = batch['x']
  for name, width in (('conv1', 6), ('conv2', 16)):
    x = hk.Conv2D(width, 5, padding='VALID', name=name)(x)
    # relu(max) equals max(relu), and computes a quarter of the values.
    x = jax.nn.relu(hk.max_pool(x, 2, 2, 'VALID'))
  x = hk.Flatten()(x)
  for name, width in _DENSE.items():
    x = hk.Linear(width, name=name)(x)
    x = x if name in ('head_output', 'classifier') else jax.nn.relu(x)
  return x


def main() -> None:
  """Runs one round more than are timed."""
  options = rounds.parser().parse_args()
  with np.load(options.workload) as file:
    arrays = dict(file)
  users = federation(arrays)
  loss = fedjax.metrics.unreduced_cross_entropy_loss
  model = fedjax.create_model_from_haiku(
    hk.transform(network),
    users[0][1][:1].all_examples(),
    lambda batch, logits: loss(batch['y'], logits),
  )
  algorithm = fed_avg.federated_averaging(
    fedjax.model_grad(model),
    fedjax.optimizers.sgd(float(arrays['learning_rate'])),
    fedjax.optimizers.sgd(1.0),
    fedjax.ShuffleRepeatBatchHParams(
      batch_size=arrays['rows_0'].shape[1], num_epochs=1, skip_shuffle=True
    ),
  )
  state = algorithm.init(received(arrays))
  timed = rounds.Rounds(arrays, options.turns)
  for _ in range(1 + options.repeats):
    state, _ = jax.block_until_ready(algorithm.apply(state, users))
    timed.ended(functools.partial(named, state.params))
  timed.print_report()


def federation(arrays):
  """The users of the round, in memory and normalised: (id, data, key) of each."""
  images = arrays['train_images'].astype(np.float32) / 255
  images = (images - arrays['mean']) / arrays['std']
  images, labels = images.astype(np.float32), arrays['train_labels'].astype(np.int32)
  keys = jax.random.split(jax.random.key(0), int(arrays['num_clients']))

  def user(index):
    batches = zip(arrays[f'rows_{index}'], arrays[f'num_real_{index}'], strict=True)
    rows = np.concatenate([rows[:real] for rows, real in batches])
    data = fedjax.ClientDataset({'x': images[rows], 'y': labels[rows]})
    return index, data, keys[index]

  return [user(index) for index in range(len(keys))]


def received(arrays):
  """The model that every user starts from, in Haiku's names."""

  def leaves(layer):
    return {new: arrays[f'received/{layer}/{old}'] for old, new in _RENAMED.items()}

  return {layer: leaves(layer) for layer in ('conv1', 'conv2', *_DENSE)}


def named(params):
  """The other way round: 'fc1/kernel' -> array."""
  return {
    f'{layer}/{old}': np.asarray(leaves[new])
    for layer, leaves in params.items()
    for old, new in _RENAMED.items()
  }


if __name__ == '__main__':
  main()
