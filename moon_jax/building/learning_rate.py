"""The learning rate of a round, by its schedule.

A schedule is (t, T, knobs) -> a factor. t is the round, from 0, and T the number of
rounds. Those here begin with 1, and stay in [0, 1].
"""

import math

from moon_jax import catalog
from moon_jax.config import Config, flatten
from moon_jax.core.errors import UsageError


class LearningRate:
  """The local learning rate of each round, as a configuration has it."""

  def __init__(self, config: Config):
    self._highest = config.optimizer.learning_rate
    self._schedule = catalog.part('schedule', config.optimizer.schedule)
    self._options = catalog.options('schedule', flatten(config))
    self._num_rounds = config.num_rounds

  def of_round(self, t: int) -> float:
    """The local learning rate of round t.

    Raises:
      UsageError: the factor of a schedule of one's own is negative or not finite.
    """
    factor = self._schedule.build((int, float), t, self._num_rounds, **self._options)
    if not 0 <= factor < math.inf:
      raise UsageError(
        f'The schedule {self._schedule.name!r} gives {factor} in round {t + 1}: it '
        'must be at least 0, and finite.'
      )
    return self._highest * factor

  def require_valid(self) -> None:
    """Raises UsageError if a schedule of one's own gives a round no rate."""
    if self._schedule.registered:
      for t in range(self._num_rounds):
        self.of_round(t)


def constant(t: int, num_rounds: int) -> float:
  """The rate stays the same: its factor is 1."""
  return 1.0


def cosine(t: int, num_rounds: int) -> float:
  """The factor (1 + cos(pi t / T)) / 2 falls to 0 in T rounds (Loshchilov, Hutter)."""
  return 0.5 * (1.0 + math.cos(math.pi * t / num_rounds))


def exponential(t: int, num_rounds: int, *, decay: float, decay_every: int) -> float:
  """The factor in round t, from 0, is decay^(t / decay_every)."""
  return decay ** (t / decay_every)


def step(t: int, num_rounds: int, *, decay: float, decay_every: int) -> float:
  """The factor is decay^(t / decay_every), with the exponent rounded down."""
  return decay ** (t // decay_every)
