"""Trains one client: its start, one step on the algorithm's loss, its end. Pure."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from moon_jax.algorithms import losses
from moon_jax.algorithms.base import Algorithm
from moon_jax.core import tree
from moon_jax.core.device_keys import for_purpose
from moon_jax.core.errors import UsageError
from moon_jax.core.keys import Purpose
from moon_jax.core.types import Batch, ClientMetrics, PyTree, Scalars, Task, Upload
from moon_jax.data.device_split import TrainSplit
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
    optimizer_state: state of the local optimizer, reset every round.
    sums: name -> [] float32, the loss, its parts and how many examples were classified
      correctly, summed over examples.
    num_summed: [] float32 examples in the sums; see `ClientMetrics`.
    num_seen: [] float32 examples seen; an example counts once an epoch.
  """

  client: jax.Array
  num_steps: jax.Array
  memory: PyTree
  local: PyTree
  client_facts: dict[str, jax.Array]
  variables: PyTree
  optimizer_state: PyTree
  sums: dict[str, jax.Array]
  num_summed: jax.Array
  num_seen: jax.Array

  def task(self, received: PyTree, scalars: Scalars) -> Task:
    """What the client knows now, with the scalars of the round."""
    return Task(
      received=received,
      memory=self.memory,
      local=self.local,
      scalars=scalars.algorithm,
      optimizer=scalars.optimizer,
      class_counts=self.client_facts.get('class_counts'),
      relative_size=self.client_facts.get('relative_size'),
      epoch_steps=self.client_facts.get('epoch_steps'),
    )


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
    algorithm: the algorithm, which supplies the start, the frozen networks, the loss
      and so on.
    network: the network, used in training mode.
    make_optimizer: scalars of the optimizer -> its two functions.
  """

  algorithm: Algorithm
  network: Network
  make_optimizer: Callable[..., optax.GradientTransformation]

  def represent(self, received, memory, images, mask, key) -> dict[str, jax.Array]:
    """name -> [B, D], the images under the algorithm's frozen networks.

    mask [B] and the key of the step matter only if the networks are in training mode.
    """
    representations = {}
    models = self.algorithm.frozen(received, memory)
    for index, (name, variables) in enumerate(models.items()):
      if self.algorithm.frozen_in_training:
        network_key = jax.random.fold_in(for_purpose(key, Purpose.FROZEN), index)
        outputs, _ = self.network.train(variables, images, mask, network_key)
      else:
        outputs = self.network.apply(variables, images)
      representations[name] = self.algorithm.represented(outputs)
    return representations

  def start(self, client, received, memory, scalars, batch, client_facts) -> Progress:
    """The progress before the first step; only the shape of the batch matters."""
    batch, *_ = self._batches_of_step(batch)
    variables = self.algorithm.download(received, memory)
    progress = Progress(
      client=client,
      num_steps=jnp.zeros((), jnp.int32),
      memory=memory,
      local=self.algorithm.begin(received, memory),
      client_facts=client_facts,
      variables=variables,
      optimizer_state=self._optimizer(scalars).init(variables['params']),
      sums={},
      num_summed=jnp.zeros(()),
      num_seen=jnp.zeros(()),
    )

    def parts_of_first_loss():
      key = jax.random.key(0)
      references = self.represent(received, memory, batch.images, batch.mask, key)
      objective = self._objective(progress, references, received, scalars, batch, key)
      _, (parts, _) = objective(variables['params'], progress.local)
      return parts

    # Only the loss knows the names of its parts.
    part_names = jax.eval_shape(parts_of_first_loss)
    return progress._replace(sums={name: jnp.zeros(()) for name in part_names})

  def step(self, progress, references, received, scalars, batch, key) -> Progress:
    """The progress after one more step.

    `references` is what `represent` returns for the batch; `key` is the key of the
    step.
    """
    algorithm, params = self.algorithm, progress.variables['params']
    task = progress.task(received, scalars)
    batches = self._batches_of_step(batch)
    batch = batches[0]
    objective = self._objective(progress, references, received, scalars, batch, key)
    differentiate = jax.value_and_grad(objective, has_aux=True)

    (loss, (parts, statistics)), grads = differentiate(params, progress.local)
    if algorithm.perturb:
      # The gradient is then that of other params; the loss stays that of these.
      change = tree.checked(algorithm.perturb(grads, params, task), params, 'perturb')
      _, grads = differentiate(tree.add(params, change), progress.local)
    if algorithm.descent:

      def gradient_at(variables, batch=0):
        elsewhere = self._objective(
          progress._replace(variables=variables),
          references,
          received,
          scalars,
          batches[batch],
          key,
        )
        gradient = jax.grad(elsewhere, has_aux=True)
        grads, (_, statistics) = gradient(variables['params'], progress.local)
        return grads, statistics

      variables = progress.variables | {'params': params} | statistics
      grads, local = algorithm.descent(grads, gradient_at, variables, task)
      grads = tree.checked(grads, params, "descent's gradient")
      local = tree.checked(local, progress.local, "descent's local")
      task = task._replace(local=local)
    corrected = tree.checked(algorithm.correct(grads, task), grads, 'correct')

    optimizer = self._optimizer(scalars)
    # optax's Adam raises a float to an integer power, which strict promotion refuses.
    with jax.numpy_dtype_promotion('standard'):
      updates, optimizer_state = optimizer.update(
        corrected, progress.optimizer_state, params
      )
    updated = optax.apply_updates(params, updates)
    stepped = algorithm.after_update(updated, params, task)
    stepped = tree.checked(stepped, params, 'after_update')
    if self.network.frozen:  # neither weight decay nor the algorithm moves them
      stepped = tree.kept_at(
        self.network.frozen, {'params': stepped}, {'params': params}
      )['params']

    def loss_with(local):
      loss, _ = objective(params, local)
      return loss

    task = task._replace(loss_with=loss_with)
    local = algorithm.after_step(task, loss, grads, key)
    num_examples = jnp.sum(batch.mask)
    return progress._replace(
      num_steps=progress.num_steps + 1,
      local=tree.checked(local, progress.local, 'after_step'),
      variables={'params': stepped} | statistics,
      optimizer_state=optimizer_state,
      sums={
        name: progress.sums[name] + num_examples * mean for name, mean in parts.items()
      },
      num_summed=progress.num_summed + num_examples,
      num_seen=progress.num_seen + sum(jnp.sum(batch.mask) for batch in batches),
    )

  def finish(self, progress, received, scalars, examined=()) -> Finished:
    """What the client leaves behind; `examined` is the total of `Algorithm.examine`."""
    task = progress.task(received, scalars)._replace(examined=examined)
    trained = progress.variables
    start = self.algorithm.download(received, progress.memory)
    change = tree.subtract(
      tree.concatenated(trained['params']), tree.concatenated(start['params'])
    )
    drift = jnp.sqrt(tree.squared_norm(change))
    upload, memory = checked_upload(self.algorithm, trained, task)
    memory = tree.checked(memory, progress.memory, "upload's memory")
    reports = tree.float_scalars(self.algorithm.report(trained, task), 'report')
    metrics = ClientMetrics(
      sums=progress.sums,
      num_summed=progress.num_summed,
      num_seen=progress.num_seen,
      drift=drift,
      reports=reports,
      computed={},
      finite=tree.all_finite((upload, memory, progress.sums, drift, reports)),
      server_finite=None,
    )
    return Finished(upload=upload, memory=memory, metrics=metrics)

  def _optimizer(self, scalars: Scalars) -> optax.GradientTransformation:
    return self.make_optimizer(**scalars.optimizer)

  def _batches_of_step(self, batch: Batch) -> list[Batch]:
    """The batches of a step, whose examples take turns in what the plan gives it."""
    num_batches = self.algorithm.num_batches
    if num_batches == 1:
      return [batch]
    return [
      jax.tree.map(lambda leaf, first=first: leaf[first::num_batches], batch)
      for first in range(num_batches)
    ]

  def _objective(self, progress, references, received, scalars, batch, key):
    """Builds (params, `Task.local`) -> the loss, and what goes with it.

    The function returns the loss to minimise [], and a pair: the named parts of the
    loss, and the changed statistics, which are the other collections of the variables.
    """
    dropout_key = for_purpose(key, Purpose.DROPOUT)

    def objective(params, local):
      task = progress.task(received, scalars)._replace(local=local)
      trained = progress.variables | {'params': params}
      outputs, statistics = self.network.train(
        trained, batch.images, batch.mask, dropout_key
      )
      loss, parts = self.algorithm.loss(outputs, references, params, task, batch)
      accuracy = losses.accuracy(outputs.logits, batch.labels, batch.mask)
      of_every_run = {'train_loss': loss, 'train_accuracy': accuracy}
      if name_clashes := of_every_run.keys() & parts.keys():
        raise UsageError(
          f'{min(name_clashes)!r} cannot be a part of a loss: every run has it.'
        )
      return loss, (of_every_run | tree.float_scalars(parts, 'loss'), statistics)

    return objective


def checked_upload(
  algorithm: Algorithm, trained: PyTree, task: Task
) -> tuple[Upload, PyTree]:
  """What a client sends, and its new memory."""
  returned = algorithm.upload(trained, task)
  is_pair = isinstance(returned, tuple) and len(returned) == 2
  if is_pair and isinstance(returned[0], Upload):
    return returned
  raise UsageError("upload must return an Upload and the client's memory.")
