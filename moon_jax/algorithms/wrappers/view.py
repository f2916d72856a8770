"""How does one algorithm run inside another, which changes what a client receives?"""

from collections.abc import Callable

from moon_jax.algorithms.base import Algorithm
from moon_jax.types import PyTree, Task

# (received, memory) -> (received, memory)
View = Callable[[PyTree, PyTree], tuple[PyTree, PyTree]]


def inner_task(view: View, task: Task) -> Task:
  """The task as the inner algorithm sees it."""
  received, memory = view(task.received, task.memory)
  return task._replace(received=received, memory=memory)


def seen_through(inner: Algorithm, view: View) -> Algorithm:
  """The algorithm whose local training sees what `view` makes of received and memory.

  What is received, sent and kept stays to be replaced by the caller.
  """

  def through(function):
    return lambda received, memory: function(*view(received, memory))

  def loss(outputs, frozen, params, task, batch):
    return inner.loss(outputs, frozen, params, inner_task(view, task), batch)

  def correct(grads, task):
    return inner.correct(grads, inner_task(view, task))

  def after_step(task, loss, grads, key):
    return inner.after_step(inner_task(view, task), loss, grads, key)

  def report(trained, task):
    return inner.report(trained, inner_task(view, task))

  return inner._replace(
    download=through(inner.download),
    begin=through(inner.begin),
    frozen=through(inner.frozen),
    loss=loss,
    correct=correct,
    after_step=after_step,
    report=report,
  )
