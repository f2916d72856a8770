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


def places(mutant: Mutant, root: pathlib.Path = ROOT) -> list[int]:
  """The indices of the lines that equal the mutant's line."""
  lines = (root / mutant.file).read_text().split('\n')
  return [i for i, line in enumerate(lines) if f'- {line.strip()}' == mutant.old]


def copied(folder: pathlib.Path) -> pathlib.Path:
  """Copies what git knows of, as it is now."""
  names = subprocess.check_output(['git', 'ls-files'], cwd=ROOT, text=True)
  for name in filter(lambda name: (ROOT / name).is_file(), names.splitlines()):
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(ROOT / name, folder / name)
  return folder


def verdict(folder: pathlib.Path, tests: Iterable[str], limit: float | None) -> str:
  """What the tests say of a copy, and how many seconds that took."""
  words = [word for test in tests for word in test.split()]
  marks = ['-m', ''] if 'slow' in words else []
  words = [word for word in dict.fromkeys(words) if word != 'slow']
  options = ['-x', '-q', '-n0', '-p', 'no:cacheprovider', *marks]
  # Without bytecode, which may be stale if a file changes twice within a second.
  environment = {'PYTHONPATH': str(folder), 'PYTHONDONTWRITEBYTECODE': '1'}
  command = [sys.executable, '-m', 'pytest', *words, *options]
  where = {'cwd': folder, 'env': os.environ | environment, 'start_new_session': True}
  quiet = dict.fromkeys(('stdout', 'stderr'), subprocess.DEVNULL)
  begin = time.monotonic()
  with subprocess.Popen(command, **where, **quiet) as running:
    try:
      code = running.wait(limit)
    except subprocess.TimeoutExpired:  # with all processes that it has started
      code = os.killpg(running.pid, signal.SIGKILL)
  found = VERDICTS.get(code, f'not tested, pytest ends with {code}')
  return f'{found:8} {time.monotonic() - begin:5.0f} s'


def tried(mutant: Mutant, folders: queue.Queue) -> str:
  """Makes the change in one of the copies, and takes it back when it is tested."""
  folder = folders.get()
  path = folder / mutant.file
  text, found = path.read_text(), places(mutant, folder)
  try:
    if len(found) != 1:
      return f'not tested, its line stands {len(found)} times in {mutant.file}'
    lines = text.split('\n')
    lines[found[0]] = lines[found[0]].replace(mutant.old[2:], mutant.new[2:])
    path.write_text('\n'.join(lines))
    return verdict(folder, [mutant.tests], LIMIT)
  finally:
    path.write_text(text)
    folders.put(folder)


def main() -> int:
  """Tries the chosen changes; the exit code."""
  parser = argparse.ArgumentParser(prog='python -m tests.mutants')
  parser.add_argument('words', nargs='*')
  parser.add_argument('--list', action='store_true', help='runs nothing')
  parser.add_argument('--jobs', type=int, default=2, help='processes at a time')
  given = parser.parse_args()
  words = given.words or ['']
  chosen = [one for one in table() if any(word in '\n'.join(one) for word in words)]
  if given.list:
    print('\n\n'.join(map('\n'.join, chosen)))
    return 0
  bad = 0
  executor = futures.ThreadPoolExecutor
  with tempfile.TemporaryDirectory() as parent, executor(given.jobs) as pool:
    folders = queue.Queue()
    for job in range(given.jobs):
      folders.put(copied(pathlib.Path(parent, str(job))))
    green = verdict(folders.queue[0], (one.tests for one in chosen), None)
    print(f'{green}  the tests on the source as it is', flush=True)
    if not green.startswith('survived'):
      return 1
    results = pool.map(lambda mutant: tried(mutant, folders), chosen)
    for mutant, result in zip(chosen, results, strict=True):
      bad += not result.startswith('killed')
      print(f'{result}  {mutant.name}', flush=True)
  print(f'{len(chosen)} changes, {bad} of them not killed')
  return bool(bad)


if __name__ == '__main__':
  sys.exit(main())
