"""What can be chosen, and what cannot go together."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from tests.reference import formulas, optimizers, rules
from tests.reference.networks import Network

ALGORITHMS = (
  'fedavg',
  'fedprox',
  'moon',
  'solo',
  'scaffold',
  'sa_moon',
  'dco_moon',
  'centralised',
  *rules.RULES,
)
CHOICES = {
  'algorithm': ALGORITHMS,
  'optimizer': optimizers.LOCAL,
  'server_optimizer': optimizers.SERVER,
  'client_weight': ('samples', 'uniform'),
  'negative': ('none', 'global', 'init'),
  'similarity_on': ('representation', 'features'),
  'batch_norm': ('averaged', 'local'),
  'scope': ('client', 'server'),
  'acceptance': ('steps', 'temperatures'),
  'initial': ('plain', 'mu'),
}


class Options(NamedTuple):
  """The keyword arguments of run; a default is what the first algorithms did."""

  algorithm: str  # one of ALGORITHMS
  network: Network
  # Local training.
  learning_rate: float
  momentum: float  # of sgd and nesterov; the velocity starts at zero every round
  weight_decay: float  # on all parameters; coupled, but for adamw
  mu: float  # weight of the proximal or of the contrastive term
  tau: float  # temperature of the contrastive term; SA-MOON has its own
  optimizer: str = 'sgd'  # sgd, nesterov, adam, adamw
  adam_beta1: float = 0.9
  adam_beta2: float = 0.999
  adam_epsilon: float = 1e-8
  rate_multipliers: Sequence | None = None  # per round, of the learning rate
  skipped: Sequence | None = None  # per round, clients of the cohort that do not count
  drop_last: bool = False  # batches smaller than batch_size are left out
  batch_size: int | None = None  # only for drop_last
  # The contrastive term.
  similarity_on: str = 'representation'  # or features: the encoder's output
  negative: str = 'none'  # before a client has a previous model: none, global, init
  num_previous: int = 1  # how many of its last models are negatives
  # SA-MOON.
  uniform: Callable | None = None  # (round, client, step) -> [0, 1); step from 1
  initial_temperature: float = 1.0
  min_temperature: float = 0.001
  sigma: float = 0.005
  annealing_epsilon: float = 1e-8
  scope: str = 'client'  # server: T is averaged and sent to everybody
  acceptance: str = 'steps'  # temperatures: the batch of the step, at T and at T'
  # DCO-MOON.
  theta: float = float('inf')  # a larger deviation counts
  normalise: bool = False  # the two coefficients are divided by mu
  initial: str = 'plain'  # mu_0 = 0; mu: mu_0 = mu
  # What the server does in place of the mean: median, trimmed_mean, krum.
  trim: float = 0.0  # fraction left out at either end
  num_byzantine: int = 0
  num_selected: int = 1
  # Averaging.
  client_weight: str = 'samples'  # or uniform
  batch_norm: str = 'averaged'  # running statistics; local: each client keeps its own
  mixing: Sequence | None = None  # per round [N, N], adjusted for absence: no server
  server_optimizer: str = 'average'  # sgd, adam, yogi: a step along the mean update
  server_rate: float = 1.0
  server_momentum: float = 0.0  # of sgd
  server_beta1: float = 0.9
  server_beta2: float = 0.99
  server_tau: float = 1e-3


def check(options, rounds, sizes, num_clients):
  """The rounds to train, or a ValueError that says what does not fit."""
  for name, allowed in CHOICES.items():
    value = getattr(options, name)
    if value not in allowed:
      raise ValueError(f'{name}={value!r} must be one of {allowed}.')
  algorithm = options.algorithm
  if options.mixing is not None and algorithm not in ('fedavg', 'fedprox', 'moon'):
    raise ValueError(f'{algorithm} has no decentralised form here.')
  served = options.mixing is None and algorithm != 'solo'
  if options.server_optimizer != 'average' and not served:
    raise ValueError(f'server_optimizer={options.server_optimizer!r} needs a server.')
  if algorithm == 'scaffold' and options.optimizer != 'sgd':
    raise ValueError('scaffold knows the effective steps of sgd only.')
  if algorithm == 'sa_moon' and options.uniform is None:
    raise ValueError('sa_moon needs uniform.')
  if algorithm == 'centralised' and num_clients != 1:
    raise ValueError('centralised is one client with all the data.')
  if options.num_previous < 1:
    raise ValueError(f'num_previous={options.num_previous} must be at least 1.')
  if options.drop_last and not options.batch_size:
    raise ValueError('drop_last needs batch_size.')
  for batches in rounds:
    if not set(batches) <= set(range(num_clients)):
      raise ValueError(f'clients {sorted(batches)} must be in 0..{num_clients - 1}.')
  for name in ('mixing', 'rate_multipliers', 'skipped'):
    given = getattr(options, name)
    if given is not None and len(given) != len(rounds):
      raise ValueError(f'{name} must have one entry for each of {len(rounds)} rounds.')
  if options.mixing is not None:
    check_mixing(options.mixing, rounds, num_clients)
  return whole_batches(options, rounds, sizes) if options.drop_last else rounds


def check_mixing(mixing, rounds, num_clients):
  """Refuses a matrix that averages over absent clients."""
  for index, (matrix, batches) in enumerate(zip(mixing, rounds, strict=True)):
    if np.shape(matrix) != (num_clients, num_clients):
      raise ValueError(f'mixing[{index}] must be {num_clients} x {num_clients}.')
    if not np.allclose(matrix, formulas.without_absent(matrix, batches)):
      raise ValueError(f'mixing[{index}] gives weight to absent clients.')


def whole_batches(options, rounds, sizes):
  """The rounds without batches smaller than batch_size."""
  size = options.batch_size
  kept = []
  for batches in rounds:
    whole = {c: [b for b in mine if len(b) >= size] for c, mine in batches.items()}
    for client, mine in whole.items():
      if not mine:
        raise ValueError(
          f'client {client} owns {sizes[client]} examples: no batch of {size}.'
        )
    kept.append(whole)
  return kept
