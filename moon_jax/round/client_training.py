"""Trains one client: its start, one step on the algorithm's loss, its end. Pure."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from moon_jax.algorithms import losses
from moon_jax.algorithms.base import Algorithm
from moon_jax.core import tree
from moon_jax.core.errors import UsageError
from moon_jax.core.keys import Purpose, for_purpose
from moon_jax.core.types import ClientMetrics, PyTree, Scalars, Task, Upload
from moon_jax.data.device import TrainSplit
from moon_jax.models import Network
from moon_jax.planning.plan import Cohort, LaneSchedule


class Work(NamedTuple):
  """The work of a cohort in one round.

  Attributes:
    received: what the server sent to every client.
    round: [] int32, number of completed rounds.
    scalars: scalars of the round.
    memories: leaves [K, ...], what each client kept from earlier rounds.
    cohort: the clients that train.
    schedule: their batches, in lanes and segments.
    data: the training split.
  """

  received: PyTree
  round: jax.Array
  scalars: Scalars
  memories: PyTree
  cohort: Cohort
  schedule: LaneSchedule
  data: TrainSplit


class Progress(NamedTuple):
  """One client in the middle of its local training.

  Attributes:
    client: [] int32 id.
    num_steps: [] int32 steps done.
    memory: what the client kept from earlier rounds.
    local: the algorithm's memory of this local training.
    client_facts: name -> what its `Task` says about its data.
    variables: the weights being trained.
    optimizer: state of the local optimizer, reset every round.
    sums: name -> [] float32, the loss, its parts and how many examples were classified
      correctly, summed over the examples seen.
    num_seen: [] float32 examples seen; an example counts once an epoch.
  """

  client: jax.Array
  num_steps: jax.Array
  memory: PyTree
  local: PyTree
  client_facts: dict[str, jax.Array]
  variables: PyTree
  optimizer: PyTree
  sums: dict[str, jax.Array]
  num_seen: jax.Array


class Finished(NamedTuple):
  """What a client, or a finished cohort, leaves behind after its last step.

  Attributes:
    upload: what the client sends. For a cohort it is the mean, summed up as clients
      finish, so no upload is stored; an upload that is not finite counts as zeros. If
      the algorithm needs all uploads, leaves are [K, ...] instead, with zeros for a
      client that has nothing to train on.
    memory: what the client keeps; for a cohort leaves [K, ...].
    metrics: what the round measures of the client; for a cohort leaves [K].
  """

  upload: Upload
  memory: PyTree
  metrics: ClientMetrics


class LocalTraining(NamedTuple):
  """Local training of one client as pure functions; `vmap` makes lanes of them.

  Attributes:
    algorithm: the algorithm: it supplies the start, the frozen networks, the loss, ...
    network: the network, used in training mode.
    optimizer: scalars of the optimizer -> its two functions.
  """

  algorithm: Algorithm
  network: Network
  optimizer: Callable[..., optax.GradientTransformation]

  def represent(self, received, memory, images, mask, key) -> dict[str, jax.Array]:
    """name -> [B, D], the images under the algorithm's frozen networks.

    mask [B] and the key of the step matter only if the networks are in training mode.
    """
    algorithm, network = self.algorithm, self.network

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

  def start(self, client, received, memory, scalars, batch, client_facts) -> Progress:
    """The progress before the first step; only the shape of the batch matters."""
    local = self.algorithm.begin(received, memory)
    task = task_of(received, memory, local, scalars, client_facts)
    variables = self.algorithm.download(received, memory)
    params = variables['params']
    progress = Progress(
      client=client,
      num_steps=jnp.zeros((), jnp.int32),
      memory=memory,
      local=local,
      client_facts=client_facts,
      variables=variables,
      optimizer=self.optimizer(**scalars.optimizer).init(params),
      sums={},
      num_seen=jnp.zeros(()),
    )

    def parts():
      key = jax.random.key(0)
      references = self.represent(received, memory, batch.images, batch.mask, key)
      return self._objective(params, progress, references, task, batch, key)[1][0]

    return progress._replace(sums={x: jnp.zeros(()) for x in jax.eval_shape(parts)})

  def step(self, progress, references, received, scalars, batch, key) -> Progress:
    """The progress after one more step.

    `references` is what `represent` returns for the batch; `key` is the key of the
    step.
    """
    task = task_of(
      received, progress.memory, progress.local, scalars, progress.client_facts
    )
    params = progress.variables['params']
    given = params, progress, references, task, batch, key
    (loss, (parts, state)), grads = self._gradient(*given)
    optimizer = self.optimizer(**scalars.optimizer)
    corrected = tree.checked(self.algorithm.correct(grads, task), grads, 'correct')
    # optax's Adam raises a float to an integer power, which strict promotion refuses.
    with jax.numpy_dtype_promotion('standard'):
      updates, of_optimizer = optimizer.update(corrected, progress.optimizer, params)
    count = jnp.sum(batch.mask)

    def loss_with(local):
      given = progress, references, task._replace(local=local), batch, key
      return self._objective(params, *given)[0]

    done = task._replace(loss_with=loss_with)
    if self.algorithm.move:
      updates = tree.checked(self.algorithm.move(updates, task), updates, 'move')
    moved = optax.apply_updates(params, updates)
    if self.algorithm.bypass:
      added = tree.checked(self.algorithm.bypass(params, task), params, 'bypass')
      moved = tree.add(moved, added)
    local = self.algorithm.after_step(done, loss, grads, key)
    return progress._replace(
      num_steps=progress.num_steps + 1,
      local=tree.checked(local, progress.local, 'after_step'),
      variables={'params': moved} | state,
      optimizer=of_optimizer,
      sums={name: progress.sums[name] + count * parts[name] for name in parts},
      num_seen=progress.num_seen + count,
    )

  def finish(self, progress, received, scalars, examined=()) -> Finished:
    """The result after the last step; `examined` is what `Algorithm.examine` found."""
    task = task_of(
      received, progress.memory, progress.local, scalars, progress.client_facts
    )
    task = task._replace(examined=examined)
    start = self.algorithm.download(received, progress.memory)
    params = progress.variables['params']
    moved = tree.subtract(tree.rows(params), tree.rows(start['params']))
    drift = jnp.sqrt(tree.squared_norm(moved))
    upload, memory = sent(self.algorithm, progress.variables, task)
    memory = tree.checked(memory, progress.memory, "upload's memory")
    reports = tree.numbers(self.algorithm.report(progress.variables, task), 'report')
    metrics = ClientMetrics(
      sums=progress.sums,
      num_seen=progress.num_seen,
      drift=drift,
      reports=reports,
      computed={},
      finite=tree.all_finite((upload, memory, progress.sums, drift, reports)),
      server_finite=None,
    )
    return Finished(upload, memory, metrics)

  def _gradient(self, params, progress, *given):
    """(loss, (parts, changed collections of the variables)), and the gradient."""
    differentiate = jax.value_and_grad(self._objective, has_aux=True)
    found, grads = differentiate(params, progress, *given)
    if self.algorithm.perturb is None:
      return found, grads
    _, task, *_ = given
    added = self.algorithm.perturb(grads, params, task)
    moved = tree.add(params, tree.checked(added, params, 'perturb'))
    return found, differentiate(moved, progress, *given)[1]

  def _objective(self, params, progress, references, task, batch, key):
    """[] the loss to minimise, and (its parts, changed collections of variables)."""
    key = for_purpose(key, Purpose.DROPOUT)
    trained = progress.variables | {'params': params}
    outputs, state = self.network.train(trained, batch.images, batch.mask, key)
    total, parts = self.algorithm.loss(outputs, references, params, task, batch)
    accuracy = losses.accuracy(outputs.logits, batch.labels, batch.mask)
    told = {'train_loss': total, 'train_accuracy': accuracy}
    if taken := told.keys() & parts.keys():
      raise UsageError(f'{min(taken)!r} cannot be a part of a loss: every run has it.')
    return total, (told | tree.numbers(parts, 'loss'), state)


def sent(algorithm: Algorithm, trained: PyTree, task: Task) -> tuple[Upload, PyTree]:
  """What a client sends, and its new memory."""
  made = algorithm.upload(trained, task)
  if isinstance(made, tuple) and isinstance(made[0], Upload):
    return made
  raise UsageError("upload must return an Upload and the client's memory.")


def task_of(
  received: PyTree,
  memory: PyTree,
  local: PyTree,
  scalars: Scalars,
  client_facts: dict[str, jax.Array],
) -> Task:
  """What a client knows while it trains, with the scalars of the round."""
  return Task(
    received=received,
    memory=memory,
    local=local,
    scalars=scalars.algorithm,
    optimizer=scalars.optimizer,
    **client_facts,
  )
