"""`python -m moon_jax.predict`."""

import sys

from moon_jax.predict import command

if __name__ == '__main__':
  sys.exit(command.main(sys.argv[1:]))
