"""Builds an experiment from a configuration: data, functions, the first state."""

import functools
import sys
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from moon_jax import models
from moon_jax.algorithms.base import Algorithm
from moon_jax.building.algorithm import (
  AlgorithmOptions,
  evaluates_client_models,
  make_algorithm,
)
from moon_jax.building.data import (
  DataOptions,
  Divided,
  PreparedData,
  load_data,
  prepare,
)
from moon_jax.building.initial_weights import with_initial_weights
from moon_jax.building.layer_training import FreezingOptions, with_frozen
from moon_jax.building.network import (
  NetworkOptions,
  make_network,
  refuse_if_filler_matters,
)
from moon_jax.building.round_scalars import ScalarOptions
from moon_jax.building.scheduling import TrainingSetupOptions, make_training_setup
from moon_jax.building.test_examples import (
  ClientExamples,
  ClientTestOptions,
  Tests,
  hold_out_client_tests,
  tests_on_devices,
)
from moon_jax.building.training_data import (
  TrainingData,
  count_classes,
  make_training_data,
  train_on_devices,
)
from moon_jax.catalog.part_errors import explaining_errors_of
from moon_jax.config import Config
from moon_jax.core import tree
from moon_jax.core.types import Dataset, PyTree, Server, State
from moon_jax.data import sources
from moon_jax.planning.planner import Planner
from moon_jax.platform import devices
from moon_jax.platform.client_memory import ClientMemory
from moon_jax.round.traffic import Traffic, traffic_of_client


class Placement(NamedTuple):
  """Where an experiment runs.

  Attributes:
    mesh: the devices, which share the lanes.
    client_memory: size and place of the clients' memories between rounds.
  """

  mesh: Mesh
  client_memory: ClientMemory


class Experiment(NamedTuple):
  """Everything that a configuration builds.

  Attributes:
    config: the configuration, with the number of clients: 1 for `centralized`, and the
      number of users for natural clients.
    data: the clients' training examples.
    tests: the examples that test the models.
    network: its pure functions.
    algorithm: its pure functions.
    has_client_models: whether the models that are tested are the clients' own.
    traffic: what one client exchanges in a round of a real deployment.
    planner: makes the plan of any round.
    placement: the devices, and where the clients' memories are.
  """

  config: Config
  data: TrainingData
  tests: Tests
  network: models.Network
  algorithm: Algorithm
  has_client_models: bool
  traffic: Traffic
  planner: Planner
  placement: Placement


class Options:
  """What a configuration says about each step of building; the steps see no more.

  It raises UsageError if a round has no valid learning rate.

  Attributes:
    network: about the network.
    freezing: about the layers that are not trained.
    algorithm: about the algorithm.
    client_tests: about the examples that test single clients.
    scalars: about the scalars of the rounds.
    training_setup: about who trains, where, when and for how long.
  """

  def __init__(self, config: Config) -> None:
    self.network = NetworkOptions(config)
    self.freezing = FreezingOptions(config)
    self.algorithm = AlgorithmOptions(config)
    self.client_tests = ClientTestOptions(config)
    self.scalars = ScalarOptions(config)
    self.scalars.learning_rate.require_valid()
    self.training_setup = TrainingSetupOptions(config)


class Assembled(NamedTuple):
  """What is made before anything is on a device.

  Attributes:
    network: the network.
    algorithm: the algorithm.
    has_client_models: whether the models that are tested are the clients' own.
    client_examples: those on which the clients train, and those that test single
      clients.
  """

  network: models.Network
  algorithm: Algorithm
  has_client_models: bool
  client_examples: ClientExamples


def assemble(options: Options, divided: Divided, backend: str | None) -> Assembled:
  """Makes what needs no device, which finds most mistakes; compiles nothing.

  Args:
    options: what the configuration says.
    divided: the data set, and the owner of each training example.
    backend: kind of device, as JAX names it; None: not known yet.

  Raises:
    UsageError: a part does not fit the data.
  """
  dataset = divided.dataset
  image_shape = dataset.train_images.shape[1:]
  network = make_network(
    options.network, image_shape, dataset.num_classes, backend, dataset.form
  )
  refuse_if_filler_matters(network, options.network)
  network = with_initial_weights(network, options.network)
  network = with_frozen(network, options.freezing)

  algorithm = make_algorithm(options.algorithm, network)
  with explaining_errors_of(options.algorithm.part):
    has_client_models = evaluates_client_models(algorithm, network.shapes)
  if divided.num_clients == 1:
    # Its model is the global one.
    has_client_models = False

  client_examples = hold_out_client_tests(
    divided, options.client_tests, algorithm, has_client_models
  )
  return Assembled(
    network=network,
    algorithm=algorithm,
    has_client_models=has_client_models,
    client_examples=client_examples,
  )


def _traffic(
  options: Options,
  assembled: Assembled,
  num_classes: int,
  frozen: frozenset[tuple[str, ...]],
) -> Traffic:
  """What one client exchanges in a round; see `traffic_of_client`."""
  network, algorithm = assembled.network, assembled.algorithm
  with explaining_errors_of(options.algorithm.part):
    # Traffic depends on no number, but `broadcast` and `upload` are traced with the
    # scalars of some round.
    scalars = options.scalars.of_round(algorithm, round_index=0)
    return traffic_of_client(algorithm, network.shapes, scalars, num_classes, frozen)


