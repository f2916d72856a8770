"""What does the user see? A few lines at the start, then the progress of the rounds."""

import contextlib
import pathlib
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from rich.console import Console as Terminal
from rich.progress import (
  BarColumn,
  MofNCompleteColumn,
  Progress,
  TextColumn,
  TimeRemainingColumn,
)

from moon_jax import measures, recording, tree
from moon_jax.command_line import Request
from moon_jax.types import State


class Console:
  """Prints to standard output: a progress bar on a terminal, else a line a round."""

  def __init__(self):
    self._terminal = Terminal(
      highlight=False, soft_wrap=True, markup=False, emoji=False
    )
    self._bar = Progress(
      TextColumn('round'),
      MofNCompleteColumn(),
      BarColumn(),
      TimeRemainingColumn(),
      TextColumn('{task.fields[news]}'),
      console=self._terminal,
      disable=not self._terminal.is_terminal,
    )
    self._num_rounds = 0

  def say(self, text: str) -> None:
    """Prints one line."""
    self._terminal.print(text)

  def devices(self) -> None:
    """Says what the run computes on."""
    kinds = [f'{d.platform} ({d.device_kind})' for d in jax.devices()]
    self.say(f'devices: {", ".join(kinds)}; JAX {jax.__version__}')

  def introduce(self, request: Request, sizes: np.ndarray, state: State) -> None:
    """Says what is run, from where, on whose data.

    Args:
      request: the command line.
      sizes: [N] training examples of each client.
      state: the state that the run starts from.
    """
    done, total = int(state.round), request.config.num_rounds
    what = f'resumed after round {done} of {total}' if done else 'a fresh run'
    self.say(f'{request.workdir}: {what}')
    changed = [f'{name}={value}' for name, value in request.changed.items()]
    self.say(f'differs from configs/base.py: {", ".join(changed) or "nothing"}')
    self.say(
      f'partition: {request.config.partition.name}, {len(sizes)} clients own '
      f'{sizes.sum():,} training examples; smallest {sizes.min():,}, '
      f'median {int(np.median(sizes)):,}, largest {sizes.max():,}'
    )
    self.say(
      f'model: {request.config.model}, '
      f'{tree.num_parameters(state.server.variables["params"]):,} parameters'
    )

  @contextlib.contextmanager
  def compiling(self, what: str) -> Iterator[None]:
    """Says what is compiled and how long that took."""
    self._terminal.print(f'compiling {what} ... ', end='')
    begin = time.perf_counter()
    yield
    self.say(f'{time.perf_counter() - begin:.1f} s')

  def progress(self, rounds: range) -> Iterator[int]:
    """Yields the rounds, with a bar and the time that is left."""
    self._num_rounds = rounds.stop
    with self._bar:
      self._bar.add_task('', total=rounds.stop, completed=rounds.start, news='')
      yield from rounds

  def round_done(self, record: dict[str, Any], clock: measures.Clock) -> None:
    """Moves the bar, or prints the round's line."""
    news = describe_round(record)
    for task in self._bar.task_ids:
      self._bar.update(task, completed=record['round'], news=news)
    if not self._terminal.is_terminal:
      seconds = sum(clock.seconds.values())
      self.say(f'round {record["round"]}/{self._num_rounds}  {news}  {seconds:.2f} s')

  def finished(self, workdir: pathlib.Path) -> None:
    """Says how the run ended and where its results are."""
    summary = recording.read_json(workdir / recording.SUMMARY)
    self.say(
      f'finished after {summary["rounds"]} rounds: test accuracy '
      f'{summary["test_accuracy"]:.4f} (best {summary["best_test_accuracy"]:.4f} '
      f'in round {summary["best_round"]})'
    )
    self.say(f'results: {workdir}')


def describe_round(record: dict[str, Any]) -> str:
  """'test accuracy 0.9120  train loss 0.310 (contrastive 0.040, supervised 0.270)'."""
  words = []
  if 'test_accuracy' in record:
    spread = record.get('test_accuracy_std')
    words.append(f'test accuracy {record["test_accuracy"]:.4f}')
    words += [f'+- {spread:.4f}'] if spread is not None else []
  parts = [
    f'{name.removesuffix("_loss")} {value:.3f}'
    for name, value in record.items()
    if name.endswith('_loss') and name not in ('train_loss', 'test_loss')
  ]
  words.append(f' train loss {record["train_loss"]:.3f} ({", ".join(parts)})')
  return ' '.join(words)
