"""The catalog: every part declares itself here once. Imports no JAX.

parts       what an entry is: Part, Knob, bounds, Metric
algorithms  the algorithms
others      models, data sources, partitions, augmentations, optimizers, ...
general     the knobs of every run
registry    look-ups
registering what users register beside these
"""

# ruff: noqa: F401
from moon_jax.catalog.parts import FLOAT32, KINDS, Auto, Bound, Knob, Metric, Part
from moon_jax.catalog.registering import callbacks, forget_callbacks
from moon_jax.catalog.registry import (
  chosen,
  describe,
  every_knob,
  names,
  of_registered,
  options,
  part,
  registered,
  told_of,
  used,
)
