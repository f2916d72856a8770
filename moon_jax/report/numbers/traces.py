"""Which numbers are followed over the rounds, and what are their units?"""

from collections.abc import Callable
from typing import NamedTuple

from moon_jax.report.read.runs import Run


class Trace(NamedTuple):
  """A number of each round.

  Attributes:
    name: of its picture.
    title: what it is.
    unit: the label of its axis.
    column: run -> round -> value; empty where it is not recorded.
  """

  name: str
  title: str
  unit: str
  column: Callable[[Run], dict[int, float]]


def _recorded(column: str, title: str, unit: str, factor: float = 1.0) -> Trace:
  def values(run):
    return {number: factor * value for number, value in run.column(column).items()}

  return Trace(column.removesuffix('_mean'), title, unit, values)


def contrastive_share(run: Run) -> dict[int, float]:
  """round -> the weighted contrastive term's part of the training loss, in per cent."""
  contrastive, whole = run.column('contrastive_loss'), run.column('train_loss')
  weight = _contrastive_weight(run)
  return {
    number: 100 * weight[number] * contrastive[number] / whole[number]
    for number in contrastive.keys() & whole.keys() & weight.keys()
    if whole[number] > 0
  }


def _contrastive_weight(run: Run) -> dict[int, float]:
  """round -> the weight of the contrastive term; empty for other algorithms."""
  algorithm = str(run.knobs['algorithm']).removeprefix('decentralized_')
  mu = run.knobs.get(f'{algorithm}.mu')
  if algorithm == 'dco_moon':
    scale = mu if run.knobs['dco_moon.normalise'] else 1.0
    return {r: (mu + mu_t) / scale for r, mu_t in run.column('mu_t').items()}
  if algorithm in ('moon', 'sa_moon'):
    return dict.fromkeys(run.column('contrastive_loss'), mu)
  return {}


ACCURACY = _recorded('test_accuracy', 'Test accuracy', 'test accuracy, %', 100.0)
LOSSES = (
  _recorded('train_loss', 'Training loss', 'training loss, nats'),
  _recorded('test_loss', 'Test loss', 'test loss, nats'),
)
OTHERS = (
  Trace(
    'contrastive_share',
    'Contrastive share of the training loss',
    'share, %',
    contrastive_share,
  ),
  _recorded('positive_cosine', 'Cosine to the received model', 'cosine'),
  _recorded('negative_cosine', "Cosine to the client's last model", 'cosine'),
  _recorded('drift', 'Client drift ||w - w_received||', 'norm, mean of clients'),
  _recorded(
    'deviation_mean',
    'Relative deviation ||w - w_received|| / ||w_received||',
    'ratio, mean of clients',
  ),
  _recorded('p_t', 'Deviation probability p_t', 'share of clients'),
  _recorded('mu_t', 'Dynamic weight mu_t', 'weight'),
  _recorded('temperature_mean', 'Temperature tau', 'tau, mean of clients'),
  _recorded(
    'consensus_distance', 'Consensus distance ||w_i - mean w||', 'norm, mean of clients'
  ),
  _recorded('test_accuracy_worst', 'Worst client', 'test accuracy, %', 100.0),
)
