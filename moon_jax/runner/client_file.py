"""The numbers of each client that is tested, in a file of the run directory.

clients.csv.gz has a column for each client, under its name, and a line for each number
of a tested round:

  round,number,rural,city
  0,training_examples,120,480
  0,test_examples,40,160
  10,user_accuracy,0.525,0.9125
  20,user_accuracy,0.6,0.925

`zcat` and `pandas.read_csv` read it. Each tested round is a gzip member of its own, so
a round is appended in one write, and a resumed run removes whole members. A column for
each client, and not a line, keeps the file small: names and sizes stand there once.

It imports nothing slow, so that a report reads the file without JAX.
"""

import contextlib
import csv
import io
import math
import os
import pathlib
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from moon_jax.core import files
from moon_jax.core.errors import NoCheckpointError, UsageError
from moon_jax.core.flags import flag
from moon_jax.runner.run_files import CLIENTS

_FIRST_CELLS = ['round', 'number']
_SIZES = ('training_examples', 'test_examples')
_GZIP = 31  # of zlib: with gzip's header, which has no time
_BLOCK_BYTES = 2**16
_MOST_BYTES = 2**29  # of the text, in a file that anyone may have written
# The columns that every tested round has if one has; others are metrics.
ACCURACIES = (
  'test_accuracy',
  'user_accuracy',
  'local_accuracy',
  'tuned_accuracy',
  'personal_accuracy',
)


class TooLargeError(NoCheckpointError):
  """The file has more text than is read."""


class Columns(NamedTuple):
  """The clients of the file: its columns.

  Attributes:
    names: [V] their names, all different.
    training_examples: [V] examples that each trains on; NaN if unknown.
    test_examples: [V] test examples of its own; 0 if it has none.
  """

  names: Sequence[str]
  training_examples: np.ndarray
  test_examples: np.ndarray


class Clients(NamedTuple):
  """The content of the file: the numbers of each client over the tested rounds.

  >>> clients = Clients(
  ...   names=['rural', 'city'],
  ...   training_examples=np.array([120, 480]),
  ...   test_examples=np.array([40, 160]),
  ...   rounds=np.array([10, 20]),
  ...   numbers={'user_accuracy': np.array([[0.5, 0.9], [0.6, 0.9]])},
  ... )
  >>> last = clients.numbers['user_accuracy'][-1]
  >>> clients.names[np.nanargmin(last)], float(np.nanmin(last))
  ('rural', 0.6)

  Attributes:
    names: [V] names of the clients, all different.
    training_examples: [V] examples that each trains on; NaN if unknown.
    test_examples: [V] test examples of its own; 0 if it has none.
    rounds: [R] the tested rounds.
    numbers: column, as in metrics.jsonl without its last word -> [R, V] float64; NaN
      where a client has no such number. Accuracies are in [0, 1].
  """

  names: Sequence[str]
  training_examples: np.ndarray
  test_examples: np.ndarray
  rounds: np.ndarray
  numbers: dict[str, np.ndarray]

  def to_pandas(self) -> Any:
    """A pandas.DataFrame with a row for each round and client; needs pandas."""
    import pandas

    num_rounds, num_clients = len(self.rounds), len(self.names)
    columns = {
      'round': np.repeat(self.rounds, num_clients),
      'client': np.tile(np.array(self.names, object), num_rounds),
      'training_examples': np.tile(self.training_examples, num_rounds),
      'test_examples': np.tile(self.test_examples, num_rounds),
    }
    for name, numbers in self.numbers.items():
      columns[name] = numbers.ravel()
    return pandas.DataFrame(columns)


