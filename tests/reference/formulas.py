"""The formulas that the algorithms differ in, each on its own."""

import jax
import numpy as np

from tests.reference.losses import Weights
from tests.reference.networks import norm, squared_distance

# FedSAM: Caldarola et al. 2022 (arXiv:2203.11834).


def uphill(gradient, params, options):
  """rho g / ||g||, or with T = |y| + xi of each weight rho T^2 g / ||T g||."""

  def size(y):
    return np.abs(y) + options.xi if options.adaptive else np.ones_like(y)

  stretched = jax.tree.map(lambda y, g: size(y) * g, params, gradient)
  length = norm(stretched)
  return jax.tree.map(
    lambda y, tg: options.rho * size(y) * tg / length, params, stretched
  )


# SCAFFOLD, option II: Karimireddy et al. 2020 (arXiv:1910.06378), Algorithm 1.


def effective_steps(num_steps, momentum):
  """a(K) = sum_{k=1..K} (1 - momentum^k) / (1 - momentum); K without momentum.

  Step k moves by the velocity g (1 + momentum + ... + momentum^(k-1)) if g stays.
  """
  return sum(sum(momentum**age for age in range(k)) for k in range(1, num_steps + 1))


def corrected(gradient, client_control, control):
  """g - c_i + c."""
  return jax.tree.map(lambda g, c_i, c: g - c_i + c, gradient, client_control, control)


def new_client_control(client_control, control, received, trained, divisor):
  """c_i+ = c_i - c + (x - y_i) / divisor, with divisor = learning rate * a(K)."""
  return jax.tree.map(
    lambda c_i, c, x, y: c_i - c + (x - y) / divisor,
    client_control,
    control,
    received,
    trained,
  )


def new_control(control, old, new, num_clients):
  """c + (|S| / N) * mean over the cohort of (c_i+ - c_i).

  Args:
    control: c.
    old: list of c_i, one per client of the cohort S.
    new: list of c_i+, in the same order.
    num_clients: N.
  """
  share = 1 / len(new)
  for before, after in zip(old, new, strict=True):
    control = jax.tree.map(
      lambda c, b, a: c + (len(new) / num_clients) * share * (a - b),
      control,
      before,
      after,
    )
  return control


# SA-MOON: the temperature of L_con by simulated annealing.


def annealed(
  temperature, losses, norms, draw, *, sigma, minimum, epsilon, loss_at=None
):
  """The temperature after a local step, Metropolis acceptance.

  Candidate max(T (1 - sigma |g - g_last| / (g_last + epsilon)), minimum), taken with
  probability 1 if loss < loss_last, else exp((loss_last - loss) / T).

  Args:
    temperature: T, with which `loss` was computed.
    losses: (loss_last, loss), of the step before and of this one.
    norms: (g_last, g), gradient norms of the same two steps.
    draw: uniform in [0, 1); the candidate is taken if it is below the probability.
    sigma, minimum, epsilon: numbers of the method.
    loss_at: temperature -> loss of this step's batch and weights. If given, the two
      losses compared are `loss` and that at the candidate.
  """
  (loss_last, loss), (g_last, g) = losses, norms
  change = abs(g - g_last) / (g_last + epsilon)
  candidate = max(temperature * (1 - sigma * change), minimum)
  if loss_at is not None:
    loss_last, loss = loss, loss_at(candidate)
  probability = 1.0
  if not loss < loss_last:
    probability = float(np.exp((loss_last - loss) / temperature))
  return candidate if draw < probability else temperature


# DCO-MOON: coefficients by the maximum-likelihood estimate of a Bernoulli parameter.


def deviation(trained, received):
  """d_i = ||w_i - w_received|| / ||w_received||, over all parameters."""
  return float(np.sqrt(squared_distance(trained, received)) / norm(received))


def fraction_above(deviations, theta):
  """p: the mean of b_i = [d_i > theta]."""
  return sum(1 if d > theta else 0 for d in deviations) / len(deviations)


def dynamic_weights(mu, p, *, normalise):
  """(2 mu - mu p) L_sup + (mu + mu p) L_con; normalised, both divided by mu."""
  supervised, contrastive = 2 * mu - mu * p, mu + mu * p
  divisor = mu if normalise else 1.0
  return Weights(supervised / divisor, contrastive / divisor, 0.0)


# Decentralised averaging.


def metropolis_hastings(adjacency):
  """W_ij = 1 / (1 + max(degree_i, degree_j)) for neighbours, the rest on W_ii.

  Args:
    adjacency: [N, N] symmetric, true where two different clients are neighbours.

  Returns:
    [N, N] symmetric, rows and columns sum to 1.
  """
  num_clients = len(adjacency)
  neighbours = [
    [j for j in range(num_clients) if j != i and adjacency[i][j]]
    for i in range(num_clients)
  ]
  mixing = np.zeros((num_clients, num_clients))
  for i in range(num_clients):
    for j in neighbours[i]:
      mixing[i, j] = 1 / (1 + max(len(neighbours[i]), len(neighbours[j])))
    mixing[i, i] = 1 - sum(mixing[i, j] for j in neighbours[i])
  return mixing


def without_absent(mixing, present):
  """W for a round: an absent neighbour's weight goes to the client itself.

  The row of an absent client is the identity's: it keeps its model.

  Args:
    mixing: [N, N] for the round in which all are present.
    present: the clients that take part.
  """
  num_clients = len(mixing)
  adjusted = np.zeros((num_clients, num_clients))
  for i in range(num_clients):
    for j in range(num_clients):
      are_present = i in present and j in present
      adjusted[i, j if are_present else i] += mixing[i][j]
  return adjusted
