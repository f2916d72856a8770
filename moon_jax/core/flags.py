"""Spells the flags of the command line, for messages.

No other module spells a flag in a message: it calls `flag` or `option`, or raises a
`core.errors.KnobError`. The messages about words of the command line are in
`config.cli`, those about values of knobs in `config.validation`; the other messages are
where the error is found.
"""

from typing import Any

_UNSET = object()


def flag(knob: str, value: Any = _UNSET) -> str:
  """The flag of a knob, with its value if one is given.

  >>> flag('execution.lanes')
  '--config.execution.lanes'
  >>> flag('drop_last', True)
  '--config.drop_last=true'
  >>> flag('data.path', 'my photos')
  "--config.data.path='my photos'"
  """
  return option(f'config.{knob}', value)


def option(name: str, value: Any = _UNSET) -> str:
  """An option of the command line that is no knob, with its value if one is given.

  >>> option('workdir')
  '--workdir'
  """
  if value is _UNSET:
    return f'--{name}'
  if isinstance(value, bool):
    value = str(value).lower()
  elif isinstance(value, str):
    value = _quoted(value)
  return f'--{name}={value}'


def _quoted(text):
  """The text as a shell takes it; characters that command a terminal are escaped."""
  if not text.isprintable():
    return repr(text)
  return "'" + text.replace("'", "'\\''") + "'"
