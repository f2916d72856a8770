"""SOLO: every client trains alone; the lower bound of Li et al. 2021, table 1.

The upper bound, centralised training, is SOLO with a single client that owns all data
(`building.data.with_one_client_if_centralized`): a round is `local_epochs` passes over
all examples.
"""

from moon_jax.algorithms import base
from moon_jax.core.types import Upload


def solo() -> base.Algorithm:
  """No communication: a client continues its own model, and every model is tested."""
  return base.Algorithm(
    init_client=lambda variables: variables,
    broadcast=lambda server: (),
    download=lambda received, memory: memory,
    upload=lambda trained, task: (Upload(), trained),
    aggregate=lambda server, mean, participation, scalars: server,
    evaluated=lambda server, clients: clients,
  )
