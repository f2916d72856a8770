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

Exit codes: 0 done, 1 failed, 2 wrong usage or data, 75 SIGTERM or SIGHUP,
130 Ctrl-C.
"""

import sys

if __name__ == '__main__':  # before the slow imports
  from moon_jax.core import signals

  signals.listen(signals.StopAtOnce())

import os
import re

from absl import flags

from moon_jax import catalog
from moon_jax import config as config_lib
from moon_jax.config import cli
from moon_jax.core import files
from moon_jax.core.errors import KnobError, UsageError, print_or_help
from moon_jax.core.flags import option
from moon_jax.core.output_files import require_short_name
from moon_jax.core.paths import expand


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
  size = values.synthetic
  if size and not re.fullmatch('[1-9][0-9]{0,8}x[1-9][0-9]{0,8}', size):
    raise UsageError(
      f'{option("synthetic", size)} must be NxM: N users with M images each.'
    )
  if values.synthetic and expand(values.out).suffix == '.npz':
    raise UsageError(
      f'{option("synthetic", size)} writes a folder of records: {option("out")} must '
      'not end in .npz.'
    )
  return values, None if values.synthetic else cli.parse(words).config


def convert(argv: list[str]) -> str:
  """Writes the folder or the file; returns a line that says so.

  Raises:
    RunError: it has the message for the user and the exit code.
  """
  values, config = parse(argv)
  out = expand(values.out)
  if os.path.lexists(out):  # Path.exists raises if the name is too long
    raise UsageError(f'{option("out", values.out)} exists already; give a new name.')
  files.require_writable(out, 'out')
  require_short_name('out', values.out)
  if config is not None:
    _require_unused_knobs(config)
    config_lib.require_input_files([config])
  # Imported here: a mistake of the command line is answered before JAX is loaded.
  from moon_jax.data import dataset_files, layouts

  if config is None:
    sizes = dataset_files.write_synthetic(out, values.synthetic)
  else:
    options = catalog.options('data', config_lib.flatten(config))
    if out.suffix == '.npz':
      return f'{out}: {dataset_files.write_npz(out, config.data.source, options)}'
    with layouts.hint_at_other_source(config.data.source, options.get('path', '')):
      sizes = dataset_files.write_records(out, config.data.source, options)
  return f'{out}: {len(sizes):,} clients with {sizes.sum():,} training examples'


def _require_unused_knobs(config):
  """Refuses knobs that say what a run does with the data."""
  for name in ('limit', 'validation', 'local_test'):
    if config.data[name]:
      raise KnobError(
        f'data.{name}', config.data[name], 'is not used here: give it to the run.'
      )


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
