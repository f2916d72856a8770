"""Batch normalisation whose running statistics stay with each client."""

from collections.abc import Callable
from typing import NamedTuple

import jax

from moon_jax.algorithms.base import Algorithm
from moon_jax.algorithms.wrappers.view import seen_through
from moon_jax.core import tree
from moon_jax.core.types import PyTree

_STATISTICS = 'batch_stats'


class Normalised(NamedTuple):
  """What a client keeps: its running statistics, and what the algorithm keeps."""

  statistics: PyTree
  inner: PyTree


def with_local_statistics(inner: Algorithm) -> Algorithm:
  """The algorithm whose clients exchange parameters, but no running statistics.

  It is SiloBN (Andreux et al. 2020, arXiv:2008.07424); scale and bias are averaged. A
  client uses every model that it receives with its own statistics, which are those of
  its last local training. The server has only the initial ones, so the models that are
  tested are the clients': the global parameters with the client's statistics, which are
  the initial ones until it takes part.

  Args:
    inner: the algorithm. Its `evaluated` is called once for each client, with the
      client's statistics in the global model. Averaging among neighbours stands
      inside, not around.
  """

  def view(received, memory):
    own = _with(memory.statistics)
    return tree.map_models(own, received), memory.inner

  wrapped = seen_through(inner, view)

  def init_client(variables):
    return Normalised(variables[_STATISTICS], inner.init_client(variables))

  def broadcast(server):
    return tree.map_models(_without, inner.broadcast(server))

  def share(memory):
    return _without(inner.share(memory.inner))

  def mixed(memory, average):
    own = _with(memory.statistics)(average)
    return memory._replace(inner=inner.mixed(memory.inner, own))

  def upload(trained, task):
    sent, memory = wrapped.upload(trained, task)
    sent = tree.map_models(_without, sent)
    return sent, Normalised(trained[_STATISTICS], memory)

  def aggregate(server, sent, participation, scalars):
    kept = _with(server.variables[_STATISTICS])
    if inner.needs_all_uploads:
      dress = jax.vmap(lambda upload: tree.map_models(kept, upload))
      sent = sent._replace(stacked=dress(sent.stacked))
    else:
      sent = tree.map_models(kept, sent)
    return inner.aggregate(server, sent, participation, scalars)

  def evaluated(server, clients):
    def of_one(memory):
      own = server._replace(variables=_with(memory.statistics)(server.variables))
      return inner.evaluated(own, tree.repeat(memory.inner, 1))

    return tree.flatten(jax.vmap(of_one)(clients))

  return wrapped._replace(
    init_client=init_client,
    broadcast=broadcast,
    share=share if inner.share else None,
    mixed=mixed if inner.share else None,
    upload=upload,
    aggregate=aggregate,
    evaluated=evaluated,
  )


def _without(model: PyTree) -> PyTree:
  """The model's parameters alone."""
  return {'params': model['params']}


def _with(statistics: PyTree) -> Callable[[PyTree], PyTree]:
  """model -> the model with these running statistics."""
  return lambda model: model | {_STATISTICS: statistics}
