"""The parts that exist: the package's, and those that users register."""

import contextlib
import functools
import hashlib
import inspect
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from moon_jax.catalog.algorithms import ALGORITHMS
from moon_jax.catalog.general import EXECUTION, KNOBS
from moon_jax.catalog.hints import did_you_mean
from moon_jax.catalog.others import OTHERS
from moon_jax.catalog.parts import KINDS, Bound, Knob, Metric, Part, one_of
from moon_jax.core.errors import UsageError

_parts = {(part.kind, part.name): part for part in (*ALGORITHMS, *OTHERS)}

_KINDS = {kind.__name__: kind for kind in (float, int, bool, str)}
_TRAITS = {
  'algorithm': {'several_clients', 'served', 'weighted', 'contrastive'},
  'model': {'normalized', 'convolutional'},
  'partition': {'dealt'},
}
# What the engine gives the functions of a kind by name, besides their knobs.
_GIVEN = {
  'augmentation': {'name'},
  'data': {'limit', 'source'},
  'model': {'convolution', 'dtype', 'image_shape', 'name', 'num_classes'},
  'optimizer': {'learning_rate', 'weight_decay'},
  'partition': {'labels', 'min_size', 'name', 'num_clients', 'seed'},
}


def names(kind: str) -> tuple[str, ...]:
  """The names of all parts of a kind, those of the package first."""
  return tuple(name for of, name in _parts if of == kind)


def part(kind: str, name: str) -> Part:
  """The entry of a part.

  Raises:
    UsageError: there is none.
  """
  if (kind, name) not in _parts:
    hint = did_you_mean(name, names(kind))
    raise UsageError(f'There is no {kind} {name!r}.{hint}')
  return _parts[kind, name]


@functools.cache
def every_knob() -> Mapping[str, Knob]:
  """Every knob's dotted name -> Knob, in the order of `--help`."""
  own = {
    f'{one.group or one.name}.{name}': knob._replace(
      needs=((one.kind, one.group or one.name),)
    )
    for one in _parts.values()
    for name, knob in one.knobs.items()
  }
  select = {
    knob: KNOBS[knob]._replace(bound=one_of(*names(kind)))
    for kind, knob in KINDS.items()
  }
  return KNOBS | select | own | EXECUTION


def chosen(kind: str, flat: Mapping[str, Any]) -> Part | None:
  """The part that a configuration (dotted name -> value) selects; None if unknown."""
  return _parts.get((kind, flat.get(KINDS[kind])))


def of_registered(name: str) -> bool:
  """Whether a knob stands in the group of a registered part."""
  group = name.partition('.')[0]
  mine = (one for one in _parts.values() if one.registered and one.knobs)
  return any(one.name == group for one in mine)


def used(name: str, flat: Mapping[str, Any]) -> bool:
  """Whether the chosen parts use the knob."""
  needs = every_knob()[name].needs
  return all((one := chosen(k, flat)) is not None and one.has(t) for k, t in needs)


def options(kind: str, flat: Mapping[str, Any]) -> dict[str, Any]:
  """The arguments of the chosen part: the knobs that need it, without their group."""
  one = chosen(kind, flat)
  return {
    name.rpartition('.')[2]: flat[name]
    for name, knob in every_knob().items()
    if any(of == kind and one.has(trait) for of, trait in knob.needs)
    and name.rpartition('.')[0] in (one.group or one.name, KINDS[kind].split('.')[0])
  }


def register(
  kind: str,
  name: str,
  make: Callable,
  *,
  title: str = '',
  knobs: Mapping[str, Knob] | None = None,
  traits: Iterable[str] = (),
  **more: Any,
) -> None:
  """Adds a part, with `more` of its fields; the same file may replace its own part.

  Raises:
    UsageError: the name is taken or invalid, a knob is not declared, a trait is
      unknown, or `make` is no function or has no source file.
  """
  knobs, fields = dict(knobs or {}), (kind, name, make, title or name)
  try:
    registered = _source(make)
    if given := knobs.keys() & _GIVEN.get(kind, set()):
      told = f'every {kind} is given a {min(given)!r}: give the knob another name'
      raise UsageError(told)
    for column, metric in more.get('metrics', {}).items():
      if not isinstance(metric, Metric):
        raise UsageError(f'{column!r} must be a moon_jax.Metric')
    own = Part(*fields, frozenset(traits), knobs, registered=registered, **more)
    _add(own, registered['origin'])
  except UsageError as error:
    raise UsageError(f'register_{kind}({name!r}): {error}.') from None


