"""MLflow: https://mlflow.org. It reads its own variables, MLFLOW_..."""

import contextlib
import os
import sys
import time

import mlflow
from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException

from moon_jax import config as config_lib
from moon_jax.core.errors import UsageError
from moon_jax.core.flags import flag
from moon_jax.runner import loggers
from moon_jax.runner.callbacks import Logger

_METRIC_OF_EVERY_ROUND = 'metrics/train_loss'


class MLflow(Logger):
  """A run of the experiment `moon_jax`, tagged with the folder of its directory.

  The knobs that identify the experiment are its parameters, which cannot change.
  """

  def __init__(self):
    self._run_id = None  # without one, MLflow is not given anything
    self._status = 'KILLED'
    self._last_round = 0  # that MLflow has

  def begin(self, run):
    try:
      self._client = mlflow.MlflowClient()
      self._open(run)
    except MlflowException as error:
      server = mlflow.get_tracking_uri()
      raise UsageError(
        f'{flag("logger")}: mlflow cannot begin at {server}: {_in_one_line(error)}'
      ) from None

  def _open(self, run):
    self._run_id = self._continued_run_id(run)
    if self._run_id is None:
      self._create_run(run)
      return
    self._client.update_run(self._run_id, status='RUNNING')
    # After a crash, rounds that are run again are there, with the same numbers.
    history = self._client.get_metric_history(self._run_id, _METRIC_OF_EVERY_ROUND)
    self._last_round = max((metric.step for metric in history), default=0)

  def _continued_run_id(self, run):
    """The id of the run that an earlier start made; None if there is none."""
    run_id = loggers.known_id(run.workdir, 'mlflow')
    if run_id is None:
      return None
    try:
      return self._client.get_run(run_id).info.run_id
    except MlflowException as error:
      if error.error_code != 'RESOURCE_DOES_NOT_EXIST':
        raise
    server = mlflow.get_tracking_uri()
    print(f'mlflow: {server} has no run {run_id}; it gets a new one', file=sys.stderr)
    return None

  def _create_run(self, run):
    client, workdir = self._client, run.workdir.absolute()
    name = os.environ.get('MLFLOW_EXPERIMENT_NAME', 'moon_jax')
    if client.get_experiment_by_name(name) is None:
      # Another run of a sweep may make the experiment at the same time.
      with contextlib.suppress(MlflowException):
        client.create_experiment(name)
    experiment_id = client.get_experiment_by_name(name).experiment_id
    tags = {'group': workdir.parent.name, 'workdir': str(workdir)}
    created = client.create_run(experiment_id, run_name=workdir.name, tags=tags)
    self._run_id = created.info.run_id
    knobs = config_lib.identity(config_lib.flatten(run.config))
    params = [Param(knob, str(setting)) for knob, setting in knobs.items()]
    client.log_batch(self._run_id, params=params)
    loggers.keep_id(run.workdir, 'mlflow', self._run_id)

  def after_round(self, round):
    if self._run_id and round.number > self._last_round:
      super().after_round(round)

  def log_numbers(self, numbers, round_number):
    now = int(time.time() * 1000)
    metrics = [
      Metric(name, number, now, round_number) for name, number in numbers.items()
    ]
    try:
      self._client.log_batch(self._run_id, metrics=metrics)
    except MlflowException as error:
      self._give_up(f'round {round_number} and later ones', error)

  def log_picture(self, path):
    try:
      if self._run_id:
        self._client.log_artifact(self._run_id, str(path))
    except MlflowException as error:
      self._give_up(path.name, error)

  def end(self):
    self._status = 'FINISHED'

  def close(self):
    with contextlib.suppress(MlflowException):
      if self._run_id:
        self._client.set_terminated(self._run_id, self._status)

  def _give_up(self, missing, error):
    """The run continues without the server, because its own files are whole."""
    print(f'mlflow is not given {missing}: {_in_one_line(error)}', file=sys.stderr)
    self._run_id = None


def _in_one_line(error):
  return ' '.join(str(error).split())[:200]
