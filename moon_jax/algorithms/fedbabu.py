"""FedBABU: Oh, Kim, Yun, ICLR 2022, arXiv:2106.06042: the body alone is trained."""

from moon_jax.algorithms import base
from moon_jax.algorithms.private import (
  Paths,
  divided,
  joined,
  keeping,
  output_layer,
  without_gradient,
)
from moon_jax.core.types import Layers, Upload


def fedbabu(*, network_layers: Layers) -> base.Algorithm:
  """FedAvg of all but the output layer (the head), which stays as it was first drawn.

  w_B <- sum_k (n_k / n) w_B,k over the cohort, and w_H never moves. The paper
  tests each client's model after fine-tuning body and head on the client's data.

  Args:
    network_layers: the layers of the network.

  Raises:
    KnobError: the output layer of the network is not known.
  """
  output = output_layer(network_layers, 'fedbabu', 'never trains the output layer')
  return with_fixed(output)


def with_fixed(fixed: Paths) -> base.Algorithm:
  """FedAvg of the variables that are not fixed; a fixed variable gets no update.

  Fixed variables are not sent, so they keep their bits: a mean would round them.
  """

  def upload(trained, task):
    return Upload(divided(trained, fixed)[0]), task.memory

  def aggregate(server, mean, participation, scalars):
    _, unchanged = divided(server.variables, fixed)
    return server._replace(variables=joined(mean.weighted, unchanged))

  keep_fixed = keeping(fixed)
  return base.Algorithm(
    correct=without_gradient(keep_fixed),
    after_update=keep_fixed,
    upload=upload,
    aggregate=aggregate,
  )
