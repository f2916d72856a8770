"""Writes data as records that stay on disk, user by user, or as one .npz file.

  python -m moon_jax.data.convert --out=DIR [--config=FILE] [--config.KNOB=VALUE ...]
  python -m moon_jax.data.convert --out=FILE.npz [--config... as above]
  python -m moon_jax.data.convert --out=DIR --synthetic=NxM

  --out=DIR         the folder to be made, for --config.data.source=records; the data
                    must have user ids; examples for validation are left out
  --out=FILE.npz    the file to be made, for --config.data.source=npz; any data, which
                    are read whole
  --config...       as for launch.py: data.source and its knobs say what is read;
                    folder, hdf5, sqlite, leaf, pfllib and huggingface user by user,
                    other sources whole
  --synthetic=NxM   in place of data, N users with M images of 28x28 each, for trials

Exit codes: 0 done, 1 failed, 2 wrong usage or data, 130 Ctrl-C.
"""

import re
import sys
from collections.abc import Iterator

import numpy as np
from absl import flags

from moon_jax import catalog
from moon_jax import config as config_lib
from moon_jax.config import cli
from moon_jax.core import files
from moon_jax.core.errors import UsageError, print_or_help
from moon_jax.core.keys import Purpose, host_rng
from moon_jax.core.paths import expand
from moon_jax.core.types import Dataset
from moon_jax.data import layouts, npz, sources
from moon_jax.data.arrays import DataError
from moon_jax.data.federated import assembled, users, writing

_CLASSES, _SIDE = 10, 28
# A made-up federation has this many users that test, and images of each.
_TESTED, _TESTS = 100, 10


def main(argv: list[str]) -> int:
  """Runs the program; returns the exit code. An error of the user is one clear line."""
  return print_or_help(argv, __doc__, lambda: convert(argv))


def parse(argv: list[str]) -> tuple[flags.FlagValues, config_lib.Config | None]:
  """The program's own flags, and the configuration, unless users are made up.

  Raises:
    UsageError: a flag is wrong; a ConfigError names every wrong knob.
  """
  words, own = cli.read_flags(argv, {'out': str, 'synthetic': str}, known_only=True)
  if not own.out:
    raise UsageError('--out is missing; see --help.')
  if own.synthetic and words:
    raise UsageError(f'{words[0]!r} is not used with --synthetic.')
  return own, None if own.synthetic else cli.parse(words).config


def convert(argv: list[str]) -> str:
  """Writes the folder or the file; returns a line that says so.

  Raises:
    RunError: it has the message for the user and the exit code.
  """
  own, config = parse(argv)
  out = expand(own.out)
  if out.exists():
    raise UsageError(f'--out={own.out!r} exists already; give a new name.')
  files.require_writable(out, 'out')
  if config is None:
    written = writing.write(out, *synthetic(own.synthetic))
  elif out.suffix == '.npz':
    return f'{out}: {_write_npz(out, *_asked(config))}'
  else:
    source, options = _asked(config)
    with layouts.told(source, options.get('path', '')):
      written = writing.write(out, *_configured(out, source, options))
  return f'{out}: {len(written):,} clients with {written.sum():,} training examples'


def _asked(config: config_lib.Config):
  """The source that a configuration names, and its knobs."""
  for name in ('limit', 'validation', 'local_test'):
    if config.data[name]:
      raise UsageError(f'--config.data.{name} is not used here: give it to the run.')
  return config.data.source, catalog.options('data', config_lib.flatten(config))


def _write_npz(out, source, options):
  """Writes the arrays that `npz.load_npz` reads; returns a description of them."""
  data = sources.load(source, limit=0, **options)
  if data.stored:
    raise UsageError(f'--config.data.source={source} cannot be written as one file.')
  parts = data.train_images, data.train_labels, data.test_images, data.test_labels
  named = zip(npz.NAMES[0], (*parts, *data[-2:]), strict=True)
  arrays = {name: array for name, array in named if array is not None}
  whose = zip(npz.IDS, (data.train_clients, data.test_clients), strict=True)
  arrays |= {name: data.clients[ids] for name, ids in whose if ids is not None}
  names = data.class_names
  if not names and len(np.unique(data.train_labels)) < data.num_classes:
    names = [*map(str, range(data.num_classes))]  # otherwise a gap would be refused
  if names:
    arrays['class_names'] = np.array(names)
  files.make_folder(out.parent)
  files.write_arrays(out, arrays)
  train, test = (f'{len(labels):,}' for labels in parts[1::2])
  return f'{train} training and {test} test examples of {data.num_classes} classes'


def _configured(out, source, options):
  """The content of a source, as `writing.write` wants it."""
  data = sources.read(source, **options)
  is_divided = isinstance(data, assembled.Federation)
  if data.validation if is_divided else data.validation_labels is not None:
    told = f'--config.data.source={source}: the examples for validation are left out'
    print(f'{told} of records; --out={out}.npz keeps them.', file=sys.stderr)
  if is_divided:
    return data, assembled.joined(data.flag, 'test', data.test)
  flag = f'--config.data.source={source}'
  if data.train_clients is None:
    told = f'{flag}: the data have no user ids; write a file'
    raise DataError(f'{told}: --out={out}.npz.')
  names = None if data.test_clients is None else data.clients[data.test_clients]
  told = data.num_classes, data.class_names
  one = assembled.Federation(flag, data.name, of_memory(data), (), *told)
  return one, (data.test_images, data.test_labels, names), (data.mean, data.std)


def of_memory(data: Dataset) -> Iterator[assembled.User]:
  """The users of a data set in memory."""
  rows = np.argsort(data.train_clients, kind='stable')
  parts = np.split(rows, np.cumsum(users.sizes_of(data))[:-1])
  for name, mine in zip(data.clients.tolist(), parts, strict=False):
    yield assembled.User(name, data.train_images[mine], data.train_labels[mine])


def synthetic(size: str):
  """A made-up federation, as `writing.write` wants it.

  Args:
    size: 'NxM', N users with M images. A user draws two classes of ten; an image is
      noise, brighter where its class is bright.

  Raises:
    UsageError: the word has another form.
  """
  found = re.fullmatch('([1-9][0-9]{0,8})x([1-9][0-9]{0,8})', size)
  if not found:
    raise UsageError(f'--synthetic={size!r} must be NxM: N users with M images each.')
  num_users, each = map(int, found.groups())

  def drawn(number, split, count):
    rng = host_rng(0, Purpose.SUBSET, 3 + split, number)
    labels = rng.integers(0, _CLASSES, 2, np.int32)[rng.integers(0, 2, count)]
    # Together the first users own all classes.
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
