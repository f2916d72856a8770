"""Training without a server: clients average their models with their neighbours'.

Lian et al. 2017 (arXiv:1705.09056, algorithm 1) with several local steps in a round; of
MOON as proposed at the end of its review (papers of this project, A).
"""

from typing import NamedTuple

import jax

from moon_jax.algorithms import base
from moon_jax.algorithms.fedavg import fedavg
from moon_jax.algorithms.moon import moon
from moon_jax.algorithms.wrappers.view import inner_task, seen_through
from moon_jax.types import PyTree, Server, Upload


class Peer(NamedTuple):
  """What a client keeps.

  Attributes:
    model: what it would send to a server: the model it trained last, the initial one
      before that; while it trains, the average that it started from.
    inner: what the algorithm keeps with a server.
  """

  model: PyTree
  inner: PyTree


def decentralized_fedavg() -> base.Algorithm:
  """FedAvg among neighbours; see `decentralized`."""
  return decentralized(fedavg())


def decentralized_moon(**options: float | int | str) -> base.Algorithm:
  """MOON among neighbours; see `decentralized`, and `moon` for the options."""
  return decentralized(moon(**options))


def decentralized(inner: base.Algorithm) -> base.Algorithm:
  """The algorithm with neighbours in place of the server.

  w_i <- sum_j W_ij w_j over the neighbours j of client i that take part in the round,
  and itself; W is symmetric and its rows sum to 1 (`topology.restrict`). This average
  is what the client would have received from a server: it trains from there, and it is
  MOON's global model. The client keeps what it trained; an absent one keeps its model.

  Args:
    inner: its server does no more than average the uploads by weight.
  """

  def view(received, memory):
    del received
    return memory.model, memory.inner

  def init_client(variables):
    server = Server(variables, inner.init_server(variables))
    return Peer(inner.broadcast(server), inner.init_client(variables))

  def broadcast(server):
    del server
    return ()

  def share(memory):
    return memory.model

  def mixed(memory, average):
    return memory._replace(model=average)

  def upload(trained, task):
    sent, memory = inner.upload(trained, inner_task(view, task))
    return Upload(), Peer(sent.weighted, memory)

  def aggregate(server, mean, participation):
    del mean, participation
    return server

  def evaluated(server, clients):
    del server
    return jax.vmap(inner.download)(clients.model, clients.inner)

  return seen_through(inner, view)._replace(
    init_client=init_client,
    broadcast=broadcast,
    share=share,
    mixed=mixed,
    upload=upload,
    aggregate=aggregate,
    evaluated=evaluated,
  )
