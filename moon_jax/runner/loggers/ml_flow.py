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
from moon_jax.runner import loggers
from moon_jax.runner.callbacks import Logger

_KEY = 'metrics/train_loss'  # every round has it


class MLflow(Logger):
  """A run of the experiment `moon_jax`, tagged with the folder of its directory.

  The knobs that identify the experiment are its parameters, which cannot change.
  """

  def __init__(self):
    self._id, self._status, self._last = None, 'KILLED', 0

  def begin(self, run):
    try:
      self._client = mlflow.MlflowClient()
      self._open(run)
    except MlflowException as error:
      told = ' '.join(str(error).split())[:200]
      where = mlflow.get_tracking_uri()
      raise UsageError(
        f'--config.logger: mlflow cannot begin at {where}: {told}'
      ) from None

  def _open(self, run):
    client, known = self._client, loggers.known_id(run.workdir, 'mlflow')
    try:
      self._id = client.get_run(known).info.run_id if known else None
    except MlflowException as error:
      if error.error_code != 'RESOURCE_DOES_NOT_EXIST':
        raise
      where = mlflow.get_tracking_uri()
      print(f'mlflow: {where} has no run {known}; it gets a new one', file=sys.stderr)
    if self._id:
      client.update_run(self._id, status='RUNNING')
      # After a crash, rounds that are run again are there, with the same numbers.
      steps = (metric.step for metric in client.get_metric_history(self._id, _KEY))
      self._last = max(steps, default=0)
      return
    place = run.workdir.absolute()
    name = os.environ.get('MLFLOW_EXPERIMENT_NAME', 'moon_jax')
    if client.get_experiment_by_name(name) is None:
      # Another run of a sweep may make the experiment at the same time.
      with contextlib.suppress(MlflowException):
        client.create_experiment(name)
    experiment = client.get_experiment_by_name(name).experiment_id
    tags = {'group': place.parent.name, 'workdir': str(place)}
    made = client.create_run(experiment, run_name=place.name, tags=tags)
    self._id = made.info.run_id
    knobs = config_lib.identity(config_lib.flatten(run.config))
    params = [Param(knob, str(value)) for knob, value in knobs.items()]
    client.log_batch(self._id, params=params)
    loggers.keep_id(run.workdir, 'mlflow', self._id)

  def after_round(self, round):
    if self._id and round.number > self._last:
      super().after_round(round)

  def numbers(self, values, number):
    now = int(time.time() * 1000)
    metrics = [Metric(name, value, now, number) for name, value in values.items()]
    try:
      self._client.log_batch(self._id, metrics=metrics)
    except MlflowException as error:
      self._gone(f'round {number} and later ones', error)

  def picture(self, path):
    try:
      if self._id:
        self._client.log_artifact(self._id, str(path))
    except MlflowException as error:
      self._gone(path.name, error)

  def end(self):
    self._status = 'FINISHED'

  def close(self):
    with contextlib.suppress(MlflowException):
      if self._id:
        self._client.set_terminated(self._id, self._status)

  def _gone(self, what, error):
    """The run continues without the server, because its own files are whole."""
    told = ' '.join(str(error).split())[:200]
    print(f'mlflow is not given {what}: {told}', file=sys.stderr)
    self._id = None
