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
from moon_jax.catalog.entries import (
  KINDS,
  LISTED_KINDS,
  Bound,
  Knob,
  Metric,
  Part,
  listed_words,
  one_of,
  some_of,
)
from moon_jax.catalog.general import EXECUTION, KNOBS, TEST_NUMBERS
from moon_jax.catalog.hints import did_you_mean
from moon_jax.catalog.others import OTHERS
from moon_jax.catalog.test_metrics import LOWER, TEST_METRICS
from moon_jax.core.errors import UsageError

_parts = {
  (part.kind, part.name): part for part in (*ALGORITHMS, *OTHERS, *TEST_METRICS)
}

# What core/run_directory.json allows.
_LONGEST_NAME = 100
_LONGEST_TITLE = 200
_KNOB_TYPES = {type_.__name__: type_ for type_ in (float, int, bool, str)}
# Traits that only algorithms of several clients have.
_TRAITS_OF_SEVERAL = {'served', 'weighted', 'contrastive', 'decentralized'}
# Kind of part -> the traits that users' parts may have.
_TRAITS = {
  'algorithm': {'several_clients', *_TRAITS_OF_SEVERAL},
  'data': {'arrays'},
  'metric': {LOWER},
  'model': {'normalized', 'convolutional'},
  'partition': {'dealt'},
}
# Kind of part -> names that its knobs may not have: the functions that make the part
# get arguments of these names beside the knobs. Of an optimizer's, the wrappers in
# `round.optimizers` take the last two.
_ARGUMENTS = {
  'augmentation': {'deviations', 'name'},
  'data': {
    'announce',
    'axes',
    'describes_tests',
    'limit',
    'normalize',
    'range',
    'source',
  },
  'model': {'convolution', 'dtype', 'form', 'image_shape', 'name', 'num_classes'},
  'optimizer': {'learning_rate', 'weight_decay', 'clip_norm', 'body_factor'},
  'partition': {'labels', 'min_size', 'name', 'num_clients', 'seed'},
}


# --- look-ups -------------------------------------------------------------------------


def names(kind: str) -> tuple[str, ...]:
  """The names of all parts of a kind, those of the package first."""
  return tuple(name for part_kind, name in _parts if part_kind == kind)


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
  selecting_knobs = {
    name: KNOBS[name]._replace(bound=one_of(*names(kind)))
    for kind, name in KINDS.items()
  }
  for kind, name in LISTED_KINDS.items():
    selecting_knobs[name] = KNOBS[name]._replace(bound=some_of(*names(kind)))
  best_by_words = one_of(*TEST_NUMBERS, *names('metric'))
  selecting_knobs['best_by'] = KNOBS['best_by']._replace(bound=best_by_words)
  part_knobs = {}
  for entry in _parts.values():
    for name, knob in entry.knobs.items():
      group = _group(entry)
      used_if = knob.used_if
      if used_if and '.' not in used_if[0]:
        used_if = f'{group}.{used_if[0]}', used_if[1]
      needs = ((entry.kind, group),)
      part_knobs[f'{group}.{name}'] = knob._replace(needs=needs, used_if=used_if)
  return KNOBS | selecting_knobs | part_knobs | EXECUTION


def _group(entry: Part) -> str:
  """The group of a part's own knobs."""
  return entry.group or entry.name


def chosen(kind: str, flat: Mapping[str, Any]) -> Part | None:
  """The part that a configuration (dotted name -> value) selects; None if unknown."""
  return _parts.get((kind, flat.get(KINDS[kind])))


def listed(kind: str, flat: Mapping[str, Any]) -> list[Part]:
  """The parts of a kind in LISTED_KINDS that a configuration names; [] if unknown."""
  listed_names = listed_words(flat.get(LISTED_KINDS[kind], ''))
  return [_parts[kind, name] for name in listed_names if (kind, name) in _parts]


def is_lower_better(test_number: str) -> bool:
  """Whether lower values are better, of accuracy, loss or a metric of tests."""
  entry = _parts.get(('metric', test_number))
  return test_number == 'loss' or (entry is not None and entry.has(LOWER))


def registered_parts(flat: Mapping[str, Any]) -> list[Part]:
  """The parts of a configuration that are not the package's."""
  chosen_parts = [chosen(kind, flat) for kind in KINDS]
  for kind in LISTED_KINDS:
    chosen_parts += listed(kind, flat)
  return [entry for entry in chosen_parts if entry is not None and entry.registered]


def is_of_registered_part(knob_name: str) -> bool:
  """Whether a knob stands in the group of a registered part."""
  group = knob_name.partition('.')[0]
  return any(
    entry.name == group for entry in _parts.values() if entry.registered and entry.knobs
  )


