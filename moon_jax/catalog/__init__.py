"""The catalog: every part declares itself here once. Imports no JAX.

parts       what an entry is: Part, Knob, bounds, Metric
algorithms  the algorithms
others      models, data sources, partitions, augmentations, optimizers, ...
general     the knobs of every run
registry    look-ups, and what users register beside these
"""

# ruff: noqa: F401
from moon_jax.catalog.parts import (
  FLOAT32,
  KINDS,
  Bound,
  Knob,
  Metric,
  OneOf,
  Part,
  PartOf,
  above,
  at_least,
  between,
  knob,
  one_of,
)
from moon_jax.catalog.registering import (
  register_algorithm,
  register_augmentation,
  register_data,
  register_model,
  register_partition,
)
from moon_jax.catalog.registry import (
  chosen,
  describe,
  every_knob,
  names,
  options,
  part,
  register,
  registered,
  remember,
  used,
)
