"""Decides where the memories of all clients are between rounds: device or disk."""

from typing import NamedTuple

import jax

from moon_jax.algorithms.base import Algorithm
from moon_jax.core import tree
from moon_jax.core.errors import KnobError
from moon_jax.core.types import PyTree
from moon_jax.platform import hosts

# Bytes of memories that a save may write: about a second, and three times as much RAM.
_MAX_SAVED_BYTES = 2**28
# A cohort of at least a quarter of all clients moves all memories in any case.
_MAX_CLIENTS_PER_SLOT = 4


class ClientMemory(NamedTuple):
  """What clients keep between rounds, and where.

  Attributes:
    on_device: whether the devices hold the memories of all clients; if not, they are on
      the disk, and the devices hold those of the cohort.
    bytes_per_client: bytes of a client's memory; 0 if the clients keep nothing.
  """

  on_device: bool
  bytes_per_client: int


def choose(
  algorithm: Algorithm,
  variables: PyTree,
  *,
  requested: str,
  num_clients: int,
  cohort_size: int,
) -> ClientMemory:
  """The place that is asked for, or that 'auto' stands for.

  On the device, every save writes the memories of all clients, and takes a copy of
  them. So 'auto' keeps them there if they take at most 256 MiB, or if a round has at
  least a quarter of all clients.

  Args:
    algorithm: its pure functions.
    variables: variables of the network; their shapes are enough.
    requested: `execution.client_store`: 'device', 'disk' or 'auto'.
    num_clients: N.
    cohort_size: K.

  Raises:
    UsageError: a run of several processes asks for a client store.
  """
  bytes_per_client = tree.num_bytes(jax.eval_shape(algorithm.init_client, variables))
  if not bytes_per_client:
    return ClientMemory(on_device=True, bytes_per_client=0)
  if hosts.count() > 1:
    if requested not in ('auto', 'device'):
      raise KnobError(
        'execution.client_store',
        requested,
        f'must be device or auto in a run of {hosts.count()} processes.',
      )
    requested = 'device'
  if requested == 'auto':
    is_large_cohort = num_clients <= _MAX_CLIENTS_PER_SLOT * cohort_size
    is_quickly_saved = num_clients * bytes_per_client <= _MAX_SAVED_BYTES
    requested = 'device' if is_large_cohort or is_quickly_saved else 'disk'
  return ClientMemory(requested == 'device', bytes_per_client)
