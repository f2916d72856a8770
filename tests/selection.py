"""Which members of a grid every run of the tests has; the others are marked `slow`."""

import pytest


def few(plain, slow):
  """Arguments of `parametrize`: those of every run, then those of the whole suite.

  Args:
    plain: a sequence of arguments.
    slow: another one; what is plain too is left out.
  """
  more = [one for one in slow if one not in plain]
  marked = [
    pytest.param(*(one if isinstance(one, tuple) else (one,)), marks=pytest.mark.slow)
    for one in more
  ]
  return [*plain, *marked]
