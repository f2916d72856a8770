"""The bytes that a client and the server exchange in a round."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from moon_jax.algorithms.base import Algorithm
from moon_jax.core import tree
from moon_jax.core.errors import UsageError
from moon_jax.core.types import PyTree, Scalars, Server, Task
from moon_jax.round.client_training import checked_upload


class Traffic(NamedTuple):
  """What one client exchanges in a round of a real deployment, in bytes.

  It is with the server or, if there is none, with each of the client's neighbours.

  Attributes:
    bytes_received: bytes that the client receives.
    bytes_sent: bytes that the client sends.
  """

  bytes_received: int
  bytes_sent: int


def traffic_of_client(
  algorithm: Algorithm,
  variables: PyTree,
  scalars: Scalars,
  num_classes: int,
  frozen: frozenset[tuple[str, ...]] = frozenset(),
) -> Traffic:
  """What one client exchanges in a round; only shapes and dtypes matter.

  Args:
    algorithm: its pure functions.
    variables: variables of the network, or their shapes.
    scalars: the scalars of any round.
    num_classes: Y.
    frozen: paths of the variables that do not train: they are never sent.

  Raises:
    UsageError: the algorithm needs an unknown fact about the client's data, or its
      `upload` returns something else than it must.
  """

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
  return Traffic(
    bytes_received=_num_bytes(received, frozen), bytes_sent=_num_bytes(upload, frozen)
  )


def _num_bytes(message, frozen):
  """Bytes of what changes in a message.

  What has the shape of the parameters alone, as SCAFFOLD's control variates, does not
  change for frozen layers either.
  """
  frozen_params = frozenset(path[1:] for path in frozen if path[0] == 'params')

  def changes(path):
    is_of_params_alone = 'params' not in (getattr(key, 'key', None) for key in path)
    is_frozen = tree.is_at(frozen, path)
    is_frozen |= is_of_params_alone and tree.is_at(frozen_params, path)
    return not is_frozen

  leaves = jax.tree.leaves_with_path(message)
  return tree.num_bytes([leaf for path, leaf in leaves if changes(path)])


def _facts_of_a_client(fact_names, num_classes):
  """The facts that the algorithm needs, with any values.

  Raises:
    UsageError: there is no fact of this name.
  """
  facts = {
    'class_counts': jnp.ones(num_classes),
    'relative_size': jnp.ones(()),
    'epoch_steps': jnp.ones(()),
  }
  unknown_names = sorted(set(fact_names) - set(facts))
  if unknown_names:
    *names, last_name = facts
    raise UsageError(
      f'needs: there is no {unknown_names[0]!r}, only {", ".join(names)} and '
      f'{last_name}.'
    )
  return {name: facts[name] for name in fact_names}
