"""What else a run with `metrics` does: the confusion matrix, and what is absent."""

import pathlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from moon_jax import catalog
from moon_jax.core import files
from moon_jax.runner.callbacks import Callback, Logger, Run, is_save_due
from moon_jax.runner.round_records import UNDEFINED, Record
from moon_jax.runner.rounds import Round
from moon_jax.runner.run_files import CONFUSION, CONFUSION_KINDS

# Array of CONFUSION -> its picture, and which models it is of, on which tests.
_PICTURES = {
  'confusion': ('confusion.png', 'global model, test split'),
  'personal_confusion': (
    'confusion_personal.png',
    "clients' own models, each on its own tests",
  ),
  'tuned_confusion': (
    'confusion_tuned.png',
    "fine-tuned models, each on its client's tests",
  ),
}


class ConfusionKeeper(Callback):
  """Keeps the confusion matrices of the last tested round, and draws them at the end.

  They are written just before a checkpoint, so a run that continues from it has them.
  """

  def __init__(self, run: Run, loggers: Sequence[Logger]):
    self._run, self._loggers = run, loggers
    self._arrays: dict[str, np.ndarray] = {}

  def after_round(self, round: Round) -> None:
    """Writes the matrices if the state may be saved."""
    if round.confusions:
      self._arrays = {'round': np.asarray(round.number)}
      for kind, confusion in round.confusions.items():
        name = 'confusion' if kind == 'global' else f'{kind}_confusion'
        self._arrays[name] = confusion
    is_due = is_save_due(round.number, self._run.config)
    may_be_saved = is_due or round.run_may_end_early
    if self._arrays and may_be_saved and round.state is not None:
      files.write_arrays(self._run.workdir / CONFUSION, self._arrays)
      self._arrays = {}

  def end(self) -> None:
    """Draws each matrix, with the names of the classes."""
    path = self._run.workdir / CONFUSION
    if not path.exists():  # each client has a model of its own, and no tests
      return
    # matplotlib is imported here, because the first round need not wait for it.
    from moon_jax.runner import plots

    arrays = read_confusions(path)
    for name, (picture_name, models_and_tests) in _PICTURES.items():
      if name not in arrays:
        continue
      picture = self._run.workdir / picture_name
      plots.confusion_matrix(
        picture,
        arrays[name],
        f'{self._run.workdir.name}, round {arrays["round"]}: {models_and_tests}',
        self._run.experiment.data.class_names,
      )
      for logger in self._loggers:
        logger.log_picture(picture)


def read_confusions(path: pathlib.Path) -> dict[str, np.ndarray]:
  """The arrays of CONFUSION: 'round', and those of CONFUSION_KINDS that it has.

  Raises:
    Exception: of any class, if the file cannot be read or has other content.
  """
  names = files.arrays(path, CONFUSION_KINDS)
  kinds = {name: kind for name, kind in CONFUSION_KINDS.items() if name in names}
  return files.arrays(path, kinds={'round': CONFUSION_KINDS['round']} | kinds)


class UndefinedMetrics(Callback):
  """Says once which metrics are not defined, and therefore in no column."""

  def __init__(self, names: Sequence[str], print_line: Callable[[str], None]):
    """names: names of the metrics; print_line: called with a line."""
    self._names, self._print_line = names, print_line
    self._columns: set[str] = set()

  def after_round(self, round: Round) -> None:
    """Prints a line if a column is missing for the first time."""
    missing = dict(self._missing(round.metrics))
    new_columns = missing.keys() - self._columns
    if new_columns:
      self._columns |= new_columns
      words = [f'{column} ({missing[column]})' for column in sorted(new_columns)]
      self._print_line(
        f'not defined on these examples, and left out: {", ".join(words)}'
      )

  def _missing(self, record: Record) -> Iterator[tuple[str, str]]:
    """Each column that lacks numbers, and what it lacks."""
    for split in ('test', 'validation'):
      for name in self._names:
        column = f'{split}_{name}'
        if f'{split}_accuracy' in record and column not in record:
          yield column, 'the column'
    for column, number in record.items():
      if column.endswith(UNDEFINED):
        yield column.removesuffix(UNDEFINED), f'{number} of the clients'


def with_metrics(
  run: Run, loggers: Sequence[Logger], print_line: Callable[[str], None]
) -> list[Callback]:
  """These callbacks, for a run with `metrics`; [] for another.

  Args:
    run: the run.
    loggers: get the pictures of the confusion matrices.
    print_line: called with a line for the user.
  """
  names = catalog.listed_words(run.config.metrics)
  if not names:
    return []
  return [ConfusionKeeper(run, loggers), UndefinedMetrics(names, print_line)]
