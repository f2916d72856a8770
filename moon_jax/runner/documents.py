"""Is a JSON file whole? Reading and writing those of a run directory."""

import itertools
import json
import pathlib
from collections.abc import Sequence
from typing import Any

from moon_jax.errors import NoCheckpointError
from moon_jax.runner import storage

Document = dict[str, Any]


def read_lines(path: pathlib.Path) -> list[Document]:
  """The objects of a .jsonl file, in the order of their rounds; [] if there is none."""
  if not path.exists():
    return []
  lines = _bytes(path).splitlines(keepends=True)
  # A crash may leave the last line half written.
  whole = [line for line in lines if line.endswith(b'\n')]
  found = [_parse(path, line, needs=('round',)) for line in whole]
  for before, line in itertools.pairwise(found):
    if line['round'] <= before['round']:
      told = f'round {line["round"]} follows round {before["round"]}'
      raise NoCheckpointError(f'{path} is damaged: {told}.')
  return found


def read_json(path: pathlib.Path, needs: Sequence[str] = ()) -> Document | None:
  """The document of a file; None if there is no such file.

  Args:
    path: of the file.
    needs: the names of numbers that have to be in it.
  """
  return _parse(path, _bytes(path), needs) if path.exists() else None


def _bytes(path: pathlib.Path) -> bytes:
  if not path.is_file():  # a pipe would be waited for
    raise NoCheckpointError(f'{path} is damaged: it is no file.')
  try:
    return path.read_bytes()
  except OSError as error:
    raise NoCheckpointError(f'{path} cannot be read: {error.strerror}.') from None


def _parse(path: pathlib.Path, data: bytes, needs: Sequence[str]) -> Document:
  try:
    document = json.loads(data)
  except ValueError:  # no JSON, or not even text
    document = None
  if not isinstance(document, dict):
    text = data.decode(errors='replace').strip()
    raise NoCheckpointError(f'{path} is damaged: {text[:40]!r} is no object.')
  for name in needs:
    if not isinstance(document.get(name), int | float):
      raise NoCheckpointError(f'{path} is damaged: {name!r} is missing, or no number.')
  return document


def write_json(path: pathlib.Path, content: Document) -> None:
  """Replaces a file by a JSON document, wholly or not at all."""
  storage.replace(path, json.dumps(content, indent=2) + '\n')
