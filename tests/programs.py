"""A run traces only programs that no earlier one of its process has traced."""

import jax

from moon_jax import catalog
from moon_jax import config as config_lib
from moon_jax.building import programs

# Knobs that do not change the programs of a run.
NO_PROGRAM = {
  *('num_rounds', 'checkpoint_every_rounds', 'eval_every_rounds', 'execution.profile'),
  *('optimizer.learning_rate', 'seed', 'data.path', 'initial_weights'),
}
compile_programs = programs.compile_programs
_compiled = {}  # what decides the programs -> the programs


def compile_once(experiment, state, inputs, **donating):
  """In place of `compile_programs`."""
  knobs = config_lib.flatten(experiment.config)
  decisive = {knob: knobs[knob] for knob in knobs if knob not in NO_PROGRAM}
  given = jax.tree.map(
    lambda leaf: (leaf.shape, leaf.dtype, getattr(leaf, 'sharding', None)),
    (
      state,
      inputs,
      experiment.data.train,
      experiment.tests.examples,
      experiment.tests.validation,
    ),
  )
  parts = list(map(catalog.describe, catalog.registered(knobs)))
  more = (
    parts,
    experiment.planner.training.layout.segment_steps,
    len(experiment.tests.user_sizes),
  )
  key = repr(
    (decisive, given, donating, experiment.placement.client_memory.on_device, *more)
  )
  if key not in _compiled:
    _compiled[key] = compile_programs(experiment, state, inputs, **donating)
  return _compiled[key]
