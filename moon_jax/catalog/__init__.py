"""The catalog: every part is declared here once. It imports no JAX.

entries     what an entry is: Part, Knob, bounds, Metric
metrics     the metrics of algorithms, for reports
test_metrics  the metrics of tests, besides accuracy and loss
algorithms  the algorithms
others      models, data sources, partitions, augmentations, optimizers, ...
general     the knobs of every run
hints       names that other programs and papers use
registry    look-ups
registering functions with which users register parts of their own
"""

# ruff: noqa: F401
from moon_jax.catalog.entries import (
  KINDS,
  LISTED_KINDS,
  Bound,
  Knob,
  Metric,
  Part,
  listed_words,
)
from moon_jax.catalog.general import check as check_general
from moon_jax.catalog.general import compiler_options, range_of
from moon_jax.catalog.hints import did_you_mean
from moon_jax.catalog.registering import (
  RegisteredCallback,
  forget_callbacks,
  registered_callbacks,
  require_callback,
)
from moon_jax.catalog.registry import (
  chosen,
  describe,
  every_knob,
  is_lower_better,
  is_of_registered_part,
  is_used,
  listed,
  names,
  options,
  part,
  registered_parts,
  with_described,
)
