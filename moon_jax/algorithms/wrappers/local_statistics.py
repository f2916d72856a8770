"""Batch normalisation whose running statistics stay with each client."""

from collections.abc import Callable
from typing import NamedTuple

import jax

from moon_jax.algorithms.base import Algorithm
from moon_jax.algorithms.wrappers.view import with_view
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
    inner: the algorithm, without `personal`, `adapted` and `second_training`, which
      are not wrapped. Its `evaluated` is called once for each client, with the
      client's statistics in the global model. Without a server, `inner` includes the
      averaging among neighbours.
  """

  def view(received, memory):
    return tree.map_models(_with(memory.statistics), received), memory.inner

  adapted = with_view(inner, view)

  def init_client(variables):
    return Normalised(
      statistics=variables[_STATISTICS], inner=inner.init_client(variables)
    )

  def broadcast(server):
    return tree.map_models(_without, inner.broadcast(server))

  def share(memory):
    return _without(inner.share(memory.inner))

  def mixed(memory, average):
    model = _with(memory.statistics)(average)
    return memory._replace(inner=inner.mixed(memory.inner, model))

  def upload(trained, task):
    sent, memory = adapted.upload(trained, task)
    sent = tree.map_models(_without, sent)
    return sent, Normalised(statistics=trained[_STATISTICS], inner=memory)

  def aggregate(server, sent, participation, scalars):
    def complete(upload):
      return tree.map_models(_with(server.variables[_STATISTICS]), upload)

    if inner.needs_all_uploads:
      sent = sent._replace(stacked=jax.vmap(complete)(sent.stacked))
    else:
      sent = complete(sent)
    return inner.aggregate(server, sent, participation, scalars)

  def evaluated(server, clients):
    def evaluated_for_client(memory):
      variables = _with(memory.statistics)(server.variables)
      seen_by_client = server._replace(variables=variables)
      return inner.evaluated(seen_by_client, tree.repeat(memory.inner, 1))

    return tree.merged_axes(jax.vmap(evaluated_for_client)(clients))

  return adapted._replace(
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
