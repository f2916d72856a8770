"""Is this configuration valid? Typed, bounded, and every mistake told at once.

Imports nothing heavy, so that a typo is answered before JAX loads.

  schema       which knobs are there?
  rules        which go together, and which may change when a run is resumed?
  validation   is a value valid, and all of them together?
  messages     how is a mistake told?
  files        what does a config file say?
  variants     which experiments does one file hold?
"""

from moon_jax.config.files import LIST, ROOT, expand, list_variants, load, split
from moon_jax.config.messages import ConfigError, did_you_mean, problem, unknown_knob
from moon_jax.config.rules import (
  _NEEDED_WHEN,
  _USED_WHEN,
  MAY_CHANGE,
  changes,
  identity,
  used,
)
from moon_jax.config.schema import (
  ALGORITHMS,
  AUGMENTATIONS,
  CONVOLUTIONS,
  MODELS,
  OPTIMIZERS,
  PADDINGS,
  PARTITIONS,
  SCHEDULES,
  SERVED,
  SERVER_OPTIMIZERS,
  SOURCES,
  TOPOLOGIES,
  Config,
  MoonConfig,
  flatten,
  knobs,
)
from moon_jax.config.validation import convert, from_word, validate

__all__ = [
  'ALGORITHMS',
  'AUGMENTATIONS',
  'CONVOLUTIONS',
  'LIST',
  'MAY_CHANGE',
  'MODELS',
  'OPTIMIZERS',
  'PADDINGS',
  'PARTITIONS',
  'ROOT',
  'SCHEDULES',
  'SERVED',
  'SERVER_OPTIMIZERS',
  'SOURCES',
  'TOPOLOGIES',
  '_NEEDED_WHEN',
  '_USED_WHEN',
  'Config',
  'ConfigError',
  'MoonConfig',
  'changes',
  'convert',
  'did_you_mean',
  'expand',
  'flatten',
  'from_word',
  'identity',
  'knobs',
  'list_variants',
  'load',
  'problem',
  'split',
  'unknown_knob',
  'used',
  'validate',
]
