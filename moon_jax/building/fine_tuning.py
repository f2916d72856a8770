"""Tests each client on a copy of the global model that its own data have fine-tuned."""

from collections.abc import Callable

import jax
import numpy as np

from moon_jax.algorithms import base
from moon_jax.building import own_tests, programs
from moon_jax.building.experiment import Experiment
from moon_jax.core import tree
from moon_jax.core.keys import Purpose, seed_for
from moon_jax.core.types import Scalars, State, Upload
from moon_jax.data.device import DeviceSplit, TrainSplit
from moon_jax.planning.batches import LocalWork
from moon_jax.planning.plan import DevicePlan
from moon_jax.planning.planner import TrainingPlanner
from moon_jax.platform import devices
from moon_jax.round.client_training import Work
from moon_jax.round.evaluation import ClientTests, make_client_tests

# Plain local training; the client's new memory is the model that it trained.
_TUNING = base.Algorithm(upload=lambda trained, task: (Upload(), trained))


def tuning_planner(experiment: Experiment) -> TrainingPlanner:
  """Plans the fine-tuning of any K clients, with batches of its own."""
  training = experiment.planner.training
  return TrainingPlanner(
    seed=training.seed,
    cohort_size=training.cohort_size,
    data=training.data,
    work=LocalWork(
      local_epochs=experiment.config.fine_tune_epochs,
      batch_size=training.work.batch_size,
      drop_last=training.work.drop_last,
      purpose=Purpose.FINE_TUNE,
    ),
    layout=training.layout,
    process_lanes=training.process_lanes,
  )


def tune_and_test(
  experiment: Experiment,
  state: State,
  plan: DevicePlan,
  scalars: Scalars,
  train: TrainSplit,
  split: DeviceSplit,
  tests: ClientTests,
  chosen: jax.Array,
) -> jax.Array:
  """The number of its own test examples that each fine-tuned model gets right.

  Args:
    experiment: the experiment.
    state: the state after a round, which does not change.
    plan: the plan of the fine-tuning of K clients.
    scalars: the scalars of the round, but with the configured learning rate.
    train: the training split, or these clients' part of it.
    split: the split in which the tests name rows.
    tests: the examples of each client.
    chosen: [K] int32 positions of these clients among the clients with tests.

  Returns:
    [K] int32.
  """
  models = experiment.algorithm.evaluated(state.server, state.clients)
  received = jax.tree.map(lambda leaf: leaf[0], models)
  scalars = scalars._replace(seed=seed_for(scalars.seed, Purpose.FINE_TUNE))
  memories = tree.repeat(received, len(plan.cohort.clients))
  tune = programs.cohort_training(experiment, _TUNING)
  work = Work(
    received=received,
    round=state.round,
    scalars=scalars,
    memories=memories,
    cohort=plan.cohort,
    schedule=plan.schedule,
    data=train,
  )
  size = min(own_tests.BATCH_SIZE, int(experiment.tests.of_clients.sizes.max()))
  test = make_client_tests(
    experiment.network.apply, experiment.placement.mesh, tree.gather, size
  )
  return test(tune(work).memory, split, tests, chosen)


def compiled(experiment: Experiment, state: State) -> Callable[[State], np.ndarray]:
  """Compiles `tune_and_test`: state after a round -> [T] int32, by tested client.

  It takes K clients at a time; clients without a test fill up the last ones.
  """
  planner, tested = tuning_planner(experiment), experiment.tests.of_clients.clients
  size, given = planner.cohort_size, own_tests.inputs(experiment)
  others = np.setdiff1d(np.arange(len(planner.data.sizes)), tested)
  order = np.concatenate([tested, others]).astype(np.int32)
  # The schedule is for the rounds: at their end its rate may be close to 0.
  rate = np.float32(experiment.config.optimizer.learning_rate)
  rate = devices.replicate(rate, experiment.placement.mesh)

  def inputs(index, first):
    """Positions [K], whether each is tested, and the arguments of the program."""
    clients = np.sort(order[min(first, len(order) - size) :][:size])
    position = np.searchsorted(tested, clients).clip(0, len(tested) - 1)
    plan = DevicePlan(
      cohort=experiment.planner.cohort_of(clients)._replace(client_facts={}),
      schedule=planner.plan(index, clients).schedule,
    )
    data = programs.train_split(experiment, plan)
    chosen = devices.replicate(np.int32(position), experiment.placement.mesh)
    plan, scalars = programs.round_inputs(experiment, index, plan)
    scalars.optimizer['learning_rate'] = rate
    found = plan, scalars, data, *given, chosen
    return position, tested[position] == clients, found

  example = inputs(0, 0)[-1]
  program = programs.lower(tune_and_test, experiment, state, *example).compile()

  def test(state):
    found = np.zeros(len(tested), np.int32)
    for first in range(0, len(tested), size):
      position, is_tested, given = inputs(int(state.round) - 1, first)
      correct = jax.device_get(program(state, *given))
      found[position[is_tested]] = correct[is_tested]
    return found

  return test
