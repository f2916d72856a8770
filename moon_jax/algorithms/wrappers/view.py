"""Runs one algorithm inside another, which changes what a client receives."""

from collections.abc import Callable

from moon_jax.algorithms.base import Algorithm
from moon_jax.core.types import PyTree, Task

# (received, memory) -> (received, memory)
View = Callable[[PyTree, PyTree], tuple[PyTree, PyTree]]


def seen_through(
  inner: Algorithm, view: View, scalars: Callable = lambda task: task.scalars
) -> Algorithm:
  """The algorithm whose local training sees what `view` makes of received and memory.

  Its `upload` returns the inner algorithm's memory. What is received, sent and kept
  stays to be replaced by the caller.

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

  def loss(outputs, references, params, task, batch):
    return inner.loss(outputs, references, params, inner_task(task), batch)

  def perturb(grads, params, task):
    return inner.perturb(grads, params, inner_task(task))

  def move(update, task):
    return inner.move(update, inner_task(task))

  def bypass(params, task):
    return inner.bypass(params, inner_task(task))

  def after_step(task, loss, grads, key):
    return inner.after_step(inner_task(task), loss, grads, key)

  return inner._replace(
    download=through(inner.download),
    begin=through(inner.begin),
    frozen=through(inner.frozen),
    loss=loss,
    perturb=inner.perturb and perturb,
    correct=lambda grads, task: inner.correct(grads, inner_task(task)),
    move=inner.move and move,
    bypass=inner.bypass and bypass,
    after_step=after_step,
    upload=lambda trained, task: inner.upload(trained, inner_task(task)),
    report=lambda trained, task: inner.report(trained, inner_task(task)),
  )
