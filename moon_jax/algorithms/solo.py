"""SOLO: every client trains alone; the lower bound of Li et al. 2021, table 1."""

from moon_jax.algorithms import base
from moon_jax.types import Upload


def solo() -> base.Algorithm:
  """No communication: a client goes on from its own model, and each one is tested."""

  def broadcast(server):
    del server
    return ()

  def download(received, memory):
    del received
    return memory

  def upload(trained, task):
    del task
    return Upload(), trained

  def aggregate(server, mean, participation):
    del mean, participation
    return server

  def evaluated(server, clients):
    del server
    return clients

  return base.Algorithm(
    init_client=lambda variables: variables,
    broadcast=broadcast,
    download=download,
    upload=upload,
    aggregate=aggregate,
    evaluated=evaluated,
  )
