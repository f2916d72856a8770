"""Tests each client on a copy of the global model that its own data have fine-tuned.

`fine_tune_epochs` asks for it, or the algorithm: see `Algorithm.adapted`.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import numpy as np

from moon_jax.algorithms.base import Algorithm, SecondTraining
from moon_jax.building import client_test_programs, programs, scheduling
from moon_jax.building.experiment import Experiment
from moon_jax.config import used_value
from moon_jax.core import tree
from moon_jax.core.keys import Purpose
from moon_jax.core.types import Scalars, State, Upload
from moon_jax.data.device_split import DeviceSplit, TrainSplit
from moon_jax.planning.plan import DevicePlan
from moon_jax.planning.planner import TrainingPlanner
from moon_jax.platform import devices
from moon_jax.round.client_training import Work
from moon_jax.round.evaluation import ClientScore, ClientTests, make_client_tests


def fine_tuning(experiment: Experiment) -> SecondTraining:
  """Plain local training, of which a client keeps the model that it trained."""
  return SecondTraining(
    algorithm=Algorithm(upload=lambda trained, task: (Upload(), trained)),
    epochs=experiment.config.fine_tune_epochs,
    purpose=Purpose.FINE_TUNE,
  )


def tunings(experiment: Experiment) -> dict[str, SecondTraining]:
  """Column of the records -> the training before the test whose accuracy it has."""
  by_column = {}
  if experiment.algorithm.adapted:
    by_column['personal_accuracy'] = experiment.algorithm.adapted
  if used_value(experiment.config, 'fine_tune_epochs'):
    by_column['tuned_accuracy'] = fine_tuning(experiment)
  return by_column


def tuning_planner(experiment: Experiment, tuning: SecondTraining) -> TrainingPlanner:
  """Plans the fine-tuning of any K clients, with batches of its own."""
  training = experiment.planner.training
  work = scheduling.second_work(
    tuning,
    training.work,
    batch_size=experiment.config.batch_size,
    sizes=training.data.sizes,
  )
  return training.with_work(work)


def tune_and_test(
  experiment: Experiment,
  tuning: SecondTraining,
  state: State,
  plan: DevicePlan,
  scalars: Scalars,
  train: TrainSplit,
  split: DeviceSplit,
  tests: ClientTests,
  positions: jax.Array,
) -> ClientScore:
  """Fine-tunes models, and tests each on the examples of its client.

  Args:
    experiment: the experiment.
    tuning: the training.
    state: the state after a round, which does not change.
    plan: the plan of the fine-tuning of K clients.
    scalars: the scalars of the round, but with the configured learning rate.
    train: the training split, or these clients' part of it.
    split: the split in which the tests name rows.
    tests: the examples of each client.
    positions: [K] int32 positions of these clients among the clients with tests.

  Returns:
    The results of K clients.
  """
  models = experiment.algorithm.evaluated(state.server, state.clients)
  global_model = jax.tree.map(lambda leaf: leaf[0], models)
  work = Work(
    received=global_model,
    round=state.round,
    scalars=scalars,
    memories=tree.repeat(global_model, len(plan.cohort.clients)),
    cohort=plan.cohort,
    schedule=plan.schedule,
    data=train,
  )
  tune = programs.second_training(experiment, tuning)
  test = make_client_tests(
    experiment.network.apply,
    experiment.placement.mesh,
    model=tree.gather,
    batch_size=client_test_programs.batch_size(experiment),
    room=client_test_programs.logits_room(experiment),
  )
  return test(tune(work).memory, split, tests, positions)


class _Group(NamedTuple):
  """K clients that are fine-tuned together.

  Attributes:
    positions: [K] positions among the clients with tests; any position for a client
      without a test.
    tested: [K] bool, whether the client has a test.
    inputs: the arguments of the program after the state.
  """

  positions: np.ndarray
  tested: np.ndarray
  inputs: tuple


def compile_tuned_tests(
  experiment: Experiment, state: State, tuning: SecondTraining
) -> Callable[[State], Iterator[tuple[np.ndarray, ClientScore]]]:
  """Compiles `tune_and_test`: state after a round -> groups of tested clients.

  It takes K clients at a time; clients without a test fill up the last ones. A group
  has the positions of its clients among those with tests, and their results.
  """
  planner = tuning_planner(experiment, tuning)
  mesh, group_size = experiment.placement.mesh, planner.cohort_size
  clients_with_tests = experiment.tests.of_clients.clients
  all_clients = np.arange(len(planner.data.sizes))
  fillers = np.setdiff1d(all_clients, clients_with_tests)
  order = np.concatenate([clients_with_tests, fillers]).astype(np.int32)
  split, tests = client_test_programs.test_inputs(experiment)
  # The schedule is for the rounds: at their end its rate may be close to 0.
  learning_rate = devices.replicate(
    np.float32(experiment.config.optimizer.learning_rate), mesh
  )

  def group_from(first, round_index):
    """The K clients in `order` from `first` on, or the last K."""
    first = min(first, len(order) - group_size)
    clients = np.sort(order[first : first + group_size])
    positions = np.searchsorted(clients_with_tests, clients)
    positions = positions.clip(0, len(clients_with_tests) - 1)
    plan = DevicePlan(
      cohort=experiment.planner.cohort_of(clients)._replace(client_facts={}),
      schedule=planner.plan(round_index, clients).schedule,
    )
    train = programs.train_split(experiment, plan)
    plan, scalars = programs.round_inputs(experiment, round_index, plan)
    scalars.optimizer['learning_rate'] = learning_rate
    device_positions = devices.replicate(np.int32(positions), mesh)
    return _Group(
      positions=positions,
      tested=clients_with_tests[positions] == clients,
      inputs=(plan, scalars, train, split, tests, device_positions),
    )

  example = group_from(0, round_index=0)

  def tune_and_test_group(experiment, *arguments):
    return tune_and_test(experiment, tuning, *arguments)

  program = programs.lower(
    tune_and_test_group, experiment, state, *example.inputs
  ).compile()

  def tune_and_test_all(state):
    for first in range(0, len(clients_with_tests), group_size):
      group = group_from(first, round_index=int(state.round) - 1)
      group_results = jax.device_get(program(state, *group.inputs))
      tested = group.tested
      yield (
        group.positions[tested],
        jax.tree.map(lambda leaf, tested=tested: leaf[tested], group_results),
      )

  return tune_and_test_all
