"""What a configuration builds: data, functions, the first state."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from moon_jax import algorithms, models, tree
from moon_jax.config import Config
from moon_jax.data import device, partition, sources
from moon_jax.engine import client_training, devices, method, schedule
from moon_jax.errors import UsageError
from moon_jax.types import Dataset, PyTree, Scalars, Server, State


class Experiment(NamedTuple):
  """Everything that a configuration builds.

  Attributes:
    config: the configuration; of `centralized`, with its single client.
    network: its pure functions.
    algorithm: its pure functions.
    split: who owns which training example.
    class_counts: [N, Y] training examples of each client and class.
    planner: makes the plan of any round.
    train: the training split on the device.
    test: the test split on the device.
    mesh: the devices, which share the lanes.
    traffic: bytes that one client receives, and sends, in a round of a real deployment;
      without a server from, and to, each of its neighbours.
    data_digest: SHA-256 of the data set, in hexadecimal.
  """

  config: Config
  network: models.Network
  algorithm: algorithms.Algorithm
  split: partition.Partition
  class_counts: np.ndarray
  planner: schedule.Planner
  train: device.TrainSplit
  test: device.DeviceSplit
  mesh: Mesh
  traffic: tuple[int, int]
  data_digest: str


def build(config: Config) -> Experiment:
  """Loads the data, deals it out and builds the functions; compiles nothing.

  Raises:
    UsageError: the data cannot be had, dealt out as asked, or fed to the network.
  """
  config = method.with_its_clients(config)
  data = load_data(config)
  network = method.make_network(config, data.train_images.shape[1:], data.num_classes)
  split, see = partition.make(
    config.partition.name,
    data.train_labels,
    num_clients=config.num_clients,
    min_size=config.partition.min_size,
    seed=config.seed,
    **method.options(config, 'partition'),
  )
  algorithm = method.make_algorithm(config, network)
  planner = _planner(config, split, share=bool(algorithm.share))
  mesh = devices.mesh(planner.num_devices)
  train = device.DeviceSplit(
    see(data.train_images, split), data.train_labels, data.mean, data.std
  )
  test = device.DeviceSplit(data.test_images, data.test_labels, data.mean, data.std)
  owners = (split.indices, split.offsets.astype(np.int32))
  scalars = method.round_scalars(config, algorithm, 0)
  return Experiment(
    config=config,
    network=network,
    algorithm=algorithm,
    split=split,
    class_counts=partition.class_counts(split, data.train_labels, data.num_classes),
    planner=planner,
    train=devices.replicate(device.TrainSplit(train, *owners), mesh),
    test=devices.replicate(test, mesh),
    mesh=mesh,
    traffic=_traffic(algorithm, network.shapes, scalars),
    data_digest=sources.digest(data),
  )


def load_data(config: Config) -> Dataset:
  """The data set of a configuration.

  Raises:
    DataError: it is missing or unusable.
  """
  return sources.load(
    config.data.source, limit=config.data.limit, **method.options(config, 'data')
  )


def _planner(
  config: Config, split: partition.Partition, *, share: bool
) -> schedule.Planner:
  """The planner; `share` tells whether clients average among themselves."""
  if config.drop_last:
    _require_whole_batches(split.sizes, config.batch_size)
  size = schedule.cohort_size(config.num_clients, config.participation)
  num_lanes, num_devices = schedule.num_lanes(
    config.execution.lanes,
    size,
    jax.default_backend(),
    devices.available(config.execution.devices),
  )
  return schedule.Planner(
    owned=[split.client(client) for client in range(config.num_clients)],
    seed=config.seed,
    cohort_size=size,
    local_epochs=config.local_epochs,
    # A batch larger than every client would only hold more filler.
    batch_size=min(config.batch_size, int(split.sizes.max())),
    num_lanes=num_lanes,
    num_devices=num_devices,
    drop_last=config.drop_last,
    uniform_weights=config.client_weight == 'uniform',
    mixing=method.mixing(config) if share else None,
  )


def _require_whole_batches(sizes: np.ndarray, batch_size: int) -> None:
  """Raises UsageError if a client owns fewer examples than a batch."""
  client = int(np.argmin(sizes))
  if sizes[client] < batch_size:
    raise UsageError(
      f'Client {client} owns {sizes[client]} examples, no batch of '
      f'--config.batch_size={batch_size}: with --config.drop_last=true it would not '
      'train at all. Lower batch_size, or raise --config.partition.min_size.'
    )


def initial_state(experiment: Experiment) -> State:
  """The state before the first round; a function of the seed alone."""
  config = experiment.config
  variables = experiment.network.init(config.seed)
  state = first_state(experiment.algorithm, variables, config.num_clients)
  return devices.replicate(state, experiment.mesh)


def first_state(
  algorithm: algorithms.Algorithm, variables: PyTree, num_clients: int
) -> State:
  """The state in which the global model, and every client's, has these variables."""
  return State(
    server=Server(variables, algorithm.init_server(variables)),
    clients=tree.repeat(algorithm.init_client(variables), num_clients),
    round=jnp.zeros((), jnp.int32),
  )


def _traffic(
  algorithm: algorithms.Algorithm, variables, scalars: Scalars
) -> tuple[int, int]:
  """Bytes that one client receives, and sends, in a round of a real deployment."""

  def exchange(variables, scalars):
    server = Server(variables, algorithm.init_server(variables))
    numbers = algorithm.scalars(scalars.algorithm, server.memory)
    received, memory = algorithm.broadcast(server), algorithm.init_client(variables)
    scalars = scalars._replace(algorithm=numbers)
    task = client_training.first_task(algorithm, received, memory, scalars)
    upload, _ = algorithm.upload(algorithm.download(received, memory), task)
    if algorithm.share:
      return (algorithm.share(memory),) * 2
    return received, upload

  received, upload = jax.eval_shape(exchange, variables, scalars)
  return tree.num_bytes(received), tree.num_bytes(upload)
