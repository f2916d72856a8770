"""Names an experiment in a few words, for legends, headings and file names."""

import hashlib
from collections.abc import Mapping

from moon_jax import catalog
from moon_jax.report.runs import Value

ALGORITHM = 'algorithm'
DIGEST = 'data_digest'
# A server that takes the plain mean.
PLAIN = {
  'server_optimizer.name': 'sgd',
  'server_optimizer.learning_rate': 1.0,
  'server_optimizer.momentum': 0.0,
}

_OWNERS = (ALGORITHM, 'model')
# Groups that are told, because others have knobs of the same last names.
_TOLD = {'server_optimizer': 'server', 'attack': 'attack', 'stragglers': 'stragglers'}
_LONGEST = 300  # letters; pictures grow with their texts

Key = tuple[tuple[str, Value], ...]


def describe(key: Key) -> str:
  """'MOON, mu=5', and without the algorithm 'moon.mu=5'; '' for an empty key.

  A long one ends with a digest of itself.
  """
  text = ', '.join(_words(name, value, dict(key)) for name, value in key)
  digest = hashlib.sha256(text.encode()).hexdigest()[:8]
  return text if len(text) <= _LONGEST else f'{text[:_LONGEST]}... {digest}'


def describe_series(key: Key, identity: Mapping[str, Value]) -> str:
  """`describe` for a series of such runs, which does not mention a plain mean."""
  if ALGORITHM in dict(key) and is_plain(identity):
    key = tuple(item for item in key if item[0] not in PLAIN)
  return describe(key)


def is_plain(identity: Mapping[str, Value]) -> bool:
  """Whether the server of a run takes the plain mean."""
  return all(identity.get(name, value) == value for name, value in PLAIN.items())


def _words(name: str, value: Value, key: Mapping[str, Value]) -> str:
  if name == ALGORITHM:
    return value.part.title
  if name == DIGEST:
    return f'data {value[:8]}'
  # Another algorithm or network may have a knob of the same last name.
  alone = any(
    kind not in key and name.split('.')[0] in _groups(kind) for kind in _OWNERS
  )
  return f'{name if alone else short(name)}={word(value)}'


def _groups(kind: str) -> set[str]:
  """The groups of knobs of a kind's parts."""
  parts = (catalog.part(kind, name) for name in catalog.names(kind))
  return {part.group or part.name for part in parts}


def word(value: Value) -> str:
  """'5' for 5.0, so that whole numbers look the same whatever their type."""
  return str(value).removesuffix('.0')


def short(name: str) -> str:
  """'moon.mu' -> 'mu', 'data.name' -> 'data', 'partition.seed' -> 'partition seed'."""
  group, _, last = name.rpartition('.')
  if last == 'name':
    return group
  told = 'partition' if name == 'partition.seed' else _TOLD.get(group, '')
  return f'{told} {last}'.strip()


def titled(what: str, setting: str) -> str:
  """'Test accuracy: beta=0.5'."""
  return f'{what}: {setting}' if setting else what
