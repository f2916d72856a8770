"""Runs programs on some of the cores and reads the JSON line that each prints."""

import contextlib
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Hashable

ROOT = pathlib.Path(__file__).parents[1]


def run(
  words: list[str],
  cores: int | None = None,
  seconds: float | None = None,
  **environment: str,
) -> dict:
  """The last line that `python *words` prints, as JSON.

  Args:
    words: of the command, run in the repository's root.
    cores: how many it may use; None is all.
    seconds: after which it is ended, with subprocess.TimeoutExpired; None is never.
    **environment: what is changed in it.
  """
  with _start(words, cores, environment) as process:
    try:
      return _report(process, seconds)
    except subprocess.TimeoutExpired:
      process.kill()
      raise


class Turns:
  """Programs that are timed in turn: what disturbs the machine disturbs all of them.

  Each waits for a line before each of its timed rounds, and meanwhile does nothing.
  A context manager.
  """

  def __init__(self, cores: int, repeats: int):
    self._cores, self._repeats = cores, repeats
    self._processes = {}
    self._stack = contextlib.ExitStack()

  def __enter__(self):
    return self

  def __exit__(self, *exception):
    self._stack.close()

  def add(self, name: Hashable, words: list[str]) -> None:
    """Starts `python *words --turns --repeats=N` and waits until it is warm."""
    words = [*words, '--turns', f'--repeats={self._repeats}']
    process = self._stack.enter_context(_start(words, self._cores))
    self._wait(process)
    self._processes[name] = process

  def reports(self) -> dict[Hashable, dict]:
    """Runs all rounds; name -> the JSON that the program printed at its end."""
    reports = {}
    for turn in range(self._repeats):
      for name, process in self._processes.items():
        process.stdin.write('\n')
        process.stdin.flush()
        if turn + 1 < self._repeats:
          self._wait(process)
        else:
          reports[name] = _report(process)
    return reports

  @staticmethod
  def _wait(process):
    if not any(line == 'ready\n' for line in process.stdout):
      raise RuntimeError(f'{process.args} ended before its time.')


def _start(words, cores, environment=None) -> subprocess.Popen:
  allowed = sorted(os.sched_getaffinity(0))[:cores]
  return subprocess.Popen(
    [sys.executable, *words],
    cwd=ROOT,
    env=os.environ | (environment or {}),
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    text=True,
    preexec_fn=lambda: os.sched_setaffinity(0, allowed),
  )


def _report(process, seconds=None) -> dict:
  """The last line that a program prints, as JSON."""
  lines = process.communicate(timeout=seconds)[0].splitlines()
  if process.returncode:
    raise subprocess.CalledProcessError(process.returncode, process.args)
  return json.loads(lines[-1])
