"""The bytes that a client and the server exchange in a round."""

import jax
import jax.numpy as jnp

from moon_jax.algorithms.base import Algorithm
from moon_jax.core import tree
from moon_jax.core.errors import UsageError
from moon_jax.core.types import PyTree, Scalars, Server
from moon_jax.round.client_training import sent, task_of


def exchanged(
  algorithm: Algorithm, variables: PyTree, scalars: Scalars, num_classes: int
) -> tuple[int, int]:
  """Bytes that one client receives, and sends, in a round of a real deployment."""

  def exchange(variables, scalars):
    server = Server(variables, algorithm.init_server(variables))
    own = algorithm.scalars(scalars.algorithm, server.memory)
    received, memory = algorithm.broadcast(server), algorithm.init_client(variables)
    scalars = scalars._replace(algorithm=own)
    local = algorithm.begin(received, memory)
    every = {'class_counts': jnp.ones(num_classes), 'relative_size': jnp.ones(())}
    if unknown := sorted(set(algorithm.needs) - set(every)):
      raise UsageError(
        f'needs: there is no {unknown[0]!r}, only {" and ".join(every)}.'
      )
    known = {name: every[name] for name in algorithm.needs}
    task = task_of(received, memory, local, scalars, known)
    task = task._replace(examined=algorithm.examined)
    upload, _ = sent(algorithm, algorithm.download(received, memory), task)
    return (algorithm.share(memory),) * 2 if algorithm.share else (received, upload)

  received, upload = jax.eval_shape(exchange, variables, scalars)
  return tree.num_bytes(received), tree.num_bytes(upload)
