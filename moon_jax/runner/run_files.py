"""The files of a run directory, for those who write and those who read them.

It imports nothing slow, so that a report reads runs without JAX, and a path that is no
run is found at once.
"""

import os
import pathlib
from collections.abc import Sequence
from typing import Any

from moon_jax.core.errors import UsageError

Record = dict[str, Any]  # a line, or the content of a file, of JSON
_PATTERN_LETTERS = {*'\\[*?'}
CONFIG, SUMMARY = 'config.json', 'summary.json'
METRICS, TIMINGS = 'metrics.jsonl', 'timings.jsonl'
CLIENTS = 'clients.csv.gz'
PARTITION = 'partition.npz'
CONFUSION = 'confusion.npz'
# The arrays of CONFUSION, of which a run has some; see `core.files.arrays`.
CONFUSION_KINDS = {
  'round': 'iu ',
  'confusion': 'iu YY',
  'personal_confusion': 'iu YY',
  'tuned_confusion': 'iu YY',
}
# The arrays of PARTITION that others read; see `core.files.arrays`.
PARTITION_KINDS = {'class_counts': 'iu NY'}


def has_diverged(rounds: Sequence[Record]) -> bool:
  """Whether a number of the last line of metrics.jsonl is not finite.

  A NaN or an infinity is recorded as null. A run can also have diverged with records
  that are finite.
  """
  return bool(rounds) and None in rounds[-1].values()


def require_plain_path(path: pathlib.Path) -> None:
  """Refuses a run directory whose checkpoints orbax would write and could not read.

  It takes the path for a pattern of `glob`. If the pattern does not match the path
  itself, the checkpoint is empty.

  Raises:
    UsageError: a name in the absolute path has one of the letters of a pattern.
  """
  patterns = sorted(_PATTERN_LETTERS & {*str(path.absolute())})
  if patterns:
    raise UsageError(
      f'The path of the run directory must have no {" or ".join(patterns)}, or its '
      f'checkpoints could not be read; rename a folder of {str(path.absolute())!r}.'
    )


def no_run(path: pathlib.Path) -> UsageError:
  """The error that a path is not that of a run directory."""
  return UsageError(f'{str(path)!r} is not a run directory: it has no {CONFIG}.')


def require_run_or_weights(path: pathlib.Path) -> None:
  """Refuses a path at which `moon_jax.load` finds nothing, without reading it.

  Raises:
    UsageError: it is no file, and no folder with a config.json.
  """
  if not os.path.isfile(path) and not os.path.lexists(path / CONFIG):
    raise no_run(path)
