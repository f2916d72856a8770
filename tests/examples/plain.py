"""FedVARP and FedCM as their papers write them, one client and batch at a time.

Shares no code with the package. A model is the parameters of an `mlp`.
"""

from typing import NamedTuple

import jax
import numpy as np

from tests import reference
from tests.reference import personal
from tests.reference.networks import combine, norm


class World(NamedTuple):
  """What the clients train on.

  Attributes:
    images: [M, H, W, C] normalised.
    labels: [M] int.
    sizes: client -> examples it owns.
    rounds: for each round, client -> rows [b] of each local step.
    rate: of local SGD, no unit.
    decay: ditto, coupled weight decay.
  """

  images: np.ndarray
  labels: np.ndarray
  sizes: dict
  rounds: list
  rate: float
  decay: float


def mean(weights, models):
  """sum_i weights[i] models[i] / sum_i weights[i]."""
  return combine([weight / sum(weights) for weight in weights], models)


def train(world, model, steps, bend=lambda slope: slope):
  """Plain SGD over the steps' rows."""
  for rows in steps:
    images, labels = world.images[rows], world.labels[rows]
    slope, _ = jax.device_get(personal.slope(reference.mlp, model, {}, images, labels))
    shrinkage = 1 - world.rate * world.decay
    model = combine([shrinkage, -world.rate], [model, bend(slope)])
  return model


def fedvarp(world, model, rate):
  """The global model after each round; the server keeps each client's last change."""
  last = {client: combine([0], [model]) for client in world.sizes}
  for cohort in world.rounds:
    ends = {client: train(world, model, steps) for client, steps in cohort.items()}
    moves = {client: combine([1, -1], [end, model]) for client, end in ends.items()}
    of_all = mean([1] * len(last), list(last.values()))
    changes = [combine([1, -1], [moves[client], last[client]]) for client in cohort]
    change = mean([1] * len(changes), changes)
    model = combine([1, rate, rate], [model, of_all, change])
    last |= moves
    yield model


def fedcm(world, model, alpha):
  """The global model, and the norm of G, after each round."""
  direction = combine([0], [model])
  for cohort in world.rounds:

    def bend(slope, direction=direction):
      return combine([alpha, 1 - alpha], [slope, direction])

    ends = [train(world, model, steps, bend) for steps in cohort.values()]
    lengths = [world.rate * len(steps) for steps in cohort.values()]
    directions = [
      combine([1 / length, -1 / length], [model, end])
      for length, end in zip(lengths, ends, strict=True)
    ]
    model = mean([world.sizes[client] for client in cohort], ends)
    direction = mean([1] * len(directions), directions)
    yield model, norm(direction)
