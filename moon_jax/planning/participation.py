"""Who takes part in each round: the cohort, its stragglers. Plain NumPy."""

import dataclasses
from typing import NamedTuple

import numpy as np

from moon_jax.core.keys import Purpose, host_rng
from moon_jax.planning.availability import EVERYONE, Available

_NOBODY = np.zeros(0, np.int32)


class Draw(NamedTuple):
  """Who takes part in a round.

  Attributes:
    clients: [K] int32 ids of the clients that train and send, ascending.
    stragglers: ids of the clients that are late, ascending; None if the run has no
      stragglers. They are in `clients` only if they send what they have.
    interrupted: those of `clients` that stop at the deadline and send what they have.
  """

  clients: np.ndarray
  stragglers: np.ndarray | None
  interrupted: np.ndarray


@dataclasses.dataclass(frozen=True)
class Participation:
  """Who takes part in the rounds of a run.

  Attributes:
    num_clients: N.
    cohort_size: K, the number of clients that send something in a round.
    available: the clients that can be drawn.
    num_stragglers: number of stragglers in a round.
    stragglers_send_partial_work: whether stragglers send what they have at the
      deadline; if not, they send nothing, and are not in the cohort.
    attackers: ids of the attackers; None without an attack.
  """

  num_clients: int
  cohort_size: int
  available: Available = EVERYONE
  num_stragglers: int = 0
  stragglers_send_partial_work: bool = False
  attackers: np.ndarray | None = None

  def draw(self, seed: int, round_index: int) -> Draw:
    """Draws who takes part; a function of the seed and the round, from 0."""
    return self._draw(seed, round_index, self.available)

  def draw_of_all(self, seed: int, round_index: int) -> Draw:
    """Draws as if all clients were available, each with the same probability."""
    return self._draw(seed, round_index, EVERYONE)

  def _draw(self, seed, round_index, available):
    num_drawn = self.cohort_size
    if not self.stragglers_send_partial_work:
      num_drawn += self.num_stragglers
    rng = host_rng(seed, Purpose.COHORT, round_index)
    probabilities = available.of_round(round_index)
    drawn = rng.choice(self.num_clients, num_drawn, replace=False, p=probabilities)
    clients = np.sort(drawn).astype(np.int32)
    if not self.num_stragglers:
      return Draw(clients, stragglers=None, interrupted=_NOBODY)
    rng = host_rng(seed, Purpose.STRAGGLERS, round_index)
    stragglers = np.sort(rng.choice(clients, self.num_stragglers, replace=False))
    if self.stragglers_send_partial_work:
      return Draw(clients, stragglers, interrupted=stragglers)
    in_time = np.setdiff1d(clients, stragglers)
    return Draw(in_time, stragglers, interrupted=_NOBODY)
