"""What can be chosen."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tests.reference.networks import Network


class Options(NamedTuple):
  """The keyword arguments of run; a default is what the first algorithms did."""

  algorithm: str
  network: Network
  # Local training.
  learning_rate: float
  momentum: float  # of sgd and nesterov; the velocity starts at zero every round
  weight_decay: float  # on all parameters; coupled, but for adamw
  mu: float  # weight of the proximal or of the contrastive term, or of MOON's l2
  tau: float  # temperature of the contrastive term, of FedNTD; SA-MOON has its own
  optimizer: str = 'sgd'  # sgd, nesterov, adam, adamw
  adam_beta1: float = 0.9
  adam_beta2: float = 0.999
  adam_epsilon: float = 1e-8
  skipped: Sequence | None = None  # per round, clients of the cohort that do not count
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
  # FedSAM and MoFedSAM.
  rho: float = 0.0  # how far uphill the second gradient is taken
  adaptive: bool = False  # each weight moves by its size, to which xi is added
  xi: float = 0.0
  beta: float = 1.0  # MoFedSAM: weight of a client's own gradient; or of an own term
  # The rivals.
  scale: str = 'code'  # of FedDecorr's term; or equation
  squared: bool = False  # MOON's l2 term
  alpha: float = 1.0  # FedRS: factor of logits; FedDyn: weight of the regularisation
  by_size: bool = False  # FedDyn: alpha_i = alpha * mean n / n_i
  tau_eff: str = 'norm'  # FedNova: mean of a_i; steps: mean of s_i
  graded: bool = False  # FedRS: rarer classes are scaled too
  least_count: float = 0.0  # FedLC
  true_class: bool = True  # FedLC
  rise: float = 1.0  # FedProc: rounds until the cross entropy counts alone
  lam: float = 0.0  # FedProto: weight of the distance to the prototype
  distance: str = 'mean'  # FedProto; or sum, over the dimensions
  eps: float = 0.0  # FedExP's guard in the first round
  eps_decay: float = 1.0  # its factor from round to round
  # What the server does in place of the mean: median, trimmed_mean, krum.
  trim: float = 0.0  # fraction left out at either end
  num_byzantine: int = 0
  num_selected: int = 1
  # What some clients send: see attacks.sent.
  attack: Callable | None = None
  attack_numbers: tuple = ()  # pairs of name and number
  attackers: Sequence = ()  # ids
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
