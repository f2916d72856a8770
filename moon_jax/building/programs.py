"""The programs that a run compiles, and their inputs in a round."""

import contextlib
import functools
from collections.abc import Callable
from concurrent import futures
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding, PartitionSpec
from jax.stages import Lowered

from moon_jax import catalog
from moon_jax.algorithms.base import Algorithm, SecondTraining
from moon_jax.building import round_scalars
from moon_jax.building.experiment import Experiment
from moon_jax.catalog.part_errors import explaining_errors_of
from moon_jax.config import flatten
from moon_jax.core import activity, tree
from moon_jax.core.types import ClientMetrics, PyTree, Scalars, State
from moon_jax.data.augment import augmenter
from moon_jax.data.device_split import DeviceSplit, TrainSplit
from moon_jax.planning.plan import DevicePlan
from moon_jax.platform import compile_cache, devices
from moon_jax.round import (
  client_training,
  communication_round,
  evaluation,
  optimizers,
)
from moon_jax.round.cohort_training import make_cohort_training, plan_spec
from moon_jax.round.second_training import make_second_training

MOST_LOGIT_BYTES = 64 * 2**20  # of the logits that tests keep at a time


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
  scalars = round_scalars.scalars_of_round(
    experiment.config, experiment.algorithm, round_index
  )
  mesh = experiment.placement.mesh
  return RoundInputs(
    plan=devices.split(plan, plan_spec(plan), mesh),
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
  return experiment.data.stream.load_split(
    plan.cohort.clients, slots[slots >= 0], experiment.placement.mesh
  )


class Compiled(NamedTuple):
  """The programs of a round and of a test.

  A call with other shapes is an error, not a compile.

  Attributes:
    run_round: (state, plan, scalars, train) -> (state, ClientMetrics [K]).
    evaluate: (state, test, validation, clients) -> Score; see `models_at_a_time`.
    metrics: the ClientMetrics of a round, with shapes in place of arrays.
  """

  run_round: Callable
  evaluate: Callable
  metrics: ClientMetrics


class Traced(NamedTuple):
  """The programs of a round and of a test, traced but not compiled; see `Compiled`."""

  run_round: Lowered
  evaluate: Lowered


def compile_programs(
  experiment: Experiment, state: State, inputs: RoundInputs, *, donate: bool = True
) -> Compiled:
  """Compiles what `lower_programs` traces, for this state and any round's inputs.

  Args:
    experiment: the experiment.
    state: a state of it, or its shapes.
    inputs: inputs of any round.
    donate: whether a round writes its state over the state that it gets.
  """
  traced_programs = lower_programs(experiment, state, inputs, donate=donate)
  compile_in_turn = functools.partial(
    compile_cache.compile_in_turn,
    options=catalog.compiler_options(experiment.config.execution.compiler_options),
  )
  with futures.ThreadPoolExecutor(1, 'compiling the test') as test_compiler:
    evaluate = test_compiler.submit(
      compile_in_turn, traced_programs.evaluate, 'the test'
    )
    run_round = compile_in_turn(traced_programs.run_round, 'the round')
    _, metrics = traced_programs.run_round.out_info
    with activity.doing('compiling the test'):
      return Compiled(run_round=run_round, evaluate=evaluate.result(), metrics=metrics)


def lower_programs(
  experiment: Experiment, state: State, inputs: RoundInputs, *, donate: bool = True
) -> Traced:
  """One round and one evaluation, traced but not compiled; see `compile_programs`."""
  tests = experiment.tests
  clients = None
  if num_models := models_at_a_time(experiment):
    clients = jax.ShapeDtypeStruct((num_models,), np.int32)
  with explaining_errors_of(*catalog.registered_parts(flatten(experiment.config))):
    return Traced(
      run_round=_lower_round(experiment, state, inputs, donate=donate),
      evaluate=lower(
        evaluate, experiment, state, tests.examples, tests.validation, clients
      ),
    )


def _lower_round(
  experiment: Experiment, state: State, inputs: RoundInputs, *, donate: bool
) -> Lowered:
  placement = experiment.placement
  # A client store reads the last cohort's memories while the next cohort trains.
  is_state_donated = donate and placement.client_memory.on_device
  program = jax.jit(
    functools.partial(run_round, experiment),
    donate_argnums=(0,) if is_state_donated else (),
    out_shardings=NamedSharding(placement.mesh, PartitionSpec()),
  )
  with _matmul_precision(experiment):
    return program.lower(state, inputs.plan, inputs.scalars, experiment.data.train)


def lower(function: Callable, experiment: Experiment, *arguments: PyTree) -> Lowered:
  """Traces `function(experiment, *arguments)`, for arrays of these shapes.

  Args:
    function: the function; the experiment is built into its program.
    experiment: the experiment.
    *arguments: arrays, or their shapes.
  """
  with _matmul_precision(experiment):
    return jax.jit(functools.partial(function, experiment)).lower(*arguments)


def _matmul_precision(experiment: Experiment) -> contextlib.AbstractContextManager:
  return jax.default_matmul_precision(experiment.config.execution.matmul_precision)


def run_round(
  experiment: Experiment,
  state: State,
  plan: DevicePlan,
  scalars: Scalars,
  train: TrainSplit,
) -> tuple[State, ClientMetrics]:
  """Computes a round; the arguments are traced."""
  algorithm = experiment.algorithm
  train_cohort = cohort_training(
    experiment,
    algorithm,
    max_table_examples=max_table_examples(
      experiment, local_training(experiment), state
    ),
  )
  train_personal = None
  if algorithm.second_training:
    train_personal = second_training(experiment, algorithm.second_training)
  compute_round = communication_round.make_round(
    algorithm, train_cohort, experiment.config.num_clients, train_personal
  )
  return compute_round(state, plan, scalars, train)


def cohort_training(
  experiment: Experiment, algorithm: Algorithm, *, max_table_examples: int = 0
) -> Callable[[client_training.Work], client_training.Finished]:
  """Builds the function that trains a cohort; see also `max_table_examples`."""
  config = experiment.config
  augmentation_options = catalog.options('augmentation', flatten(config))
  deviations = None
  if catalog.part('augmentation', config.augmentation.name).has('deviations'):
    deviations = np.asarray(experiment.tests.examples.std)
  return make_cohort_training(
    local_training(experiment)._replace(algorithm=algorithm),
    max_table_examples=max_table_examples,
    mesh=experiment.placement.mesh,
    augment=augmenter(
      config.augmentation.name,
      deviations=deviations,
      **augmentation_options,
    ),
    segment_steps=experiment.planner.training.layout.segment_steps,
  )


def second_training(
  experiment: Experiment, second: SecondTraining
) -> Callable[[client_training.Work], client_training.Finished]:
  """Builds the function that trains a cohort again, or fine-tunes its models."""
  return make_second_training(second, cohort_training(experiment, second.algorithm))


def models_at_a_time(experiment: Experiment) -> int | None:
  """How many clients' models one call of `Compiled.evaluate` tests.

  Returns:
    None if it tests all that are in the state: a global model, models whose logits are
    not kept, and those of a client store, which gives the models of a cohort.
  """
  is_store = not experiment.placement.client_memory.on_device
  if not (experiment.config.metrics and experiment.has_client_models) or is_store:
    return None
  tests = experiment.tests
  num_examples = len(tests.examples.labels)
  if tests.validation is not None:
    num_examples += len(tests.validation.labels)
  bytes_of_model = 4 * num_examples * experiment.data.class_counts.shape[1]
  num_models = max(1, MOST_LOGIT_BYTES // bytes_of_model)
  return num_models if num_models < experiment.config.num_clients else None


def evaluate(
  experiment: Experiment,
  state: State,
  test: DeviceSplit,
  validation: DeviceSplit | None,
  clients: jax.Array | None = None,
) -> evaluation.Score:
  """Computes a test; the arguments are traced.

  Args:
    experiment: the experiment.
    state: the state after a round.
    test: the test split.
    validation: the server's validation split; None if there is none.
    clients: [C] int32, the clients whose own models are tested; None for all models.
  """
  if clients is not None:
    state = state._replace(clients=tree.gather(state.clients, clients))
  apply, mesh = experiment.network.apply, experiment.placement.mesh
  num_users = 0 if experiment.has_client_models else len(experiment.tests.users.sizes)
  keeps_logits = bool(experiment.config.metrics)
  test_models = evaluation.make_evaluation(
    apply, mesh, num_users=num_users, keeps_logits=keeps_logits
  )
  models = experiment.algorithm.evaluated(state.server, state.clients)
  score = test_models(models, test)
  if validation is None:
    return score
  validate = evaluation.make_evaluation(apply, mesh, keeps_logits=keeps_logits)
  return score._replace(validation=validate(models, validation))


def local_training(experiment: Experiment) -> client_training.LocalTraining:
  """Local training of one client, as it is configured."""
  config = experiment.config
  part = catalog.part('optimizer', config.optimizer.name)
  options = round_scalars.split_options(catalog.options('optimizer', flatten(config)))
  make_optimizer = functools.partial(
    part.build, optax.GradientTransformation, **options.built_in
  )
  if config.optimizer.clip_norm:
    make_optimizer = optimizers.with_clipping(make_optimizer)
  if config.optimizer.body_learning_rate != 'auto':
    body = experiment.network.layers().body
    make_optimizer = optimizers.with_body_rate(make_optimizer, body)
  return client_training.LocalTraining(
    algorithm=experiment.algorithm,
    network=experiment.network,
    make_optimizer=make_optimizer,
  )


def max_table_examples(
  experiment: Experiment, training: client_training.LocalTraining, state: State
) -> int:
  """How many examples' frozen representations a table keeps in a round.

  With one local epoch each representation is looked up once, so nothing is gained. With
  augmentation or in training mode they differ from epoch to epoch.

  Returns:
    At least as many examples as a cohort can own; 0 if keeping does not pay, or they do
    not fit into `execution.cache_mib`.
  """
  config, planner = experiment.config, experiment.planner.training
  if experiment.algorithm.frozen_in_training:
    return 0
  if config.local_epochs == 1 or config.augmentation.name != 'none':
    return 0
  # All steps together have room for this many examples. Runs with other partitions that
  # share programs by `min_steps` have the same room.
  work = planner.work
  room = planner.max_steps * planner.layout.num_lanes * work.batch_size
  room_of_epoch = room // work.local_epochs
  left_out = planner.cohort_size * work.batch_size if work.drop_last else 0
  num_examples = min(
    room_of_epoch + left_out, experiment.data.train.rows_by_owner.shape[0]
  )

  def represent(state, train):
    received = experiment.algorithm.broadcast(state.server)
    memory = tree.gather(state.clients, 0)
    images = train.examples.normalised(jnp.arange(num_examples))
    return training.represent(received, memory, images, None, None)

  table = jax.eval_shape(represent, state, experiment.data.train)
  table_bytes = tree.num_bytes(table)
  if 0 < table_bytes <= config.execution.cache_mib * 2**20:
    return num_examples
  return 0
