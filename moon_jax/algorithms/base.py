"""An algorithm is a few pure functions; the defaults are FedAvg."""

import types
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax

from moon_jax.algorithms import losses
from moon_jax.core import tree
from moon_jax.core.keys import Purpose
from moon_jax.core.types import Batch, Outputs, PyTree, Server, Task, Upload

Parts = dict[str, jax.Array]


def no_memory(variables: PyTree, zeros: PyTree = ()) -> PyTree:
  """variables -> (): nothing is kept between rounds."""
  return ()


def supervised(
  outputs: Outputs, references: Parts, params: PyTree, task: Task, batch: Batch
) -> tuple[jax.Array, Parts]:
  """Cross entropy; the loss of FedAvg and the first term of every other loss."""
  loss = losses.cross_entropy(outputs.logits, batch.labels, batch.mask)
  return loss, {'supervised_loss': loss}


def average(
  server: Server, mean: Upload, participation: jax.Array, scalars: Parts
) -> Server:
  """w <- sum_k (n_k / n) w_k (McMahan et al. 2017, algorithm 1, arXiv:1602.05629)."""
  return server._replace(variables=mean.weighted)


class SecondTraining(NamedTuple):
  """A further local training of clients, besides the one whose models they send.

  Ditto trains the clients' own models with it, FedRep their heads, and
  `fine_tune_epochs` fine-tunes the global model. It has batches, draws and a state of
  the local optimizer of its own.

  Attributes:
    algorithm: an Algorithm whose functions see what the server sent and the client's
      memory. What its `upload` sends is dropped; the client's new memory is what the
      training leaves behind. Its `needs` must be among those of the other training.
    epochs: passes over the client's data; None: as many as in the other training.
    optimizer_scalars: (scalars of the algorithm, scalars of the local optimizer) ->
      scalars of this training's local optimizer.
    purpose: purpose of the draws.
    comes_first: whether it comes before the training whose models are sent, which then
      has the memory that it leaves behind. Otherwise it comes after that training,
      whose memory is ().
    max_steps: most steps of a client; None: no limit.
    example_share: fraction of the client's examples that are drawn anew in each round,
      in (0, 1].
    second_round_epochs: passes in the second round in which a client takes part, at
      least `epochs`; None: as in its other rounds.
  """

  algorithm: 'Algorithm'
  epochs: int | None = None
  optimizer_scalars: Callable = lambda scalars, optimizer: optimizer
  purpose: Purpose = Purpose.SECOND
  comes_first: bool = False
  max_steps: int | None = None
  example_share: float = 1.0
  second_round_epochs: int | None = None


