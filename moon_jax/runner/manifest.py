"""Is a saved folder what was written? The SHA-256 of each file, kept beside the files.

manifest.json is the last file of a folder to be written. Its own SHA-256 stands in it,
and it is compared as bytes: no bit of it can change unseen.
"""

import hashlib
import json
import os
import pathlib

from moon_jax.errors import NoCheckpointError

NAME = 'manifest.json'
# Raised when an older program could not read the folder. `format` and `sha256` stay.
FORMAT = 1


def write(folder: pathlib.Path, completed_rounds: int) -> None:
  """Writes the manifest of everything that is in the folder."""
  paths = sorted(path for path in folder.rglob('*') if path.is_file())
  files = {
    path.relative_to(folder).as_posix(): {
      'bytes': path.stat().st_size,
      'sha256': _digest(path),
    }
    for path in paths
  }
  content = {'format': FORMAT, 'round': completed_rounds, 'files': files}
  with (folder / NAME).open('wb') as file:
    file.write(_sealed(content))
    file.flush()
    os.fsync(file.fileno())


def fault(folder: pathlib.Path, completed_rounds: int) -> str:
  """What is wrong with a folder; '' if it is what was written.

  Args:
    folder: may be anything.
    completed_rounds: what it should hold.

  Raises:
    NoCheckpointError: it is undamaged, but of a format that is not known here.
  """
  try:
    if not folder.is_dir():
      return 'it is no folder'
    if not any(folder.iterdir()):
      return 'it is empty'
    if not (folder / NAME).is_file():  # reading a pipe would wait for ever
      return f'it has no {NAME}'
    content = _unsealed((folder / NAME).read_bytes())
    if content is None:
      return f'{NAME} has changed'
    if content['format'] != FORMAT:
      raise NoCheckpointError(
        f'{folder} has checkpoint format {content["format"]}, and this program reads '
        f'format {FORMAT}: go on with the version of moon_jax that wrote it.'
      )
    if content['round'] != completed_rounds:
      return f'it holds round {content["round"]}'
    faults = (_file_fault(folder, *item) for item in content['files'].items())
    return next(filter(None, faults), '')
  except OSError as error:
    return f'{error.filename} cannot be read: {error.strerror}'


def _file_fault(folder, name, expected):
  path = folder / name
  if not path.is_file():
    return f'{name} is missing'
  if (size := path.stat().st_size) != expected['bytes']:
    return f'{name} has {size} of {expected["bytes"]} bytes'
  return '' if _digest(path) == expected['sha256'] else f'{name} has changed'


def _digest(path):
  with path.open('rb') as file:
    return hashlib.file_digest(file, 'sha256').hexdigest()


def _sealed(content):
  """The bytes of a manifest, with their own SHA-256 in the last place."""
  digest = hashlib.sha256(json.dumps(content).encode()).hexdigest()
  return (json.dumps(content | {'sha256': digest}, indent=1) + '\n').encode()


def _unsealed(data):
  """The content of a manifest; None if a bit of it is not as it was written."""
  try:
    content = json.loads(data)
    del content['sha256']
  except (ValueError, TypeError, KeyError):
    return None
  return content if _sealed(content) == data else None
