"""One of the runs that train in one program: its directory and its records."""

import contextlib
import sys
from collections.abc import Iterator

import jax
import numpy as np

from moon_jax import tree
from moon_jax.cli import Request
from moon_jax.engine import experiment
from moon_jax.engine.evaluation import Score
from moon_jax.engine.experiment import Experiment
from moon_jax.engine.planning import Plan
from moon_jax.errors import RunError
from moon_jax.runner import lock, loop, run_directory, testing
from moon_jax.runner.clock import Clock, timing_record
from moon_jax.runner.console import Console
from moon_jax.runner.divergence import stop_if_diverged
from moon_jax.runner.metrics import Record, line_of
from moon_jax.runner.pipeline import due
from moon_jax.runner.signals import StoppedError
from moon_jax.runner.testing import Tested
from moon_jax.types import ClientMetrics, State


@contextlib.contextmanager
def ending_alone(name: str, errors: list[RunError]) -> Iterator[None]:
  """An error inside ends no other runs: it is told, and added to the others.

  Args:
    name: of the run, or of several.
    errors: what has ended runs.
  """
  try:
    yield
  except StoppedError:
    raise
  except lock.BusyError as error:
    print(f'{name}: another process is running it', flush=True)
    errors.append(error)
  except RunError as error:
    print(f'{name}: {error}', file=sys.stderr)
    errors.append(error)


of_one = jax.jit(tree.gather)  # compiled once, whichever it is


class Member:
  """One of the runs. Its directory is open while it has a part.

  Attributes:
    built: its experiment.
    state: from which it goes on; None once it is among those of all.
    round: the next that is to be recorded, from 0; None if it has no part any more.
    workdir: its directory.
  """

  def __init__(
    self,
    request: Request,
    built: Experiment,
    console: Console,
    errors: list[RunError],
  ):
    """Opens the directory; what cannot be run there has no part."""
    self.built, self.state, self.round = built, None, None
    self.workdir, self._errors = request.workdir, errors
    self._taken_part = np.zeros(built.config.num_clients, bool)
    self._files = contextlib.ExitStack()
    with self._failing():
      if loop.is_finished(request):  # since it was built
        return
      told = run_directory.check(request.workdir, request.config)
      first = experiment.initial_state(built)
      opening = loop.open_directory(request, built, first, console, told)
      opened = self._files.enter_context(opening)
      self._checkpoints, self._records, _, self.state = opened
      if not loop.rounds_left(built.config.num_rounds, self._records):
        self._files.close()
        console.finished(self.workdir)
        return
      self.round = int(self.state.round)
      for index in range(self.round):
        self.takes_part(built.planner.cohort(index))

  def __enter__(self):
    return self

  def __exit__(self, *exception):
    return self._files.__exit__(*exception)

  @contextlib.contextmanager
  def _failing(self) -> Iterator[None]:
    """An error inside ends this run, which has no part any more."""
    with ending_alone(self.workdir.name, self._errors):
      try:
        yield
      except RunError as error:
        self.round = None
        self._files.__exit__(type(error), error, error.__traceback__)
        raise

  def takes_part(self, clients: np.ndarray) -> None:
    """The clients [K] train in the next round."""
    self._taken_part[clients] = True

  def is_tested(self, index: int) -> bool:
    """Whether it is tested after round `index`, from 0."""
    config = self.built.config
    return due(index, config.eval_every_rounds, config.num_rounds)

  def is_saved(self, index: int) -> bool:
    """Whether it is saved after round `index`, from 0."""
    config = self.built.config
    return due(index, config.checkpoint_every_rounds, config.num_rounds)

  def tested(self, states: State, scores: Score, replica: int) -> Tested:
    """What is recorded of a test; leaves [R, ...], of which it is the replica's."""
    score = of_one(scores, replica)
    # Without a server the distance of the clients' models is told too.
    state = of_one(states, replica) if self.built.algorithm.share else states
    given = (lambda state, test: score), state, None, self._taken_part
    return testing.test(self.built, *given)

  def record(
    self,
    plans: tuple[Plan, Plan],
    metrics: ClientMetrics,
    tested: Tested | None,
    clock: Clock,
    state: State | None,
  ) -> Record | None:
    """Records a round, saves the state after it if given, and ends after the last one.

    Args:
      plans: of all runs, and of this one.
      metrics: leaves [K], on the host.
      tested: on the host; None if it is not tested.
      clock: this run's share of the round's time.
      state: after the round, or None.

    Returns:
      The line of metrics.jsonl, or None if it could not be recorded.
    """
    config, index = self.built.config, self.round
    joined, alone = plans
    with self._failing():
      record = line_of(self.built, index, alone, metrics, tested)
      self._records.add_metrics(record)
      self._records.board.add_histogram('clients/drift', metrics.drift, index + 1)
      stop_if_diverged(record, metrics, config.on_nonfinite)
      if state is not None:
        with clock('save'):
          self._checkpoints.save(state)
      self._records.add_timings(timing_record(clock, joined, record))
      self.round += 1
      if self.round == config.num_rounds:
        self.round = None
        self._files.close()
      return record
    return None
