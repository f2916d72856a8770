"""`python -m moon_jax.predict`."""

import sys

from moon_jax.predict import command
from moon_jax.runner import streams

if __name__ == '__main__':
  streams.outlive()
  sys.exit(command.main(sys.argv[1:]))
