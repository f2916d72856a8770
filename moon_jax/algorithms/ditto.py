"""Ditto: Li, Hu, Beirami, Smith, ICML 2021, arXiv:2012.04221, algorithms 1 and 2."""

from moon_jax.algorithms import base, losses
from moon_jax.core.types import Upload


def ditto(
  *,
  lam: float,
  epochs: int | str = 'auto',
  learning_rate: float | str = 'auto',
) -> base.Algorithm:
  """FedAvg; each client of a round also trains its own model, tied to the global one.

  The client's model is v:

  v <- v - eta_p grad (L(v) + lam / 2 ||v - w||^2), where w is the model that it
  received.

  The global model never sees v, and equals FedAvg's to the last bit. v starts as the
  first global model, and an absent client keeps it. With lam = 0, v is trained alone; a
  larger lam keeps it nearer to w. The training of v draws its own batches.

  Args:
    lam: lambda, at least 0; stable below about 2 / eta_p.
    epochs: epochs of v in a round, at least 1; 'auto': as many as for the global model.
    learning_rate: eta_p, above 0; 'auto': the round's learning rate.
  """
  has_own_rate = learning_rate != 'auto'

  def loss(outputs, references, params, task, batch):
    supervised, parts = base.supervised(outputs, references, params, task, batch)
    pull = losses.proximal(params, task.received['params'])
    return supervised + task.scalars['lam'] * pull, parts

  def optimizer_scalars(scalars, optimizer):
    if has_own_rate:
      return optimizer | {'learning_rate': scalars['learning_rate']}
    return optimizer

  personal = base.Algorithm(
    download=lambda received, memory: memory,
    loss=loss,
    upload=lambda trained, task: (Upload(), trained),
  )
  hyperparameters = {'lam': lam}
  if has_own_rate:
    hyperparameters['learning_rate'] = learning_rate
  return base.Algorithm(
    hyperparameters=hyperparameters,
    init_client=lambda variables: variables,
    personal=lambda server, memory: memory,
    second_training=base.SecondTraining(
      algorithm=personal,
      epochs=None if epochs == 'auto' else epochs,
      optimizer_scalars=optimizer_scalars,
    ),
  )
