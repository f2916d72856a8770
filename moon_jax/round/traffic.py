"""The bytes that a client and the server exchange in a round."""

import jax
import jax.numpy as jnp

from moon_jax.algorithms.base import Algorithm
from moon_jax.core import tree
from moon_jax.core.errors import UsageError
from moon_jax.core.types import PyTree, Scalars, Server, Task
from moon_jax.round.client_training import checked_upload


def exchanged(
  algorithm: Algorithm, variables: PyTree, scalars: Scalars, num_classes: int
) -> tuple[int, int]:
  """Bytes that one client receives, and sends, in a round of a real deployment."""

  def exchange(variables, scalars):
    server = Server(variables, algorithm.init_server(variables))
    computed = algorithm.scalars(scalars.algorithm, server.memory)
    scalars = scalars._replace(algorithm=computed)
    received = algorithm.broadcast(server)
    memory = algorithm.init_client(variables)
    task = Task(
      received=received,
      memory=memory,
      local=algorithm.begin(received, memory),
      scalars=scalars.algorithm,
      optimizer=scalars.optimizer,
      examined=algorithm.examined_zeros,
      **_facts_of_a_client(algorithm.needs, num_classes),
    )
    trained = algorithm.download(received, memory)
    upload, _ = checked_upload(algorithm, trained, task)
    if algorithm.share:
      shared = algorithm.share(memory)
      return shared, shared
    return received, upload

  received, upload = jax.eval_shape(exchange, variables, scalars)
  return tree.num_bytes(received), tree.num_bytes(upload)


def _facts_of_a_client(needs, num_classes):
  """The facts that the algorithm needs, with any values.

  Raises:
    UsageError: there is no fact of this name.
  """
  facts = {'class_counts': jnp.ones(num_classes), 'relative_size': jnp.ones(())}
  unknown_names = sorted(set(needs) - set(facts))
  if unknown_names:
    raise UsageError(
      f'needs: there is no {unknown_names[0]!r}, only {" and ".join(facts)}.'
    )
  return {name: facts[name] for name in needs}
