"""Runs a program on some of the cores and reads the JSON line that it prints."""

import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[1]


def run(words: list[str], cores: int | None = None) -> dict:
  """The last line that `python *words` prints, as JSON.

  Args:
    words: of the command, run in the repository's root.
    cores: how many it may use; None is all.
  """
  allowed = sorted(os.sched_getaffinity(0))[:cores]
  done = subprocess.run(
    [sys.executable, *words],
    cwd=ROOT,
    stdout=subprocess.PIPE,
    text=True,
    check=True,
    preexec_fn=lambda: os.sched_setaffinity(0, allowed),
  )
  return json.loads(done.stdout.splitlines()[-1])
