"""Keeps decoded images in the user's cache folder, for later starts."""

import contextlib
import glob
import hashlib
import json
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

from moon_jax import __version__
from moon_jax.core import activity, files, paths, user_cache
from moon_jax.core.types import Dataset, Form, Scale


def load_or_decode(
  name: str, folder: pathlib.Path, decode: Callable[[], Dataset], *request: Any
) -> Dataset:
  """The data set in a folder; it is decoded if the folder is new or has changed.

  It has changed if the folder, or a name, size or time below it, has changed. The
  decoded set is kept as one uncompressed .npz, whose checksums are compared while it is
  read. A damaged file is made again, and a file that cannot be written is not kept.

  Args:
    name: name by which the set is asked for.
    folder: folder of all versions of the set, which has the set's name; if it is
      missing, decoding has to make it.
    decode: reads and decodes the set.
    *request: further words that decide what is decoded.
  """
  request = name, *request
  path_before = _path(folder, request)
  with contextlib.suppress(Exception):  # of any class: the file is missing, or torn
    return _read(path_before)
  with activity.doing(f'decoding the images of {folder}'):
    dataset = decode()
  path = _path(folder, request)
  # If the set did not exist and decoding prepared it, it is kept too.
  if path and path_before in (None, path) and dataset.name == folder.name:
    _write(path, dataset)
  return dataset


def _read(path):
  arrays = files.arrays(path, files.array_names(path))
  plain = {
    name: arrays.pop(name).tolist() for name in ('name', 'num_classes', 'sample_rate')
  }
  plain |= {
    name: tuple(arrays.pop(name).tolist())
    for name in ('class_names', 'feature_names', 'words')
    if name in arrays
  }
  text = arrays.pop('form_and_scale').item()
  form, scale = json.loads(text)
  form = Form(**form)
  return Dataset(
    **plain,
    **arrays,
    form=form._replace(range=tuple(form.range)),
    scale=Scale(**scale),
  )


def _path(folder, request):
  """The file, named after the request and the folder's state."""
  try:
    folder = folder.resolve()
    below = sorted(paths.below(folder, follow=True))
    stats = [(str(path), path.stat()) for path in below]
  except (OSError, ValueError, RuntimeError):  # decoding says what is wrong with it
    return None
  if not stats:
    return None
  cache_folder = user_cache.subfolder(user_cache.folder(), 'data')
  if not cache_folder:
    return None
  state = [(path, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for path, s in stats]
  request_digest = _short_digest((folder, request))
  state_digest = _short_digest((__version__, state))
  return cache_folder / f'{folder.name}-{request_digest}-{state_digest}.npz'


def _short_digest(words):
  return hashlib.sha256(repr(words).encode()).hexdigest()[:16]


def _write(path, dataset):
  """Writes the file, unless the disk is full; removes the file of an earlier state."""
  fields = dataset._asdict().items()
  arrays = {
    name: array
    for name, array in fields
    if array is not None and name not in ('scale', 'form')
  }
  form_and_scale = [dataset.form._asdict(), dataset.scale._asdict()]
  arrays['form_and_scale'] = np.array(json.dumps(form_and_scale))
  with contextlib.suppress(OSError):
    stem = path.stem.rpartition('-')[0]
    for old_path in path.parent.glob(f'{glob.escape(stem)}-*'):
      old_path.unlink(missing_ok=True)
    user_cache.add(path, lambda file: np.savez(file, **arrays))