def is_used(knob_name: str, flat: Mapping[str, Any]) -> bool:
  """Whether a configuration uses the knob: its parts do, and no other knob forbids it.

  >>> is_used('stragglers.send', {'algorithm': 'fedavg', 'stragglers.fraction': 0.0})
  False
  """
  knob = every_knob()[knob_name]
  for kind, trait in knob.needs:
    entry = chosen(kind, flat)
    if entry is None or not entry.has(trait):
      return False
  return not knob.used_if or _is_on(*knob.used_if, flat)


def _is_on(knob_name: str, bound: Bound, flat: Mapping[str, Any]) -> bool:
  """Whether the knob that decides is used, and its value satisfies the bound."""
  return is_used(knob_name, flat) and knob_name in flat and bound.holds(flat[knob_name])


def options(kind: str, flat: Mapping[str, Any]) -> dict[str, Any]:
  """The arguments of the chosen part: the knobs that need it, without their group."""
  entry = chosen(kind, flat)
  groups = (_group(entry), KINDS[kind].split('.')[0])
  arguments = {}
  for knob_name, knob in every_knob().items():
    group, _, argument = knob_name.rpartition('.')
    is_needed = any(
      needed_kind == kind and entry.has(trait) for needed_kind, trait in knob.needs
    )
    if is_needed and group in groups:
      arguments[argument] = flat[knob_name]
  return arguments


# --- parts of users -------------------------------------------------------------------


def register(
  kind: str,
  name: str,
  make: Callable,
  *,
  title: str = '',
  knobs: Mapping[str, Knob] | None = None,
  traits: Iterable[str] = (),
  metrics: Mapping[str, Metric] | None = None,
  check: Callable[[Mapping[str, Any]], Iterable[str]] | None = None,
) -> None:
  """Adds a part; the same file may replace its own part. `Part` has the arguments.

  Raises:
    UsageError: the name is taken or invalid, a knob is not declared, a trait is
      unknown or needs another one, or `make` is no function or has no source file.
  """
  knobs = dict(knobs or {})
  metrics = metrics or {}
  try:
    source = _source(make)
    taken_names = knobs.keys() & _ARGUMENTS.get(kind, set())
    if taken_names:
      raise UsageError(
        f'this package uses the name {min(taken_names)!r} itself: give the knob '
        'another one'
      )
    for column, metric in metrics.items():
      if not isinstance(metric, Metric):
        raise UsageError(f'{column!r} must be a moon_jax.Metric')
    entry = Part(
      kind=kind,
      name=name,
      make=make,
      title=title or name,
      traits=frozenset(traits),
      knobs=knobs,
      metrics=metrics,
      check=check,
      registered=source,
    )
    _check_title(entry)
    _check_traits(entry)
    _add(entry, source['origin'])
  except UsageError as error:
    raise UsageError(f'register_{kind}({name!r}): {error}.') from None


def _add(entry: Part, origin: str) -> None:
  """Adds a part from that origin, a file.

  Raises:
    UsageError: it may not have its name or title, a knob is not declared, a trait is
      unknown.
  """
  previous = _parts.get((entry.kind, entry.name))
  _check_name(entry, previous, origin)
  if len(entry.title) > _LONGEST_TITLE:
    raise UsageError(f'a title has at most {_LONGEST_TITLE} letters')
  for name, knob in entry.knobs.items():
    if not (name.isidentifier() and isinstance(knob, Knob) and _is_declared(knob)):
      types = ', '.join(_KNOB_TYPES)
      raise UsageError(
        f'{name!r} must be declared by knob(...), with one of {types}, a text and at '
        'most one bound'
      )
  unknown_traits = entry.traits - _TRAITS.get(entry.kind, set())
  if unknown_traits:
    raise UsageError(f'there is no trait {min(unknown_traits)!r}')
  _parts[entry.kind, entry.name] = entry
  every_knob.cache_clear()


def _check_name(entry: Part, previous: Part | None, origin: str) -> None:
  """Checks that a part may have its name.

  Args:
    entry: the new part.
    previous: the part of its kind that has the name.
    origin: the file of the new part.

  Raises:
    UsageError: the name is no identifier or too long, or something else has it.
  """
  if not re.fullmatch('[a-z][a-z0-9_]*', entry.name):
    raise UsageError('a name has small letters, digits and _, a letter first')
  if any(len(name) > _LONGEST_NAME for name in (entry.name, *entry.knobs)):
    raise UsageError(f'a name has at most {_LONGEST_NAME} letters')
  if any(entry.name in part.traits for part in _parts.values()):
    raise UsageError('the name is taken, as a trait')
  if previous and (previous.registered or {}).get('origin') != origin:
    raise UsageError('the name is taken')
  groups = {name.partition('.')[0] for name in (*KNOBS, *EXECUTION)}
  groups |= {
    _group(part) for part in _parts.values() if part.knobs and part != previous
  }
  if entry.knobs and entry.name in groups:
    raise UsageError('the name is taken, as a group of knobs')