class Algorithm(NamedTuple):
  """What distinguishes one federated algorithm from FedAvg.

  Every function is pure and sees one client, unless its shapes say otherwise; the
  engine stacks clients by vmap. Numbers that may vary (mu, tau, ...) arrive traced, in
  `task.scalars`, so another value needs no new program. For a function that is left
  out, FedAvg's is used. Below, `a -> b` is a function of a that returns b, and
  `name -> number` is a dict.

  Attributes:
    hyperparameters: name -> number, as configured.
    needs: fields of `task` about the client's data that the functions read:
      'class_counts', 'relative_size', 'epoch_steps'.
    init_server: initial variables -> the server's own memory.
    init_client: initial variables -> a client's memory before its first round.
    scalars: (hyperparameters, server memory) -> name -> number, for `task.scalars` and
      `aggregate`. A number that is no hyperparameter is recorded in each round.
    broadcast: server -> what every client of the cohort receives. A dict with the key
      'params' is a model, also in an `Upload`. An attack replaces the parameters of
      these models, so an algorithm that sends changes in their place needs a `check`
      against attacks. `batch_norm=local` takes the running statistics out of them.
    share: memory -> the model that a client sends to its neighbours; None: there are no
      neighbours.
    mixed: (memory, weighted mean of what the client and its neighbours share) ->
      memory.
    download: (received, memory) -> variables from which local training starts: by
      default what is received, or its `variables` if that is a Server.
    begin: (received, memory) -> `task.local` of the first step, the algorithm's memory
      of one local training.
    frozen: (received, memory) -> name -> variables of a network that is not trained,
      but whose representation of the batch the loss needs.
    represented: Outputs -> [B, D], the part of a frozen network's outputs that the loss
      gets.
    frozen_in_training: whether the frozen networks use dropout, and the batch's
      statistics in place of the running ones; the running ones stay in any case.
    loss: (outputs, references, params, task, batch) -> the loss to minimise and its
      named parts, each [] and a mean over the real examples. `references` is name ->
      [B, D], the representations of the batch under the frozen networks.
    measured: name of a part that is recorded but is no term of the loss -> name of the
      part with the fraction of the examples that it covers, or '' if it covers all.
    perturb: (gradient of the loss, params, task) -> what is added to the params before
      the gradient is taken again, on the same batch with the same draws; None: the
      gradient is taken once. The records of the step and the statistics of batch
      normalisation are those of the unperturbed params.
    num_batches: batches of a local step, which share no example unless fewer are left.
      The loss, its parts and the statistics of batch normalisation are those of the
      first one. Above 1 the algorithm has no frozen networks.
    descent: (gradient of the loss, gradient_at, variables, task) -> what `correct` gets
      in place of the gradient, and a new `task.local`; None: the gradient itself.
      `variables` are the params before the step, with the statistics after it.
      `gradient_at(variables, batch=0)` returns the gradient of the loss at other
      variables, on one of the batches of the step with the same draws, and the
      statistics after that pass; it costs as much as a step.
    correct: (gradient, task) -> what the local optimizer gets instead. The gradient is
      what `descent` returned, or else that of the loss, with `perturb` at the moved
      params.
    after_update: (params with the local optimizer's update, params before it, task) ->
      the params after the step. The optimizer's state does not see the change.
    after_step: (task, loss [], the gradient that `correct` got, key of the step) ->
      `task.local` of the next step. A random draw takes
      `device_keys.for_purpose(key, ...)`; `task.loss_with` gives the loss under another
      `task.local`.
    examine: (Outputs, Batch) -> sums over the real examples of a batch. If it is set,
      the trained network sees all examples of the client once after the last step, in
      evaluation mode and not augmented; `task.examined` is the total, in `upload` and
      `report`. `init_server` then has a second argument, `zeros`: a total of zeros.
    examined_zeros: this total of zeros; the engine sets it.
    upload: (trained variables, task) -> an Upload, and the client's new memory.
    report: (trained variables, task) -> name -> [] float32, recorded as the mean and
      quantiles over the cohort.
    aggregate: (Server, mean, participation, scalars) -> the new Server. `mean` is an
      Upload, the mean over the clients of the cohort whose results are finite;
      `participation` is their number / number of all clients. The server sees only this
      mean: no upload is stored. `mean.weighted` is the mean model, unless `upload`
      sends something else.
    needs_all_uploads: whether `aggregate` gets `Uploads`, those of every client, in
      place of the mean, which costs the memory of K uploads on every device.
    evaluated: (server, clients [N, ...]) -> [M, ...] variables of the models to test.
    personal: (server, memory) -> variables of a client's own model, which is tested
      besides the global model that `evaluated` returns; None: clients have no such
      model.
    adapted: the training after which a client's model is tested as its own: it starts
      from the global model that `evaluated` returns, and nothing of it is kept. It is
      refused if `evaluated` returns a model of each client. None: there is none.
    second_training: a further local training in each round, whose loss is recorded as
      `personal_loss`; see `SecondTraining`. None: there is no further training.
  """

  hyperparameters: Mapping[str, float] = types.MappingProxyType({})
  needs: frozenset[str] = frozenset()
  init_server: Callable = no_memory
  init_client: Callable = no_memory
  scalars: Callable = lambda hyperparameters, server_memory: hyperparameters
  broadcast: Callable = lambda server: server.variables
  share: Callable | None = None
  mixed: Callable | None = None
  download: Callable = lambda received, memory: getattr(received, 'variables', received)
  begin: Callable = lambda received, memory: ()
  frozen: Callable = lambda received, memory: {}
  represented: Callable = lambda outputs: outputs.representation
  frozen_in_training: bool = False
  loss: Callable = supervised
  measured: Mapping[str, str] = types.MappingProxyType({})
  perturb: Callable | None = None
  num_batches: int = 1
  descent: Callable | None = None
  correct: Callable = lambda grads, task: grads
  after_update: Callable = lambda updated, params, task: updated
  after_step: Callable = lambda task, loss, grads, key: task.local
  examine: Callable | None = None
  examined_zeros: PyTree = ()
  upload: Callable = lambda trained, task: (Upload(weighted=trained), task.memory)
  report: Callable = lambda trained, task: {}
  aggregate: Callable = average
  needs_all_uploads: bool = False
  evaluated: Callable = lambda server, clients: tree.repeat(server.variables, 1)
  personal: Callable | None = None
  adapted: SecondTraining | None = None
  second_training: SecondTraining | None = None
