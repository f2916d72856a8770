"""The program `python -m moon_jax.sweep`. In Python, `moon_jax.sweep` is a function."""

import sys

if __name__ == 'moon_jax.sweep':
  # A module of this name would take the function's place in the package.
  raise ImportError('moon_jax.sweep is a function: import moon_jax and call it.')

if __name__ == '__main__':
  from moon_jax.core import signals
  from moon_jax.runner.stop_requests import Stop

  stop = signals.listen(Stop())  # before the slow imports
  from moon_jax.sweeps import command

  sys.exit(command.main(sys.argv[1:], stop))
