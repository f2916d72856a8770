"""Ends a run whose results are not finite."""

import math

import numpy as np

from moon_jax.errors import DivergedError
from moon_jax.runner.metrics import Record
from moon_jax.types import ClientMetrics

# Of the clients that diverged; there may be thousands.
_NAMED = 10


def stop_if_diverged(record: Record, metrics: ClientMetrics, on_nonfinite: str) -> None:
  """Ends the run if a round has left something that is not finite.

  Args:
    record: the round's line of metrics.jsonl.
    metrics: leaves [K], as numpy.
    on_nonfinite: 'stop', or 'skip_client' if clients may be left out.

  Raises:
    DivergedError: it names the round, what is not finite and of which clients.
  """
  bad = [str(client) for client in np.array(record['clients'])[~metrics.finite]]
  if on_nonfinite == 'skip_client' and metrics.finite.any():
    bad = []  # they have been left out
  numbers = [name for name, value in record.items() if isinstance(value, float)]
  names = [name for name in numbers if not math.isfinite(record[name])]
  if not bad and not names and metrics.server_finite:
    return
  what = ', '.join(names) or ('updates' if bad else 'the new global model')
  if bad:
    what += f' (clients {", ".join(bad[:_NAMED] + ["..."] * (len(bad) > _NAMED))})'
  remedy = 'A smaller --config.optimizer.learning_rate may help, in a new --workdir'
  if on_nonfinite == 'stop':
    remedy += '; --config.on_nonfinite=skip_client goes on here without such clients'
  raise DivergedError(
    f'Diverged in round {record["round"]}. Not finite: {what}. {remedy}.'
  )
