"""An algorithm is a few pure functions; the defaults are FedAvg."""

import types
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax

from moon_jax import losses, tree
from moon_jax.types import Batch, Outputs, PyTree, Server, Task, Upload

Parts = dict[str, jax.Array]


def no_memory(variables: PyTree) -> PyTree:
  """variables -> (): nothing is kept between rounds."""
  del variables
  return ()


def hyperparameters_alone(
  hyperparameters: dict[str, jax.Array], server_memory: PyTree
) -> dict[str, jax.Array]:
  """(hyperparameters, memory) -> the hyperparameters, the same in every round."""
  del server_memory
  return hyperparameters


def send_model(server: Server) -> PyTree:
  """server -> the global model."""
  return server.variables


def start_from_received(received: PyTree, memory: PyTree) -> PyTree:
  """(received, memory) -> the global model."""
  del memory
  return received


def no_frozen_models(received: PyTree, memory: PyTree) -> dict[str, PyTree]:
  """(received, memory) -> {}: the loss looks at the trained model alone."""
  del received, memory
  return {}


def supervised(
  outputs: Outputs,
  frozen: dict[str, jax.Array],
  params: PyTree,
  task: Task,
  batch: Batch,
) -> tuple[jax.Array, Parts]:
  """Cross entropy; the loss of FedAvg and the first term of every other loss."""
  del frozen, params, task
  loss = losses.cross_entropy(outputs.logits, batch.labels, batch.mask)
  return loss, {'supervised_loss': loss}


def upload_model(trained: PyTree, task: Task) -> tuple[Upload, PyTree]:
  """(trained variables, task) -> (the variables, the memory as it was)."""
  return Upload(weighted=trained), task.memory


def average(server: Server, mean: Upload) -> Server:
  """w <- sum_k (n_k / n) w_k (McMahan et al. 2017, algorithm 1, arXiv:1602.05629)."""
  return server._replace(variables=mean.weighted)


def global_model(server: Server, clients: PyTree) -> PyTree:
  """(server, clients) -> leaves [1, ...]: one model is tested, the global one."""
  del clients
  return tree.repeat(server.variables, 1)


class Algorithm(NamedTuple):
  """What distinguishes one federated algorithm from FedAvg.

  Every function is pure and sees one client, unless its shapes say otherwise; the
  engine stacks clients by vmap. Numbers that may vary (mu, tau, ...) arrive traced, in
  `task.scalars`, so that changing one compiles nothing anew.

  Attributes:
    hyperparameters: name -> number, as configured.
    init_server: initial variables -> the server's own memory.
    init_client: initial variables -> a client's memory before its first round.
    scalars: (hyperparameters, server memory) -> name -> number, for `task.scalars`.
    broadcast: server -> what every client of the cohort receives.
    download: (received, memory) -> variables from which local training starts.
    frozen: (received, memory) -> name -> variables of a network whose representation of
      the batch the loss needs; it is not trained.
    loss: (outputs, frozen representations, params, task, batch) -> the loss to
      minimise and its named parts, each [] and a mean over the real examples.
    upload: (trained variables, task) -> an Upload, and the client's new memory.
    aggregate: (server, mean of the cohort's Uploads) -> the new server.
    evaluated: (server, clients [N, ...]) -> [M, ...] variables of the models to test.
  """

  hyperparameters: Mapping[str, float] = types.MappingProxyType({})
  init_server: Callable = no_memory
  init_client: Callable = no_memory
  scalars: Callable = hyperparameters_alone
  broadcast: Callable = send_model
  download: Callable = start_from_received
  frozen: Callable = no_frozen_models
  loss: Callable = supervised
  upload: Callable = upload_model
  aggregate: Callable = average
  evaluated: Callable = global_model
