"""Random draws of the host: each is a function of what it is for, and of nothing else.

`device_keys` has those of the devices.
"""

import enum

import numpy as np


class Purpose(enum.IntEnum):
  """What is drawn. Values are part of every saved run: append, never renumber."""

  INIT = 0
  PARTITION = 1
  COHORT = 2
  BATCHES = 3
  SUBSET = 4
  NOISE = 5
  AUGMENT = 6
  TOPOLOGY = 7
  DROPOUT = 8
  ANNEALING = 9
  FROZEN = 10
  VALIDATION = 11
  LOCAL_TEST = 12
  EPOCHS = 13
  STRAGGLERS = 14
  ATTACK = 15
  SECOND = 16
  FINE_TUNE = 17
  STRAGGLER_STEPS = 18
  ATTACK_DRAWS = 19
  SAMPLE = 20
  ADAPT = 21


def host_rng(seed: int, purpose: Purpose, *parts: int) -> np.random.Generator:
  """A counter-based numpy generator keyed by (seed, purpose, *parts).

  Args:
    seed: the run's seed, >= 0.
    purpose: what is drawn.
    *parts: what else the draw depends on: round, client, epoch, attempt; each >= 0.
      All draws of a purpose must have equally many parts, because zeros at the end do
      not change the stream.

  Returns:
    A generator whose stream depends on nothing else, so neither the lane a client
    trains in nor a resumed run can change a draw.
  """
  entropy = np.random.SeedSequence([seed, int(purpose), *parts])
  return np.random.Generator(np.random.Philox(entropy))
