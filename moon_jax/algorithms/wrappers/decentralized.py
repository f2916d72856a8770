"""Training without a server: clients average their models with their neighbours'.

Lian et al. 2017 (arXiv:1705.09056, algorithm 1), with several local steps in a round.
For MOON the neighbours' average takes the place of the global model.
"""

from typing import NamedTuple

from moon_jax.algorithms import base
from moon_jax.algorithms.fedavg import fedavg
from moon_jax.algorithms.moon import moon
from moon_jax.algorithms.wrappers.view import with_view
from moon_jax.core.types import PyTree, Server, Upload


class Peer(NamedTuple):
  """What a client keeps.

  Attributes:
    model: its last trained model, which it sends to its neighbours; before its first
      round the initial model; during local training the average from which it started.
    inner: what a client of the algorithm keeps.
  """

  model: PyTree
  inner: PyTree


def decentralized_fedavg() -> base.Algorithm:
  """FedAvg without a server: clients average their models with their neighbours'."""
  return _decentralized(fedavg())


def decentralized_moon(**options: float | int | str) -> base.Algorithm:
  """MOON without a server; the neighbours' average replaces the global model."""
  return _decentralized(moon(**options))


def _decentralized(inner: base.Algorithm) -> base.Algorithm:
  """The algorithm, whose server keeps nothing, with neighbours in place of the server.

  w_i <- sum_j W_ij w_j over client i itself and its neighbours j that take part in the
  round; W is symmetric and its rows sum to 1 (`topology.among`). The client trains from
  this average, which is also MOON's global model, and keeps what it trained. An absent
  client does not change its model.
  """

  def view(received, peer):
    return inner.broadcast(Server(peer.model, ())), peer.inner

  adapted = with_view(inner, view)

  def upload(trained, task):
    sent, memory = adapted.upload(trained, task)
    return Upload(), Peer(sent.weighted, memory)

  return adapted._replace(
    init_client=lambda variables: Peer(variables, inner.init_client(variables)),
    broadcast=lambda server: (),
    share=lambda peer: peer.model,
    mixed=lambda peer, average: peer._replace(model=average),
    upload=upload,
    aggregate=lambda server, mean, participation, scalars: server,
    evaluated=lambda server, clients: clients.model,
  )
