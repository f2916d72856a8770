"""What does a configuration build? Data, functions, first state, compiled programs."""

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.stages import Lowered

from moon_jax import (
  algorithms,
  cohort,
  devices,
  evaluation,
  lanes,
  local,
  models,
  optimizers,
  topology,
  tree,
)
from moon_jax import round as round_lib
from moon_jax.config import SERVED, Config
from moon_jax.data import device, partition, sources
from moon_jax.data.augment import augmenter
from moon_jax.errors import UsageError
from moon_jax.types import PyTree, Scalars, Server, State


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
  planner: cohort.Planner
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
  config = with_its_clients(config)
  data = sources.load(
    config.data.source,
    name=config.data.name,
    data_dir=config.data.dir,
    path=config.data.path,
    limit=config.data.limit,
  )
  size = cohort.cohort_size(config.num_clients, config.participation)
  num_lanes, num_devices = cohort.num_lanes(
    config.execution.lanes,
    size,
    jax.default_backend(),
    devices.available(config.execution.devices),
  )
  network, algorithm = functions(config, data.train_images.shape[1:], data.num_classes)
  split = partition.make(
    **dataclasses.asdict(config.partition),
    labels=data.train_labels,
    num_clients=config.num_clients,
    seed=config.seed,
  )
  if config.drop_last:
    _require_whole_batches(split.sizes, config.batch_size)
  images = partition.seen_images(
    config.partition.name,
    data.train_images,
    split,
    noise_sigma=config.partition.noise_sigma,
    seed=config.seed,
  )
  mesh = devices.mesh(num_devices)
  planner = cohort.Planner(
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
    mixing=_mixing(config) if algorithm.share else None,
  )
  train = device.DeviceSplit(images, data.train_labels, data.mean, data.std)
  test = device.DeviceSplit(data.test_images, data.test_labels, data.mean, data.std)
  owners = (split.indices, split.offsets.astype(np.int32))
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
    traffic=_traffic(algorithm, network.shapes, _numbers(config, algorithm, 0)),
    data_digest=sources.digest(data),
  )


