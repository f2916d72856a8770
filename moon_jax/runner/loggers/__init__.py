"""Loggers get the records of a run, which it also writes to files: `--config.logger=`.

All loggers use the same names: `metrics/test_accuracy`, `timings/train_seconds`, ...
It does not load JAX: missing packages are told before the data are read.
"""

from __future__ import annotations

import importlib
import importlib.util
import pathlib
from typing import TYPE_CHECKING, NamedTuple

from moon_jax.core import files
from moon_jax.core.errors import KnobError

if TYPE_CHECKING:
  from moon_jax.runner.callbacks import Logger


class _Source(NamedTuple):
  """Where a logger is defined, and the package that it needs."""

  module: str
  class_name: str
  package: str


_LOGGERS = {
  'tensorboard': _Source('board', 'TensorBoard', 'tensorboardX'),
  'wandb': _Source('weights_and_biases', 'WeightsAndBiases', 'wandb'),
  'mlflow': _Source('ml_flow', 'MLflow', 'mlflow'),
}
IDS = 'loggers.json'


def require(names: str) -> None:
  """Checks that the packages of the loggers are installed, and imports none of them.

  Raises:
    KnobError: one is missing.
  """
  for name in filter(None, names.split(',')):
    package = _LOGGERS[name].package
    if importlib.util.find_spec(package) is None:
      problem = f'needs a package that is not installed; type: pip install {package}'
      raise KnobError('logger', names, problem)


def create(names: str) -> list[Logger]:
  """The loggers of these names, with commas between them; '' is none."""
  loggers = []
  for name in filter(None, names.split(',')):
    module = importlib.import_module(f'{__name__}.{_LOGGERS[name].module}')
    logger_class = getattr(module, _LOGGERS[name].class_name)
    loggers.append(logger_class())
  return loggers


def known_id(workdir: pathlib.Path, logger: str) -> str | None:
  """The id that a logger gave the run of the directory; None if it gave none yet."""
  return (files.read_json(workdir / IDS) or {}).get(logger)


def keep_id(workdir: pathlib.Path, logger: str, run_id: str) -> None:
  """Writes down this id, so that a resumed run continues under it."""
  ids = files.read_json(workdir / IDS) or {}
  files.write_json(workdir / IDS, ids | {logger: run_id})
