"""Runs one algorithm inside another, which changes what a client receives."""

from collections.abc import Callable, Mapping

import jax

from moon_jax.algorithms.base import Algorithm
from moon_jax.core.types import PyTree, Task

# (received, memory) -> (received, memory)
View = Callable[[PyTree, PyTree], tuple[PyTree, PyTree]]


def scalars_with_inner(
  inner: Algorithm, hyperparameters: Mapping[str, jax.Array], memory: PyTree
) -> Mapping[str, jax.Array]:
  """The hyperparameters of a wrapper, with the scalars of the algorithm inside.

  Args:
    inner: the algorithm.
    hyperparameters: name -> value, of both.
    memory: what the server remembers for `inner`.
  """
  own_hyperparameters = {name: hyperparameters[name] for name in inner.hyperparameters}
  return hyperparameters | inner.scalars(own_hyperparameters, memory)


def with_view(
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

  def inner_task(task: Task) -> Task:
    received, memory = view(task.received, task.memory)
    return task._replace(received=received, memory=memory, scalars=scalars(task))

  def perturb(grads, params, task):
    return inner.perturb(grads, params, inner_task(task))

  def descent(gradient, gradient_at, variables, task):
    return inner.descent(gradient, gradient_at, variables, inner_task(task))

  return inner._replace(
    download=lambda received, memory: inner.download(*view(received, memory)),
    begin=lambda received, memory: inner.begin(*view(received, memory)),
    frozen=lambda received, memory: inner.frozen(*view(received, memory)),
    loss=lambda outputs, references, params, task, batch: inner.loss(
      outputs, references, params, inner_task(task), batch
    ),
    perturb=perturb if inner.perturb else None,
    descent=descent if inner.descent else None,
    correct=lambda grads, task: inner.correct(grads, inner_task(task)),
    after_update=lambda updated, params, task: inner.after_update(
      updated, params, inner_task(task)
    ),
    after_step=lambda task, loss, grads, key: inner.after_step(
      inner_task(task), loss, grads, key
    ),
    upload=lambda trained, task: inner.upload(trained, inner_task(task)),
    report=lambda trained, task: inner.report(trained, inner_task(task)),
  )
