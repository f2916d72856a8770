"""Breaks the source one line at a time, and tells whether a test turns red.

  python -m tests.mutants [WORD ...] [--list] [--jobs=2]

The changes stand in `tests/mutants.txt`, each with the tests that have to see it. First
these tests run on the source as it is, and have to be green. Then each change is made
in a copy of the repository, and its tests run there. Words choose the changes in whose
entry one of them occurs. The exit code is 1 if a change survived, or if its line does
not stand exactly once in its file.

Few tests have a time limit of their own. A change that makes its tests hang is killed
if they give up by themselves; after LIMIT seconds they are ended, and it has survived.
"""

import argparse
import os
import pathlib
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent import futures
from typing import NamedTuple

ROOT = pathlib.Path(__file__).parents[1]
LIMIT = 300  # seconds for the tests of one change
# pytest's exit code -> verdict on a change; with any other code no test could run.
VERDICTS = {0: 'survived', 1: 'killed', None: f'survived, hangs for {LIMIT} s'}


class Mutant(NamedTuple):
  """An entry of the table: a change of one line, and the tests that have to see it."""

  name: str
  file: str
  old: str
  new: str
  tests: str


def table() -> list[Mutant]:
  """The entries of tests/mutants.txt: five lines each, with empty lines between."""
  lines = (ROOT / 'tests/mutants.txt').read_text().splitlines()
  text = '\n'.join(line for line in lines if not line.startswith('#'))
  entries = filter(None, map(str.strip, text.split('\n\n')))
  return [Mutant(*entry.split('\n')) for entry in entries]


def matching_lines(mutant: Mutant, root: pathlib.Path = ROOT) -> list[int]:
  """The indices of the lines that equal the mutant's line."""
  lines = (root / mutant.file).read_text().split('\n')
  return [i for i, line in enumerate(lines) if f'- {line.strip()}' == mutant.old]


def copy_repository(folder: pathlib.Path) -> pathlib.Path:
  """Copies what git knows of, as it is now."""
  names = subprocess.check_output(['git', 'ls-files'], cwd=ROOT, text=True).splitlines()
  for name in names:
    if (ROOT / name).is_file():
      (folder / name).parent.mkdir(parents=True, exist_ok=True)
      shutil.copy2(ROOT / name, folder / name)
  return folder


def run_tests(folder: pathlib.Path, tests: Iterable[str], limit: float | None) -> str:
  """What the tests say of a copy, and how many seconds that took."""
  words = list(dict.fromkeys(word for test in tests for word in test.split()))
  marks = []
  if 'slow' in words:
    words.remove('slow')
    marks = ['-m', '']
  command = [sys.executable, '-m', 'pytest', *words, *marks]
  command += ['-x', '-q', '-n0', '-p', 'no:cacheprovider']
  # Without bytecode, which may be stale if a file changes twice within a second.
  environment = {'PYTHONPATH': str(folder), 'PYTHONDONTWRITEBYTECODE': '1'}
  begin = time.monotonic()
  with subprocess.Popen(
    command,
    cwd=folder,
    env=os.environ | environment,
    start_new_session=True,
    stdout=subprocess.DEVNULL,
    stderr=subprocess.DEVNULL,
  ) as running:
    try:
      code = running.wait(limit)
    except subprocess.TimeoutExpired:
      os.killpg(running.pid, signal.SIGKILL)  # with all processes that it has started
      code = None
  verdict = VERDICTS.get(code, f'not tested, pytest ends with {code}')
  return f'{verdict:8} {time.monotonic() - begin:5.0f} s'


def try_mutant(mutant: Mutant, folders: queue.Queue) -> str:
  """Makes the change in one of the copies, and takes it back when it is tested."""
  folder = folders.get()
  path = folder / mutant.file
  text = path.read_text()
  indices = matching_lines(mutant, folder)
  try:
    if len(indices) != 1:
      return f'not tested, its line stands {len(indices)} times in {mutant.file}'
    (index,) = indices
    lines = text.split('\n')
    lines[index] = lines[index].replace(mutant.old[2:], mutant.new[2:])
    path.write_text('\n'.join(lines))
    return run_tests(folder, [mutant.tests], LIMIT)
  finally:
    path.write_text(text)
    folders.put(folder)


def main() -> int:
  """Tries the chosen changes; the exit code."""
  parser = argparse.ArgumentParser(prog='python -m tests.mutants')
  parser.add_argument('words', nargs='*')
  parser.add_argument('--list', action='store_true', help='runs nothing')
  parser.add_argument('--jobs', type=int, default=2, help='processes at a time')
  options = parser.parse_args()
  words = options.words or ['']
  chosen = [
    mutant for mutant in table() if any(word in '\n'.join(mutant) for word in words)
  ]
  if options.list:
    print('\n\n'.join(map('\n'.join, chosen)))
    return 0
  num_survivors = 0
  executor = futures.ThreadPoolExecutor
  with tempfile.TemporaryDirectory() as parent, executor(options.jobs) as pool:
    folders = queue.Queue()
    for job in range(options.jobs):
      folders.put(copy_repository(pathlib.Path(parent, str(job))))
    unchanged = run_tests(folders.queue[0], (mutant.tests for mutant in chosen), None)
    print(f'{unchanged}  the tests on the source as it is', flush=True)
    if not unchanged.startswith('survived'):
      return 1
    verdicts = pool.map(lambda mutant: try_mutant(mutant, folders), chosen)
    for mutant, verdict in zip(chosen, verdicts, strict=True):
      num_survivors += not verdict.startswith('killed')
      print(f'{verdict}  {mutant.name}', flush=True)
  print(f'{len(chosen)} changes, {num_survivors} of them not killed')
  return bool(num_survivors)


if __name__ == '__main__':
  sys.exit(main())
