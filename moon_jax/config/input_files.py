"""Whether the files that configurations name are there: told before JAX is loaded."""

import os
from collections.abc import Iterable

from moon_jax.config.configuration import Config
from moon_jax.config.validation import used_value
from moon_jax.core.errors import ConfigError
from moon_jax.core.flags import flag
from moon_jax.core.paths import expand

_KNOBS = ('data.path', 'data.test_path', 'initial_weights', 'availability.path')


def require_input_files(configs: Iterable[Config]) -> None:
  """Refuses paths at which there is nothing, or nothing that may be looked at.

  What is there, and whether it is of the right kind, is found out by whoever reads it.

  Raises:
    ConfigError: one line for each of them.
  """
  problems = []
  for config in configs:
    for name in _KNOBS:
      path = used_value(config, name)
      try:
        if path:
          os.stat(expand(path))
      except OSError as error:
        problems.append(f'{flag(name, path)}: {error.strerror}.')
  if problems:
    raise ConfigError(dict.fromkeys(problems))
