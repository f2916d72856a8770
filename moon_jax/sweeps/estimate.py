"""Estimates the time and the disk space that a sweep still takes, for `--dry-run`."""

import contextlib
import pathlib
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from moon_jax import config as config_lib
from moon_jax.core import files, paths
from moon_jax.core.errors import NoCheckpointError
from moon_jax.runner import clock, provenance, run_directory
from moon_jax.sweeps.planned_runs import SweepRun
from moon_jax.sweeps.running import state_of, unfinished_runs

# Knobs that another run must share with a run of a sweep to predict its time.
_KNOBS_OF_COSTS = (
  'algorithm',
  'model',
  'data.source',
  'data.name',
  'data.path',
  'data.limit',
  'num_clients',
  'participation',
  'local_epochs',
  'batch_size',
  'augmentation.name',
  'drop_last',
)


class _Cost(NamedTuple):
  """What a run has cost so far.

  Attributes:
    algorithm: its algorithm.
    rounds: number of recorded rounds.
    starting: seconds of compiling, once in a start.
    training: seconds of all else.
    size: bytes of its directory.
  """

  algorithm: str
  rounds: int
  starting: float
  training: float
  size: int


def table(runs: Sequence[SweepRun], out: pathlib.Path) -> Iterator[str]:
  """A line for each run, how far it is; then an estimate of time and disk space.

  A run is estimated by the average of the begun runs with its algorithm, or of all
  begun runs if there are none. Before any run has begun, the estimate is from similar
  earlier runs on this machine, in the folder that contains the sweep.

  Args:
    runs: the runs of the sweep.
    out: their folder.
  """
  for run in runs:
    yield f'{state_of(run):<20} {run.name}'
  costs = {run.name: _cost(run.request.workdir, _knobs(run)) for run in runs}
  begun_costs = [cost for cost in costs.values() if cost.rounds]
  seconds = 0.0
  megabytes = 0.0
  for run in unfinished_runs(runs):
    config = run.request.config
    alike = [cost for cost in begun_costs if cost.algorithm == config.algorithm]
    alike = alike or begun_costs or list(_costs_of_earlier_runs(out, _knobs(run)))
    if not alike:
      yield 'left: unknown; the first rounds of a run give an estimate'
      return
    rounds_left = config.num_rounds - costs[run.name].rounds
    seconds_per_round = statistics.fmean(cost.training / cost.rounds for cost in alike)
    seconds += statistics.fmean(cost.starting for cost in alike)
    seconds += rounds_left * seconds_per_round
    size = statistics.fmean(cost.size for cost in alike)
    megabytes += max(0, size - costs[run.name].size) / 1e6
  source = ', by earlier runs on this machine' if seconds and not begun_costs else ''
  yield (
    f'left: about {seconds / 60:.1f} minutes of one process, {megabytes:.1f} MB of '
    f'disk{source}'
  )


def _knobs(run: SweepRun) -> dict[str, Any]:
  return config_lib.flatten(run.request.config)


def _cost(workdir: pathlib.Path, knobs: Mapping[str, Any]) -> _Cost:
  """What a run has cost; no rounds if its records are damaged."""
  timings = []
  with contextlib.suppress(NoCheckpointError):
    timings = files.read_lines(workdir / run_directory.TIMINGS)
  size = 0
  for path in paths.below(workdir):
    with contextlib.suppress(FileNotFoundError):  # the run may be in progress
      size += path.lstat().st_size
  seconds = clock.time_spent(timings)
  compiling = seconds.pop('compiling')
  num_starts = sum(line.get('compile_seconds', 0) > 0 for line in timings)
  return _Cost(
    algorithm=knobs['algorithm'],
    rounds=len(timings),
    starting=compiling / max(1, num_starts),
    training=sum(seconds.values()),
    size=size,
  )


def _costs_of_earlier_runs(
  out: pathlib.Path, knobs: Mapping[str, Any]
) -> Iterator[_Cost]:
  """The costs of similar runs, and of runs of sweeps, next to the sweep's folder."""
  machine = provenance.machine()
  for pattern in ('*', '*/*'):
    for path in sorted(out.parent.glob(f'{pattern}/{run_directory.CONFIG}')):
      with contextlib.suppress(NoCheckpointError):
        description = files.read_json(path)
        saved_knobs = config_lib.with_defaults(
          config_lib.flatten(description.get('config', {}))
        )
        # The number of natural clients, for example, is not known before a run.
        saved = config_lib.used_knobs(saved_knobs)
        used = config_lib.used_knobs(knobs)
        is_alike = all(saved.get(knob) == used.get(knob) for knob in _KNOBS_OF_COSTS)
        if is_alike and description.get('machine') == machine:
          cost = _cost(path.parent, saved_knobs)
          if cost.rounds:
            yield cost
