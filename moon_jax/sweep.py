"""`python -m moon_jax.sweep`; `moon_jax.sweep(...)` is `moon_jax.api.sweep`.

Never imported: the name in the package is the function's.
"""

import sys

from moon_jax.runner import program
from moon_jax.sweeps import command

if __name__ == '__main__':
  stop = program.begin()
  sys.exit(command.main(sys.argv[1:], stop))
