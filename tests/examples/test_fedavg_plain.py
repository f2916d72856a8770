"""Federated averaging in plain JAX gives the engine's weights."""

import jax
import numpy as np

from examples import fedavg_plain
from moon_jax import config as config_lib
from moon_jax.building import experiment as experiment_lib
from moon_jax.building import programs
from moon_jax.data import sources
from tests.examples.test_algorithms import NUMBERS
from tests.world import batches_of

KNOBS = NUMBERS | {'algorithm': 'fedavg', 'optimizer.weight_decay': 0.0}
LAYERS = ('encoder', 'head_hidden', 'head_output', 'classifier')


def as_plain(variables):
  """The parameters of an mlp as a list of (kernel, bias)."""
  layers = (variables['params'][name] for name in LAYERS)
  return [(layer['kernel'], layer['bias']) for layer in layers]


def test_the_weights_of_three_rounds_are_those_of_the_engine():
  built = experiment_lib.build(config_lib.validate(KNOBS))
  state = experiment_lib.initial_state(built)
  inputs = programs.round_inputs(built, 0, built.planner.plan(0).for_device())
  run_round = programs.lower_programs(built, state, inputs)[0].compile()
  data = sources.load('digits', limit=KNOBS['data.limit'])
  pixels = (data.train_images.astype(np.float32) / 255 - data.mean) / data.std
  images = pixels.reshape(len(pixels), -1)
  model = first = jax.tree.map(np.float32, as_plain(state.server.variables))
  for index in range(3):
    steps = list(batches_of(built.planner, index).values())
    assert len(steps) == 3
    model = fedavg_plain.communication_round(
      model, images, data.train_labels, steps, KNOBS['optimizer.learning_rate']
    )
    plan, scalars = programs.round_inputs(
      built, index, built.planner.plan(index).for_device()
    )
    state, _ = run_round(state, plan, scalars, built.data.train)
    ours = as_plain(state.server.variables)
    for mine, theirs, start in zip(
      *map(jax.tree.leaves, (ours, model, first)), strict=True
    ):
      assert np.abs(mine - start).max() > 1e-3
      np.testing.assert_allclose(mine, theirs, atol=2e-6)
