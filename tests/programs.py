"""A run traces only programs that no earlier one of its process has traced."""

import jax

from moon_jax import catalog
from moon_jax import config as config_lib
from moon_jax.building import programs

# Knobs that do not change the programs of a run.
NO_PROGRAM = {
  *('num_rounds', 'checkpoint_every_rounds', 'eval_every_rounds', 'execution.profile'),
  *('optimizer.learning_rate', 'seed', 'data.path', 'data.dir', 'initial_weights'),
  *('keep_best', 'best_by', 'logger', 'execution.client_store', 'moon.mu'),
}
compile_programs = programs.compile_programs
_compiled = {}  # what decides the programs -> the programs


def compile_once(experiment, state, inputs, *, donate=True):
  """In place of `compile_programs`."""
  knobs = config_lib.flatten(experiment.config)
  registered_parts = map(catalog.describe, catalog.registered_parts(knobs))
  tests = experiment.tests
  arrays = (state, inputs, experiment.data.train, tests.examples, tests.validation)
  shapes = jax.tree.map(
    lambda leaf: (leaf.shape, leaf.dtype, getattr(leaf, 'sharding', None)), arrays
  )
  key = repr(
    (
      {knob: knobs[knob] for knob in knobs if knob not in NO_PROGRAM},
      list(registered_parts),
      shapes,
      donate and experiment.placement.client_memory.on_device,
      experiment.placement.client_memory.on_device,
      experiment.planner.training.layout.segment_steps,
      len(tests.users.sizes),
    )
  )
  if key not in _compiled:
    _compiled[key] = compile_programs(experiment, state, inputs, donate=donate)
  return _compiled[key]
