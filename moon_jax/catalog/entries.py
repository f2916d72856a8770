"""The types of the catalog's entries: a part, its knobs and bounds, its metrics."""

import functools
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from moon_jax.catalog.part_errors import explaining_errors_of
from moon_jax.core.errors import UsageError
from moon_jax.core.flags import flag


class Bound(NamedTuple):
  """What a knob's value must satisfy.

  Attributes:
    requirement: end of the sentence 'must be ...'.
    holds: value -> whether the value satisfies the bound.
    words: the allowed values, if they are words.
  """

  requirement: str
  holds: Callable[[Any], bool]
  words: tuple[str, ...] = ()


def at_least(low: float) -> Bound:
  """A number of `low` or more."""
  return Bound(f'at least {low}', lambda value: value >= low)


def above(low: float) -> Bound:
  """A number larger than `low`."""
  return Bound(f'above {low}', lambda value: value > low)


def between(low: float, high: float, ends: str = '[]') -> Bound:
  """A number from `low` to `high`; a round bracket of `ends` leaves that end out.

  >>> [between(0, 1, '(]').holds(value) for value in (0, 0.5, 1)]
  [False, True, True]
  """

  def is_inside(value):
    above_low = value >= low if ends[0] == '[' else value > low
    below_high = value <= high if ends[1] == ']' else value < high
    return above_low and below_high

  return Bound(f'in {ends[0]}{low}, {high}{ends[1]}', is_inside)


def exactly(allowed: Any) -> Bound:
  """This value and no other."""
  as_typed = str(allowed).lower() if isinstance(allowed, bool) else str(allowed)
  return Bound(as_typed, lambda value: value == allowed)


def some_of(*words: str) -> Bound:
  """Some of these words, each once, with commas between; '' is none.

  >>> [some_of('a', 'b').holds(text) for text in ('', 'b,a', 'a,a', 'c')]
  [True, True, False, False]
  """

  def is_list(text):
    listed = listed_words(text)
    return len(set(listed)) == len(listed) and set(words).issuperset(listed)

  requirement = f'some of {", ".join(words)}, each once, with commas between'
  return Bound(requirement, is_list, words)


def listed_words(text: str) -> tuple[str, ...]:
  """The words of a list with commas between.

  >>> listed_words('auc,ece'), listed_words('')
  (('auc', 'ece'), ())
  """
  return tuple(text.split(',')) if text else ()


def one_of(*words: str) -> Bound:
  """One of these words."""
  return Bound(f'one of {", ".join(words)}', lambda value: value in words, words)


COUNT = at_least(1)
SEED = between(0, 2**31 - 1)


class Knob(NamedTuple):
  """Declares a value that a user can set: a knob.

  Args:
    kind: float, int, bool or str.
    default: its value if the user does not set it, and in a run from before the knob:
      a value of that kind within the bound.
    meaning: a noun phrase with its unit, for `--help`.
    bound: what a valid value satisfies: `at_least`, `above`, `between`, `one_of` or a
      `Bound` of your own; () if every value of the kind is valid.
    needs: pairs (kind of part, trait): the knob is used if the chosen parts have these.
    required: whether '' is invalid where the knob is used.
    may_change: whether a resumed run may have another value: it is the same experiment.
    auto: whether 'auto' is valid; the part that uses the knob decides what it means.
    used_if: (another knob, bound): the knob has an effect only while the value of the
      other one satisfies the bound. A name without a dot is of the same group.
  """

  kind: type
  default: Any
  meaning: str
  bound: Bound | tuple[()] = ()
  needs: tuple[tuple[str, str], ...] = ()
  required: bool = False
  may_change: bool = False
  auto: bool = False
  used_if: tuple[str, Bound] | tuple[()] = ()


knob = Knob  # as users declare it

# Each makes knobs of one type.
number = functools.partial(knob, float)
switch = functools.partial(knob, bool)
word = functools.partial(knob, str)


def counted(
  default: int,
  meaning: str,
  needs: tuple[tuple[str, str], ...] = (),
  *,
  may_change: bool = False,
  used_if: tuple[str, Bound] | tuple[()] = (),
) -> Knob:
  """Declares a knob that is a whole number of 1 or more."""
  return knob(
    int, default, meaning, COUNT, needs, may_change=may_change, used_if=used_if
  )


