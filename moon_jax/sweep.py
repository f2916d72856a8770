"""`python -m moon_jax.sweep`; `moon_jax.sweep(...)` is `moon_jax.api.sweep`.

Never imported: the name in the package is the function's.
"""

import gc
import sys

from moon_jax.runner import signals, streams
from moon_jax.sweeps import command

if __name__ == '__main__':
  gc.set_threshold(50_000)  # as `moon_jax.__main__`
  streams.outlive()
  sys.exit(command.main(sys.argv[1:], signals.listen()))
