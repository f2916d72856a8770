"""What does one client do in one step? Local SGD on the algorithm's loss. Pure."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from moon_jax import tree
from moon_jax.algorithms.base import Algorithm
from moon_jax.types import (
  Batch,
  ClientMetrics,
  Outputs,
  PyTree,
  Scalars,
  Task,
  Upload,
)


class Progress(NamedTuple):
  """One client in the middle of its local training.

  Attributes:
    memory: what the client kept from earlier rounds.
    variables: the weights being trained.
    optimizer: the local optimizer's state, new each round.
    sums: name -> [] float32, the loss and its parts, summed over the examples seen.
    num_seen: [] float32 examples seen; an example counts once an epoch.
  """

  memory: PyTree
  variables: PyTree
  optimizer: PyTree
  sums: dict[str, jax.Array]
  num_seen: jax.Array


def sgd(
  *, learning_rate: jax.Array, momentum: jax.Array, weight_decay: jax.Array
) -> optax.GradientTransformation:
  """v <- momentum v + (g + weight_decay w);  w <- w - learning_rate v.

  Weight decay is coupled and acts on all parameters, as in PyTorch's SGD.
  """
  return optax.chain(
    optax.add_decayed_weights(weight_decay),
    optax.sgd(learning_rate, momentum=momentum),
  )


OPTIMIZERS = {'sgd': sgd}


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
    start: (received, memory, scalars, batch) -> Progress before the first step; of the
      batch only the shape matters.
    step: (progress, frozen, received, scalars, batch) -> Progress after one more step;
      `frozen` is what `represent` returns for the batch.
    finish: (progress, received, scalars) -> Finished, after the last step.
  """

  represent: Callable[[PyTree, PyTree, jax.Array], dict[str, jax.Array]]
  start: Callable[[PyTree, PyTree, Scalars, Batch], Progress]
  step: Callable[[Progress, dict[str, jax.Array], PyTree, Scalars, Batch], Progress]
  finish: Callable[[Progress, PyTree, Scalars], Finished]


def local_training(
  algorithm: Algorithm,
  apply: Callable[[PyTree, jax.Array], Outputs],
  optimizer: str,
) -> LocalTraining:
  """Builds local training.

  Args:
    algorithm: supplies the start, the frozen networks and the loss.
    apply: (variables, images [B, H, W, C]) -> Outputs.
    optimizer: a key of OPTIMIZERS.
  """

  def objective(params, variables, frozen, task, batch):
    outputs = apply(variables | {'params': params}, batch.images)
    total, parts = algorithm.loss(outputs, frozen, params, task, batch)
    return total, {'train_loss': total} | parts

  def represent(received, memory, images):
    models = algorithm.frozen(received, memory)
    return {name: apply(v, images).representation for name, v in models.items()}

  def start(received, memory, scalars, batch):
    task = Task(received, memory, scalars.algorithm)
    variables = algorithm.download(received, memory)

    def parts():
      frozen = represent(received, memory, batch.images)
      return objective(variables['params'], variables, frozen, task, batch)[1]

    return Progress(
      memory=memory,
      variables=variables,
      optimizer=OPTIMIZERS[optimizer](**scalars.optimizer).init(variables['params']),
      sums={name: jnp.zeros(()) for name in jax.eval_shape(parts)},
      num_seen=jnp.zeros(()),
    )

  def step(progress, frozen, received, scalars, batch):
    task = Task(received, progress.memory, scalars.algorithm)
    params = progress.variables['params']
    (_, parts), grads = jax.value_and_grad(objective, has_aux=True)(
      params, progress.variables, frozen, task, batch
    )
    updates, optimizer_state = OPTIMIZERS[optimizer](**scalars.optimizer).update(
      grads, progress.optimizer, params
    )
    count = jnp.sum(batch.mask)
    return progress._replace(
      variables=progress.variables | {'params': optax.apply_updates(params, updates)},
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
