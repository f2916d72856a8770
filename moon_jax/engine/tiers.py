"""Keeps the memories of all clients on the device between rounds, or in a file?"""

from typing import NamedTuple

import jax

from moon_jax.algorithms.base import Algorithm
from moon_jax.config import Config
from moon_jax.core import tree
from moon_jax.core.errors import UsageError
from moon_jax.core.types import PyTree, Server
from moon_jax.engine import hosts

# What a save may write of them, bytes: about a second, and three times that in memory.
_MOST_SAVED = 2**28
# A cohort that is this much of all clients moves them all anyway.
_MOST_IDLE = 4


class Tier(NamedTuple):
  """Where the memories of all clients are between rounds.

  Attributes:
    name: 'device' or 'disk'.
    bytes_each: of a client's memory; 0 of an algorithm whose clients keep nothing.
    most: clients that can come to have one of their own.
  """

  name: str
  bytes_each: int
  most: int


def choose(
  config: Config, algorithm: Algorithm, variables: PyTree, cohort_size: int
) -> Tier:
  """The tier that is asked for, or that 'auto' stands for.

  On the device every save writes the memories of all clients, and takes a copy of them.
  So 'auto' keeps them there if they take at most 256 MiB, or if a round has at least a
  quarter of all clients.

  Args:
    config: of the run.
    algorithm: its pure functions.
    variables: of the network; their shapes are enough.
    cohort_size: K.

  Raises:
    UsageError: several processes are to have a client store.
  """
  requested, num_clients = config.execution.client_store, config.num_clients
  each = tree.num_bytes(jax.eval_shape(algorithm.init_client, variables))
  most = min(num_clients, cohort_size * config.num_rounds)
  if not each:
    return Tier('device', 0, most)
  if hosts.count() > 1:
    if requested not in ('auto', 'device'):
      raise UsageError(
        f'--config.execution.client_store={requested!r} must be device or auto in a '
        f'run of {hosts.count()} processes.'
      )
    requested = 'device'
  if requested == 'auto':
    few = num_clients <= _MOST_IDLE * cohort_size
    requested = 'device' if few or num_clients * each <= _MOST_SAVED else 'disk'
  return Tier(requested, each, most)


def has_own_models(algorithm: Algorithm, variables: PyTree) -> bool:
  """Whether each client has a model of its own: whether two clients have two.

  Args:
    algorithm: its pure functions.
    variables: of the network; their shapes are enough.
  """

  def of_two_clients(variables):
    clients = tree.repeat(algorithm.init_client(variables), 2)
    server = Server(variables, algorithm.init_server(variables))
    return algorithm.evaluated(server, clients)

  tested = jax.eval_shape(of_two_clients, variables)
  return jax.tree.leaves(tested)[0].shape[0] == 2
