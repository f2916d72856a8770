"""Weights & Biases: https://docs.wandb.ai. It reads its own variables, WANDB_..."""

import os
import uuid

import wandb

from moon_jax import config as config_lib
from moon_jax.core import files
from moon_jax.core.errors import UsageError
from moon_jax.core.flags import flag
from moon_jax.runner import loggers, run_directory
from moon_jax.runner.callbacks import Logger
from moon_jax.runner.round_records import SummaryOptions, summarise


class WeightsAndBiases(Logger):
  """A run of the project `moon_jax`, in the group of the folder of its directory."""

  def __init__(self):
    self._wandb_run = None
    self._has_ended = False
    self._last_round = 0  # that this start has logged

  def begin(self, run):
    self._run = run
    run_id = loggers.known_id(run.workdir, 'wandb') or uuid.uuid4().hex[:8]
    workdir = run.workdir.absolute()
    try:
      self._wandb_run = wandb.init(
        project=os.environ.get('WANDB_PROJECT', 'moon_jax'),
        group=os.environ.get('WANDB_RUN_GROUP', workdir.parent.name),
        name=os.environ.get('WANDB_NAME', workdir.name),
        id=run_id,
        resume='allow',
        reinit='create_new',  # the user's own program may already have a run
        config=config_lib.used_knobs(config_lib.flatten(run.config)),
        allow_val_change=True,  # a resumed run may have another num_rounds
        settings=wandb.Settings(console='off'),
      )
    except wandb.Error as error:
      problem = ' '.join(str(error).split())
      raise UsageError(
        f'{flag("logger")}: wandb cannot begin: {problem} Log in by `wandb login`, or '
        'set WANDB_MODE=offline and upload it later by `wandb sync`.'
      ) from None
    loggers.keep_id(run.workdir, 'wandb', run_id)

  def after_round(self, round):
    # After a crash, rounds that are run again are already there, with the same numbers.
    if round.number >= self._wandb_run.starting_step:
      super().after_round(round)

  def log_numbers(self, numbers, round_number):
    self._last_round = round_number
    self._wandb_run.log(numbers, step=round_number)

  def log_picture(self, path):
    picture = wandb.Image(str(path))
    if self._last_round:
      self._wandb_run.log({path.stem: picture}, step=self._last_round)
    else:
      # A step of its own would take the place of the next round, if the run goes on.
      self._wandb_run.summary[path.stem] = picture

  def end(self):
    self._has_ended = True
    timings = files.read_lines(self._run.workdir / run_directory.TIMINGS)
    options = SummaryOptions(self._run.config)
    self._wandb_run.summary.update(summarise(self._run.history, timings, options))

  def close(self):
    if self._wandb_run:
      self._wandb_run.finish(exit_code=0 if self._has_ended else 1)
