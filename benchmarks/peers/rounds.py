"""The peers' scripts share this module; it imports no package but NumPy."""

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping

import numpy as np


def parser() -> argparse.ArgumentParser:
  """A parser of the flags that every script takes."""
  parser = argparse.ArgumentParser()
  parser.add_argument('--workload', required=True)
  parser.add_argument('--repeats', type=int, default=5)
  parser.add_argument('--turns', action='store_true')
  return parser


class Rounds:
  """Times each round but the first; with turns it waits for its own before it.

  Args:
    arrays: arrays of FILE.npz.
    turns: whether a line on standard input begins each timed round.
  """

  def __init__(self, arrays: Mapping[str, np.ndarray], turns: bool):
    self._arrays = arrays
    self._turns = turns
    self._seconds = []  # of each timed round
    self._cpu_seconds = []  # of this process
    self._begin = None  # of the current round; None in the first
    self._cpu_begin = None
    self._difference = None  # from the averaged model of FILE.npz

  def ended(self, read: Callable[[], dict[str, np.ndarray]]) -> None:
    """To be called after each round.

    Args:
      read: returns path of a leaf -> array of the averaged model, as moon_jax has it;
        called after the first round, which is that of FILE.npz.
    """
    if self._begin is not None:
      self._seconds.append(time.perf_counter() - self._begin)
      self._cpu_seconds.append(time.process_time() - self._cpu_begin)
    else:
      model = read()
      self._difference = max(
        float(np.abs(model[name.removeprefix('result/')] - array).max())
        for name, array in self._arrays.items()
        if name.startswith('result/')
      )
    if self._turns:
      print('ready', flush=True)
      sys.stdin.readline()
    self._begin = time.perf_counter()
    self._cpu_begin = time.process_time()

  def print_report(self) -> None:
    """Prints one JSON line, with the largest number by which the models differ."""
    users = range(int(self._arrays['num_clients']))
    samples = sum(int(self._arrays[f'num_real_{user}'].sum()) for user in users)
    report = {
      'seconds': self._seconds,
      'cpu_seconds': self._cpu_seconds,
      'samples_per_second': samples / float(np.median(self._seconds)),
      'difference': self._difference,
    }
    print(json.dumps(report))
