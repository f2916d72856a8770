"""Tests each client alone, on examples of its own: the programs and their inputs."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from moon_jax.building import programs
from moon_jax.building.experiment import Experiment
from moon_jax.core import tree
from moon_jax.core.types import PyTree, State
from moon_jax.data.device import DeviceSplit
from moon_jax.platform import devices
from moon_jax.round.evaluation import ClientTests, make_client_tests

BATCH_SIZE = 64  # larger batches would be mostly filler, with a client's few examples


def at_a_time(experiment: Experiment) -> int:
  """C, the number of clients whose memories are on the device while they are tested."""
  if experiment.placement.client_memory.on_device:
    return len(experiment.tests.of_clients.clients)
  return experiment.planner.participation.cohort_size


def inputs(experiment: Experiment) -> tuple[DeviceSplit, ClientTests]:
  """The examples, and which of them test which client, on the devices."""
  tests = experiment.tests.of_clients
  split = (
    experiment.data.train.examples if tests.of_training else experiment.tests.examples
  )
  given = ClientTests(tests.clients, tests.rows, tests.offsets)
  return split, devices.replicate(given, experiment.placement.mesh)


def tested_models(experiment: Experiment) -> dict[str, Callable]:
  """Column of the records -> (server, memory) -> variables of the model to test."""
  algorithm, found = experiment.algorithm, {}

  def evaluated(server, memory):
    models = algorithm.evaluated(server, tree.repeat(memory, 1))
    return jax.tree.map(lambda leaf: leaf[0], models)

  if experiment.has_client_models:
    return {'personal_accuracy': evaluated}
  found['local_accuracy'] = evaluated
  if algorithm.personal:
    found['personal_accuracy'] = algorithm.personal
  return found


def test(
  experiment: Experiment,
  state: State,
  split: DeviceSplit,
  tests: ClientTests,
  chosen: jax.Array,
) -> dict[str, jax.Array]:
  """The number of its own examples that each client's models get right, when traced.

  Args:
    experiment: the experiment.
    state: the state after a round; with a client store, its `clients` are the chosen.
    split: the split in which the tests name rows.
    tests: the examples of each client.
    chosen: [C] int32 positions among the clients with tests.

  Returns:
    Column of the records -> [C] int32.
  """
  on_device = experiment.placement.client_memory.on_device
  slots = tests.clients[chosen] if on_device else jnp.arange(len(chosen))
  size = min(BATCH_SIZE, int(experiment.tests.of_clients.sizes.max()))

  def of(function):
    def model(source, position):
      state, slots = source
      return function(state.server, tree.gather(state.clients, slots[position]))

    return make_client_tests(
      experiment.network.apply, experiment.placement.mesh, model, size
    )

  found = tested_models(experiment)
  given = (state, slots), split, tests, chosen
  return {name: of(function)(*given) for name, function in found.items()}


def compiled(
  experiment: Experiment, state: State
) -> Callable[[State, np.ndarray], PyTree]:
  """Compiles `test`: (state, chosen [C]) -> column -> [C] int32, on the device."""
  given = inputs(experiment)
  chosen = devices.replicate(
    np.zeros(at_a_time(experiment), np.int32), experiment.placement.mesh
  )
  program = programs.lower(test, experiment, state, *given, chosen).compile()
  return lambda state, chosen: program(
    state, *given, devices.replicate(np.int32(chosen), experiment.placement.mesh)
  )
