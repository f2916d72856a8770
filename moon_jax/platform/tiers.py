"""Decides where the memories of all clients are between rounds: device or disk."""

from typing import NamedTuple

import jax

from moon_jax.algorithms.base import Algorithm
from moon_jax.config import Config
from moon_jax.core import tree
from moon_jax.core.errors import UsageError
from moon_jax.core.types import PyTree, Server
from moon_jax.platform import hosts

# Bytes of memories that a save may write: about a second, and three times as much RAM.
_MOST_SAVED = 2**28
# A cohort of this fraction of all clients moves all memories in any case.
_MOST_IDLE = 4
_MANY = 997  # clients for which models are counted: only clients are as many


class Tier(NamedTuple):
  """Where the memories of all clients are between rounds.

  Attributes:
    name: 'device' or 'disk'.
    bytes_each: bytes of a client's memory; 0 if the clients keep nothing.
  """

  name: str
  bytes_each: int


def choose(
  config: Config, algorithm: Algorithm, variables: PyTree, cohort_size: int
) -> Tier:
  """The tier that is asked for, or that 'auto' stands for.

  On the device, every save writes the memories of all clients, and takes a copy of
  them. So 'auto' keeps them there if they take at most 256 MiB, or if a round has at
  least a quarter of all clients.

  Args:
    config: the configuration of the run.
    algorithm: its pure functions.
    variables: variables of the network; their shapes are enough.
    cohort_size: K.

  Raises:
    UsageError: a run of several processes asks for a client store.
  """
  requested, num_clients = config.execution.client_store, config.num_clients
  each = tree.num_bytes(jax.eval_shape(algorithm.init_client, variables))
  if not each:
    return Tier('device', 0)
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
  return Tier(requested, each)


def has_own_models(algorithm: Algorithm, variables: PyTree) -> bool:
  """Whether each client has a model of its own: whether N clients have N models.

  Args:
    algorithm: its pure functions.
    variables: variables of the network; their shapes are enough.
  """

  def tested(variables):
    clients = tree.repeat(algorithm.init_client(variables), _MANY)
    server = Server(variables, algorithm.init_server(variables))
    return algorithm.evaluated(server, clients)

  return len(jax.tree.leaves(jax.eval_shape(tested, variables))[0]) == _MANY
