"""The words in which a mistake is told: the flag, the value, what is wanted."""

from collections.abc import Iterable
from typing import Any

from moon_jax import catalog
from moon_jax.errors import UsageError, did_you_mean


class ConfigError(UsageError):
  """Everything wrong with a configuration; `problems` holds one line for each."""

  def __init__(self, problems: Iterable[str]):
    # A name or a config file's own message may hold line breaks.
    self.problems = tuple(' '.join(problem.splitlines()) for problem in problems)
    super().__init__('\n'.join(self.problems))


def problem(name: str, value: Any, wanted: str) -> str:
  """The one form of a complaint: the flag, the value, what is wanted."""
  return f'--config.{name}={value!r} must be {wanted}.'


def unknown_knob(name: str) -> str:
  """The complaint about a name that is no knob: a group, or a misspelling."""
  knobs = list(catalog.every_knob())
  inside = [knob for knob in knobs if knob.startswith(name + '.')]
  if inside:
    return f'--config.{name} is a group; set one of its knobs: {", ".join(inside)}.'
  hint = did_you_mean(name, knobs)
  # `--config.beta` names a knob without its group: the last part alone must match.
  last = [repr(knob) for knob in knobs if knob.split('.')[-1] == name.split('.')[-1]]
  if last and not hint:
    hint = f' Did you mean {" or ".join(last)}?'
  return f'--config.{name} is not a knob.{hint}'
