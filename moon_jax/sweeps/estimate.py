"""About how much time and disk a sweep still takes: what `--dry-run` tells."""

import contextlib
import pathlib
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from moon_jax import config as config_lib
from moon_jax.core import files
from moon_jax.core.errors import NoCheckpointError
from moon_jax.runner import clock, run_directory
from moon_jax.sweeps.cells import Cell
from moon_jax.sweeps.running import left, state_of

# What another run must share with one of a sweep to tell how long that takes.
_ALIKE = ('algorithm', 'model', 'data.source', 'data.name', 'data.path', 'data.limit')
_ALIKE += ('num_clients', 'participation', 'local_epochs', 'batch_size')


class _Cost(NamedTuple):
  """What a run has taken so far.

  Attributes:
    algorithm: what it trains.
    rounds: that are recorded.
    starting: seconds of compiling, once in a start.
    training: seconds of all else.
    size: bytes of its directory.
  """

  algorithm: str
  rounds: int
  starting: float
  training: float
  size: int


def table(cells: Sequence[Cell], out: pathlib.Path) -> Iterator[str]:
  """A line for each run, how far it is; then about how much time and disk is left.

  A run is taken to need what those of the same algorithm that have begun need on
  average, or all that have begun if none of them has; before any of the sweep has,
  what earlier runs like it needed on this machine, beside the sweep.

  Args:
    cells: of the sweep.
    out: their folder.
  """
  for cell in cells:
    yield f'{state_of(cell):<20} {cell.name}'
  costs = {cell.name: _cost(cell.request.workdir, _knobs(cell)) for cell in cells}
  begun = [cost for cost in costs.values() if cost.rounds]
  seconds = megabytes = 0.0
  for cell in left(cells):
    algorithm, done = cell.request.config.algorithm, costs[cell.name]
    alike = [cost for cost in begun if cost.algorithm == algorithm] or begun
    alike = alike or list(_earlier(out, _knobs(cell)))
    if not alike:
      yield 'left: time and disk are estimated when a run has some rounds'
      return
    rounds = cell.request.config.num_rounds - done.rounds
    seconds += statistics.fmean(cost.starting for cost in alike)
    seconds += rounds * statistics.fmean(cost.training / cost.rounds for cost in alike)
    size = statistics.fmean(cost.size for cost in alike)
    megabytes += max(0, size - done.size) / 1e6
  told = f'about {seconds / 60:.1f} minutes, one run at a time, and {megabytes:.1f} MB'
  of_others = ', as of earlier runs on this machine' if seconds and not begun else ''
  yield f'left: {told}{of_others}'


def _knobs(cell: Cell) -> dict[str, Any]:
  return config_lib.flatten(cell.request.config)


def _cost(workdir: pathlib.Path, knobs: Mapping[str, Any]) -> _Cost:
  """What a run has taken; no rounds if its records are damaged."""
  timings, size = [], 0
  with contextlib.suppress(NoCheckpointError):
    timings = files.read_lines(workdir / run_directory.TIMINGS)
  for path in files.below(workdir):
    with contextlib.suppress(FileNotFoundError):  # the run may be going on
      size += path.lstat().st_size
  spent = clock.time_spent(timings)
  starts = max(1, sum(line.get('compile_seconds', 0) > 0 for line in timings))
  starting = spent.pop('compiling')
  every = sum(spent.values())
  return _Cost(knobs['algorithm'], len(timings), starting / starts, every, size)


def _earlier(out: pathlib.Path, knobs: Mapping[str, Any]) -> Iterator[_Cost]:
  """Runs beside the sweep, and in other sweeps there, that are like one of its own."""
  machine = run_directory.machine()
  for pattern in ('*', '*/*'):
    for path in sorted(out.parent.glob(f'{pattern}/{run_directory.CONFIG}')):
      with contextlib.suppress(NoCheckpointError):
        saved = files.read_json(path)
        flat = config_lib.with_defaults(config_lib.flatten(saved.get('config', {})))
        is_alike = all(flat[name] == knobs[name] for name in _ALIKE)
        if saved.get('machine') == machine and is_alike:
          cost = _cost(path.parent, flat)
          if cost.rounds:
            yield cost
