"""Keeps what a TFDS set decodes to, in the user's cache folder, for other starts."""

import contextlib
import hashlib
import os
import pathlib
import tempfile
from collections.abc import Callable

import numpy as np

from moon_jax import config as config_lib
from moon_jax import untrusted

# [M, H, W, C] uint8 and [M] int32; and [M] the ids of their users, None if unknown.
Split = tuple[tuple[np.ndarray, np.ndarray], np.ndarray | None]
_KINDS = {'train_images': 'u MHWC', 'train_labels': 'i M'}
_KINDS |= {'test_images': 'u NHWC', 'test_labels': 'i N'}
_IDS = {'train_clients': 'iuS M', 'test_clients': 'iuS N'}


def kept(
  name: str,
  folder: pathlib.Path,
  decode: Callable[[], tuple[Split, Split]],
  client: str = '',
) -> tuple[Split, Split]:
  """(train, test) of a prepared set; it is decoded if it is new or has changed.

  It has changed if its folder, or the names, sizes or times of its files have. What is
  kept is one uncompressed .npz, whose checksums are compared as it is read; one that is
  torn is made anew, and one that cannot be written is not kept.

  Args:
    name: of the set and its version, as a file may be called.
    folder: of the prepared set.
    decode: reads and decodes both splits.
    client: the feature that names the users; '' is none.
  """
  folder = folder.resolve()
  files = [(path, path.stat()) for path in sorted(folder.iterdir())]
  state = [(str(path), s.st_size, s.st_mtime_ns, s.st_ctime_ns) for path, s in files]
  state += [client] * bool(client)
  kinds = _KINDS | (_IDS if client else {})
  place, key = (
    hashlib.sha256(repr(words).encode()).hexdigest()[:16] for words in (folder, state)
  )
  path = config_lib.cache_folder() / 'data' / f'{name}-{place}-{key}.npz'
  with contextlib.suppress(Exception):  # of many kinds: it is not there, or torn
    found = untrusted.arrays(path, kinds=kinds)
    return tuple(
      ((found[f'{one}_images'], found[f'{one}_labels']), found.get(f'{one}_clients'))
      for one in ('train', 'test')
    )
  (train, train_ids), (test, test_ids) = splits = decode()
  arrays = (*train, *test, train_ids, test_ids)
  with contextlib.suppress(OSError):
    for made in (path.parents[1], path.parent):
      made.mkdir(mode=0o700, parents=True, exist_ok=True)
    for old in path.parent.glob(f'{name}-{place}-*'):
      old.unlink(missing_ok=True)
    with tempfile.NamedTemporaryFile(
      dir=path.parent, prefix=f'{name}-{place}-'
    ) as file:
      np.savez(file, **dict(zip(kinds, arrays, strict=False)))
      os.replace(file.name, path)  # closing it misses the name, which is suppressed
  return splits
