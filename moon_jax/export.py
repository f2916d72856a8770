"""Writes the model that a run learned to a file that other programs read.

  python -m moon_jax.export RUN --output=FILE [--client=N] [--round=ROUND]
                            [--config=FILE]

  RUN             the run directory
  --output=FILE   ends in .safetensors or .npz: weights, which moon_jax reads too; in
                  .py: the network in PyTorch, with its weights in a file beside it;
                  or in .onnx, which needs the package onnx; see docs/weights.md
  --client=N      the client, by name or by number from 0, if each client has a model
                  of its own
  --round=ROUND   best, with keep_best, or the number of a round whose checkpoint is
                  kept; default the newest
  --config=FILE   a config file to run first: it registers parts that the run uses

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 no usable checkpoint, 75 SIGTERM
or SIGHUP, 130 Ctrl-C.
"""

import sys

if __name__ == '__main__':  # before the slow imports
  from moon_jax.core import signals

  signals.listen(signals.StopAtOnce())

import pathlib
from collections.abc import Sequence

from absl import flags

from moon_jax import config as config_lib
from moon_jax.config import cli
from moon_jax.core.errors import UsageError, print_or_help
from moon_jax.core.flags import option
from moon_jax.core.output_files import MODEL_SUFFIXES, require_output
from moon_jax.core.paths import expand
from moon_jax.runner import run_files


def main(argv: Sequence[str]) -> int:
  """Runs the program; returns the exit code. An error of the user is one clear line."""
  return print_or_help(argv, __doc__, lambda: export(argv))


def parse(argv: Sequence[str]) -> tuple[str, flags.FlagValues]:
  """The run directory, and the flags.

  Raises:
    UsageError: a flag is missing or unknown, or there is not one run directory.
  """
  flag_types = {'output': str, 'config': str, 'client': str, 'round': str}
  words, values = cli.read_flags(argv, flag_types)
  if len(words) != 1 or not values.output:
    raise UsageError(f'The words must be RUN {option("output")}=FILE; see --help.')
  cli.round_choice(values.round)
  return words[0], values


def export(argv: Sequence[str]) -> str:
  """Writes the file; returns a line that says so.

  Raises:
    RunError: it has the message for the user and the exit code.
  """
  run, values = parse(argv)
  target = require_output('output', values.output, MODEL_SUFFIXES)
  run_files.require_run_or_weights(expand(run))
  if values.config is not None:
    config_lib.load(values.config)
  # Imported here: a mistyped flag is answered before JAX is loaded.
  from moon_jax.core import tree
  from moon_jax.predict import exported, inference

  trained = inference.load(
    run, client=values.client, round=cli.round_choice(values.round)
  )
  trained.save(target)
  num_weights = tree.num_parameters(trained.variables)
  model = 'the global model'
  if trained.client is not None:
    model = f'client {trained.client_name}'
  written = str(target)
  if target.suffix == '.py':
    written += f' and {exported.weights_beside(target).name}'
  line = (
    f'{written}: {num_weights:,} weights of {model} after round {trained.round} of '
    f'{pathlib.Path(run)}'
  )
  if 'test_accuracy' in trained.about:
    line += f', test accuracy {trained.about["test_accuracy"]:.4f}'
  return line


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