class ClientFile:
  """Appends the tested rounds of a run to its file. It is a context manager.

  Rounds after the restored one will be run again: they are removed.

  Attributes:
    num_missing: number of tested rounds before this start that are not in the file,
      because an older version has run them, or the file was removed.
  """

  def __init__(
    self,
    workdir: pathlib.Path,
    columns: Columns | None,
    tested_rounds: Sequence[int],
  ):
    """Opens the file.

    Args:
      workdir: the run directory.
      columns: the clients; None if no client is tested: then there is no file.
      tested_rounds: the tested rounds up to the restored one.

    Raises:
      NoCheckpointError: the file is damaged, has other clients, or lacks rounds.
      RunError: it cannot be written.
    """
    self._file = None
    self.num_missing = 0
    if columns is None:
      return
    path = workdir / CLIENTS
    head = _head(columns)
    kept_members = _members_up_to(path, max(tested_rounds, default=0), head)
    kept_rounds = [member.round for member in kept_members[1:]]
    num_missing = len(tested_rounds) - len(kept_rounds)
    # If rounds are missing at the beginning, the file is younger than the run.
    if kept_rounds != list(tested_rounds)[num_missing:]:
      raise NoCheckpointError(f'{path} lacks rounds that are in the checkpoint.')
    self.num_missing = num_missing
    content = b''.join(member.data for member in kept_members)
    with files.replacing(path) as file:
      file.write(content or _compressed(head))
    with files.writing(path):
      # Unbuffered, so that closing the file does not try again what a full disk
      # refused.
      self._file = path.open('ab', buffering=0)

  def __enter__(self):
    return self

  def __exit__(self, *exception):
    if self._file:
      files.close(self._file)

  def add(self, round_number: int, numbers: Mapping[str, np.ndarray]) -> None:
    """Appends a tested round.

    Args:
      round_number: completed rounds, 1 after the first.
      numbers: column -> [V] float64; NaN where a client has no such number.

    Raises:
      RunError: the disk is full.
    """
    if not self._file or not numbers:
      return
    lines = io.StringIO(newline='')
    csv.writer(lines, lineterminator='\n').writerows(
      [round_number, name, *_cells(values)] for name, values in numbers.items()
    )
    data = _compressed(lines.getvalue())
    with files.writing(pathlib.Path(self._file.name)):
      while data:
        num_written = self._file.write(data)
        data = data[num_written:]

  def flush(self) -> None:
    """Waits until the rounds are on the disk: before a checkpoint that relies on them.

    Raises:
      RunError: the disk is full.
    """
    if self._file:
      with files.writing(pathlib.Path(self._file.name)):
        files.flush_descriptor(self._file.fileno())


def read(workdir: pathlib.Path) -> Clients | None:
  """Reads the file of a run directory; None if there is none, or no round is in it.

  A crash, or a run in progress, may leave the last member half written: it does not
  count.

  Raises:
    TooLargeError: it has too much text.
    NoCheckpointError: it cannot be read, or is damaged.
  """
  path = workdir / CLIENTS
  with _one_line(path):
    members = _members(path)
    head = next(members, None)
    if head is None:
      return None
    (_, _, *names), (_, _, *training_cells), (_, _, *test_cells) = _lines(head.text)
    rows: dict[str, dict[int, np.ndarray]] = {}
    num_bytes = 0
    for member in members:
      num_bytes += len(member.text)
      if num_bytes > _MOST_BYTES:
        raise TooLargeError(
          f'{path} is too large: its text has more than {_MOST_BYTES:,} bytes.'
        )
      for _, column, *cells in _lines(member.text):
        rows.setdefault(column, {})[member.round] = _numbers(cells, len(names))
    if not rows:
      return None
    rounds = sorted({number for by_round in rows.values() for number in by_round})
    missing = np.full(len(names), math.nan)
    numbers = {
      column: np.stack([by_round.get(number, missing) for number in rounds])
      for column, by_round in rows.items()
    }
    for column, by_round in numbers.items():
      # A metric may be undefined, or new in a run that goes on; an accuracy has a
      # number of the same clients always.
      if column in ACCURACIES and np.isnan(by_round).any(axis=0).all():
        raise ValueError(f'no client has a number {column!r} in every round')
    return Clients(
      names=names,
      training_examples=_numbers(training_cells, len(names)),
      test_examples=_numbers(test_cells, len(names)).astype(np.int64),
      rounds=np.array(rounds),
      numbers=numbers,
    )


def of_run(workdir: pathlib.Path) -> Clients:
  """`read`, for a user who asks for it.

  Raises:
    UsageError: no client was tested alone.
    NoCheckpointError: the file cannot be read, or is damaged.
  """
  clients = read(workdir) if workdir.is_dir() else None
  if clients is None:
    raise UsageError(
      f'{workdir} has no numbers of single clients ({CLIENTS}): clients are tested '
      f'alone with {flag("data.local_test", 0.25)}, or if the test examples have user '
      'ids.'
    )
  return clients


