"""Training without a server: clients average their models with their neighbours'.

Lian et al. 2017 (arXiv:1705.09056, algorithm 1) with several local steps in a round;
for MOON as proposed at the end of its review (papers of this project, A).
"""

from typing import NamedTuple

import jax

from moon_jax.algorithms import base
from moon_jax.algorithms.fedavg import fedavg
from moon_jax.algorithms.moon import moon
from moon_jax.algorithms.wrappers.view import seen_through
from moon_jax.core import tree
from moon_jax.core.types import PyTree, Server, Upload


class Peer(NamedTuple):
  """What a client keeps.

  Attributes:
    model: the model that it would send to a server: its last trained one, or the
      initial one; during local training, the average from which the training started.
    inner: what a client of the algorithm keeps; (this, what the server keeps) if the
      algorithm's server keeps something.
  """

  model: PyTree
  inner: PyTree


def decentralized_fedavg() -> base.Algorithm:
  """FedAvg without a server: clients average their models with their neighbours'."""
  return decentralized(fedavg())


def decentralized_moon(**options: float | int | str) -> base.Algorithm:
  """MOON without a server; the neighbours' average replaces the global model."""
  return decentralized(moon(**options))


def decentralized(inner: base.Algorithm) -> base.Algorithm:
  """The algorithm with neighbours in place of the server: each client has one.

  w_i <- sum_j W_ij w_j over client i itself and its neighbours j that take part in the
  round; W is symmetric and its rows sum to 1 (`topology.among`). The client's own
  server aggregates this average as the mean of a cohort, into a model that was w_i. The
  client trains from what that server broadcasts, which is also MOON's global model. It
  keeps what it trained, and an absent client does not change its model. Numbers that
  the algorithm computes from its server's memory differ between clients, and are
  reported.

  Args:
    inner: an algorithm whose upload is `Upload(weighted=variables)`, and nothing else.

  Raises:
    ValueError: in `upload`, inner sends something with equal weights.
  """
  serving = inner.init_server is not base.no_memory

  def join(server, memory):
    return Peer(server.variables, (memory, server.memory) if serving else memory)

  def split(peer):
    """(the client's server, what its client keeps)."""
    memory, kept = peer.inner if serving else (peer.inner, ())
    return Server(peer.model, kept), memory

  def view(received, peer):
    server, memory = split(peer)
    return inner.broadcast(server), memory

  def own_scalars(scalars, peer):
    return inner.scalars(scalars, split(peer)[0].memory)

  through = seen_through(
    inner, view, lambda task: own_scalars(task.scalars, task.memory)
  )

  def init_client(variables):
    server = Server(variables, inner.init_server(variables))
    return join(server, inner.init_client(variables))

  def mixed(peer, average, participation, scalars):
    server, memory = split(peer)
    numbers, mean = own_scalars(scalars, peer), Upload(weighted=average)
    return join(inner.aggregate(server, mean, participation, numbers), memory)

  def upload(trained, task):
    sent, memory = through.upload(trained, task)
    if jax.tree.leaves(sent.uniform):
      raise ValueError('Neighbours average by weight; this algorithm also uniformly.')
    server, _ = split(task.memory)
    return Upload(), join(server._replace(variables=sent.weighted), memory)

  def report(trained, task):
    numbers = own_scalars(task.scalars, task.memory)
    computed = {name: numbers[name] for name in numbers.keys() - task.scalars}
    return through.report(trained, task) | computed

  def evaluated(server, clients):

    def of_one(peer):
      server, memory = split(peer)
      return inner.evaluated(server, tree.repeat(memory, 1))

    return tree.flatten(jax.vmap(of_one)(clients))

  return through._replace(
    init_server=base.no_memory,
    init_client=init_client,
    scalars=lambda hyperparameters, server_memory: hyperparameters,
    broadcast=lambda server: (),
    share=lambda peer: peer.model,
    mixed=mixed,
    upload=upload,
    report=report,
    aggregate=lambda server, mean, participation, scalars: server,
    evaluated=evaluated,
  )
