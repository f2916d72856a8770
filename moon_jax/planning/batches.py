"""Draws and counts one client's batches of a round. Host side, plain NumPy."""

import dataclasses

import numpy as np

from moon_jax.core.keys import Purpose, host_rng
from moon_jax.core.shares import share_of


@dataclasses.dataclass(frozen=True)
class LocalWork:
  """How long each client trains in a round, and on which batches.

  Attributes:
    local_epochs: passes of a client over its data in a round.
    batch_size: B.
    local_epochs_min: a client's passes are drawn from this to local_epochs; 0: no draw.
    drop_last: whether an epoch's last step is left out if it is not full; every client
      then owns the examples of at least one step.
    purpose: purpose of the draws of batches.
    batches_per_step: batches of a step.
    steps_limit: most steps of a client; 0: no limit.
    example_share: fraction of a client's examples that are drawn anew in each round.
    second_round_epochs: passes in the second round in which a client takes part, at
      least `local_epochs`; 0: as in its other rounds.
  """

  local_epochs: int
  batch_size: int
  local_epochs_min: int = 0
  drop_last: bool = False
  purpose: Purpose = Purpose.BATCHES
  batches_per_step: int = 1
  steps_limit: int = 0
  example_share: float = 1.0
  second_round_epochs: int = 0

  @property
  def step_size(self) -> int:
    """Examples of a step."""
    return self.batch_size * self.batches_per_step

  @property
  def max_epochs(self) -> int:
    """The largest number of passes in a round."""
    return max(self.local_epochs, self.second_round_epochs)

  def num_drawn(self, num_owned: int) -> int:
    """How many of its examples a client uses in a round; enough for a step."""
    fewest = self.step_size if self.drop_last else 1
    return min(num_owned, max(share_of(num_owned, self.example_share), fewest))

  def epoch_steps(self, sizes: np.ndarray) -> np.ndarray:
    """[K] number of examples -> [K] steps of a pass of such a client."""
    if self.example_share < 1:
      sizes = np.array([self.num_drawn(size) for size in np.asarray(sizes).tolist()])
    return epoch_steps(sizes, self.step_size, drop_last=self.drop_last)

  def max_steps(self, sizes: np.ndarray) -> np.ndarray:
    """[K] number of examples -> [K] steps that such a client trains at most."""
    return self.limited(self.max_epochs * self.epoch_steps(sizes))

  def limited(self, steps: np.ndarray) -> np.ndarray:
    """Numbers of steps, cut to the limit."""
    return np.minimum(steps, self.steps_limit) if self.steps_limit else steps


def epoch_steps(sizes: np.ndarray, batch_size: int, *, drop_last: bool) -> np.ndarray:
  """[N] number of examples -> [N] int, batches of a pass; the last may be partial."""
  sizes = np.asarray(sizes)
  return sizes // batch_size if drop_last else -(-sizes // batch_size)


def client_batches(
  owned_rows: np.ndarray,
  *,
  rng_key: tuple[int, int, int],
  work: LocalWork,
  num_epochs: int | None = None,
) -> tuple[np.ndarray, np.ndarray]:
  """One client's batches of a round: each epoch has its examples in a new order.

  Args:
    owned_rows: [n] rows of the examples that the client owns.
    rng_key: (seed, round, client).
    work: which batches.
    num_epochs: number of passes; None: the largest number.

  Returns:
    example_rows: [epochs * ceil(n / B), B] int32, with B for the examples of a step; an
      epoch's last step is filled up with copies of its last example. With `drop_last`
      it is left out if it is not full: [epochs * floor(n / B), B].
    num_real: [epochs * ceil(n / B)] int32 number of examples that are no copies. A step
      of several batches has at least one in each: if fewer examples are left, they
      are repeated.
  """
  seed, round_index, client = rng_key
  if num_epochs is None:
    num_epochs = work.max_epochs
  if work.example_share < 1:
    rng = host_rng(seed, Purpose.SAMPLE, round_index, client)
    owned_rows = rng.permutation(owned_rows)[: work.num_drawn(len(owned_rows))]
  num_owned, batch_size = len(owned_rows), work.step_size
  num_steps = int(epoch_steps(num_owned, batch_size, drop_last=work.drop_last))
  places_in_epoch = np.minimum(np.arange(num_steps * batch_size), num_owned - 1)
  num_left = num_owned - batch_size * np.arange(num_steps)
  num_real = np.minimum(num_left, batch_size)
  if num_steps and num_real[-1] < work.batches_per_step:
    repeated = np.arange(work.batches_per_step) % num_real[-1]
    first = batch_size * (num_steps - 1)
    places_in_epoch[first : first + work.batches_per_step] = first + repeated
    num_real[-1] = work.batches_per_step
  epochs = []
  for epoch in range(num_epochs):
    rng = host_rng(seed, work.purpose, round_index, client, epoch)
    epochs.append(rng.permutation(owned_rows)[places_in_epoch])
  example_rows = np.concatenate(epochs).reshape(-1, batch_size).astype(np.int32)
  return example_rows, np.tile(num_real, num_epochs).astype(np.int32)
