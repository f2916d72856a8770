"""What the report asks of an algorithm: its title, traits, group of knobs, metrics."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from moon_jax import config as config_lib
from moon_jax.errors import UsageError

Record = Mapping[str, Any]


class Metric(NamedTuple):
  title: str
  unit: str
  factor: float = 1.0
  value: Callable[[Record, Record], float] | None = None


class Part(NamedTuple):
  title: str
  traits: frozenset[str]
  group: str
  metrics: Mapping[str, Metric]


_TITLES = {
  'fedavg': 'FedAvg',
  'fedprox': 'FedProx',
  'scaffold': 'SCAFFOLD',
  'moon': 'MOON',
  'sa_moon': 'SA-MOON',
  'dco_moon': 'DCO-MOON',
  'decentralized_fedavg': 'decentralized FedAvg',
  'decentralized_moon': 'decentralized MOON',
  'solo': 'SOLO',
}


def _weight(name: str, own: Record, record: Record) -> float:
  if name == 'dco_moon':
    scale = own['mu'] if own['normalise'] else 1.0
    return (own['mu'] + record['mu_t']) / scale
  return own['mu']


def _metrics(name: str) -> dict[str, Metric]:
  found = {}
  if 'moon' in name:

    def share(own, record):
      return (
        100
        * _weight(name, own, record)
        * record['contrastive_loss']
        / record['train_loss']
      )

    found['contrastive_share'] = Metric(
      'Contrastive share of the training loss', 'share, %', 1.0, share
    )
    found['positive_cosine'] = Metric('Cosine to the received model', 'cosine')
    found['negative_cosine'] = Metric("Cosine to the client's last model", 'cosine')
  if name == 'dco_moon':
    found['deviation_mean'] = Metric(
      'Relative deviation ||w - w_received|| / ||w_received||', 'ratio, mean of clients'
    )
    found['p_t'] = Metric('Deviation probability p_t', 'share of clients')
    found['mu_t'] = Metric('Dynamic weight mu_t', 'weight')
  if name == 'sa_moon':
    found['temperature_mean'] = Metric('Temperature tau', 'tau, mean of clients')
  if name.startswith('decentralized'):
    found['consensus_distance'] = Metric(
      'Consensus distance ||w_i - mean w||', 'norm, mean of clients'
    )
  return found


def names(kind: str) -> tuple[str, ...]:
  del kind
  return config_lib.ALGORITHMS


def part(kind: str, name: str) -> Part:
  if name not in names(kind):
    raise UsageError(f'There is no algorithm {name!r}.')
  traits = {'served'} if name in config_lib.SERVED else set()
  traits |= set() if name == 'centralized' else {'several_clients'}
  return Part(
    _TITLES.get(name, name),
    frozenset(traits),
    name.removeprefix('decentralized_'),
    _metrics(name),
  )
