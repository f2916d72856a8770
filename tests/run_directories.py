"""Run directories with chosen numbers, as `launch.py` writes them."""

import functools
import json

import numpy as np

from moon_jax import catalog
from moon_jax import config as config_lib
from moon_jax.catalog import registry
from moon_jax.config import cli

# Most tests train this federation, to share its program: ten clients, five in a round.
TINY = {
  'local_epochs': 1,
  'data.limit': 300,
  'partition.min_size': 2,
  'participation': 0.5,
  'execution.devices': 1,
}


def words_of(**changes):
  """The settings of TINY, and changes of them, as flags."""
  return tuple(f'--config.{k}={v}' for k, v in (TINY | changes).items())


# The flags of a run that takes a second.
FEDAVG = (
  '--config.num_rounds=2',
  '--config.local_epochs=1',
  '--config.checkpoint_every_rounds=1',
  '--config.data.limit=200',
  '--config.partition.min_size=2',
  '--config.execution.devices=1',
  '--config.algorithm=fedavg',
)
BYTES_DOWN, BYTES_UP = 1_000_000, 500_000
TRAIN, EVALUATE, IDLE = 2.0, 0.5, 0.25


def _parsed(flags):
  """The command of a run with seed 0, and its settings."""
  request = cli.parse(['--config.seed=0', *flags])
  return request.command, config_lib.ordered(request.config)


@functools.cache
def _parsed_once(flags, parts):
  """The same, as long as the catalog has these parts: (kind, name) and id of each."""
  return _parsed(flags)


def write_run(path, accuracies, *flags, seed=0, finished=True, **columns):
  """Writes a run with a round for each accuracy; None is a round without a test.

  Args:
    path: path of the run directory.
    accuracies: test accuracy after each round.
    flags: flags of launch.py other than the seed.
    seed: seed of the run.
    finished: whether there is a summary.json.
    columns: further columns of metrics.jsonl -> one value, of every round.
  """
  path.mkdir(parents=True)
  # A user's file may say another thing in another test.
  if all('configs/' in word for word in flags if '.py' in word):
    parts = tuple((name, id(part)) for name, part in registry._parts.items())
    command, settings = _parsed_once(flags, parts)
  else:
    command, settings = _parsed(flags)
  settings = settings | {'seed': seed}
  parts = catalog.registered_parts(config_lib.flatten(settings))
  description = {
    'command': command.replace('--config.seed=0', f'--config.seed={seed}'),
    'config': settings,
    **({'registered': [catalog.describe(part) for part in parts]} if parts else {}),
    'data_digest': 'd' * 64,
    'versions': {'jax': '0.10.2'},
    'devices': ['cpu: cpu', 'cpu: cpu'],
    'git_commit': 'a' * 40,
  }
  (path / 'config.json').write_text(json.dumps(description))
  lines = [
    {
      'round': number,
      'train_loss': 2.0 / number,
      'supervised_loss': 1.0 / number,
      'contrastive_loss': 0.25 / number,
      'drift': 0.5,
      'num_examples': 100,
      'bytes_down': BYTES_DOWN,
      'bytes_up': BYTES_UP,
      **({} if accuracy is None else {'test_accuracy': accuracy, 'test_loss': 1.0}),
      **columns,
    }
    for number, accuracy in enumerate(accuracies, 1)
  ]
  write_lines(path / 'metrics.jsonl', lines)
  times = {'train_seconds': TRAIN, 'evaluate_seconds': EVALUATE, 'idle_seconds': IDLE}
  write_lines(path / 'timings.jsonl', [{'round': r['round']} | times for r in lines])
  counts = np.random.default_rng(seed).integers(1, 30, (4, 3))
  np.savez(path / 'partition.npz', class_counts=counts)
  if finished:
    summary = {
      'rounds': len(lines),
      'test_accuracy': accuracies[-1],
      'best_test_accuracy': accuracies[-1],
      'best_round': len(lines),
      'target_round': len(lines),
    }
    (path / 'summary.json').write_text(json.dumps(summary))
  return path


def add_metrics(records, line):
  """Appends a line to the metrics.jsonl of open `Records`."""
  records.begin_metrics(line)
  records.write_metrics()


def write_lines(path, lines):
  path.write_text(''.join(json.dumps(line) + '\n' for line in lines))


def edit_json(path, change):
  """Rewrites a JSON file, whose object a function changes in place."""
  content = json.loads(path.read_text())
  change(content)
  path.write_text(json.dumps(content))


def edit_lines(path, change):
  """Rewrites a .jsonl file, each object changed in place by a function."""
  lines = [json.loads(line) for line in path.read_text().splitlines()]
  for line in lines:
    change(line)
  write_lines(path, lines)
