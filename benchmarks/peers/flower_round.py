"""One round of the workload in Flower (arXiv:2007.14390), by its simulation on Ray.

  python -m benchmarks.peers.flower_round --workload=FILE.npz --repeats=5

for a Python that has requirements-flower.txt, and not moon_jax. FILE is one of
benchmarks/engine.py without momentum and weight decay. A user trains as in
benchmarks/pytorch_baseline.py. Prints one JSON line; with --turns each timed round
waits for a line on standard input (benchmarks/processes.py).
"""

import functools
import os

# Set before the imports, so that Flower and Ray send no usage data.
os.environ |= {'FLWR_TELEMETRY_ENABLED': '0', 'RAY_USAGE_STATS_ENABLED': '0'}

import numpy as np
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks import pytorch_networks as networks
from benchmarks.peers import rounds
from benchmarks.pytorch_baseline import Trainer, Workload, load


def main() -> None:
  """Runs one round more than are timed."""
  options = rounds.parser().parse_args()
  with np.load(options.workload) as file:
    arrays = dict(file)
  timed = rounds.Rounds(arrays, options.turns)
  network = networks.MoonCnn()
  with torch.no_grad():
    load(network, Workload(arrays).received)
  server, client = ServerApp(), ClientApp()
  num_users = int(arrays['num_clients'])
  metrics_of_rounds = []

  @server.main()
  def serve(grid, context):
    strategy = FedAvg(
      fraction_evaluate=0.0,
      min_train_nodes=num_users,
      train_metrics_aggr_fn=counted,
    )
    received = ArrayRecord(network.state_dict())
    result = strategy.start(grid, received, 1 + options.repeats, evaluate_fn=ended)
    metrics_of_rounds.extend(result.train_metrics_clientapp.values())

  def ended(index, averaged):
    def read():
      network.load_state_dict(averaged.to_torch_state_dict())
      return networks.as_ours(network)

    if index:
      timed.ended(read)

  @client.train()
  def train(message, context):
    # Imported by name: pickled with this function, `train_user` would not keep what it
    # has read.
    from benchmarks.peers.flower_round import train_user

    return Message(train_user(options.workload, message, context), reply_to=message)

  run_simulation(
    server,
    client,
    num_supernodes=num_users,
    backend_config={
      'init_args': {'num_cpus': 1, 'include_dashboard': False},
      'client_resources': {'num_cpus': 1, 'num_gpus': 0.0},
    },
  )
  # Flower goes on without a user that fails.
  users_of_rounds = [metrics['users'] for metrics in metrics_of_rounds]
  if users_of_rounds != [num_users] * (1 + options.repeats):
    raise RuntimeError(f'{users_of_rounds}: not {num_users} users in each round')
  timed.print_report()


def counted(replies, key):
  """In place of the users' metrics, how many answered."""
  return MetricRecord({'users': len(replies)})


def train_user(path, message, context):
  """One user's round: what it sends back."""
  trainer = trainer_of(path)
  user = int(context.node_config['partition-id'])
  state = message.content['arrays'].to_torch_state_dict()
  trainer.local.load_state_dict(state)
  trainer.workload.received = {
    key: leaf.clone() for key, leaf in networks.leaves(trainer.local).items()
  }
  batches = trainer.workload.batches[user]
  trainer.train(user, batches)
  return RecordDict(
    {
      'arrays': ArrayRecord(trainer.local.state_dict()),
      'metrics': MetricRecord({'num-examples': sum(len(rows) for rows in batches)}),
    }
  )


@functools.cache
def trainer_of(path):
  """Read once in each process of Ray's."""
  torch.set_num_threads(1)
  with np.load(path) as file:
    workload = Workload(dict(file))
  return Trainer(workload, algorithm='fedavg', channels_last=True, compiled=False)


if __name__ == '__main__':
  main()
