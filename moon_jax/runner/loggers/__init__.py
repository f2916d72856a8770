"""Loggers get the records of a run, beside its files: `--config.logger=`.

All loggers use the same names: `metrics/test_accuracy`, `timings/train_seconds`, ...
"""

import importlib
import importlib.util
import pathlib

from moon_jax.core import files
from moon_jax.core.errors import UsageError
from moon_jax.runner.callbacks import Logger

# Name -> the class, and the package that it needs.
_LOGGERS = {
  'tensorboard': ('board:TensorBoard', 'tensorboardX'),
  'wandb': ('weights_and_biases:WeightsAndBiases', 'wandb'),
  'mlflow': ('ml_flow:MLflow', 'mlflow'),
}
IDS = 'loggers.json'


def require(names: str) -> None:
  """Checks that the packages of the loggers are installed, and imports none of them.

  Raises:
    UsageError: one is missing.
  """
  for name in filter(None, names.split(',')):
    package = _LOGGERS[name][1]
    if importlib.util.find_spec(package) is None:
      raise UsageError(
        f'--config.logger={names!r} needs a package that is not installed; type: '
        f'pip install {package}'
      )


def made(names: str) -> list[Logger]:
  """The loggers of these names, with commas between them; '' is none."""
  found = []
  for name in filter(None, names.split(',')):
    module, _, of = _LOGGERS[name][0].partition(':')
    found.append(getattr(importlib.import_module(f'{__name__}.{module}'), of)())
  return found


def known_id(workdir: pathlib.Path, logger: str) -> str | None:
  """The name that a logger gave the run of the directory; None if it gave none yet."""
  return (files.read_json(workdir / IDS) or {}).get(logger)


def keep_id(workdir: pathlib.Path, logger: str, name: str) -> None:
  """Writes down this name, so that a resumed run continues under it."""
  ids = files.read_json(workdir / IDS) or {}
  files.write_json(workdir / IDS, ids | {logger: name})
