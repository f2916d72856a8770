"""Keeps the memories of all clients on the device between rounds, or in a file?"""

from typing import NamedTuple

import jax

from moon_jax.algorithms.base import Algorithm
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
  requested: str,
  algorithm: Algorithm,
  variables: PyTree,
  *,
  num_clients: int,
  cohort_size: int,
  num_rounds: int,
) -> Tier:
  """The tier that is asked for, or that 'auto' stands for.

  On the device every save writes the memories of all clients, and takes a copy of them.
  So 'auto' keeps them there if they take at most 256 MiB, or if a round has at least a
  quarter of all clients.

  Args:
    requested: 'auto', or the name of a tier.
    algorithm: its pure functions.
    variables: of the network; their shapes are enough.
    num_clients: N.
    cohort_size: K.
    num_rounds: of the run.

  Raises:
    UsageError: several processes are to have a client store.
  """
  memory = jax.eval_shape(algorithm.init_client, variables)
  each, most = tree.num_bytes(memory), min(num_clients, cohort_size * num_rounds)
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
