"""Ditto: Li, Hu, Beirami, Smith, ICML 2021, arXiv:2012.04221, algorithms 1 and 2."""

from moon_jax.algorithms import base, losses
from moon_jax.core.types import Upload


def ditto(
  *,
  lam: float,
  epochs: int | str = 'auto',
  learning_rate: float | str = 'auto',
) -> base.Algorithm:
  """FedAvg, and beside it each client of a round trains a model v of its own:

  v <- v - eta_p grad (L(v) + lam / 2 ||v - w||^2), with w the model that it received.

  The global model never sees v, and is FedAvg's to the last bit. v starts as the first
  global model, and an absent client keeps it. With lam = 0 it is trained alone; the
  larger lam, the nearer to w. It draws batches of its own.

  Args:
    lam: lambda, at least 0; stable below about 2 / eta_p.
    epochs: of v in a round, at least 1; 'auto' is as many as those of the global model.
    learning_rate: eta_p, above 0; 'auto' is the round's.
  """
  own_rate = {} if learning_rate == 'auto' else {'learning_rate': learning_rate}

  def loss(outputs, references, params, task, batch):
    supervised, parts = base.supervised(outputs, references, params, task, batch)
    pull = losses.proximal(params, task.received['params'])
    return supervised + task.scalars['lam'] * pull, parts

  def optimizer(scalars, optimizer):
    return optimizer | {name: scalars[name] for name in own_rate}

  personal = base.Algorithm(
    download=lambda received, memory: memory,
    loss=loss,
    upload=lambda trained, task: (Upload(), trained),
  )
  return base.Algorithm(
    hyperparameters={'lam': lam} | own_rate,
    init_client=lambda variables: variables,
    personal=lambda server, memory: memory,
    second=base.Second(personal, None if epochs == 'auto' else epochs, optimizer),
  )
