"""Which tier keeps the memories of the clients between rounds: device, host, disk?"""

import os
from typing import NamedTuple

import jax

from moon_jax import tree
from moon_jax.algorithms.base import Algorithm
from moon_jax.engine import hosts
from moon_jax.types import PyTree, Server

# Shares of a memory that the clients' may take; the rest is for training.
_OF_DEVICE, _OF_HOST = 1 / 8, 1 / 4
# A cohort that is this much of all clients moves them all anyway.
_MOST_IDLE = 4


class Tier(NamedTuple):
  """Where the memories of all clients are between rounds.

  Attributes:
    name: 'device', 'host' or 'disk'.
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
  """The tier that is asked for, or for 'auto' the fastest that has the room.

  Args:
    requested: 'auto', or the name of a tier.
    algorithm: its pure functions.
    variables: of the network; their shapes are enough.
    num_clients: N.
    cohort_size: K.
    num_rounds: of the run.
  """
  memory = jax.eval_shape(algorithm.init_client, variables)
  each, most = tree.num_bytes(memory), min(num_clients, cohort_size * num_rounds)
  if not each:
    return Tier('device', 0, most)
  if requested == 'auto':
    on_device, in_host = hosts.decided(room)
    few = num_clients <= _MOST_IDLE * cohort_size
    requested = 'host' if most * each <= _OF_HOST * in_host else 'disk'
    if few or num_clients * each <= _OF_DEVICE * on_device:
      requested = 'device'
  return Tier(requested, each, most)


def room() -> tuple[int, int]:
  """Bytes of memory of a device, and of the host; CPU devices share the host's."""
  host = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')
  told = jax.local_devices()[0].memory_stats() or {}
  return told.get('bytes_limit', host // jax.local_device_count()), host


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
