"""What does one client do in one step? Local SGD on the algorithm's loss. Pure."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from moon_jax.algorithms.base import Algorithm
from moon_jax.types import Batch, Outputs, PyTree, Scalars, Task


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


class LocalTraining(NamedTuple):
  """Local training of one client as two pure functions; `vmap` makes lanes of them.

  Attributes:
    start: (received, memory, scalars, batch) -> Progress before the first step; of the
      batch only the shape matters.
    step: (progress, received, scalars, batch) -> Progress after one more step.
  """

  start: Callable[[PyTree, PyTree, Scalars, Batch], Progress]
  step: Callable[[Progress, PyTree, Scalars, Batch], Progress]


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

  def frozen_representations(task, batch):
    models = algorithm.frozen(task.received, task.memory)
    return {name: apply(v, batch.images).representation for name, v in models.items()}

  def start(received, memory, scalars, batch):
    task = Task(received, memory, scalars.algorithm)
    variables = algorithm.download(received, memory)

    def parts():
      frozen = frozen_representations(task, batch)
      return objective(variables['params'], variables, frozen, task, batch)[1]

    return Progress(
      memory=memory,
      variables=variables,
      optimizer=OPTIMIZERS[optimizer](**scalars.optimizer).init(variables['params']),
      sums={name: jnp.zeros(()) for name in jax.eval_shape(parts)},
      num_seen=jnp.zeros(()),
    )

  def step(progress, received, scalars, batch):
    task = Task(received, progress.memory, scalars.algorithm)
    params = progress.variables['params']
    (_, parts), grads = jax.value_and_grad(objective, has_aux=True)(
      params, progress.variables, frozen_representations(task, batch), task, batch
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

  return LocalTraining(start, step)
