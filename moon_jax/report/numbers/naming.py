"""How is an experiment told in a few words? For legends, headings and file names."""

from moon_jax.report.read.runs import Value

ALGORITHM = 'algorithm'
DIGEST = 'data_digest'
# A server that takes the mean of what it gets.
PLAIN = {
  'server_optimizer.name': 'sgd',
  'server_optimizer.learning_rate': 1.0,
  'server_optimizer.momentum': 0.0,
}
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

Key = tuple[tuple[str, Value], ...]


def describe(key: Key) -> str:
  """'MOON, mu=5'; '' for an empty key."""
  return ', '.join(_words(name, value) for name, value in key)


def describe_series(key: Key) -> str:
  """The same for a series: FedAvg's plain mean at the server goes without saying."""
  if ALGORITHM not in dict(key):
    return describe(key)
  return describe(tuple(item for item in key if item not in PLAIN.items()))


def _words(name: str, value: Value) -> str:
  if name == ALGORITHM:
    return _TITLES.get(value, value)
  if name == DIGEST:
    return f'data {value[:8]}'
  return f'{short(name)}={word(value)}'


def word(value: Value) -> str:
  """'5' for 5.0, so that whole numbers look the same whatever their type."""
  return str(value).removesuffix('.0')


def short(name: str) -> str:
  """'moon.mu' -> 'mu', 'data.name' -> 'data'."""
  group, _, last = name.rpartition('.')
  if last == 'name':
    return group
  return f'server {last}' if group == 'server_optimizer' else last
