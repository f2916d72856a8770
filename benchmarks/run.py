"""Runs launch.py's own loop and says what was compiled and where the time went.

  python -m benchmarks.run [launch.py's flags]

Prints one JSON line. The run directory is a temporary folder.
"""

import contextlib
import json
import pathlib
import sys
import tempfile
import time

import jax

from moon_jax.config import cli
from moon_jax.core import files
from moon_jax.runner import run_directory, start

_COMPILED = '/jax/core/compile/backend_compile_duration'


def main() -> None:
  """Runs, then reads what the run recorded."""
  compiled = []

  def listen(event, duration, **metadata):
    if event == _COMPILED:
      compiled.append((metadata.get('fun_name', ''), duration))

  jax.monitoring.register_event_duration_secs_listener(listen)
  with tempfile.TemporaryDirectory() as folder:
    workdir = pathlib.Path(folder) / 'run'
    request = cli.parse([*sys.argv[1:], f'--workdir={workdir}'])
    begin = time.perf_counter()
    with contextlib.redirect_stdout(sys.stderr):
      start.run(request)
    end_to_end = time.perf_counter() - begin
    rounds = files.read_lines(workdir / run_directory.METRICS)
    timings = files.read_lines(workdir / run_directory.TIMINGS)
    summary = files.read_json(workdir / run_directory.SUMMARY)
  busy_seconds = sum(
    line['train_seconds'] + line['evaluate_seconds'] for line in timings
  )
  # A save counts in the idle time of the next round; after the last save comes none.
  other_seconds = sum(line['idle_seconds'] for line in timings)
  other_seconds += timings[-1]['save_seconds']
  cohorts = [line['num_examples'] for line in rounds]
  report = {
    'device': jax.devices()[0].device_kind,
    'end_to_end_seconds': end_to_end,
    'seconds': busy_seconds + other_seconds,
    'other_seconds': other_seconds,
    'train_seconds': sum(line['train_seconds'] for line in timings),
    'samples': sum(cohorts),
    'round_compilations': sum('run_round' in name for name, _ in compiled),
    'test_compilations': sum('evaluate' in name for name, _ in compiled),
    'compile_seconds': sum(seconds for _, seconds in compiled),
    'smallest_cohort': min(cohorts) // request.config.local_epochs,
    'largest_cohort': max(cohorts) // request.config.local_epochs,
    'test_accuracy': summary['test_accuracy'],
    'peak_memory_bytes': timings[-1]['peak_memory_bytes'],
  }
  print(json.dumps(report))


if __name__ == '__main__':
  main()
