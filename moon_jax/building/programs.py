"""The programs that a run compiles, and their inputs in a round."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding, PartitionSpec
from jax.stages import Lowered

from moon_jax import catalog
from moon_jax.algorithms.base import Algorithm
from moon_jax.building import traced
from moon_jax.building.experiment import Experiment
from moon_jax.catalog.blaming import blamed
from moon_jax.config import flatten
from moon_jax.core import tree
from moon_jax.core.types import ClientMetrics, PyTree, Scalars, State
from moon_jax.data.augment import augmenter
from moon_jax.data.device import DeviceSplit, TrainSplit
from moon_jax.planning.plan import DevicePlan
from moon_jax.platform import devices
from moon_jax.round import client_training, communication_round, evaluation, lanes


class RoundInputs(NamedTuple):
  """The inputs of a round, on the device.

  Attributes:
    plan: cohort, lanes and batches.
    scalars: each a float32 array, so that another value compiles nothing.
  """

  plan: DevicePlan
  scalars: Scalars


def round_inputs(
  experiment: Experiment, round_index: int, plan: DevicePlan
) -> RoundInputs:
  """Copies a round's plan and scalars to the device; round_index counts from 0."""
  scalars = traced.scalars(experiment.config, experiment.algorithm, round_index)
  mesh = experiment.placement.mesh
  return RoundInputs(
    plan=devices.split(plan, lanes.plan_spec(plan), mesh),
    scalars=devices.replicate(scalars, mesh),
  )


def train_split(experiment: Experiment, plan: DevicePlan) -> TrainSplit:
  """The training split of a round, on the device: the whole split, or its cohort's."""
  if experiment.data.stream is None:
    return experiment.data.train
  entering = plan.schedule.entering
  if plan.second_schedule is not None:
    entering = np.concatenate([entering, plan.second_schedule.entering])
  process_lanes = list(experiment.planner.training.process_lanes)
  slots = np.unique(entering[:, process_lanes])
  return experiment.data.stream.of(
    plan.cohort.clients, slots[slots >= 0], experiment.placement.mesh
  )


class Compiled(NamedTuple):
  """The programs of a round and of a test.

  A call with other shapes is an error, not a compile.

  Attributes:
    run_round: (state, plan, scalars, train) -> (state, ClientMetrics [K]).
    evaluate: (state, test, validation) -> Score.
  """

  run_round: Callable
  evaluate: Callable


def compile_programs(
  experiment: Experiment, state: State, inputs: RoundInputs, **donating: bool
) -> Compiled:
  """Compiles what `lower_programs` traces, for this state and any round's inputs.

  Args:
    experiment: the experiment.
    state: a state of it, or its shapes.
    inputs: inputs of any round.
    **donating: see `lower_programs`.
  """
  lowered = lower_programs(experiment, state, inputs, **donating)
  return Compiled(*(program.compile() for program in lowered))


def lower_programs(
  experiment: Experiment, state: State, inputs: RoundInputs, *, donate: bool = True
) -> tuple[Lowered, Lowered]:
  """One round and one evaluation, traced but not compiled.

  With `donate`, a round writes its state over the state that it gets.
  """
  how = {
    # A client store reads the last cohort's memories while the next cohort trains.
    'donate_argnums': (0,)
    if donate and experiment.placement.client_memory.on_device
    else (),
    'out_shardings': NamedSharding(experiment.placement.mesh, PartitionSpec()),
  }
  with blamed(*catalog.registered(flatten(experiment.config))):
    return (
      lowered(run_round, experiment, state, *inputs, experiment.data.train, **how),
      lowered(
        evaluate,
        experiment,
        state,
        experiment.tests.examples,
        experiment.tests.validation,
      ),
    )


def lowered(
  function: Callable, experiment: Experiment, *given: PyTree, **how: Any
) -> Lowered:
  """A function of an experiment and arrays, traced for arrays of these shapes.

  Args:
    function: the function.
    experiment: the experiment.
    *given: the arrays, or their shapes.
    **how: further arguments of `jax.jit`.
  """
  with jax.default_matmul_precision(experiment.config.execution.matmul_precision):
    return jax.jit(functools.partial(function, experiment), **how).lower(*given)


