"""Draws and counts one client's batches of a round. Host side, plain NumPy."""

import dataclasses

import numpy as np

from moon_jax.core.keys import Purpose, host_rng


@dataclasses.dataclass(frozen=True)
class LocalWork:
  """How long each client trains in a round, and on which batches.

  Attributes:
    local_epochs: passes of a client over its data in a round.
    batch_size: B.
    local_epochs_min: a client's passes are drawn from this to local_epochs; 0: no draw.
    drop_last: whether an epoch's last batch is left out if it is not full; every client
      then owns at least one batch.
    purpose: purpose of the draws of batches.
  """

  local_epochs: int
  batch_size: int
  local_epochs_min: int = 0
  drop_last: bool = False
  purpose: Purpose = Purpose.BATCHES

  def max_steps(self, sizes: np.ndarray) -> np.ndarray:
    """[K] number of examples -> [K] steps that such a client trains at most."""
    steps = epoch_steps(sizes, self.batch_size, drop_last=self.drop_last)
    return self.local_epochs * steps


def epoch_steps(sizes: np.ndarray, batch_size: int, *, drop_last: bool) -> np.ndarray:
  """[N] number of examples -> [N] int, batches of a pass; the last may be partial."""
  sizes = np.asarray(sizes)
  return sizes // batch_size if drop_last else -(-sizes // batch_size)


def client_batches(
  owned_rows: np.ndarray, *, rng_key: tuple[int, int, int], work: LocalWork
) -> tuple[np.ndarray, np.ndarray]:
  """One client's batches of a round: each epoch has its examples in a new order.

  Args:
    owned_rows: [n] rows of the examples that the client owns.
    rng_key: (seed, round, client).
    work: which batches; all `local_epochs` are drawn.

  Returns:
    example_rows: [epochs * ceil(n / B), B] int32; an epoch's last batch is filled up
      with copies of its last example. With `drop_last` it is left out if it is not
      full: [epochs * floor(n / B), B].
    num_real: [epochs * ceil(n / B)] int32 number of examples that are no copies.
  """
  seed, round_index, client = rng_key
  num_owned, batch_size = len(owned_rows), work.batch_size
  num_steps = int(epoch_steps(num_owned, batch_size, drop_last=work.drop_last))
  places_in_epoch = np.minimum(np.arange(num_steps * batch_size), num_owned - 1)
  epochs = []
  for epoch in range(work.local_epochs):
    rng = host_rng(seed, work.purpose, round_index, client, epoch)
    epochs.append(rng.permutation(owned_rows)[places_in_epoch])
  num_left = num_owned - batch_size * np.arange(num_steps)
  num_real = np.minimum(num_left, batch_size)
  example_rows = np.concatenate(epochs).reshape(-1, batch_size).astype(np.int32)
  return example_rows, np.tile(num_real, work.local_epochs).astype(np.int32)
