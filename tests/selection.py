"""Which members of a grid every run of the tests has; the others are marked `slow`."""

import pytest


def few(plain, slow):
  """Arguments of `parametrize`: those of every run, then those of the whole suite.

  Args:
    plain: a sequence of arguments.
    slow: another one; what is plain too is left out.
  """
  marked = []
  for arguments in slow:
    if arguments in plain:
      continue
    if not isinstance(arguments, tuple):
      arguments = (arguments,)
    marked.append(pytest.param(*arguments, marks=pytest.mark.slow))
  return [*plain, *marked]
