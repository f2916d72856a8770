"""What a report is asked for. It imports nothing slow."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from moon_jax.report import naming

BASELINE = 'fedavg'
# The words after the @ of a target.
TARGET_ROUNDS = ('last', 'best')
# The words of --features.
FIRST, ALL, NONE = 'first', 'all', 'none'
# The words of --formats, for the files of figures.
FORMATS = ('png', 'pdf', 'svg')


class Choice(NamedTuple):
  """How runs are grouped.

  Attributes:
    group: knobs that distinguish series; None: the algorithm and its own knobs.
    over: knobs whose values are the samples.
    where: knob -> the words for the values that are chosen.
  """

  group: tuple[str, ...] | None
  over: tuple[str, ...]
  where: Mapping[str, Sequence[str]]


class Target(NamedTuple):
  """An accuracy to reach.

  Attributes:
    accuracy: in [0, 1]; None if it follows from the runs of an algorithm.
    algorithm: algorithm whose mean over its runs in the same setting is the target.
    round: 'last' or 'best', the round whose accuracy counts.
  """

  accuracy: float | None
  algorithm: str = BASELINE
  round: str = 'last'

  def describe(self) -> str:
    """'FedAvg's mean last accuracy'."""
    if self.accuracy is not None:
      return f'accuracy {self.accuracy:g}'
    name = naming.describe(((naming.ALGORITHM, self.algorithm),))
    return f"{name}'s mean {self.round} accuracy"


class Pivot(NamedTuple):
  """The knobs of a table by two knobs.

  Attributes:
    row_knob: the knob of --rows.
    column_knob: the knob of --columns.
  """

  row_knob: str
  column_knob: str


class Request(NamedTuple):
  """A report.

  Attributes:
    folders: folders that hold runs.
    out: folder of the report; None for the table in the terminal.
    choice: how runs are grouped.
    target: the accuracy to reach.
    features: 'first', 'all', 'none', or paths of runs.
    command: the command line that repeats it.
    pivot: the knobs of a further table; None for none.
    formats: the formats of the figures' files.
    paper: columns of metrics.jsonl whose last numbers the table for a paper has; ():
      the usual ones.
  """

  folders: tuple[pathlib.Path, ...]
  out: pathlib.Path | None
  choice: Choice
  target: Target
  features: tuple[str, ...]
  command: str
  pivot: Pivot | None = None
  formats: tuple[str, ...] = ('png',)
  paper: tuple[str, ...] = ()
