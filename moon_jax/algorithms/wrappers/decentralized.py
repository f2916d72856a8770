"""Training without a server: clients average their models with their neighbours'.

Lian et al. 2017 (arXiv:1705.09056, algorithm 1) with several local steps in a round;
for MOON as proposed at the end of its review (papers of this project, A).
"""

from typing import NamedTuple

from moon_jax.algorithms import base
from moon_jax.algorithms.fedavg import fedavg
from moon_jax.algorithms.moon import moon
from moon_jax.algorithms.wrappers.view import seen_through
from moon_jax.core.types import PyTree, Server, Upload


class Peer(NamedTuple):
  """What a client keeps.

  Attributes:
    model: its last trained model, which it sends to its neighbours, or the initial one;
      during local training, the average from which the training started.
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

  through = seen_through(inner, view)

  def upload(trained, task):
    sent, memory = through.upload(trained, task)
    return Upload(), Peer(sent.weighted, memory)

  return through._replace(
    init_client=lambda variables: Peer(variables, inner.init_client(variables)),
    broadcast=lambda server: (),
    share=lambda peer: peer.model,
    mixed=lambda peer, average: peer._replace(model=average),
    upload=upload,
    aggregate=lambda server, mean, participation, scalars: server,
    evaluated=lambda server, clients: clients.model,
  )