def with_its_clients(config: Config) -> Config:
  """The configuration; of `centralized` with one client, who owns all the data."""
  if config.algorithm != 'centralized':
    return config
  everything = dataclasses.replace(config.partition, name='iid', min_size=1)
  return dataclasses.replace(
    config, num_clients=1, participation=1.0, partition=everything
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


def functions(
  config: Config, image_shape: tuple[int, int, int], num_classes: int
) -> tuple[models.Network, algorithms.Algorithm]:
  """The network for images [H, W, C] of so many classes, and the algorithm.

  Raises:
    ModelError: the network does not fit the images.
  """
  network = models.make(
    config.model,
    image_shape=image_shape,
    num_classes=num_classes,
    convolution=config.execution.convolution,
    dtype=config.execution.dtype,
    **config.options(config.model),
  )
  return network, _algorithm(config, network)


def _algorithm(config: Config, network: models.Network) -> algorithms.Algorithm:
  """The algorithm with what is configured beside it."""
  algorithm = algorithms.make(config.algorithm, **config.options(config.algorithm))
  if config.batch_norm == 'local' and 'batch_stats' in network.shapes:
    algorithm = algorithms.with_local_statistics(algorithm)
  server = dataclasses.asdict(config.server_optimizer)
  if config.algorithm not in SERVED or server == _PLAIN_AVERAGE:
    return algorithm
  name = server.pop('name')
  if name != 'sgd':
    del server['momentum']
  return algorithms.with_server_optimizer(algorithm, name, server)


_PLAIN_AVERAGE = {'name': 'sgd', 'learning_rate': 1.0, 'momentum': 0.0}


def _mixing(config: Config) -> np.ndarray:
  """[N, N] float64, who averages with whom when all clients are present."""
  graph = topology.adjacency(
    **dataclasses.asdict(config.topology),
    num_clients=config.num_clients,
    seed=config.seed,
  )
  return topology.metropolis_hastings(graph)


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


class RoundInputs(NamedTuple):
  """What the host gives the device for a round, already there.

  Attributes:
    plan: cohort, lanes and batches.
    scalars: the numbers, each a float32, so that none compiles anew.
  """

  plan: cohort.Plan
  scalars: Scalars


def round_inputs(
  experiment: Experiment, round_index: int, plan: cohort.Plan
) -> RoundInputs:
  """Copies a round's plan and numbers to the device; round_index counts from 0."""
  scalars = _numbers(experiment.config, experiment.algorithm, round_index)
  return RoundInputs(
    devices.split(plan, lanes.plan_spec(), experiment.mesh),
    devices.replicate(scalars, experiment.mesh),
  )


def _numbers(
  config: Config, algorithm: algorithms.Algorithm, round_index: int
) -> Scalars:
  knobs = dataclasses.asdict(config.optimizer)
  optimizer = {name: knobs[name] for name in optimizers.NUMBERS[config.optimizer.name]}
  optimizer['learning_rate'] *= optimizers.schedule(
    config.optimizer.schedule,
    round_index,
    num_rounds=config.num_rounds,
    decay=config.optimizer.decay,
    decay_every=config.optimizer.decay_every,
  )
  numbers = jax.tree.map(np.float32, (dict(algorithm.hyperparameters), optimizer))
  return Scalars(*numbers, seed=np.int32(config.seed))


class Compiled(NamedTuple):
  """The two programs of a run; a call with other shapes is an error, not a compile.

  Attributes:
    run_round: (state, plan, scalars, train) -> (state, ClientMetrics [K]).
    evaluate: (state, test) -> Score.
    compile_seconds: that compiling both took.
  """

  run_round: Callable
  evaluate: Callable
  compile_seconds: float


def compile_programs(experiment: Experiment, state: State) -> Compiled:
  """Compiles one round and one evaluation."""
  begin = time.perf_counter()
  programs = [lowered.compile() for lowered in lower_programs(experiment, state)]
  return Compiled(*programs, time.perf_counter() - begin)


def lower_programs(experiment: Experiment, state: State) -> tuple[Lowered, Lowered]:
  """One round and one evaluation, traced but not compiled."""
  algorithm, mesh = experiment.algorithm, experiment.mesh
  config = experiment.config
  training = local_training(experiment)
  test_models = evaluation.make_evaluation(experiment.network.apply, mesh)

  def evaluate(state, test):
    return test_models(algorithm.evaluated(state.server, state.clients), test)

  once = _represent_once(experiment, training, state)
  augment = augmenter(config.augmentation.name, config.augmentation.padding)
  train = lanes.cohort_training(
    training, represent_once=once, mesh=mesh, augment=augment
  )
  run_round = jax.jit(
    round_lib.make_round(algorithm, train),
    donate_argnums=0,
    out_shardings=NamedSharding(mesh, PartitionSpec()),
  )
  inputs = round_inputs(experiment, 0, experiment.planner.plan(0))
  with jax.default_matmul_precision(config.execution.matmul_precision):
    return (
      run_round.lower(state, *inputs, experiment.train),
      jax.jit(evaluate).lower(state, experiment.test),
    )


def local_training(experiment: Experiment) -> local.LocalTraining:
  """Local training of one client, as configured."""
  optimizer = local_optimizer(experiment.config)
  return local.local_training(experiment.algorithm, experiment.network, optimizer)


def local_optimizer(config: Config) -> Callable[..., optax.GradientTransformation]:
  """The numbers of the local optimizer -> its two functions."""
  optimizer = optimizers.OPTIMIZERS[config.optimizer.name]
  if config.optimizer.name != 'sgd':
    return optimizer
  return functools.partial(optimizer, nesterov=config.optimizer.nesterov)


def _represent_once(
  experiment: Experiment, training: local.LocalTraining, state: State
) -> bool:
  """Whether to keep the frozen representations of a round: does it pay, do they fit?

  One local epoch looks each one up once, and gains nothing. What is augmented, or
  represented in training mode, differs from epoch to epoch.
  """
  config = experiment.config
  if experiment.algorithm.frozen_in_training:
    return False
  images = jax.eval_shape(experiment.train.examples.normalised, experiment.train.rows)

  def represent(state, images):
    received = experiment.algorithm.broadcast(state.server)
    memory = tree.gather(state.clients, 0)
    return training.represent(received, memory, images, None, None)

  table = jax.eval_shape(represent, state, images)
  fits = 0 < tree.num_bytes(table) <= config.execution.cache_mib * 2**20
  return fits and config.local_epochs > 1 and config.augmentation.name == 'none'


def _traffic(
  algorithm: algorithms.Algorithm, variables, scalars: Scalars
) -> tuple[int, int]:
  """Bytes that one client receives, and sends, in a round of a real deployment."""

  def exchange(variables, scalars):
    server = Server(variables, algorithm.init_server(variables))
    numbers = algorithm.scalars(scalars.algorithm, server.memory)
    received, memory = algorithm.broadcast(server), algorithm.init_client(variables)
    scalars = scalars._replace(algorithm=numbers)
    task = local.first_task(algorithm, received, memory, scalars)
    upload, _ = algorithm.upload(algorithm.download(received, memory), task)
    if algorithm.share:
      return (algorithm.share(memory),) * 2
    return received, upload

  received, upload = jax.eval_shape(exchange, variables, scalars)
  return tree.num_bytes(received), tree.num_bytes(upload)
