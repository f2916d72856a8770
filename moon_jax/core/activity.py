"""What this process is doing now, for whoever shows it: 'compiling the round'.

Only what may take seconds is named, and only in the main thread, which waits for it:
in other threads `doing` does nothing.
"""

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple


class Activity(NamedTuple):
  """Something that takes time.

  Attributes:
    name: what it is, in the words for a user: 'testing round 3'.
    begun_at: when it began, by `time.monotonic`.
  """

  name: str
  begun_at: float

  def describe(self) -> str:
    """'testing round 3, 23 s'."""
    return f'{self.name}, {time.monotonic() - self.begun_at:.0f} s'


_activities: list[Activity] = []


@contextlib.contextmanager
def doing(name: str) -> Iterator[None]:
  """Inside, this is what the process is doing.

  >>> with doing('decoding the images'):
  ...   current().name
  'decoding the images'
  """
  if threading.current_thread() is not threading.main_thread():
    yield
    return
  _activities.append(Activity(name, time.monotonic()))
  try:
    yield
  finally:
    _activities.pop()


def current() -> Activity | None:
  """The innermost of what the process is doing; None if nothing has a name."""
  activities = tuple(_activities)  # another thread may end one
  return activities[-1] if activities else None