def _check_title(entry: Part) -> None:
  """Raises UsageError if another algorithm has the title, which reports show."""
  if entry.kind != 'algorithm':
    return
  for part in _parts.values():
    is_other = part.kind == entry.kind and part.name != entry.name
    # A file that is read again may have renamed its algorithm.
    origins = [(each.registered or {}).get('origin') for each in (part, entry)]
    is_other = is_other and origins[0] != origins[1]
    if is_other and part.title == entry.title:
      raise UsageError(f'the title {entry.title!r} is that of {part.name!r}')


def _check_traits(entry: Part) -> None:
  """Raises UsageError for an algorithm of several clients that is not said to be one.

  One client would own all data, as with `centralized`.
  """
  traits_of_several = entry.traits & _TRAITS_OF_SEVERAL
  if entry.kind != 'algorithm' or entry.has('several_clients'):
    return
  if traits_of_several:
    raise UsageError(
      f"the trait {min(traits_of_several)!r} needs 'several_clients' beside it: traits "
      'stand in place of the default ones'
    )


def _is_declared(knob: Knob) -> bool:
  """Whether the fields of a knob have their types."""
  return (
    knob.kind in _KNOB_TYPES.values()
    and isinstance(knob.meaning, str)
    and (knob.bound == () or isinstance(knob.bound, Bound))
  )


def _source(make: Callable) -> dict[str, str]:
  """Where the code of a part is: `origin`, `file`, and the `sha256` of the file.

  Raises:
    UsageError: it is no function, or has no source file.
  """
  if not callable(make):
    raise UsageError(f'{make!r} is no function')
  function = getattr(make, 'func', make)  # the function of a partial
  if inspect.isclass(function):
    # A method knows its source, also in a notebook.
    methods = [member for member in vars(function).values() if callable(member)]
    if methods:
      function = inspect.unwrap(methods[0])
  try:
    path = pathlib.Path(inspect.getsourcefile(function) or '')
    in_file = path.is_file()
    code = path.read_bytes() if in_file else inspect.getsource(function).encode()
  except (OSError, TypeError):
    problem = f'the source of {make!r} is in no file; put it in one'
    raise UsageError(problem) from None
  return {
    'origin': str(path.resolve()) if in_file else function.__module__,
    'file': path.name if in_file else function.__module__,
    'sha256': hashlib.sha256(code).hexdigest(),
  }


# --- parts of run directories ---------------------------------------------------------


def describe(entry: Part) -> dict[str, Any]:
  """The description of a registered part for config.json; `with_described` reads it."""
  return {
    'kind': entry.kind,
    'name': entry.name,
    'title': entry.title,
    'file': entry.registered['file'],
    'sha256': entry.registered['sha256'],
    'traits': sorted(entry.traits),
    'knobs': {
      name: (knob.kind.__name__, knob.default, knob.meaning)
      for name, knob in entry.knobs.items()
    },
    'metrics': {
      column: (metric.title, metric.unit, metric.factor)
      for column, metric in entry.metrics.items()
      if not metric.value
    },
  }


@contextlib.contextmanager
def with_described(descriptions: Iterable[Mapping[str, Any]]) -> Iterator[None]:
  """Adds the parts that a run directory describes, as long as the context lasts.

  A part that is not registered has no code.

  Raises:
    UsageError: a part cannot be registered, because it would change other parts.
  """
  parts_before = dict(_parts)
  try:
    for description in descriptions:
      _add_described(description)
    yield
  finally:
    _parts.clear()
    _parts.update(parts_before)
    every_knob.cache_clear()


def _add_described(description: Mapping[str, Any]) -> None:
  """Adds a part that a run directory describes, unless it is registered."""
  kind, name = description['kind'], description['name']
  if (kind, name) in _parts and _parts[kind, name].registered:
    return
  knobs = {
    # The type is named, because a default of 'auto' does not tell it.
    knob_name: Knob(_KNOB_TYPES.get(type_name, type(default)), default, meaning)
    for knob_name, (type_name, default, meaning) in description['knobs'].items()
  }
  metrics = {
    column: Metric(title, unit, factor)
    for column, (title, unit, factor) in description['metrics'].items()
  }
  entry = Part(
    kind=kind,
    name=name,
    make=None,
    title=description['title'],
    traits=frozenset(description['traits']),
    knobs=knobs,
    metrics=metrics,
    registered=description,
  )
  try:
    _add(entry, origin='')
  except UsageError as error:
    raise UsageError(f'config.json registers the {kind} {name!r}: {error}.') from None
