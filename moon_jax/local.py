"""What does one client do in one step? Local SGD on the algorithm's loss. Pure."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from moon_jax import tree
from moon_jax.algorithms.base import Algorithm
from moon_jax.keys import Purpose, for_purpose
from moon_jax.models import Network
from moon_jax.types import (
  Batch,
  ClientMetrics,
  PyTree,
  Scalars,
  Task,
  Upload,
)


class Progress(NamedTuple):
  """One client in the middle of its local training.

  Attributes:
    client: [] int32 id.
    num_steps: [] int32 steps done.
    memory: what the client kept from earlier rounds.
    variables: the weights being trained.
    optimizer: the local optimizer's state, new each round.
    sums: name -> [] float32, the loss and its parts, summed over the examples seen.
    num_seen: [] float32 examples seen; an example counts once an epoch.
  """

  client: jax.Array
  num_steps: jax.Array
  memory: PyTree
  variables: PyTree
  optimizer: PyTree
  sums: dict[str, jax.Array]
  num_seen: jax.Array


class Finished(NamedTuple):
  """What a client leaves behind after its last step.

  Attributes:
    upload: what it sends.
    memory: what it keeps.
    metrics: what the round tells about it.
  """

  upload: Upload
  memory: PyTree
  metrics: ClientMetrics


class LocalTraining(NamedTuple):
  """Local training of one client as pure functions; `vmap` makes lanes of them.

  Attributes:
    represent: (received, memory, images) -> name -> [B, D], the representations of the
      images under the algorithm's frozen networks.
    start: (client, received, memory, scalars, batch) -> Progress before the first step;
      of the batch only the shape matters.
    step: (progress, frozen, received, scalars, batch, key) -> Progress after one more
      step; `frozen` is what `represent` returns for the batch, `key` is of this step.
    finish: (progress, received, scalars) -> Finished, after the last step.
  """

  represent: Callable[[PyTree, PyTree, jax.Array], dict[str, jax.Array]]
  start: Callable[[jax.Array, PyTree, PyTree, Scalars, Batch], Progress]
  step: Callable[..., Progress]
  finish: Callable[[Progress, PyTree, Scalars], Finished]


def local_training(
  algorithm: Algorithm,
  network: Network,
  optimizer: Callable[..., optax.GradientTransformation],
) -> LocalTraining:
  """Builds local training.

  Args:
    algorithm: supplies the start, the frozen networks and the loss.
    network: trained in training mode; the frozen ones are in evaluation mode.
    optimizer: the numbers of the optimizer -> its two functions.
  """

  def objective(params, variables, frozen, task, batch, key):
    outputs, state = network.train(
      variables | {'params': params},
      batch.images,
      batch.mask,
      for_purpose(key, Purpose.DROPOUT),
    )
    total, parts = algorithm.loss(outputs, frozen, params, task, batch)
    return total, ({'train_loss': total} | parts, state)

  def represent(received, memory, images):
    models = algorithm.frozen(received, memory)
    return {
      name: network.apply(variables, images).representation
      for name, variables in models.items()
    }

  def start(client, received, memory, scalars, batch):
    task = Task(received, memory, scalars.algorithm)
    variables = algorithm.download(received, memory)

    def parts():
      frozen, key = represent(received, memory, batch.images), jax.random.key(0)
      return objective(variables['params'], variables, frozen, task, batch, key)[1][0]

    return Progress(
      client=client,
      num_steps=jnp.zeros((), jnp.int32),
      memory=memory,
      variables=variables,
      optimizer=optimizer(**scalars.optimizer).init(variables['params']),
      sums={name: jnp.zeros(()) for name in jax.eval_shape(parts)},
      num_seen=jnp.zeros(()),
    )

  def step(progress, frozen, received, scalars, batch, key):
    task = Task(received, progress.memory, scalars.algorithm)
    params = progress.variables['params']
    (_, (parts, state)), grads = jax.value_and_grad(objective, has_aux=True)(
      params, progress.variables, frozen, task, batch, key
    )
    updates, optimizer_state = optimizer(**scalars.optimizer).update(
      grads, progress.optimizer, params
    )
    count = jnp.sum(batch.mask)
    return progress._replace(
      num_steps=progress.num_steps + 1,
      variables={'params': optax.apply_updates(params, updates)} | state,
      optimizer=optimizer_state,
      sums={name: progress.sums[name] + count * parts[name] for name in parts},
      num_seen=progress.num_seen + count,
    )

  def finish(progress, received, scalars):
    task = Task(received, progress.memory, scalars.algorithm)
    start = algorithm.download(received, progress.memory)
    moved = tree.subtract(progress.variables['params'], start['params'])
    drift = jnp.sqrt(tree.squared_norm(moved))
    upload, memory = algorithm.upload(progress.variables, task)
    metrics = ClientMetrics(progress.sums, progress.num_seen, drift)
    return Finished(upload, memory, metrics)

  return LocalTraining(represent, start, step, finish)
