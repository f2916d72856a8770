"""Configurations: typed and bounded; every mistake is reported at once.

This package imports nothing heavy, so that a typo is answered before JAX loads. The
knobs themselves are in `moon_jax.catalog`.

  configuration  configurations as trees, as flat mappings, and as the page of knobs
  validation     what is wrong with a configuration, and what may change in a resumption
  config_files   what a config file says, and its variants
  input_files    whether the files that a configuration names are there
  cli            the command line
"""

# ruff: noqa: F401
from moon_jax.config.config_files import (
  LIST,
  Variant,
  choose,
  import_config,
  list_variants,
  load,
  split,
  variants,
)
from moon_jax.config.configuration import (
  Config,
  changed,
  defaults,
  flatten,
  knob_table,
  nest,
  ordered,
)
from moon_jax.config.input_files import require_input_files
from moon_jax.config.validation import (
  changes,
  complaints,
  convert,
  from_word,
  identity,
  permitted_changes,
  unknown_knob,
  used_knobs,
  used_value,
  validate,
  with_defaults,
)
from moon_jax.core.errors import ConfigError
