"""Names an experiment in a few words, for legends, headings and file names."""

import hashlib
from collections.abc import Mapping

from moon_jax.report.runs import Value

ALGORITHM = 'algorithm'
DIGEST = 'data_digest'
# A server that takes the plain mean.
PLAIN = {
  'server_optimizer.name': 'sgd',
  'server_optimizer.learning_rate': 1.0,
  'server_optimizer.momentum': 0.0,
}

_LONGEST = 300  # letters; pictures grow with their texts

Key = tuple[tuple[str, Value], ...]


def describe(key: Key) -> str:
  """'MOON, mu=5'; '' for an empty key; a long one ends with a digest of itself."""
  return cut(', '.join(_words(name, value) for name, value in key), _LONGEST, '... ')


def cut(text: str, longest: int, mark: str) -> str:
  """The text; if it is too long, its beginning, a mark, and a digest of the whole."""
  digest = hashlib.sha256(text.encode()).hexdigest()[:8]
  return text if len(text) <= longest else f'{text[:longest]}{mark}{digest}'


def describe_series(key: Key, identity: Mapping[str, Value]) -> str:
  """`describe` for a series of such runs, which does not mention a plain mean."""
  if ALGORITHM not in dict(key):
    return describe(key)
  if is_plain(identity):
    key = tuple(item for item in key if item[0] not in PLAIN)
  return describe(key)


def is_plain(identity: Mapping[str, Value]) -> bool:
  """Whether the server of a run takes the plain mean."""
  return all(identity.get(name, value) == value for name, value in PLAIN.items())


def _words(name: str, value: Value) -> str:
  if name == ALGORITHM:
    return value.part.title
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


def titled(what: str, setting: str) -> str:
  """'Test accuracy: beta=0.5'."""
  return f'{what}: {setting}' if setting else what
