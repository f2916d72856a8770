"""Builds an experiment from a configuration: data, functions, the first state."""

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from moon_jax import catalog, models
from moon_jax.algorithms.base import Algorithm
from moon_jax.building import scheduling, streaming, traced
from moon_jax.building.composing import make_algorithm
from moon_jax.catalog.blaming import blamed
from moon_jax.config import Config, changed, flatten, used_value
from moon_jax.core import files, tree, weights
from moon_jax.core.errors import UsageError
from moon_jax.core.paths import expand
from moon_jax.core.types import Dataset, PyTree, Server, State
from moon_jax.data import device, holdout, own_tests, partition, sources
from moon_jax.data.federated import users
from moon_jax.models import fused_cpu
from moon_jax.planning import clients
from moon_jax.planning import planner as planning
from moon_jax.platform import devices, tiers
from moon_jax.round.traffic import exchanged


class Experiment(NamedTuple):
  """Everything that a configuration builds.

  Attributes:
    config: the configuration, with the number of clients: 1 for `centralized`, and the
      number of users for natural clients.
    network: its pure functions.
    algorithm: its pure functions.
    split: the owner of each training example.
    class_counts: [N, Y] training examples of each client and class.
    planner: makes the plan of any round.
    train: the training split on the device; if it stays on disk, its shape.
    stream: reads each cohort's part of the split; None if the split is on the device.
    test: the test split on the device.
    validation: examples that the server keeps, on the device; None if there are none.
    test_sizes: [N'] test examples of each user; [0] if these have no user ids.
    num_strangers: number of these N' users that are no clients.
    names: [N] ids of the users that are the clients; None for dealt data.
    num_dropped: users without `partition.min_size` examples, which are no clients.
    mesh: the devices, which share the lanes.
    class_names: [Y] names of the classes; () if the data have none.
    traffic: bytes that one client receives, and sends, in a round of a real deployment;
      without a server, from and to each of its neighbours.
    data_digest: SHA-256 of the data set, in hexadecimal.
    memory: where the clients' memories are between rounds.
    own_models: whether the models that are tested are the clients' own.
    own_tests: the examples that test one client each; None if there are no such tests.
  """

  config: Config
  network: models.Network
  algorithm: Algorithm
  split: partition.Partition
  class_counts: np.ndarray
  planner: planning.Planner
  train: device.TrainSplit
  stream: streaming.Stream | None
  test: device.DeviceSplit
  validation: device.DeviceSplit | None
  test_sizes: np.ndarray
  num_strangers: int
  names: np.ndarray | None
  num_dropped: int
  mesh: Mesh
  traffic: tuple[int, int]
  class_names: tuple[str, ...]
  data_digest: str
  memory: tiers.Tier
  own_models: bool
  own_tests: own_tests.OwnTests | None


