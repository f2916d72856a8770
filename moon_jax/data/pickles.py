"""Pickles of other projects: read if published or trusted, and otherwise refused.

A pickle is a program: Python's reader calls whatever the file names. No filter makes
that safe, so there is none here.
"""

import hashlib
import pathlib
import pickle
from typing import Any

from moon_jax.core.flags import flag
from moon_jax.data.data_errors import DataError

# Folder/file -> MD5 of the file's content, from torchvision's datasets/cifar.py. Who
# makes two files can give both one MD5. But nobody can make a file with the MD5 of a
# file that somebody else made before, and these are the files of 2009.
PUBLISHED_MD5 = {
  'cifar-10-batches-py/data_batch_1': 'c99cafc152244af753f735de768cd75f',
  'cifar-10-batches-py/data_batch_2': 'd4bba439e000b95fd0a9bffe97cbabec',
  'cifar-10-batches-py/data_batch_3': '54ebc095f3ab1f0389bbae665268c751',
  'cifar-10-batches-py/data_batch_4': '634d18415352ddfa80567beed471001a',
  'cifar-10-batches-py/data_batch_5': '482c414d41f54cd18b22e5b47cb7c3cb',
  'cifar-10-batches-py/test_batch': '40351d587109b95175f43aff81a1287e',
  'cifar-10-batches-py/batches.meta': '5ff9c542aee3614f3951f8cda6e48888',
  'cifar-100-python/train': '16019d7e3df5f24257cddd939b257f8d',
  'cifar-100-python/test': 'f0ef6b0ae62326f3e7ffdfab6717acfc',
  'cifar-100-python/meta': '7973b15100ade9c7d40fb424638fde48',
}


class UntrustedPickleError(DataError):
  """A file is a pickle that is neither published nor trusted.

  Attributes:
    problem: which file it is, and what it could do.
  """

  def __init__(self, problem: str):
    self.problem = problem
    super().__init__(
      f'{flag("data.trust_pickles", False)}: {problem}; if you trust whoever made it, '
      f'{flag("data.trust_pickles", True)} reads it.'
    )


def load(path: pathlib.Path, content: bytes, *, trusted: bool) -> Any:
  """The object in a pickled file; the texts of Python 2 are bytes.

  Args:
    path: the file; its name and its folder's say which published file it should be.
    content: the bytes of the file. The same bytes are checked and then unpickled.
    trusted: whether the user trusts the file, so that it may run any code.

  Raises:
    UntrustedPickleError: it is not trusted, and not the published file.
    Exception: of any class, if the pickle is damaged.
  """
  published = PUBLISHED_MD5.get(f'{path.parent.name}/{path.name}')
  # A machine in FIPS mode refuses MD5 otherwise; above is why it is enough here.
  digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
  if not trusted and digest != published:
    raise UntrustedPickleError(
      f'{str(path)!r} is a pickle, which can run any code, and it is not the file that '
      'torchvision publishes. Download it again'
    )
  return pickle.loads(content, encoding='bytes')
