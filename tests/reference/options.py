"""The options of the reference."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tests.reference.networks import Network


class Options(NamedTuple):
  """The keyword arguments of run, by default those of plain FedAvg."""

  algorithm: str
  network: Network
  # Local training.
  learning_rate: float
  momentum: float  # for sgd and nesterov; the velocity starts at zero every round
  weight_decay: float  # on all parameters; decoupled for adamw alone
  mu: float  # weight of the proximal term, the contrastive term or MOON's l2 term
  tau: float  # temperature of the contrastive term, of FedNTD; SA-MOON has its own
  optimizer: str = 'sgd'  # sgd, nesterov, adam, adamw
  adam_beta1: float = 0.9
  adam_beta2: float = 0.999
  adam_epsilon: float = 1e-8
  skipped: Sequence | None = None  # for each round, clients whose uploads do not count
  # The contrastive term.
  similarity_on: str = 'representation'  # or features: the encoder's output
  negative: str = 'none'  # without a previous model: none, global or init
  num_previous: int = 1  # number of the last models that are negatives
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
  # FedSAM and MoFedSAM.
  rho: float = 0.0  # length of the step uphill, before the second gradient
  adaptive: bool = False  # scales the step by each weight's size plus xi
  xi: float = 0.0
  beta: float = 1.0  # MoFedSAM: weight of a client's gradient; else of an own term
  # The rivals.
  scale: str = 'code'  # of FedDecorr's term: code or equation
  squared: bool = False  # MOON's l2 term
  alpha: float = 1.0  # FedRS: factor of logits; FedDyn: weight of the regularisation
  by_size: bool = False  # FedDyn: alpha_i = alpha * mean n / n_i
  tau_eff: str = 'norm'  # FedNova: mean of a_i; steps: mean of s_i
  graded: bool = False  # FedRS: rarer classes are scaled too
  least_count: float = 0.0  # FedLC
  true_class: bool = True  # FedLC
  rise: float = 1.0  # FedProc: rounds until the cross entropy counts alone
  lam: float = 0.0  # FedProto: weight of the distance to the prototype
  distance: str = 'mean'  # FedProto, over the dimensions: mean or sum
  eps: float = 0.0  # FedExP's guard in the first round
  eps_decay: float = 1.0  # its factor from round to round
  # Server rules in place of the mean: median, trimmed_mean, krum.
  trim: float = 0.0  # fraction left out at either end
  num_byzantine: int = 0
  num_selected: int = 1
  # Attacks: see attacks.sent.
  attack: Callable | None = None
  attack_numbers: tuple = ()  # pairs of name and number
  attackers: Sequence = ()  # ids of the clients that attack
  # Averaging.
  client_weight: str = 'samples'  # samples or uniform
  batch_norm: str = 'averaged'  # running statistics; local: kept by each client
  mixing: Sequence | None = None  # per round [N, N], adjusted for absence: no server
  server_optimizer: str = 'average'  # sgd, adam, yogi: a step along the mean update
  server_rate: float = 1.0
  server_momentum: float = 0.0  # for sgd
  server_beta1: float = 0.9
  server_beta2: float = 0.99
  server_tau: float = 1e-3
