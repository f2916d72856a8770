"""Tests each client alone, on examples of its own: the programs and their inputs.

Which examples these are is decided in `data.client_tests`.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from moon_jax.building import programs
from moon_jax.building.experiment import Experiment
from moon_jax.core import tree
from moon_jax.core.types import PyTree, Server, State
from moon_jax.data.device_split import DeviceSplit
from moon_jax.platform import devices
from moon_jax.round.evaluation import (
  ClientScore,
  ClientTests,
  LogitsRoom,
  examples_at_a_time,
  make_client_tests,
)

# (server, memory of a client) -> variables of the model to test
ModelOfClient = Callable[[Server, PyTree], PyTree]

BATCH_SIZE = 64  # larger batches would be mostly filler, with a client's few examples


def clients_at_a_time(experiment: Experiment) -> int:
  """C, the number of clients that one call of the program tests.

  It is as many as there are memories on the device, or fewer if the logits that are
  kept of them would need too much memory.
  """
  if experiment.placement.client_memory.on_device:
    num_clients = len(experiment.tests.of_clients.clients)
  else:
    num_clients = experiment.planner.participation.cohort_size
  room = logits_room(experiment)
  if room is None:
    return num_clients
  bytes_of_client = 4 * room.num_examples * room.num_classes
  return max(1, min(num_clients, programs.MOST_LOGIT_BYTES // bytes_of_client))


def logits_room(experiment: Experiment) -> LogitsRoom | None:
  """The room for the logits of a client's test; None unless there are `metrics`."""
  if not experiment.config.metrics:
    return None
  return LogitsRoom(
    num_examples=int(experiment.tests.of_clients.sizes.max()),
    num_classes=experiment.data.class_counts.shape[1],
  )


def batch_size(experiment: Experiment) -> int:
  """Examples of a client that are tested together."""
  return min(
    BATCH_SIZE,
    int(experiment.tests.of_clients.sizes.max()),
    examples_at_a_time(experiment.network.image_shape),
  )


def test_inputs(experiment: Experiment) -> tuple[DeviceSplit, ClientTests]:
  """The examples, and which of them test which client, on the devices."""
  tests = experiment.tests.of_clients
  split = experiment.tests.examples
  if tests.of_training:
    split = experiment.data.train.examples
  rows_of_clients = ClientTests(
    clients=tests.clients, rows=tests.rows, offsets=tests.offsets
  )
  return split, devices.replicate(rows_of_clients, experiment.placement.mesh)


def tested_models(experiment: Experiment) -> dict[str, ModelOfClient]:
  """Column of the records -> the model of a client whose accuracy it has."""
  algorithm = experiment.algorithm

  def evaluated(server, memory):
    models = algorithm.evaluated(server, tree.repeat(memory, 1))
    return jax.tree.map(lambda leaf: leaf[0], models)

  if experiment.has_client_models:
    return {'personal_accuracy': evaluated}
  if algorithm.personal:
    return {'local_accuracy': evaluated, 'personal_accuracy': algorithm.personal}
  return {'local_accuracy': evaluated}


def test(
  experiment: Experiment,
  state: State,
  split: DeviceSplit,
  tests: ClientTests,
  positions: jax.Array,
) -> dict[str, ClientScore]:
  """Tests each client's models on its own examples; traced.

  Args:
    experiment: the experiment.
    state: the state after a round; with a client store, its `clients` are those that
      are tested.
    split: the split in which the tests name rows.
    tests: the examples of each client.
    positions: [C] int32 positions among the clients with tests.

  Returns:
    Column of the records -> the results of C clients.
  """
  rows_of_memories = jnp.arange(len(positions))
  if experiment.placement.client_memory.on_device:
    rows_of_memories = tests.clients[positions]

  def score(model_of_client):
    def model(source, index):
      state, rows_of_memories = source
      memory = tree.gather(state.clients, rows_of_memories[index])
      return model_of_client(state.server, memory)

    test_clients = make_client_tests(
      experiment.network.apply,
      experiment.placement.mesh,
      model=model,
      batch_size=batch_size(experiment),
      room=logits_room(experiment),
    )
    return test_clients((state, rows_of_memories), split, tests, positions)

  return {
    column: score(model_of_client)
    for column, model_of_client in tested_models(experiment).items()
  }


def compile_client_tests(
  experiment: Experiment, state: State
) -> Callable[[State, np.ndarray], PyTree]:
  """Compiles `test`: (state, positions [C]) -> column -> ClientScore, on the device.

  With a client store, the state that is tested has the memories of these C clients.
  """
  split, tests = test_inputs(experiment)
  mesh = experiment.placement.mesh
  num_clients = clients_at_a_time(experiment)
  example = devices.replicate(np.zeros(num_clients, np.int32), mesh)
  if not experiment.placement.client_memory.on_device:
    # The state of a round has the memories of its cohort, which may be more clients.
    memories = jax.tree.map(
      lambda leaf: jax.ShapeDtypeStruct((num_clients, *leaf.shape[1:]), leaf.dtype),
      state.clients,
    )
    state = state._replace(clients=devices.shapes(memories, mesh))
  program = programs.lower(test, experiment, state, split, tests, example).compile()

  def test_clients(state, positions):
    return program(state, split, tests, devices.replicate(np.int32(positions), mesh))

  return test_clients
