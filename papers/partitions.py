"""Which classes each client of a kept run owns, and how skewed that is.

  python -m papers.partitions DATA_DIR     deals the examples of every kept run again

A partition depends on the labels, the knobs and the seed alone, so it is computed again
from a run's configuration; DATA_DIR is the folder of TensorFlow Datasets. Runs on files
that are not there (see papers/arrays.py) keep what they recorded. The table,
papers/partitions.jsonl, has a line for each partition:

  runs           names of the kept runs that have it
  class_counts   [N, Y] training examples of each client and class
"""

import collections
import fcntl
import json
import pathlib
import sys
from collections.abc import Mapping, Sequence

import numpy as np

from moon_jax import config as config_lib
from moon_jax.building import data
from moon_jax.core import files
from moon_jax.core.errors import ExitCode, UsageError, exit_code_of
from moon_jax.data import partition
from moon_jax.runner import run_directory
from papers import kept_runs
from papers.kept_runs import KeptRun

PAPERS = pathlib.Path(__file__).parent
TABLE = PAPERS / 'partitions.jsonl'


def read(table: pathlib.Path) -> dict[str, np.ndarray]:
  """Name of a run -> [N, Y] its class counts, from a table of partitions."""
  counts_of_runs = {}
  if not table.is_file():
    return counts_of_runs
  for line in table.read_text().splitlines():
    dealt = json.loads(line)
    counts_of_runs |= dict.fromkeys(dealt['runs'], np.array(dealt['class_counts']))
  return counts_of_runs


def effective_classes(class_counts: np.ndarray) -> float:
  """How many equally frequent classes have the entropy of a client's; mean of clients.

  A client whose images are all of one class has 1; one that has as many of each of ten
  classes has 10. Each client counts alike.

  >>> effective_classes(np.array([[8, 0], [4, 4]]))
  1.5

  Args:
    class_counts: [N, Y] training examples of each client and class.
  """
  shares = class_counts / class_counts.sum(axis=1, keepdims=True)
  logarithms = np.log(np.where(shares > 0, shares, 1.0))
  entropies = -np.sum(shares * logarithms, axis=1)
  return float(np.mean(np.exp(entropies)))


def deal(runs: Sequence[KeptRun], data_dir: str) -> dict[str, np.ndarray]:
  """Name of a run -> [N, Y] its class counts, dealt again from the labels."""
  labels_of_data = {}
  counts_of_runs = {}
  for run in runs:
    config = _configuration(run.knobs, data_dir)
    options = data.DataOptions(config)
    sample = (config.data.name, config.data.path, options.limit)
    if sample not in labels_of_data:
      labels_of_data[sample] = data.load_data(options, may_download=False)
    dataset = labels_of_data[sample]
    dealt = data.deal(dataset, options)
    counts_of_runs[run.name] = partition.class_counts(
      dealt.partition, dataset.train_labels, dataset.num_classes
    )
  return counts_of_runs


def _configuration(knobs: Mapping, data_dir: str) -> config_lib.Config:
  flat = dict(knobs) | {'data.dir': data_dir}
  return data.with_one_client_if_centralized(config_lib.validate(flat))


def add(table: pathlib.Path, run: pathlib.Path) -> None:
  """Adds the partition of a run directory to a table, if the run has recorded it."""
  path = run / run_directory.PARTITION
  if path.is_file():
    with np.load(path) as arrays:
      counts = arrays['class_counts']
    _add_all(table, {run.resolve().name: counts})


def _add_all(table: pathlib.Path, counts_of_runs: Mapping[str, np.ndarray]) -> None:
  """Adds partitions to a table; processes that add to one table wait for each other."""
  with open(table.with_suffix('.lock'), 'w') as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    write(table, read(table) | counts_of_runs)


def write(table: pathlib.Path, counts_of_runs: Mapping[str, np.ndarray]) -> None:
  """Writes a table of partitions; runs that share one share a line."""
  names_of_counts = collections.defaultdict(list)
  for name, counts in sorted(counts_of_runs.items()):
    names_of_counts[json.dumps(counts.tolist())].append(name)
  lines = [
    f'{{"runs": {json.dumps(names)}, "class_counts": {counts}}}\n'
    for counts, names in names_of_counts.items()
  ]
  with files.replacing(table) as file:
    file.write(''.join(lines).encode())


def main(argv: Sequence[str]) -> int:
  """Runs the program; returns the exit code."""

  def program():
    if len(argv) != 1:
      raise UsageError('python -m papers.partitions DATA_DIR')
    runs = kept_runs.read_all(PAPERS / 'runs') | kept_runs.read_all(PAPERS / 'frozen')
    paths = {run.name: run.knobs['data.path'] for run in runs.values()}
    with_data = [
      run
      for run in runs.values()
      if not paths[run.name] or pathlib.Path(paths[run.name]).exists()
    ]
    _add_all(TABLE, deal(with_data, data_dir=argv[0]))
    return ExitCode.DONE

  return exit_code_of(program)


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
