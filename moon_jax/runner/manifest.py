"""Says of a checkpoint's files what they were, so that damage is found."""

import json
import os
import pathlib

from moon_jax import untrusted
from moon_jax.errors import NoCheckpointError
from moon_jax.runner import files

MANIFEST = 'manifest.json'
INDEX = 'clients.npz'  # where the memories are that are not in the state
# Raised when an older program could not read the folder. Format 1 has a digest of the
# manifest itself, too, which is not looked at any more; 3 has an index of clients.
FORMAT, _WITH_INDEX = 2, 3
_READ = (1, FORMAT, _WITH_INDEX)


def write(folder: pathlib.Path, completed_rounds: int) -> None:
  """Flushes everything in the folder to the disk, and writes its manifest there."""
  told = {}
  for path in sorted(folder.rglob('*')):
    files.flush(path)
    if path.is_file():
      about = {'bytes': path.stat().st_size, 'sha256': files.sha256(path)}
      told[path.relative_to(folder).as_posix()] = about
  form = _WITH_INDEX if INDEX in told else FORMAT
  content = {'format': form, 'round': completed_rounds, 'files': told}
  # The last byte counts: no end of line.
  files.replace(folder / MANIFEST, json.dumps(content, indent=1))


def fault(folder: pathlib.Path, completed_rounds: int) -> str:
  """What is wrong with a folder; '' if it is what was written.

  Args:
    folder: may be empty, or a file.
    completed_rounds: what it should hold.

  Raises:
    NoCheckpointError: it is of a format that is not known here.
  """
  try:
    untrusted.require_files(folder)
    with untrusted.opened(folder / MANIFEST) as file:
      content = untrusted.document(folder / MANIFEST, file.read())
    if content['format'] not in _READ:
      raise NoCheckpointError(
        f'{folder} has checkpoint format {content["format"]!r}, and this program reads '
        f'format {_WITH_INDEX}: go on with the version of moon_jax that wrote it.'
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
  except ValueError:
    return f'{MANIFEST} has changed'
