"""Trains one client: its start, one step on the algorithm's loss, its end. Pure."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from moon_jax import tree
from moon_jax.algorithms.base import Algorithm
from moon_jax.data.device import TrainSplit
from moon_jax.engine.schedule import Plan
from moon_jax.keys import Purpose, for_purpose
from moon_jax.models import Network
from moon_jax.types import Batch, ClientMetrics, PyTree, Scalars, Task, Upload


class Work(NamedTuple):
  """What a cohort trains on in one round.

  Attributes:
    received: what the server sent, the same for all.
    memories: leaves [K, ...], what each client kept from earlier rounds.
    plan: the round's lanes, segments and batches.
    round: [] int32, completed rounds.
    scalars: the round's numbers.
    data: the training split.
  """

  received: PyTree
  memories: PyTree
  plan: Plan
  round: jax.Array
  scalars: Scalars
  data: TrainSplit


class Progress(NamedTuple):
  """One client in the middle of its local training.

  Attributes:
    client: [] int32 id.
    num_steps: [] int32 steps done.
    memory: what the client kept from earlier rounds.
    local: the algorithm's memory of this local training.
    variables: the weights being trained.
    optimizer: the local optimizer's state, new each round.
    sums: name -> [] float32, the loss and its parts, summed over the examples seen.
    num_seen: [] float32 examples seen; an example counts once an epoch.
  """

  client: jax.Array
  num_steps: jax.Array
  memory: PyTree
  local: PyTree
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
    represent: (received, memory, images, mask, key) -> name -> [B, D], the
      representations of the images under the algorithm's frozen networks; mask [B] and
      the key of the step matter only if these are in training mode.
    start: (client, received, memory, scalars, batch) -> Progress before the first step;
      of the batch only the shape matters.
    step: (progress, frozen, received, scalars, batch, key) -> Progress after one more
      step; `frozen` is what `represent` returns for the batch, `key` is of this step.
    finish: (progress, received, scalars) -> Finished, after the last step.
    needs_all_uploads: the algorithm's.
  """

  represent: Callable[..., dict[str, jax.Array]]
  start: Callable[[jax.Array, PyTree, PyTree, Scalars, Batch], Progress]
  step: Callable[..., Progress]
  finish: Callable[[Progress, PyTree, Scalars], Finished]
  needs_all_uploads: bool


def local_training(
  algorithm: Algorithm,
  network: Network,
  optimizer: Callable[..., optax.GradientTransformation],
) -> LocalTraining:
  """Builds local training.

  Args:
    algorithm: supplies the start, the frozen networks, the loss, ...
    network: trained in training mode.
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

  def represent(received, memory, images, mask, key):
    def outputs(index, variables):
      if not algorithm.frozen_in_training:
        return network.apply(variables, images)
      own_key = jax.random.fold_in(for_purpose(key, Purpose.FROZEN), index)
      return network.train(variables, images, mask, own_key)[0]

    models = algorithm.frozen(received, memory)
    return {
      name: algorithm.represented(outputs(index, variables))
      for index, (name, variables) in enumerate(models.items())
    }

  def start(client, received, memory, scalars, batch):
    task = first_task(algorithm, received, memory, scalars)
    variables = algorithm.download(received, memory)

    def parts():
      key = jax.random.key(0)
      frozen = represent(received, memory, batch.images, batch.mask, key)
      return objective(variables['params'], variables, frozen, task, batch, key)[1][0]

    return Progress(
      client=client,
      num_steps=jnp.zeros((), jnp.int32),
      memory=memory,
      local=task.local,
      variables=variables,
      optimizer=optimizer(**scalars.optimizer).init(variables['params']),
      sums={name: jnp.zeros(()) for name in jax.eval_shape(parts)},
      num_seen=jnp.zeros(()),
    )

  def step(progress, frozen, received, scalars, batch, key):
    task = current_task(progress, received, scalars)
    params = progress.variables['params']
    (loss, (parts, state)), grads = jax.value_and_grad(objective, has_aux=True)(
      params, progress.variables, frozen, task, batch, key
    )
    updates, optimizer_state = optimizer(**scalars.optimizer).update(
      algorithm.correct(grads, task), progress.optimizer, params
    )
    count = jnp.sum(batch.mask)
    return progress._replace(
      num_steps=progress.num_steps + 1,
      local=algorithm.after_step(task, loss, grads, key),
      variables={'params': optax.apply_updates(params, updates)} | state,
      optimizer=optimizer_state,
      sums={name: progress.sums[name] + count * parts[name] for name in parts},
      num_seen=progress.num_seen + count,
    )

  def finish(progress, received, scalars):
    task = current_task(progress, received, scalars)
    start = algorithm.download(received, progress.memory)
    moved = tree.subtract(progress.variables['params'], start['params'])
    drift = jnp.sqrt(tree.squared_norm(moved))
    upload, memory = algorithm.upload(progress.variables, task)
    reports = algorithm.report(progress.variables, task)
    metrics = ClientMetrics(
      sums=progress.sums,
      num_seen=progress.num_seen,
      drift=drift,
      reports=reports,
      numbers={},
      finite=tree.all_finite((upload, memory, progress.sums, drift, reports)),
      server_finite=(),
    )
    return Finished(upload, memory, metrics)

  return LocalTraining(represent, start, step, finish, algorithm.needs_all_uploads)


def first_task(
  algorithm: Algorithm, received: PyTree, memory: PyTree, scalars: Scalars
) -> Task:
  """What a client knows before its first step."""
  local = algorithm.begin(received, memory)
  return Task(received, memory, local, scalars.algorithm, scalars.optimizer)


def current_task(progress: Progress, received: PyTree, scalars: Scalars) -> Task:
  """What a client knows in the middle of its training."""
  memories = progress.memory, progress.local
  return Task(received, *memories, scalars.algorithm, scalars.optimizer)