class Rule(NamedTuple):
  """A knob's value must satisfy a bound, if another knob has some value.

  Attributes:
    knob: dotted name of the knob.
    bound: bound of its value.
    other: dotted name of the other knob.
    value: value of the other knob for which the bound holds; None: every value.
  """

  knob: str
  bound: Bound
  other: str
  value: Any = None


def check_of(rules: Iterable[Rule]) -> Callable[[Mapping[str, Any]], Iterator[str]]:
  """The `check` of a Part that complains of every broken rule."""

  def check(values):
    for rule in rules:
      if rule.knob not in values or rule.other not in values:
        continue  # it is not used, or its value is wrong, which is reported
      other_value = values[rule.other]
      applies = rule.value is None or rule.value == other_value
      if applies and not rule.bound.holds(values[rule.knob]):
        yield (
          f'{flag(rule.knob, values[rule.knob])} must be {rule.bound.requirement} '
          f'with {flag(rule.other, other_value)}.'
        )

  return check


class Metric(NamedTuple):
  """A column of a run's records that reports follow over the rounds.

  Attributes:
    title: title of its figure.
    unit: label of its axis.
    factor: factor from the record to the unit.
    value: (the part's knobs, record of a round) -> the number to draw, or None if the
      record lacks a column for it. If no function is given, the column is drawn.
  """

  title: str
  unit: str
  factor: float = 1.0
  value: Callable[[Mapping[str, Any], Mapping[str, Any]], float | None] | None = None


class Part(NamedTuple):
  """An algorithm, a model, a data source, ...: all that other modules know of it.

  Attributes:
    kind: a key of KINDS or LISTED_KINDS.
    name: the value of the kind's selecting knob.
    make: 'module:function', imported when used, or the function itself; None for a part
      that is known only from a run directory.
    title: name of an algorithm in reports.
    traits: words that rules and reports ask for; its name and group are traits too.
    knobs: name -> Knob, of the part's own group.
    group: name of this group; '': the part's name.
    metrics: column -> Metric, besides the columns of every run.
    check: (valid values, dotted name -> value) -> problems, one line each. A check that
      reads a knob that is unused or has an invalid value ends there: such a value is
      reported already.
    registered: name and SHA-256 of the source file, for a registered part.
  """

  kind: str
  name: str
  make: str | Callable | None
  title: str = ''
  traits: frozenset[str] = frozenset()
  knobs: Mapping[str, Knob] = {}
  group: str = ''
  metrics: Mapping[str, Metric] = {}
  check: Callable[[Mapping[str, Any]], Iterable[str]] | None = None
  registered: Mapping[str, str] | None = None

  def has(self, trait: str) -> bool:
    """Whether it has the trait; its name and its group count."""
    return trait in self.traits or trait in (self.name, self.group)

  @property
  def function(self) -> Callable:
    """The function that builds the part."""
    return pkgutil.resolve_name(self.make) if isinstance(self.make, str) else self.make

  def build(
    self, returns: type | tuple[type, ...], /, *args: Any, **options: Any
  ) -> Any:
    """Calls the function with these arguments; its result has one of these types.

    Raises:
      UsageError: the function of a registered part fails, or returns another type.
    """
    with explaining_errors_of(self):
      built = self.function(*args, **options)
    if not isinstance(built, returns):
      types = returns if isinstance(returns, tuple) else (returns,)
      type_names = ' or '.join(type_.__name__ for type_ in types)
      raise UsageError(
        f'The {self.kind} {self.name!r} must return {type_names}, '
        f'not {type(built).__name__}.'
      )
    return built


# Kind of part -> the knob that selects one.
KINDS = {
  'algorithm': 'algorithm',
  'model': 'model',
  'data': 'data.source',
  'partition': 'partition.name',
  'augmentation': 'augmentation.name',
  'optimizer': 'optimizer.name',
  'schedule': 'optimizer.schedule',
  'server_optimizer': 'server_optimizer.name',
  'topology': 'topology.name',
  'availability': 'availability.name',
  'attack': 'attack.name',
}
# Kind of part -> the knob that lists several, with commas between; '' is none.
LISTED_KINDS = {'metric': 'metrics'}
