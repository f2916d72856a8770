"""`python -m moon_jax.predict`."""

import sys

from moon_jax.core import signals

if __name__ == '__main__':
  signals.listen(signals.StopAtOnce())  # before the slow imports
  from moon_jax.predict import command

  sys.exit(command.main(sys.argv[1:]))