def build(
  config: Config,
  load: Callable[[Config], Dataset] | None = None,
  min_steps: int = 0,
) -> Experiment:
  """Loads the data, deals it out and builds the functions; compiles nothing.

  Args:
    config: the configuration.
    load: function that loads the data; None: `load_data`.
    min_steps: see `planning.Planner`.

  Raises:
    UsageError: the data are missing, cannot be dealt as asked, or do not fit.
  """
  config, backend = with_its_clients(config), jax.default_backend()
  loaded = (load or load_data)(config)
  config, data, num_dropped, held_out = training_data(config, loaded)
  sizes = data.train_images.shape[1:], data.num_classes
  network = started(config, make_network(config, *sizes, backend))
  whole, see = deal(config, data)
  algorithm = make_algorithm(config, network)
  chosen = catalog.part('algorithm', config.algorithm)
  with blamed(chosen):
    several, scalars = config.num_clients > 1, traced.scalars(config, algorithm, 0)
    traffic = exchanged(algorithm, network.shapes, scalars, sizes[-1])
    own_models = several and tiers.has_own_models(algorithm, network.shapes)
  need = {'wanted': own_models, 'needed': _needs_tests(config, algorithm, own_models)}
  split, tests = own_tests.taken(config, data, whole, partition_seed(config), **need)
  if data.stored:
    class_counts = data.stored.class_counts
  else:
    class_counts = partition.class_counts(split, data.train_labels, data.num_classes)
  schedule = scheduling.make_schedule(
    config,
    data=data,
    split=split,
    class_counts=class_counts,
    network=network,
    algorithm=algorithm,
    backend=backend,
    min_steps=min_steps,
  )
  mesh, planner, stream = schedule.mesh, schedule.planner, schedule.stream
  owners = whole, split, clients.label_flippers(config.attack.name, planner.attackers)
  train = _of_clients(data, owners, see, stream, mesh)
  whose, test_sizes, num_strangers = users.tested(data, config.num_clients)
  return Experiment(
    config=config,
    network=network,
    algorithm=algorithm,
    split=split,
    class_counts=class_counts,
    planner=planner,
    train=train,
    stream=stream,
    test=_split(data, (data.test_images, data.test_labels), mesh, whose),
    validation=held_out and _split(data, held_out, mesh),
    test_sizes=test_sizes,
    num_strangers=num_strangers if users.are_clients(config) else 0,
    names=data.clients[: config.num_clients] if users.are_clients(config) else None,
    num_dropped=num_dropped,
    mesh=mesh,
    traffic=traffic,
    class_names=data.class_names,
    data_digest=sources.digest(loaded),
    memory=schedule.client_memory,
    own_models=own_models,
    own_tests=tests,
  )


def _needs_tests(config, algorithm, own_models) -> str:
  """The flag for which clients need tests of their own; '' if there is none."""
  epochs = used_value(config, 'fine_tune_epochs')
  tuned = f'--config.fine_tune_epochs={epochs}'
  if epochs and own_models:
    raise UsageError(
      f'{tuned} needs a global model, and here each client has a model of its own: '
      'leave it out, or choose another --config.algorithm or --config.batch_norm.'
    )
  if algorithm.personal:
    return f'--config.algorithm={config.algorithm}'
  return tuned if epochs else ''


def _split(data, examples, mesh, clients=None) -> device.DeviceSplit:
  """Images and labels on the devices, normalised as the data set is."""
  split = device.DeviceSplit(*examples, data.mean, data.std, clients)
  return devices.replicate(split, mesh)


def _of_clients(data, owners, see, stream, mesh) -> device.TrainSplit:
  """The training split on the devices, as its owners see it."""
  whole, split, label_flippers = owners  # with and without the clients' own tests
  if stream:
    return stream.shape(mesh)
  images = see(data.train_images, whole)
  labels = clients.labels_in_training(data, split, label_flippers)
  places = np.zeros(len(labels), np.int32)
  places[split.indices] = np.arange(len(split.indices))
  owners = split.indices, split.offsets.astype(np.int32), places
  owners = devices.replicate(owners, mesh)
  return device.TrainSplit(_split(data, (images, labels), mesh), *owners)


def training_data(
  config: Config, loaded: Dataset
) -> tuple[Config, Dataset, int, tuple[np.ndarray, np.ndarray] | None]:
  """The examples on which clients train; see `clients_of`, `validation_split`."""
  share, seed = config.data.validation, partition_seed(config)
  data, held_out = holdout.validation_split(loaded, share, seed)
  return *users.clients_of(config, data), held_out


def partition_seed(config: Config) -> int:
  """The seed of the partition and of what is held out."""
  own = flatten(config).get('partition.seed', 'auto')
  return config.seed if own == 'auto' else own


