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
from moon_jax.core.errors import KnobError, UsageError, print_or_help
from moon_jax.core.flags import flag, option
from moon_jax.core.keys import Purpose, host_rng
from moon_jax.core.paths import expand
from moon_jax.core.types import Dataset
from moon_jax.data import layouts, sources
from moon_jax.data.dataset import ARRAY_NAMES, USER_ARRAYS
from moon_jax.data.errors import DataError
from moon_jax.data.federated import assembled, users, writing

# Of a made-up federation: the classes, the sides of its images, the users that test,
# and the test images of each.
_NUM_CLASSES, _SIDE = 10, 28
_NUM_TEST_USERS, _TEST_SIZE = 100, 10


def main(argv: list[str]) -> int:
  """Runs the program; returns the exit code. An error of the user is one clear line."""
  return print_or_help(argv, __doc__, lambda: convert(argv))


def parse(argv: list[str]) -> tuple[flags.FlagValues, config_lib.Config | None]:
  """The program's own flags, and the configuration, unless users are made up.

  Raises:
    UsageError: a flag is wrong; a ConfigError names every wrong knob.
  """
  words, values = cli.read_flags(argv, {'out': str, 'synthetic': str}, known_only=True)
  if not values.out:
    raise UsageError(f'{option("out")} is missing; see --help.')
  if values.synthetic and words:
    raise UsageError(f'{words[0]!r} is not used with {option("synthetic")}.')
  return values, None if values.synthetic else cli.parse(words).config


def convert(argv: list[str]) -> str:
  """Writes the folder or the file; returns a line that says so.

  Raises:
    RunError: it has the message for the user and the exit code.
  """
  values, config = parse(argv)
  out = expand(values.out)
  if out.exists():
    raise UsageError(f'{option("out", values.out)} exists already; give a new name.')
  files.require_writable(out, 'out')
  if config is None:
    sizes = _write_synthetic(out, values.synthetic)
  else:
    _require_unused_knobs(config)
    options = catalog.options('data', config_lib.flatten(config))
    if out.suffix == '.npz':
      return f'{out}: {_write_npz(out, config.data.source, options)}'
    with layouts.hint_at_other_source(config.data.source, options.get('path', '')):
      sizes = _write_records(out, config.data.source, options)
  return f'{out}: {len(sizes):,} clients with {sizes.sum():,} training examples'


def _require_unused_knobs(config):
  """Refuses knobs that say what a run does with the data."""
  for name in ('limit', 'validation', 'local_test'):
    if config.data[name]:
      raise KnobError(
        f'data.{name}', config.data[name], 'is not used here: give it to the run.'
      )


def _write_npz(out, source, options):
  """Writes the arrays that `npz.load_npz` reads; returns a description of them."""
  dataset = sources.load(source, limit=0, **options)
  if dataset.stored:
    raise UsageError(f'{flag("data.source", source)} cannot be written as one file.')
  arrays = (
    *(dataset.train_images, dataset.train_labels),
    *(dataset.test_images, dataset.test_labels),
    *(dataset.validation_images, dataset.validation_labels),
  )
  named_arrays = {
    name: array
    for name, array in zip(ARRAY_NAMES, arrays, strict=True)
    if array is not None
  }
  owners = dataset.train_clients, dataset.test_clients
  for name, owner in zip(USER_ARRAYS, owners, strict=True):
    if owner is not None:
      named_arrays[name] = dataset.clients[owner]
  class_names = dataset.class_names
  if not class_names and len(np.unique(dataset.train_labels)) < dataset.num_classes:
    # Otherwise a gap would be refused.
    class_names = [str(number) for number in range(dataset.num_classes)]
  if class_names:
    named_arrays['class_names'] = np.array(class_names)
  files.make_folder(out.parent)
  files.write_arrays(out, named_arrays)
  return (
    f'{len(dataset.train_labels):,} training and {len(dataset.test_labels):,} test '
    f'examples of {dataset.num_classes} classes'
  )


def _write_records(out, source, options):
  """Writes the records of a source; returns [N] examples of each client."""
  content = sources.read(source, **options)
  if isinstance(content, assembled.Federation):
    has_validation = bool(content.validation)
  else:
    has_validation = content.validation_labels is not None
  if has_validation:
    print(
      f'{flag("data.source", source)}: the examples for validation are left out of '
      f'records; {option("out", f"{out}.npz")} keeps them.',
      file=sys.stderr,
    )
  if isinstance(content, assembled.Federation):
    test = assembled.joined(content.data_flag, 'test', content.test)
    return writing.write(out, content, test)
  return _write_records_of_memory(out, source, content)


def _write_records_of_memory(out, source, dataset):
  data_flag = flag('data.source', source)
  if dataset.train_clients is None:
    raise DataError(
      f'{data_flag}: the data have no user ids; write a file: '
      f'{option("out", f"{out}.npz")}.'
    )
  federation = assembled.Federation(
    data_flag=data_flag,
    name=dataset.name,
    train=of_memory(dataset),
    test=(),
    num_classes=dataset.num_classes,
    class_names=dataset.class_names,
  )
  owner = dataset.test_clients
  test = assembled.Examples(
    images=dataset.test_images,
    labels=dataset.test_labels,
    user_names=None if owner is None else dataset.clients[owner],
  )
  return writing.write(out, federation, test, (dataset.mean, dataset.std))


def of_memory(dataset: Dataset) -> Iterator[assembled.User]:
  """The users of a data set in memory."""
  rows = np.argsort(dataset.train_clients, kind='stable')
  rows_by_user = np.split(rows, np.cumsum(users.sizes_of(dataset))[:-1])
  for name, rows in zip(dataset.clients.tolist(), rows_by_user, strict=False):
    yield assembled.User(name, dataset.train_images[rows], dataset.train_labels[rows])


def _write_synthetic(out, size):
  """Writes the records of made-up users; returns [N] examples of each client."""
  federation = synthetic(size)
  test = assembled.joined(federation.data_flag, 'test', federation.test)
  return writing.write(out, federation, test)


def synthetic(size: str) -> assembled.Federation:
  """A made-up federation.

  Args:
    size: 'NxM', N users with M images. A user draws two classes of ten; an image is
      noise, brighter where its class is bright.

  Raises:
    UsageError: the word has another form.
  """
  numbers = re.fullmatch('([1-9][0-9]{0,8})x([1-9][0-9]{0,8})', size)
  if not numbers:
    problem = 'must be NxM: N users with M images each.'
    raise UsageError(f'{option("synthetic", size)} {problem}')
  num_users, train_size = map(int, numbers.groups())
  num_test_users = min(num_users, _NUM_TEST_USERS)
  return assembled.Federation(
    data_flag=option('synthetic', size),
    name='synthetic',
    train=(_made_up_user(number, 0, train_size) for number in range(num_users)),
    test=(_made_up_user(number, 1, _TEST_SIZE) for number in range(num_test_users)),
    num_classes=_NUM_CLASSES,
  )


def _made_up_user(number: int, split: int, size: int) -> assembled.User:
  rng = host_rng(0, Purpose.SUBSET, 3 + split, number)
  labels = rng.integers(0, _NUM_CLASSES, 2, np.int32)[rng.integers(0, 2, size)]
  # Together the first users own all classes.
  labels[0] = number % _NUM_CLASSES
  images = np.frombuffer(rng.bytes(size * _SIDE**2), np.uint8) >> 1
  images = images.reshape(size, _SIDE, _SIDE).copy()
  images[np.arange(size), 2 * labels + 3] += 100
  return assembled.User(number, images, labels)


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
