"""What a program does to its process, and a library must not do to its user's."""

import gc

from moon_jax.runner import signals, streams


def begin() -> signals.Stop:
  """Makes this process the program's own; to be called first of all.

  Returns:
    What a signal stops.
  """
  gc.set_threshold(50_000)  # nearly all that is made at the start, by JAX, stays
  streams.outlive()
  return signals.listen()
