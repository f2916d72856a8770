"""Draws and counts one client's batches of a round. Host side, plain NumPy."""

import numpy as np

from moon_jax.core.keys import Purpose, host_rng


def epoch_steps(sizes: np.ndarray, batch_size: int, *, drop_last: bool) -> np.ndarray:
  """[N] number of examples -> [N] int, batches of a pass; the last may be partial."""
  sizes = np.asarray(sizes)
  return sizes // batch_size if drop_last else -(-sizes // batch_size)


def client_batches(
  owned: np.ndarray,
  *,
  rng_key: tuple[int, int, int],
  local_epochs: int,
  batch_size: int,
  drop_last: bool = False,
  purpose: Purpose = Purpose.BATCHES,
) -> tuple[np.ndarray, np.ndarray]:
  """One client's batches of a round: every epoch in a new order, no example left out.

  Args:
    owned: [n] rows that the client owns.
    rng_key: (seed, round, client).
    local_epochs: passes over the data.
    batch_size: B.
    drop_last: whether an epoch's last batch is left out if it is not full.
    purpose: purpose of the draws.

  Returns:
    rows: [epochs * ceil(n / B), B] int32; an epoch's last batch is filled up with
      copies of its last example.
    num_real: [epochs * ceil(n / B)] int32 number of examples that are no copies.
  """
  seed, round_index, client = rng_key
  steps = int(epoch_steps(len(owned), batch_size, drop_last=drop_last))
  grid = np.minimum(np.arange(steps * batch_size), len(owned) - 1)
  orders = [
    host_rng(seed, purpose, round_index, client, epoch).permutation(owned)[grid]
    for epoch in range(local_epochs)
  ]
  real = np.minimum(len(owned) - batch_size * np.arange(steps), batch_size)
  rows = np.concatenate(orders).reshape(-1, batch_size).astype(np.int32)
  return rows, np.tile(real, local_epochs).astype(np.int32)
