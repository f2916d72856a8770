"""How far the steps of SGD go: what SCAFFOLD and MoFedSAM divide by."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from moon_jax.core.types import PyTree, Task


class Path(NamedTuple):
  """How far SGD has come so far, at learning rate 1 along a constant gradient of 1.

  Attributes:
    velocity: [] float32, the sum of momentum^k over the steps so far.
    length: [] float32 a(K), the sum of the velocities.
  """

  velocity: jax.Array
  length: jax.Array


def no_path(received: PyTree, memory: PyTree) -> Path:
  """A `begin`: before the first step."""
  return Path(jnp.zeros(()), jnp.zeros(()))


def path_after(task: Task, loss, grads, key) -> Path:
  """An `after_step`: `task.local`, a Path, after one more step of SGD."""
  velocity = task.optimizer['momentum'] * task.local.velocity + 1.0
  return Path(velocity, task.local.length + velocity)
