"""Runs one algorithm on synthetic clients and says what each part of a run took.

  python -m benchmarks.federation --clients=N --algorithm=NAME [--tier=TIER]

The run and its resumption are processes of their own, so that each has its own peak of
memory. Every client has five images of 8x8; 50 clients are in a round. It prints one
JSON line.
"""

import argparse
import contextlib
import itertools
import json
import statistics
import sys
import tempfile
import time

import numpy as np

from benchmarks import processes
from moon_jax.config import cli
from moon_jax.core import files
from moon_jax.data.dataset import make_dataset
from moon_jax.runner import checkpoint, clock, run_directory, start

EXAMPLES = 5  # of a client
COHORT = 50  # clients in a round
ROUNDS = 20


def main() -> None:
  """Runs, then goes on for another round in a process of its own."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--clients', type=int, required=True)
  parser.add_argument('--algorithm', required=True)
  parser.add_argument('--tier', default='auto')
  parser.add_argument('--workdir')
  parser.add_argument('--rounds', type=int, default=ROUNDS)
  options = parser.parse_args()
  if options.workdir:
    print(json.dumps(_run(options, cli.parse(_words(options)))))
    return
  with tempfile.TemporaryDirectory() as folder:
    words = ['-m', 'benchmarks.federation', *sys.argv[1:], f'--workdir={folder}/run']
    report = processes.run([*words, f'--rounds={ROUNDS}'])
    resumed = processes.run([*words, f'--rounds={ROUNDS + 1}'])
  report['resumed'] = {
    'restore_seconds': resumed['restore_seconds'],
    'peak_memory_bytes': resumed['peak_memory_bytes'],
  }
  print(json.dumps(report))


def _data(num_clients):
  """Random images; the labels differ, so that there is something to learn."""
  rng = np.random.default_rng(0)
  size = EXAMPLES * num_clients
  images = rng.integers(0, 256, (size, 8, 8), np.uint8)
  labels = np.arange(size) % 10
  test = images[:1000], labels[:1000]
  # Computing the statistics of all images gives nearly these, and takes a second.
  statistics = [np.float32([0.5])] * 2
  return make_dataset('synthetic', (images, labels), test, 10, statistics)


def _words(options):
  return [
    f'--config.algorithm={options.algorithm}',
    f'--config.num_clients={options.clients}',
    f'--config.participation={COHORT / options.clients!r}',
    '--config.partition.name=iid',
    '--config.partition.min_size=1',
    f'--config.num_rounds={options.rounds}',
    '--config.eval_every_rounds=10',
    f'--config.execution.client_store={options.tier}',
    f'--workdir={options.workdir}',
  ]


def _run(options, request):
  restore_seconds = []
  restore = checkpoint.Checkpoints.newest_or

  def timed_restore(*arguments):
    begin = time.perf_counter()
    try:
      return restore(*arguments)
    finally:
      restore_seconds.append(time.perf_counter() - begin)

  checkpoint.Checkpoints.newest_or = timed_restore
  begin = time.perf_counter()
  with contextlib.redirect_stdout(sys.stderr):
    start.run(request, load=lambda options: _data(options.num_clients))
  seconds = time.perf_counter() - begin
  timings = files.read_lines(request.workdir / run_directory.TIMINGS)[-options.rounds :]
  is_resumed = options.rounds != ROUNDS
  if is_resumed:
    timings = timings[-1:]
  # In the first round, and after a save, the device has also waited for other work.
  undisturbed = [
    line
    for line_before, line in itertools.pairwise(timings)
    if not line_before['save_seconds'] and not line['save_seconds']
  ]

  def median(*phases):
    sums = [sum(line[f'{phase}_seconds'] for phase in phases) for line in undisturbed]
    return statistics.median(sums) if sums else None

  return {
    'start_seconds': seconds - sum(clock.time_spent(timings).values()),
    'plan_seconds': median('pack'),
    'round_seconds': median('train', 'idle'),
    'idle_seconds': median('idle'),
    'store_seconds': median('store'),
    'save_seconds': statistics.median(
      line['save_seconds'] for line in timings if line['save_seconds']
    ),
    'restore_seconds': restore_seconds[0],
    'peak_memory_bytes': timings[-1]['peak_memory_bytes'],
  }


if __name__ == '__main__':
  main()
