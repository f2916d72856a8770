"""The validity of a configuration: typed, bounded, every mistake told at once.

Imports nothing heavy, so that a typo is answered before JAX loads. The knobs themselves
stand in `moon_jax.catalog`.

  trees        configurations as trees and as flat mappings
  validation   is a value valid, and all of them together?
  rules        which knobs go together, and which may change when a run is resumed?
  messages     the words in which a mistake is told
  files        what a config file says
  tables       the knobs as a page
  variants     the experiments of one file
"""

# ruff: noqa: F401
from moon_jax.config.files import (
  LIST,
  cache,
  cache_folder,
  expand,
  list_variants,
  load,
  split,
  variants,
)
from moon_jax.config.messages import ConfigError, problem, unknown_knob
from moon_jax.config.rules import changes, complaints, identity, used, with_defaults
from moon_jax.config.tables import knob_table
from moon_jax.config.trees import Config, changed, defaults, flatten, nest, ordered
from moon_jax.config.validation import choices, convert, from_word, validate
