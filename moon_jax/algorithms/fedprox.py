"""FedProx: Li et al. 2020, eq. 2, arXiv:1812.06127."""

from moon_jax.algorithms import base, losses


def fedprox(*, mu: float) -> base.Algorithm:
  """FedAvg with mu/2 ||w - w_received||^2 added to the local loss.

  Args:
    mu: weight of the proximal term, at least 0; 0 is FedAvg.
  """

  def loss(outputs, references, params, task, batch):
    supervised, parts = base.supervised(outputs, references, params, task, batch)
    pull = losses.proximal(params, task.received['params'])
    return supervised + task.scalars['mu'] * pull, parts | {'proximal_loss': pull}

  return base.Algorithm(hyperparameters={'mu': mu}, loss=loss)
