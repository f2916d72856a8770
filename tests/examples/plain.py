"""FedVARP and FedCM as their papers write them: numpy, loops, float64.

Shares no code with the package. A model is a list of (kernel, bias), a perceptron with
ReLU after its first two layers, as `mlp` is.
"""

from typing import NamedTuple

import numpy as np

NUM_HIDDEN = 2


class World(NamedTuple):
  """What the clients train on.

  Attributes:
    images: [M, D] float64, normalised.
    labels: [M] int.
    sizes: client -> examples it owns.
    rounds: for each round, client -> rows [b] of each local step.
    rate: of local SGD, no unit.
    momentum: ditto, in [0, 1).
    decay: ditto, coupled weight decay.
  """

  images: np.ndarray
  labels: np.ndarray
  sizes: dict
  rounds: list
  rate: float
  momentum: float
  decay: float


def drawn(planner, num_rounds):
  """Who takes part in each round, on which rows in each step: client -> [rows [b]]."""
  for index in range(num_rounds):
    clients = planner.plan(index).clients.tolist()
    work = planner.batches(index, clients)
    yield {
      client: [row[:count] for row, count in zip(rows, real, strict=True)]
      for client, (rows, real) in zip(clients, work, strict=True)
    }


def gradient(model, x, labels):
  """The gradient of the mean cross entropy, by hand: a list like the model."""
  inputs = []
  for index, (kernel, bias) in enumerate(model):
    inputs.append(x)
    x = x @ kernel + bias
    if index < NUM_HIDDEN:
      x = np.maximum(x, 0)
  shares = np.exp(x - x.max(1, keepdims=True))
  back = shares / shares.sum(1, keepdims=True)
  back[np.arange(len(labels)), labels] -= 1
  back /= len(labels)
  found = []
  for index in reversed(range(len(model))):
    found.append((inputs[index].T @ back, back.sum(0)))
    back = back @ model[index][0].T
    if 0 < index <= NUM_HIDDEN:
      back = back * (inputs[index] > 0)
  return found[::-1]


def combine(function, *models):
  """A model of function(leaf of each, ...)."""
  return [
    tuple(function(*leaves) for leaves in zip(*layers, strict=True))
    for layers in zip(*models, strict=True)
  ]


def mean(weights, models):
  """sum_i weights[i] models[i] / sum_i weights[i]."""
  total = sum(weights)
  return combine(
    lambda *leaves: sum(w * x for w, x in zip(weights, leaves, strict=True)) / total,
    *models,
  )


def train(world, model, steps, bend=lambda gradient, model: gradient):
  """SGD with heavy-ball momentum over the steps' rows, from a velocity of 0."""
  velocity = combine(np.zeros_like, model)
  for rows in steps:
    slope = bend(gradient(model, world.images[rows], world.labels[rows]), model)
    slope = combine(lambda g, w: g + world.decay * w, slope, model)
    velocity = combine(lambda v, g: world.momentum * v + g, velocity, slope)
    model = combine(lambda w, v: w - world.rate * v, model, velocity)
  return model


def fedvarp(world, model, rate):
  """The global model after each round; the server keeps each client's last change."""
  last = {client: combine(np.zeros_like, model) for client in world.sizes}
  for cohort in world.rounds:
    ends = {client: train(world, model, steps) for client, steps in cohort.items()}
    moves = {client: combine(np.subtract, end, model) for client, end in ends.items()}
    of_all = mean([1] * len(last), list(last.values()))
    changes = [combine(np.subtract, moves[client], last[client]) for client in cohort]
    change = mean([1] * len(changes), changes)
    model = combine(lambda w, m, d: w + rate * (m + d), model, of_all, change)
    last |= moves
    yield model


def fedcm(world, model, alpha):
  """The global model, and the norm of G, after each round."""
  direction = combine(np.zeros_like, model)

  def gone(start, end, num_steps):
    return combine(lambda w, y: (w - y) / (world.rate * num_steps), start, end)

  for cohort in world.rounds:

    def bend(slope, y, direction=direction):
      return combine(lambda g, d: alpha * g + (1 - alpha) * d, slope, direction)

    ends = [train(world, model, steps, bend) for steps in cohort.values()]
    directions = [
      gone(model, end, len(steps))
      for steps, end in zip(cohort.values(), ends, strict=True)
    ]
    model = mean([world.sizes[client] for client in cohort], ends)
    direction = mean([1] * len(directions), directions)
    square = sum(float(np.sum(leaf**2)) for layer in direction for leaf in layer)
    yield model, square**0.5
