"""Runs one algorithm on synthetic clients and says what each part of a run took.

  python -m benchmarks.federation --clients=N --algorithm=NAME [--tier=TIER]

The run and its resumption are processes of their own, so that each has its own peak of
memory. Every client has EXAMPLES images
of 8x8; 50 clients are in a round. It prints one JSON line.
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
from moon_jax.data.arrays import make_dataset
from moon_jax.runner import checkpoint, clock, loop, run_directory

EXAMPLES, COHORT, ROUNDS = 5, 50, 20


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
    whole, resumed = (
      processes.run([*words, f'--rounds={rounds}']) for rounds in (ROUNDS, ROUNDS + 1)
    )
  resuming = {name: resumed[name] for name in ('restore_seconds', 'peak_memory_bytes')}
  print(json.dumps(whole | {'resumed': resuming}))


def _data(num_clients):
  """Random images; the labels differ, so that there is something to learn."""
  rng, size = np.random.default_rng(0), EXAMPLES * num_clients
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
  restoring, restore = [], checkpoint.Checkpoints.newest_or

  def timed(*given):
    begin = time.perf_counter()
    try:
      return restore(*given)
    finally:
      restoring.append(time.perf_counter() - begin)

  checkpoint.Checkpoints.newest_or = timed
  begin = time.perf_counter()
  with contextlib.redirect_stdout(sys.stderr):
    loop.run(request, load=lambda options: _data(options.num_clients))
  took = time.perf_counter() - begin
  timings = files.read_lines(request.workdir / run_directory.TIMINGS)[-options.rounds :]
  mine = timings if options.rounds == ROUNDS else timings[-1:]
  # In the first round, and after a save, the device has also waited for other work.
  usual = [
    line
    for before, line in itertools.pairwise(mine)
    if not before['save_seconds'] and not line['save_seconds']
  ]

  def median(*phases):
    each = [sum(line[f'{phase}_seconds'] for phase in phases) for line in usual]
    return statistics.median(each) if each else None

  return {
    'start_seconds': took - sum(clock.time_spent(mine).values()),
    'plan_seconds': median('pack'),
    'round_seconds': median('train', 'idle'),
    'idle_seconds': median('idle'),
    'store_seconds': median('store'),
    'save_seconds': statistics.median(
      line['save_seconds'] for line in mine if line['save_seconds']
    ),
    'restore_seconds': restoring[0],
    'peak_memory_bytes': mine[-1]['peak_memory_bytes'],
  }


if __name__ == '__main__':
  main()
