"""The combinations of a sweep: every value of every knob, where the knob is used."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from moon_jax import catalog
from moon_jax.config import ConfigError, unknown_knob

Change = dict[str, Any]


def combinations(
  settings: Mapping[str, Any], over: Mapping[str, Sequence[Any]]
) -> list[Change]:
  """The changes that make the runs of a sweep, in the order of the values.

  A knob that a run does not use multiplies only the runs that use it: over
  `algorithm=fedavg,moon` and `moon.mu=1,5` there are three runs.

  Args:
    settings: dotted knob -> value, of the common configuration.
    over: dotted knob -> the values that it takes.

  Returns:
    Dotted knob -> value, for each run.

  Raises:
    ConfigError: there is no such knob, or no run uses it.
  """
  known = catalog.every_knob()
  if unknown := [unknown_knob(name) for name in over if name not in known]:
    raise ConfigError(unknown)
  found: list[Change] = []
  for values in itertools.product(*over.values()):
    every = dict(zip(over, values, strict=True))
    change = {n: v for n, v in every.items() if catalog.used(n, settings | every)}
    if change not in found:
      found.append(change)
  unused = [name for name in over if not any(name in change for change in found)]
  if unused:
    raise ConfigError(
      [f'--over={name}: no run of the sweep uses it.' for name in unused]
    )
  return found
