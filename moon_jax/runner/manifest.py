"""Finds damage to a saved folder by the size and SHA-256 of each file, noted in it.

manifest.json is the last file of a folder to be written.
"""

import json
import os
import pathlib

from moon_jax.errors import NoCheckpointError
from moon_jax.runner import files

NAME = 'manifest.json'
# Raised when an older program could not read the folder. Format 1 has a digest of the
# manifest itself, too, which is not looked at any more.
FORMAT = 2
_READ = (1, FORMAT)


def write(folder: pathlib.Path, completed_rounds: int) -> None:
  """Writes the manifest of everything that is in the folder."""
  told = {}
  for path in sorted(path for path in folder.rglob('*') if path.is_file()):
    about = {'bytes': path.stat().st_size, 'sha256': files.sha256(path)}
    told[path.relative_to(folder).as_posix()] = about
  content = {'format': FORMAT, 'round': completed_rounds, 'files': told}
  with (folder / NAME).open('w') as file:
    file.write(json.dumps(content, indent=1))  # the last byte counts: no end of line
    file.flush()
    os.fsync(file.fileno())


def fault(folder: pathlib.Path, completed_rounds: int) -> str:
  """What is wrong with a folder; '' if it is what was written.

  Args:
    folder: may be empty, or a file.
    completed_rounds: what it should hold.

  Raises:
    NoCheckpointError: it is of a format that is not known here.
  """
  try:
    content = json.loads((folder / NAME).read_bytes())
    if content['format'] not in _READ:
      raise NoCheckpointError(
        f'{folder} has checkpoint format {content["format"]}, and this program reads '
        f'format {FORMAT}: go on with the version of moon_jax that wrote it.'
      )
    if content['round'] != completed_rounds:
      return f'it holds round {content["round"]}'
    for name, told in content['files'].items():
      path = folder / name
      if path.stat().st_size != told['bytes'] or files.sha256(path) != told['sha256']:
        return f'{name} has changed'
    return ''
  except OSError as error:
    return f'{os.path.basename(error.filename)} cannot be read: {error.strerror}'
  except (ValueError, TypeError, KeyError, AttributeError):
    return f'{NAME} has changed'
