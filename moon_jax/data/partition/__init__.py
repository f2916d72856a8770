"""Partitions: every training example belongs to exactly one client."""

# ruff: noqa: F401
from typing import Any

import numpy as np

from moon_jax import catalog
from moon_jax.catalog.part_errors import explaining_errors_of
from moon_jax.core.errors import KnobError
from moon_jax.data.partition.base import Dealt, Partition, class_counts, grouped


def deal(name: str, labels: np.ndarray, *, num_clients: int, **options: Any) -> Dealt:
  """Partitions the examples by a rule of the catalog.

  Args:
    name: the rule.
    labels: [M] int.
    num_clients: N.
    **options: `min_size`, the fewest examples a client may own; `seed`, the run's seed;
      and the rule's own knobs.

  Returns:
    The partition, and how the clients see their images.

  Raises:
    UsageError: the rule cannot be met; see its function.
  """
  rule = catalog.part('partition', name)
  dealt = rule.build((Partition, Dealt), labels, num_clients=num_clients, **options)
  if isinstance(dealt, Partition):
    dealt = Dealt(dealt)
  with explaining_errors_of(rule):
    _require_index_arrays(name, dealt.partition)
    is_complete = _gives_each_example_once(dealt.partition, len(labels), num_clients)
  if not is_complete:
    raise KnobError(
      'partition.name',
      name,
      f'must give each of {len(labels)} examples to one of {num_clients} clients.',
    )
  # The package's own rules respect min_size, which may be 0 here.
  without_example = np.flatnonzero(dealt.partition.sizes < 1)
  if rule.registered and without_example.size:
    raise KnobError(
      'partition.name',
      name,
      f'must give each client an example, and client {without_example[0]} owns none.',
    )
  return dealt


def _require_index_arrays(name, partition):
  """Raises KnobError if a partition has something else than its two arrays."""
  for field, positions in partition._asdict().items():
    kind = type(positions).__name__
    if isinstance(positions, np.ndarray):
      kind = f'{positions.dtype} of shape {positions.shape}'
      if positions.ndim == 1 and np.issubdtype(positions.dtype, np.integer):
        continue
    raise KnobError(
      'partition.name',
      name,
      f'must give `{field}` as a NumPy array of integers with one axis, not {kind}.',
    )


def _gives_each_example_once(partition, num_examples, num_clients):
  if not np.array_equal(np.sort(partition.indices), np.arange(num_examples)):
    return False
  first, last = partition.offsets[[0, -1]]
  return (len(partition.sizes), first, last) == (num_clients, 0, num_examples)
