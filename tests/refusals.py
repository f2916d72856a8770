"""What a user's mistake, or a stranger's file, is answered with."""

import contextlib

import pytest


@contextlib.contextmanager
def refused(kind, words):
  """The block raises such an error, of one line that contains these words."""
  with pytest.raises(kind, match=words) as caught:
    yield caught
  assert '\n' not in str(caught.value)
