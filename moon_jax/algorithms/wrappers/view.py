"""Runs one algorithm inside another, which changes what a client receives."""

from collections.abc import Callable

from moon_jax.algorithms.base import Algorithm
from moon_jax.core.types import PyTree, Task

# (received, memory) -> (received, memory)
View = Callable[[PyTree, PyTree], tuple[PyTree, PyTree]]

_OF_A_TASK = ('loss', 'perturb', 'correct', 'move', 'bypass', 'after_step')
_OF_A_TASK += ('upload', 'report')


def seen_through(
  inner: Algorithm, view: View, scalars: Callable = lambda task: task.scalars
) -> Algorithm:
  """The algorithm whose local training sees received and memory through `view`.

  Its `upload` returns the inner algorithm's memory. The caller still has to replace
  what is received, sent and kept.

  Args:
    inner: the algorithm.
    view: (received, memory) -> both as `inner` sees them.
    scalars: task -> its scalars as `inner` sees them.
  """

  def through(function):
    return lambda received, memory: function(*view(received, memory))

  def inner_task(task: Task):
    received, memory = view(task.received, task.memory)
    return task._replace(received=received, memory=memory, scalars=scalars(task))

  def within(function):
    """The function, called with the task as `inner` sees it; None stays None."""

    def of_inner_task(*given):
      return function(*(inner_task(x) if isinstance(x, Task) else x for x in given))

    return function and of_inner_task

  return inner._replace(
    **{name: through(getattr(inner, name)) for name in ('download', 'begin', 'frozen')},
    **{name: within(getattr(inner, name)) for name in _OF_A_TASK},
  )
