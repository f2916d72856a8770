"""`python -m moon_jax.sweep`; imported, it is the function `moon_jax.sweep`."""

import sys

if __name__ == '__main__':
  from moon_jax.runner import signals
  from moon_jax.sweeps import command

  sys.exit(command.main(sys.argv[1:], signals.listen()))
else:
  from moon_jax import api

  # The package's attribute of this name, which an import sets, stays the function.
  sys.modules[__name__] = api.sweep
