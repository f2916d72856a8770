"""Writes a federation as records that stay on disk, for `--config.data.source=records`.

  python -m moon_jax.data.convert --out=DIR [--config=FILE] [--config.KNOB=VALUE ...]
  python -m moon_jax.data.convert --out=DIR --synthetic=NxM

  --out=DIR         the folder to be made
  --config...       as of launch.py: data.source and its knobs say what is read; folder,
                    hdf5, sqlite and huggingface user by user, other sources whole
  --synthetic=NxM   in place of data, N users with M images of 28x28 each, for trials

Exit codes: 0 done, 1 failed, 2 wrong usage or data, 130 Ctrl-C.
"""

import re
import sys
from collections.abc import Iterator

import numpy as np

from moon_jax import catalog
from moon_jax import config as config_lib
from moon_jax.config import cli
from moon_jax.core import files
from moon_jax.core.errors import ExitCode, UsageError, exit_code_of
from moon_jax.core.keys import Purpose, host_rng
from moon_jax.core.types import Dataset
from moon_jax.data import sources
from moon_jax.data.arrays import DataError
from moon_jax.data.federated import assembled, users, writing

_CLASSES, _SIDE = 10, 28
# Users of a made-up federation who are tested, and on how many images.
_TESTED, _TESTS = 100, 10


def main(argv: list[str]) -> ExitCode:
  """Returns the exit code; every failure that the user can mend is one clear line."""
  if {'-h', '--help'} & set(argv):
    print(__doc__.strip())
    return ExitCode.DONE
  return exit_code_of(lambda: print(convert(argv)) or ExitCode.DONE)


def convert(argv: list[str]) -> str:
  """Writes the folder, and says so in one line.

  Raises:
    RunError: with the message for the user and the exit code.
  """
  own, words = {'out': '', 'synthetic': ''}, []
  for word in argv:
    name, _, value = word.removeprefix('--').partition('=')
    if word.startswith('--') and name in own:
      own[name] = value
    else:
      words.append(word)
  if not own['out']:
    raise UsageError('--out is missing; see --help.')
  out = config_lib.expand(own['out'])
  if out.exists():
    raise UsageError(f'--out={own["out"]!r} exists already.')
  files.require_writable(out, 'out')
  if own['synthetic']:
    if words:
      raise UsageError(f'{words[0]!r} is not used with --synthetic.')
    written = writing.write(out, *synthetic(own['synthetic']))
  else:
    written = writing.write(out, *_configured(cli.parse(words).config))
  return f'{out}: {len(written):,} clients with {written.sum():,} training examples'


def _configured(config: config_lib.Config):
  """What a configuration's source has, as `writing.write` wants it."""
  if config.data.limit:
    raise UsageError('--config.data.limit is not used here: give it to the run.')
  options = catalog.options('data', config_lib.flatten(config))
  data = sources.read(config.data.source, **options)
  if isinstance(data, assembled.Federation):
    return data, assembled.joined(data.flag, 'test', data.test)
  flag = f'--config.data.source={config.data.source}'
  if data.train_clients is None:
    raise DataError(f'{flag}: the data name no users.')
  names = None if data.test_clients is None else data.clients[data.test_clients]
  one = assembled.Federation(flag, data.name, of_memory(data), (), data.num_classes)
  return one, (data.test_images, data.test_labels, names), (data.mean, data.std)


def of_memory(data: Dataset) -> Iterator[assembled.User]:
  """The users of data in memory."""
  rows = np.argsort(data.train_clients, kind='stable')
  parts = np.split(rows, np.cumsum(users.sizes_of(data))[:-1])
  for name, mine in zip(data.clients.tolist(), parts, strict=False):
    yield assembled.User(name, data.train_images[mine], data.train_labels[mine])


def synthetic(size: str):
  """A made-up federation, as `writing.write` wants it.

  Args:
    size: 'NxM', N users with M images. A user draws two classes of ten; an image is
      noise, brighter where its class has it.

  Raises:
    UsageError: it is no such word.
  """
  found = re.fullmatch('([1-9][0-9]{0,8})x([1-9][0-9]{0,8})', size)
  if not found:
    raise UsageError(f'--synthetic={size!r} must be NxM: N users with M images each.')
  num_users, each = map(int, found.groups())

  def drawn(number, split, count):
    rng = host_rng(0, Purpose.SUBSET, 3 + split, number)
    labels = rng.integers(0, _CLASSES, 2, np.int32)[rng.integers(0, 2, count)]
    # The first users own all classes between them.
    labels[0] = number % _CLASSES
    images = np.frombuffer(rng.bytes(count * _SIDE**2), np.uint8) >> 1
    images = images.reshape(count, _SIDE, _SIDE).copy()
    images[np.arange(count), 2 * labels + 3] += 100
    return assembled.User(number, images, labels)

  train = (drawn(number, 0, each) for number in range(num_users))
  tested = (drawn(number, 1, _TESTS) for number in range(min(num_users, _TESTED)))
  flag = f'--synthetic={size}'
  one = assembled.Federation(flag, 'synthetic', train, (), _CLASSES)
  return one, assembled.joined(flag, 'test', tested)


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
