"""Which knobs go together, and which may change when a run is resumed."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from moon_jax import catalog
from moon_jax.config.trees import Config, flatten


def conflicts(valid: Mapping[str, Any], given: Iterable[str]) -> list[str]:
  """Problems between knobs that are each valid alone.

  Args:
    valid: dotted name -> value; a knob whose value is wrong is left out.
    given: names set by the user, who expects them to matter.
  """
  problems = [line for name in given for line in _unused(name, valid)]
  for name, knob in catalog.every_knob().items():
    if knob.required and valid.get(name) == '' and catalog.used(name, valid):
      decider = catalog.KINDS[knob.needs[-1][0]]
      chosen = f'--config.{decider}={valid[decider]}'
      problems.append(f'--config.{name} is needed with {chosen}.')
  # What the data decide, such as the number of natural clients, is checked later.
  known = {name: value for name, value in valid.items() if catalog.used(name, valid)}
  return problems + complaints(known)


def complaints(known: Mapping[str, Any]) -> list[str]:
  """What the chosen parts' own checks complain of, of the values that are known."""
  kinds = [kind for kind, name in catalog.KINDS.items() if catalog.used(name, known)]
  chosen = [catalog.chosen(kind, known) for kind in kinds]
  checks = [part.check for part in chosen if part is not None and part.check]
  return [line for check in checks for line in _checked(check, known)]


def _checked(check: Callable, valid: Mapping[str, Any]) -> list[str]:
  """What a part's own check complains of; nothing if it asks for what is not valid."""
  try:
    return list(check(valid) or ())
  except KeyError as error:
    if error.args[0] in catalog.every_knob():
      return []
    raise


def _unused(name: str, valid: Mapping[str, Any]) -> Iterator[str]:
  """The complaint that a knob is not used, for each part that does not use it."""
  for kind, trait in catalog.every_knob()[name].needs:
    part = catalog.chosen(kind, valid)
    if part is not None and not part.has(trait):
      others = [n for n in catalog.names(kind) if catalog.part(kind, n).has(trait)]
      yield (
        f'--config.{name} is not used with --config.{catalog.KINDS[kind]}={part.name}; '
        f'it belongs to {" or ".join(others)}.'
      )


def used(flat: Mapping[str, Any]) -> dict[str, Any]:
  """The knobs that the chosen algorithm, model, data and partition use."""
  known = catalog.every_knob()
  return {
    name: value
    for name, value in flat.items()
    if name not in known or catalog.used(name, flat)
  }


def identity(flat: Mapping[str, Any]) -> dict[str, Any]:
  """The knobs in use of which another value makes another experiment."""
  chosen = used(flat)
  return {name: value for name, value in chosen.items() if _is_fixed(name, chosen)}


def with_defaults(flat: Mapping[str, Any]) -> dict[str, Any]:
  """The knobs of a saved run, and those that came later: what they stand for did."""
  known = catalog.every_knob()
  later = {name: knob.default for name, knob in known.items() if knob.optional}
  return later | dict(flat)


def changes(saved: Mapping[str, Any], given: Config) -> list[str]:
  """'key: saved -> given' for every difference that makes it another experiment.

  A knob that only one of them uses is left out: the knob that decides so differs too.
  """
  before, after = with_defaults(flatten(saved)), flatten(given)
  old, new = used(before), used(after)
  problems = []
  for name in filter(lambda name: _is_fixed(name, new), sorted(old | new)):
    if name not in before:
      problems.append(f'{name}: not saved -> {new[name]!r}')
    elif name not in after:
      problems.append(f'{name}: {old[name]!r} -> no longer a knob')
    elif name in old and name in new and old[name] != new[name]:
      problems.append(f'{name}: {old[name]!r} -> {new[name]!r}')
  return problems


def _is_fixed(name: str, flat: Mapping[str, Any]) -> bool:
  """Whether another value of the knob makes another experiment."""
  # The cosine ends with the last round, so its earlier values depend on which that is.
  if name == 'num_rounds' and flat.get('optimizer.schedule') == 'cosine':
    return True
  knob = catalog.every_knob().get(name)
  return knob is None or not knob.may_change
