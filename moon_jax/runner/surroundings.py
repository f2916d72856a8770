"""Refuses surroundings in which JAX hangs, fails, or computes another thing."""

import resource

from moon_jax.core.errors import UsageError

# JAX maps some 2 GB before it computes, and aborts or hangs where it may not.
_ADDRESSES = 3 * 10**9
_CHANGING = ('jax_disable_jit', 'jax_enable_x64')


def require_room() -> None:
  """Raises UsageError if `ulimit -v` is too low for JAX; call before it is loaded."""
  limit, _ = resource.getrlimit(resource.RLIMIT_AS)
  if limit != resource.RLIM_INFINITY and limit < _ADDRESSES:
    raise UsageError(
      f'ulimit -v allows {limit:,} bytes of address space; JAX needs {_ADDRESSES:,}.'
    )


def require_jax() -> None:
  """Raises UsageError unless JAX computes as it does unasked."""
  import jax

  if changed := [name.upper() for name in _CHANGING if getattr(jax.config, name)]:
    raise UsageError(
      f'{changed[0]} changes what is computed, and is not recorded: unset it.'
    )