def run_round(
  experiment: Experiment,
  state: State,
  plan: DevicePlan,
  scalars: Scalars,
  train: TrainSplit,
) -> tuple[State, ClientMetrics]:
  """Computes a round; the arguments are traced."""
  algorithm = experiment.algorithm
  once = represent_once(experiment, local_training(experiment), state)
  train_cohort = cohort_training(experiment, algorithm, once=once)
  second = algorithm.second and cohort_training(experiment, algorithm.second.training)
  num_clients = experiment.config.num_clients
  round = communication_round.make_round(algorithm, train_cohort, num_clients, second)
  return round(state, plan, scalars, train)


def cohort_training(
  experiment: Experiment, algorithm: Algorithm, *, once: int = 0
) -> Callable[[client_training.Work], client_training.Finished]:
  """Trains a cohort by an algorithm; once: see `represent_once`."""
  config = experiment.config
  augmentation_options = catalog.options('augmentation', flatten(config))
  return lanes.cohort_training(
    local_training(experiment)._replace(algorithm=algorithm),
    represent_once=once,
    mesh=experiment.placement.mesh,
    augment=augmenter(config.augmentation.name, **augmentation_options),
    segment_steps=experiment.planner.training.layout.segment_steps,
  )


def evaluate(
  experiment: Experiment,
  state: State,
  test: DeviceSplit,
  validation: DeviceSplit | None,
) -> evaluation.Score:
  """Computes a test; the arguments are traced."""
  num_users = 0 if experiment.has_client_models else len(experiment.tests.user_sizes)
  test_models = evaluation.make_evaluation(
    experiment.network.apply, experiment.placement.mesh, num_clients=num_users
  )
  models = experiment.algorithm.evaluated(state.server, state.clients)
  score = test_models(models, test)
  if validation is None:
    return score
  validate = evaluation.make_evaluation(
    experiment.network.apply, experiment.placement.mesh
  )
  return score._replace(validation=validate(models, validation))


def local_training(experiment: Experiment) -> client_training.LocalTraining:
  """Local training of one client, as it is configured."""
  _, fixed = traced.split(catalog.options('optimizer', flatten(experiment.config)))
  part = catalog.part('optimizer', experiment.config.optimizer.name)
  optimizer = functools.partial(part.build, optax.GradientTransformation, **fixed)
  return client_training.LocalTraining(
    algorithm=experiment.algorithm, network=experiment.network, optimizer=optimizer
  )


def represent_once(
  experiment: Experiment, training: client_training.LocalTraining, state: State
) -> int:
  """How many examples' frozen representations to keep in a round.

  Returns:
    At least as many examples as a cohort can own; 0 if keeping does not pay, or they do
    not fit into `execution.cache_mib`.

  With one local epoch each representation is looked up once, so nothing is gained. With
  augmentation or in training mode they differ from epoch to epoch.
  """
  config, planner = experiment.config, experiment.planner.training
  pays = config.local_epochs > 1 and config.augmentation.name == 'none'
  if experiment.algorithm.frozen_in_training or not pays:
    return 0
  # All steps together have room for this many examples. Runs with other partitions that
  # share programs by `min_steps` have the same room.
  work = planner.work
  room = planner.max_steps * planner.layout.num_lanes * work.batch_size
  room = room // work.local_epochs
  left_out = planner.cohort_size * work.batch_size * work.drop_last
  most = min(room + left_out, experiment.data.train.rows_by_owner.shape[0])

  def represent(state, train):
    received = experiment.algorithm.broadcast(state.server)
    memory = tree.gather(state.clients, 0)
    images = train.examples.normalised(jnp.arange(most))
    return training.represent(received, memory, images, None, None)

  table = jax.eval_shape(represent, state, experiment.data.train)
  fits = 0 < tree.num_bytes(table) <= config.execution.cache_mib * 2**20
  return most if fits else 0
