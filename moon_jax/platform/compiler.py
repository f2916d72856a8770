"""Whether XLA's compiler takes the options of `execution.compiler_options`."""

import jax

from moon_jax.catalog import compiler_options
from moon_jax.core.errors import KnobError


def check_options(text: str) -> None:
  """Compiles a program of nothing with the options, before anything else is done.

  Args:
    text: value of the knob.

  Raises:
    KnobError: the compiler of the claimed devices does not know an option or value.
  """
  options = compiler_options(text)
  if not options:
    return
  try:
    jax.jit(lambda: 0).lower().compile(compiler_options=options)
  except jax.errors.JaxRuntimeError as error:
    reason = str(error).partition('\n')[0].removeprefix('INVALID_ARGUMENT: ')
    raise KnobError(
      'execution.compiler_options',
      text,
      f"is refused by XLA's compiler: {reason.rstrip('.')}.",
    ) from None