def _bytes_per_upload(options: Options, assembled: Assembled, num_classes: int) -> int:
  """Bytes of what the device keeps of each client's upload; 0: only the mean is kept.

  Layers that do not train are in these arrays, although clients never send them.
  """
  if not assembled.algorithm.needs_all_uploads:
    return 0
  return _traffic(options, assembled, num_classes, frozen=frozenset()).bytes_sent


def _test_bytes(divided: Divided) -> int:
  """Bytes of the examples that test models on the server: tests and validation."""
  num_bytes = divided.dataset.test_images.nbytes
  if divided.validation:
    images, _ = divided.validation
    num_bytes += images.nbytes
  return num_bytes


def build(
  asked_config: Config,
  load: Callable[[DataOptions], Dataset] = load_data,
  min_steps: int = 0,
  *,
  has_arrays: bool = True,
) -> Experiment:
  """Loads the data, deals it out and builds the functions; compiles nothing.

  Args:
    asked_config: the configuration as it was asked for.
    load: function that loads the data.
    min_steps: see `build_with`.
    has_arrays: see `build_with`.

  Raises:
    UsageError: the data are missing, cannot be dealt as asked, or do not fit.
  """
  prepared = prepare(asked_config, load)
  return build_with(prepared, min_steps, has_arrays=has_arrays)


def build_with(
  prepared: PreparedData, min_steps: int = 0, *, has_arrays: bool = True
) -> Experiment:
  """Builds the functions for data that are loaded and dealt out; compiles nothing.

  It prints what there is to say about texts and the initial weights, to standard error.

  Args:
    prepared: the configuration and its data.
    min_steps: lower bound of the steps that a round has room for, so that runs that
      need fewer steps share programs.
    has_arrays: whether the loaded images have pixels, which are put on the devices. If
      not, the experiment has shapes in place of arrays, and no digest; its programs are
      the same.

  Raises:
    UsageError: a part does not fit the data.
  """
  backend = jax.default_backend()
  config, divided = prepared.config, prepared.divided
  options = Options(config)
  assembled = assemble(options, divided, backend)
  network, algorithm = assembled.network, assembled.algorithm
  client_examples = assembled.client_examples
  dataset = divided.dataset
  for notice in (divided.text_notice, network.weights_notice):
    if notice and has_arrays:
      print(notice, file=sys.stderr)
  traffic = _traffic(options, assembled, dataset.num_classes, network.frozen)
  training_partition = client_examples.training_partition
  class_counts = count_classes(dataset, training_partition)

  setup = make_training_setup(
    options.training_setup,
    data=dataset,
    training_partition=training_partition,
    class_counts=class_counts,
    network=network,
    algorithm=algorithm,
    backend=backend,
    min_steps=min_steps,
    test_bytes=_test_bytes(divided),
    bytes_per_upload=_bytes_per_upload(options, assembled, dataset.num_classes),
    client_name=divided.client_name,
  )

  put = devices.replicate if has_arrays else devices.shapes
  if setup.stream:  # the examples stay on disk
    train_split = setup.stream.split_shape(setup.mesh)
  else:
    train_split = train_on_devices(
      divided, training_partition, setup.label_flippers, setup.mesh, put
    )
  tests = tests_on_devices(divided, client_examples.client_tests, setup.mesh, put)
  training_data = make_training_data(
    divided,
    training_partition=training_partition,
    class_counts=class_counts,
    train_split=train_split,
    stream=setup.stream,
    digest=sources.digest(prepared.loaded) if has_arrays else '',
    words_digest=sources.digest(dataset) if dataset.words else '',
  )
  return Experiment(
    config=config,
    data=training_data,
    tests=tests,
    network=network,
    algorithm=algorithm,
    has_client_models=assembled.has_client_models,
    traffic=traffic,
    planner=setup.planner,
    placement=Placement(mesh=setup.mesh, client_memory=setup.client_memory),
  )


def initial_state(experiment: Experiment) -> State:
  """The state before the first round; it depends on the seed or `initial_weights`."""
  variables = experiment.network.init(experiment.config.seed)
  # One program: outside of one, each array would be a program of its own.
  make_state = jax.jit(functools.partial(_initial_state_of, experiment))
  state = make_state(variables)
  return devices.replicate(state, experiment.placement.mesh)


def initial_state_shapes(experiment: Experiment) -> State:
  """`initial_state` as ShapeDtypeStructs; computes nothing."""
  make_state = functools.partial(_initial_state_of, experiment)
  state = jax.eval_shape(make_state, experiment.network.shapes)
  return devices.shapes(state, experiment.placement.mesh)


def _initial_state_of(experiment: Experiment, variables: PyTree) -> State:
  if experiment.placement.client_memory.on_device:
    num_memories = experiment.config.num_clients
  else:
    num_memories = experiment.planner.participation.cohort_size
  return make_initial_state(experiment.algorithm, variables, num_memories)


def make_initial_state(
  algorithm: Algorithm, variables: PyTree, num_clients: int
) -> State:
  """The state in which the global model, and every client's, has these variables.

  Args:
    algorithm: its pure functions.
    variables: variables of the network.
    num_clients: N; with a client store K.
  """
  server = Server(variables, algorithm.init_server(variables))
  memories = tree.repeat(algorithm.init_client(variables), num_clients)
  return State(server, memories, round=jnp.zeros((), jnp.int32))
