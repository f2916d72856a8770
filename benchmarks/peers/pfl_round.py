"""One round of the workload in pfl-research (arXiv:2404.06430), by its own simulator.

  python -m benchmarks.peers.pfl_round --workload=FILE.npz --repeats=5 [--compile]

for a Python that has requirements-pfl.txt, and not moon_jax. FILE is one of
benchmarks/engine.py without momentum and weight decay. Prints one JSON line; with
--turns each timed round waits for a line on standard input (benchmarks/processes.py).
"""

import itertools

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch.nn import functional as F

from benchmarks import pytorch_networks as networks
from benchmarks.peers import rounds
from benchmarks.pytorch_baseline import Workload, load


class Network(networks.MoonCnn):
  """With the two functions that pfl asks of a model."""

  def loss(self, images, labels):
    """[] mean cross entropy."""
    return F.cross_entropy(self(images)[1], labels)

  def metrics(self, images, labels):
    """Nothing is tested in the timed rounds, on either side."""
    return {}


class Timer(TrainingProcessCallback):
  """Tells of the end of each round."""

  def __init__(self, network: Network, timed: rounds.Rounds):
    self._network, self._timed = network, timed

  def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
    """Called by pfl after each round."""
    self._timed.ended(lambda: networks.as_ours(self._network))
    return False, Metrics()


def main() -> None:
  """Runs one round more than are timed."""
  parser = rounds.parser()
  parser.add_argument('--compile', action='store_true')
  options = parser.parse_args()
  torch.set_num_threads(1)
  with np.load(options.workload) as file:
    arrays = dict(file)
  work = Workload(arrays)
  network = Network()
  timed = rounds.Rounds(arrays, options.turns)
  with torch.no_grad():
    load(network, work.received)
  model = PyTorchModel(
    network,
    local_optimizer_create=torch.optim.SGD,
    central_optimizer=torch.optim.SGD(network.parameters(), lr=1.0),
    use_torch_compile=options.compile,
  )
  users = federation(work)
  FederatedAveraging().run(
    NNAlgorithmParams(
      central_num_iterations=1 + options.repeats,
      evaluation_frequency=10**6,
      train_cohort_size=len(work.batches),
      val_cohort_size=0,
    ),
    SimulatedBackend(users, users, postprocessors=[WeightByDatapoints()]),
    model,
    NNTrainHyperParams(
      local_num_epochs=1,
      local_learning_rate=work.sgd['lr'],
      local_batch_size=len(work.batches[0][0]),
    ),
    NNEvalHyperParams(500),
    callbacks=[Timer(network, timed)],
  )
  timed.print_report()


def federation(work: Workload) -> FederatedDataset:
  """The users of the round, in memory as tensors, one after another in each round."""

  def user(index):
    rows = torch.cat(work.batches[index])
    images = work.images[rows].permute(0, 3, 1, 2).contiguous()
    return Dataset([images, work.labels[rows]], user_id=str(index))

  users = [user(index) for index in range(len(work.batches))]
  turn = itertools.cycle(range(len(users)))
  return FederatedDataset(users.__getitem__, lambda: next(turn))


if __name__ == '__main__':
  main()