def _add(own: Part, origin: str) -> None:
  """Adds a part from that origin.

  Raises:
    UsageError: it may not have its name, a knob is not declared, a trait is unknown.
  """
  kind, name, before = own.kind, own.name, _parts.get((own.kind, own.name))
  if not re.fullmatch('[a-z][a-z0-9_]*', name):
    raise UsageError('a name has small letters, digits and _, a letter first')
  if any(name in part.traits for part in _parts.values()):
    raise UsageError('the name is taken, as a trait')
  if before and (before.registered or {}).get('origin') != origin:
    raise UsageError('the name is taken')
  groups = {knob.partition('.')[0] for knob in (*KNOBS, *EXECUTION)}
  others = (one for one in _parts.values() if one.knobs and one != before)
  groups |= {one.group or one.name for one in others}
  if own.knobs and name in groups:
    raise UsageError('the name is taken, as a group of knobs')
  for key, knob in own.knobs.items():
    if not (key.isidentifier() and isinstance(knob, Knob) and _is_declared(knob)):
      wanted = f'one of {", ".join(_KINDS)}, a text and at most one bound'
      raise UsageError(f'{key!r} must be declared by knob(...), with {wanted}')
  if unknown := own.traits - _TRAITS.get(kind, set()):
    raise UsageError(f'there is no trait {sorted(unknown)[0]!r}')
  _parts[kind, name] = own
  every_knob.cache_clear()


def _is_declared(knob: Knob) -> bool:
  bounded = knob.bound == () or isinstance(knob.bound, Bound)
  return knob.kind in _KINDS.values() and isinstance(knob.meaning, str) and bounded


def _source(make: Callable) -> dict[str, str]:
  """The code of a part: `origin`, `file` and the `sha256` of the file.

  Raises:
    UsageError: it is no function, or has no source file.
  """
  if not callable(make):
    raise UsageError(f'{make!r} is no function')
  code = getattr(make, 'func', make)  # the function of a partial
  own = inspect.isclass(code) and [f for f in vars(code).values() if callable(f)]
  if own:
    code = inspect.unwrap(own[0])  # a method knows its source, also in a notebook
  try:
    path = pathlib.Path(inspect.getsourcefile(code) or '')
    whole = path.read_bytes() if path.is_file() else inspect.getsource(code).encode()
  except (OSError, TypeError):
    problem = f'the source of {make!r} is in no file; put it in one'
    raise UsageError(problem) from None
  origin, file = str(path.resolve()), path.name
  if not path.is_file():
    origin = file = code.__module__
  return {'origin': origin, 'file': file, 'sha256': hashlib.sha256(whole).hexdigest()}


def registered(flat: Mapping[str, Any]) -> list[Part]:
  """The parts of a configuration that are not the package's."""
  found = [chosen(kind, flat) for kind in KINDS]
  return [one for one in found if one is not None and one.registered]


def describe(one: Part) -> dict[str, Any]:
  """The description of a registered part for config.json; `with_described` reads it."""
  return {
    **{field: getattr(one, field) for field in ('kind', 'name', 'title')},
    **{field: one.registered[field] for field in ('file', 'sha256')},
    'traits': sorted(one.traits),
    'knobs': {name: (k.kind.__name__, *k[1:3]) for name, k in one.knobs.items()},
    'metrics': {name: m[:3] for name, m in one.metrics.items() if not m.value},
  }


@contextlib.contextmanager
def with_described(descriptions: Iterable[Mapping[str, Any]]) -> Iterator[None]:
  """Adds the parts that a run directory describes, as long as the context lasts.

  A part that is not registered has no code.

  Raises:
    UsageError: a part cannot be registered, because it would change other parts.
  """
  before = dict(_parts)
  try:
    for description in descriptions:
      _add_described(description)
    yield
  finally:
    _parts.clear()
    _parts.update(before)
    every_knob.cache_clear()


def _add_described(description: Mapping[str, Any]) -> None:
  kind, name = description['kind'], description['name']
  if (kind, name) in _parts and _parts[kind, name].registered:
    return
  knobs = {
    # The kind is named, because a default of 'auto' does not tell it.
    key: Knob(_KINDS.get(kind, type(default)), default, meaning)
    for key, (kind, default, meaning) in description['knobs'].items()
  }
  traits = frozenset(description['traits'])
  metrics = {column: Metric(*told) for column, told in description['metrics'].items()}
  fields = (kind, name, None, description['title'], traits, knobs)
  try:
    _add(Part(*fields, metrics=metrics, registered=description), '')
  except UsageError as error:
    raise UsageError(f'config.json registers the {kind} {name!r}: {error}.') from None
