"""The names of clients: those that the data give, such as folders and user ids.

Messages, files and pictures have these names. Where a client is asked for, a name comes
before a number: if users are called '1', '2' and '3', `--client=1` is the user '1', and
not the second client. From Python an integer is always a number, from 0.
"""

import operator
import pathlib
from collections.abc import Iterable, Sequence

import numpy as np

from moon_jax.core import files
from moon_jax.core.errors import UsageError, nearest_name_hint, printable

_MOST_LISTED = 10  # in a message; there may be thousands


def name_of(user_id: np.integer | np.str_) -> str:
  """The name of a user in messages, files and pictures.

  The name of a folder may have bytes that are no text: these are escaped.
  """
  return str(user_id).encode('utf-8', 'backslashreplace').decode()


def saved_names(path: pathlib.Path) -> list[str] | None:
  """[N] the names in a partition.npz; None if the clients have no names.

  Raises:
    Exception: of any class, if the file cannot be read or has other content.
  """
  user_ids = files.arrays(path, ('clients',)).get('clients')
  if user_ids is None:
    return None
  if user_ids.ndim != 1 or user_ids.dtype.kind not in 'iuU':
    raise ValueError(f'clients is {user_ids.dtype} of shape {user_ids.shape}')
  return [name_of(user_id) for user_id in user_ids]


def listed(names: Iterable[str]) -> str:
  """The first of some names, for a message: 'rural, city, ...'."""
  names = [printable(name) for name in names]
  shown = names[:_MOST_LISTED]
  return ', '.join(shown + ['...'] * (len(names) > len(shown)))


def in_message(client: int | str) -> str:
  """A client as a user has written it: a number, or a name in quotes."""
  word = printable(str(client))
  return word if word.lstrip('-').isdecimal() else repr(word)


def number_of(
  client: int | str, names: Sequence[str] | None, num_clients: int, place: str
) -> int:
  """The number of a client, from 0, by its name or number.

  >>> number_of('city', ['rural', 'city'], 2, 'the run')
  1

  Args:
    client: name or number; a text that is both is the name.
    names: [N] names of the clients; None if they have none.
    num_clients: N.
    place: what has these clients, for the message.

  Raises:
    UsageError: there is no such client.
  """
  names = list(names or ())
  if isinstance(client, str):
    if client in names:
      return names.index(client)
    number = int(client) if client.isascii() and client.isdecimal() else -1
  else:
    number = operator.index(client)  # NumPy's cannot be written as JSON
  if 0 <= number < num_clients:
    return number
  word = in_message(client)
  last_number = f'0 to {num_clients - 1}'
  if not names:
    raise UsageError(f'client={word} must be {last_number}, for {place}.')
  hint = nearest_name_hint(client, names) if isinstance(client, str) else ''
  raise UsageError(
    f'client={word} must be a name ({listed(names)}) or a number, {last_number}, for '
    f'{place}.{hint}'
  )
