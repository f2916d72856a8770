"""Batch normalisation whose running statistics stay with each client."""

from typing import NamedTuple

import jax

from moon_jax.algorithms.base import Algorithm
from moon_jax.algorithms.wrappers.view import inner_task, seen_through
from moon_jax.types import PyTree

_STATISTICS = 'batch_stats'


class Normalised(NamedTuple):
  """What a client keeps: its running statistics, and what the algorithm keeps."""

  statistics: PyTree
  inner: PyTree


def with_local_statistics(inner: Algorithm) -> Algorithm:
  """The algorithm whose clients exchange parameters, but no running statistics.

  As SiloBN (Andreux et al. 2020, arXiv:2008.07424); scale and bias are averaged.
  Whatever model a client receives, it uses with its own statistics, those of its last
  local training. The server's copy has none but the initial ones, so what is tested is
  each client's model: the global parameters with the client's statistics, which are
  the initial ones until it takes part.

  Args:
    inner: what it broadcasts and uploads holds models as `{'params': ..., ...}`.
  """

  def view(received, memory):
    return _with(received, memory.statistics), memory.inner

  def init_client(variables):
    return Normalised(variables[_STATISTICS], inner.init_client(variables))

  def broadcast(server):
    return _without(inner.broadcast(server))

  def share(memory):
    return _without(inner.share(memory.inner))

  def mixed(memory, average):
    own = _with(average, memory.statistics)
    return memory._replace(inner=inner.mixed(memory.inner, own))

  def upload(trained, task):
    sent, memory = inner.upload(trained, inner_task(view, task))
    return _without(sent), Normalised(trained[_STATISTICS], memory)

  def aggregate(server, mean, participation):
    kept = server.variables[_STATISTICS]
    return inner.aggregate(server, _with(mean, kept), participation)

  wrapped = seen_through(inner, view)

  def evaluated(server, clients):
    received = broadcast(server)
    return jax.vmap(lambda memory: wrapped.download(received, memory))(clients)

  return wrapped._replace(
    init_client=init_client,
    broadcast=broadcast,
    share=share if inner.share else None,
    mixed=mixed if inner.share else None,
    upload=upload,
    aggregate=aggregate,
    evaluated=evaluated,
  )


def _is_model(node: PyTree) -> bool:
  return isinstance(node, dict) and 'params' in node


def _without(tree: PyTree) -> PyTree:
  """The tree with every model in it reduced to its parameters."""

  def strip(node):
    return {'params': node['params']} if _is_model(node) else node

  return jax.tree.map(strip, tree, is_leaf=_is_model)


def _with(tree: PyTree, statistics: PyTree) -> PyTree:
  """The tree with these running statistics in every model in it."""

  def dress(node):
    return node | {_STATISTICS: statistics} if _is_model(node) else node

  return jax.tree.map(dress, tree, is_leaf=_is_model)
