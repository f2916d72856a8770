"""FedBABU: Oh, Kim, Yun, ICLR 2022, arXiv:2106.06042: the body alone is trained."""

import jax
import jax.numpy as jnp

from moon_jax.algorithms import base
from moon_jax.algorithms.private import Paths, divided, joined
from moon_jax.core.errors import UsageError
from moon_jax.core.types import Layers, Upload


def fedbabu(*, network_layers: Layers) -> base.Algorithm:
  """FedAvg of all but the output layer (the head), which stays as it was first drawn.

  w_B <- sum_k (n_k / n) w_B,k over the cohort, and w_H never moves. The paper
  tests each client's model after fine-tuning body and head on the client's data.

  Args:
    network_layers: the layers of the network.

  Raises:
    UsageError: the output layer of the network is not known.
  """
  if not network_layers.output:
    raise UsageError(
      '--config.algorithm=fedbabu never trains the output layer, which cannot be found '
      'in this network: choose another --config.model.'
    )
  return with_fixed(network_layers.output)


def with_fixed(fixed: Paths) -> base.Algorithm:
  """FedAvg of the variables that are not fixed; a fixed variable gets no update.

  Updates of fixed variables are dropped after the local optimizer, so neither weight
  decay nor momentum moves them. They are not sent, so they keep their bits: a mean
  would round them.
  """

  def move(update, task):
    trained, still = divided({'params': update}, fixed)
    return joined(trained, jax.tree.map(jnp.zeros_like, still))['params']

  def upload(trained, task):
    return Upload(divided(trained, fixed)[0]), task.memory

  def aggregate(server, mean, participation, scalars):
    still = divided(server.variables, fixed)[1]
    return server._replace(variables=joined(mean.weighted, still))

  return base.Algorithm(move=move, upload=upload, aggregate=aggregate)