def _lines(text: str) -> Iterator[list[str]]:
  """The cells of each line; a name may have commas, quotes and ends of lines in it."""
  return csv.reader(io.StringIO(text, newline=''))


def _numbers(cells: Sequence[str], count: int) -> np.ndarray:
  """The numbers in some cells; NaN in an empty one."""
  if len(cells) != count:
    raise ValueError('a line has another number of columns than the first')
  numbers = [float(cell) for cell in cells if cell]
  if not all(map(math.isfinite, numbers)):
    raise ValueError('a cell is not finite')
  return np.array([float(cell) if cell else math.nan for cell in cells])


class _Member(NamedTuple):
  """A gzip member of the file.

  Attributes:
    data: its bytes.
    text: its lines.
    round: the round of its lines; 0 for the first member, which has the header.
  """

  data: bytes
  text: str
  round: int


# After a power loss a file system may keep the size of a file without its last bytes.
_LOST = bytes(16)


def _members(path: pathlib.Path) -> Iterator[_Member]:
  """The whole members of the file; none if there is no file.

  Raises:
    OSError: it cannot be read.
    TooLargeError: a round has too much text.
    ValueError, zlib.error: it is damaged.
  """
  if not os.path.lexists(path):
    return
  data = files.contents(path)
  begin = 0
  while begin < len(data):
    decompressor = zlib.decompressobj(_GZIP)
    content, end = bytearray(), begin
    while not decompressor.eof and end < len(data):
      block = data[end : end + _BLOCK_BYTES]
      try:
        content += decompressor.decompress(block, files.MOST_TEXT_BYTES)
      except zlib.error:
        if data.endswith(_LOST):
          return
        raise
      if decompressor.unconsumed_tail or len(content) > files.MOST_TEXT_BYTES:
        raise TooLargeError(
          f'{path} is too large: a round has more than {files.MOST_TEXT_BYTES:,} bytes.'
        )
      end += len(block) - len(decompressor.unused_data)
    if not decompressor.eof:
      return
    text = content.decode()
    number = 0 if begin == 0 else int(text.partition(',')[0])
    yield _Member(data=data[begin:end], text=text, round=number)
    begin = end


def _members_up_to(path: pathlib.Path, last_round: int, head: str) -> list[_Member]:
  """The members up to a round, without their texts; [] if there is no file."""
  kept = []
  with _one_line(path):
    for member in _members(path):
      if not kept and member.text != head:
        raise ValueError('it has other clients than the run')
      if member.round <= last_round:
        kept.append(member._replace(text=''))
      if member.round >= last_round:
        break  # what follows is run again, so it may be damaged
  return kept


@contextlib.contextmanager
def _one_line(path: pathlib.Path) -> Iterator[None]:
  """Makes an error of reading the file one of the run directory, in one line."""
  try:
    yield
  except OSError as error:
    raise NoCheckpointError(f'{path} cannot be read: {error.strerror}.') from None
  except (
    ValueError,
    KeyError,
    AttributeError,
    csv.Error,
    zlib.error,
    OverflowError,
  ) as error:
    raise NoCheckpointError(f'{path} is damaged: {str(error)[:100]}.') from None


def _head(columns: Columns) -> str:
  """The header, and the lines of the sizes."""
  lines = [
    [*_FIRST_CELLS, *columns.names],
    [0, _SIZES[0], *_cells(columns.training_examples)],
    [0, _SIZES[1], *_cells(columns.test_examples)],
  ]
  return ''.join(map(_line, lines))


def _cells(values: np.ndarray) -> list[str]:
  """Each number so that it is read back exactly; '' for NaN."""
  return [
    '' if math.isnan(value) else repr(value).removesuffix('.0')
    for value in values.tolist()
  ]


def _line(cells: Sequence[Any]) -> str:
  text = io.StringIO(newline='')
  # Python before 3.13 quotes no \r in a name, unless lines end in it.
  csv.writer(text, lineterminator='\r\n').writerow(cells)
  return text.getvalue().removesuffix('\r\n') + '\n'


def _compressed(text: str) -> bytes:
  return zlib.compress(text.encode(), wbits=_GZIP)