def deal(config: Config, data: Dataset) -> partition.Skewed:
  """The owner of each training example, and how clients see their images."""
  if data.stored:
    offsets = np.concatenate([[0], np.cumsum(data.stored.sizes)])
    return partition.Skewed(partition.Partition(data.train_labels, offsets))
  given = {'num_clients': config.num_clients, 'min_size': config.partition.min_size}
  given |= {'clients': data.train_clients} if users.are_clients(config) else {}
  given |= options(config, 'partition') | {'seed': partition_seed(config)}
  return partition.make(config.partition.name, data.train_labels, **given)


def options(config: Config, kind: str) -> dict[str, float | int | str | bool]:
  """The arguments of the chosen part of a kind."""
  return catalog.options(kind, flatten(config))


def with_its_clients(config: Config) -> Config:
  """The configuration; for an algorithm with one client, with one client."""
  if catalog.part('algorithm', config.algorithm).has('several_clients'):
    return config
  one = {'num_clients': 1, 'participation': 1.0, 'data.local_test': 0.0}
  return changed(config, one | {'partition.name': 'iid', 'partition.min_size': 1})


def load_data(config: Config, **more: Any) -> Dataset:
  """The data set of a configuration, with more arguments for its source.

  Raises:
    DataError: it is missing or unusable.
  """
  given = {'limit': config.data.limit} | options(config, 'data') | more
  return sources.load(config.data.source, **given)


def make_network(
  config: Config,
  image_shape: tuple[int, int, int],
  num_classes: int,
  backend: str | None = None,
) -> models.Network:
  """The network for images [H, W, C] of `num_classes` classes.

  backend: kind of device, as JAX names it. None: every kind, so a configured form of
    convolutions that only some kinds have is not used.

  Raises:
    UsageError: the network does not fit the images, or its form the device.
  """
  form = config.execution.convolution
  if form == 'auto' and backend:
    form = 'auto_on_cpu' if backend == 'cpu' else 'auto_on_gpu'
  elif form == 'fused' and not backend:
    form = 'auto'
  elif form == 'fused':
    fault = fused_cpu.fault() if backend == 'cpu' else 'its kernels are for CPUs'
    if fault:
      raise UsageError(f"--config.execution.convolution='fused': {fault}.")
  given = {'image_shape': image_shape, 'num_classes': num_classes, 'convolution': form}
  given |= {'dtype': config.execution.dtype} | options(config, 'model')
  return models.make(config.model, **given)


def started(config: Config, network: models.Network) -> models.Network:
  """The network, with the first weights of `initial_weights` if it names a file.

  Raises:
    UsageError: the file is missing, damaged, or of another network.
  """
  if not config.initial_weights:
    return network
  path = expand(config.initial_weights)
  if os.path.isdir(path):  # not is_dir, which raises if the name is too long
    raise UsageError(
      f'--config.initial_weights={str(path)!r} is a folder; write its weights by '
      f'python -m moon_jax.export {path} --output=FILE.safetensors.'
    )
  try:
    variables = weights.fitted(path, weights.read_weights(path), network.shapes)
  except UsageError as error:
    raise UsageError(f'--config.initial_weights: {error}') from None
  given = {'init': lambda seed: jax.device_put(variables)}
  return network._replace(**given, weights_digest=files.sha256(path))


def initial_state(experiment: Experiment) -> State:
  """The state before the first round; it depends on the seed or `initial_weights`."""
  variables = experiment.network.init(experiment.config.seed)
  on_device = experiment.memory.name == 'device'
  of = experiment.config.num_clients if on_device else experiment.planner.cohort_size
  state = first_state(experiment.algorithm, variables, of)
  return devices.replicate(state, experiment.mesh)


def first_state(algorithm: Algorithm, variables: PyTree, num_clients: int) -> State:
  """The state in which the global model, and every client's, has these variables.

  Args:
    algorithm: its pure functions.
    variables: variables of the network.
    num_clients: N; with a client store K.
  """
  server = Server(variables, algorithm.init_server(variables))
  clients = tree.repeat(algorithm.init_client(variables), num_clients)
  return State(server, clients, round=jnp.zeros((), jnp.int32))
