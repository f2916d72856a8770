"""Names an experiment in a few words, for legends, headings and file names."""

import hashlib
from collections.abc import Mapping
from typing import NamedTuple

from moon_jax import catalog

Value = bool | int | float | str  # of a knob
ALGORITHM = 'algorithm'


class Digest(NamedTuple):
  """A digest in config.json of what a run reads.

  Attributes:
    word: what the run reads.
    knobs: beginning of the names of the knobs that name it.
  """

  word: str
  knobs: str


# Another digest makes another experiment.
DIGESTS = {
  'data_digest': Digest('data', knobs='data.'),
  'weights_digest': Digest('weights', knobs='initial_weights'),
  'trace_digest': Digest('availability', knobs='availability.'),
}
# A server that takes the plain mean.
PLAIN = {
  'server_optimizer.name': 'sgd',
  'server_optimizer.learning_rate': 1.0,
  'server_optimizer.momentum': 0.0,
}

# Kinds of parts with knobs of their own: two of them may share a knob's last name.
_KINDS_WITH_KNOBS = (ALGORITHM, 'model')
# Group of knobs -> what stands before its knobs' short names, which others have too.
_PREFIXES = {
  'server_optimizer': 'server',
  'attack': 'attack',
  'stragglers': 'stragglers',
}
_MAX_LETTERS = 300  # pictures grow with their texts

# The knobs that distinguish some runs from others, and their values.
Key = tuple[tuple[str, Value], ...]


def describe(key: Key) -> str:
  """'MOON, mu=5', and without the algorithm 'moon.mu=5'; '' for an empty key.

  The digest of what a run does not read, '', is left out. A long text is cut and ends
  with a digest of the whole.
  """
  knobs = dict(key)
  text = ', '.join(
    _words(name, value, knobs)
    for name, value in key
    if name not in DIGESTS or value != ''
  )
  if len(text) <= _MAX_LETTERS:
    return text
  digest = hashlib.sha256(text.encode()).hexdigest()[:8]
  return f'{text[:_MAX_LETTERS]}... {digest}'


def describe_series(key: Key, identity: Mapping[str, Value]) -> str:
  """`describe` for a series; a server that takes the plain mean is not mentioned."""
  if ALGORITHM in dict(key) and is_plain(identity):
    key = tuple((name, value) for name, value in key if name not in PLAIN)
  return describe(key)


def is_plain(identity: Mapping[str, Value]) -> bool:
  """Whether the server of a run takes the plain mean."""
  return all(identity.get(name, value) == value for name, value in PLAIN.items())


def without(key: Key, knob: str) -> Key:
  """The key without a knob."""
  return tuple((name, value) for name, value in key if name != knob)


def _words(name: str, value: Value, knobs: Mapping[str, Value]) -> str:
  if name == ALGORITHM:
    return value.part.title
  if name in DIGESTS:
    return f'{DIGESTS[name].word} {value[:8]}'
  group = name.split('.')[0]
  # 'moon.mu' stands alone: another algorithm may have a knob `mu`.
  is_ambiguous = any(
    kind not in knobs and group in _knob_groups(kind) for kind in _KINDS_WITH_KNOBS
  )
  shown_name = name if is_ambiguous else short_name(name)
  return f'{shown_name}={value_text(value)}'


def _knob_groups(kind: str) -> set[str]:
  """The groups of knobs of a kind's parts."""
  parts = (catalog.part(kind, name) for name in catalog.names(kind))
  return {part.group or part.name for part in parts}


def value_text(value: Value) -> str:
  """'5' for 5.0, so that whole numbers look the same whatever their type."""
  return str(value).removesuffix('.0')


def short_name(knob: str) -> str:
  """'moon.mu' -> 'mu', 'data.name' -> 'data', 'partition.seed' -> 'partition seed'."""
  if knob == 'partition.seed':
    return 'partition seed'
  group, _, last_part = knob.rpartition('.')
  if last_part == 'name':
    return group
  return f'{_PREFIXES.get(group, "")} {last_part}'.strip()


def titled(subject: str, setting: str) -> str:
  """'Test accuracy: beta=0.5'; the subject alone if the setting has no title."""
  return f'{subject}: {setting}' if setting else subject
