"""The table of `tests/mutants.py` names lines and tests that exist."""

import collections

from tests import mutants

MUTANTS = mutants.table()


def faults(mutant):
  """What is wrong with an entry of the table, one sentence each."""
  if not (mutants.ROOT / mutant.file).is_file():
    yield f'there is no file {mutant.file}'
    return
  lines = mutants.matching_lines(mutant)
  if len(lines) != 1:
    yield f'{mutant.file} has {len(lines)} lines {mutant.old!r}, not 1'
  if not mutant.new.startswith('+ ') or mutant.new[2:] == mutant.old[2:]:
    yield f'{mutant.new!r} is no change'
  for test in mutant.tests.removesuffix(' slow').split():
    path, *names = test.partition('[')[0].split('::')
    if not (mutants.ROOT / path).exists():
      yield f'there is no test file {path}'
      continue
    text = (mutants.ROOT / path).read_text()
    for name in names:
      if f'def {name}(' not in text:
        yield f'{path} has no test {name}'


def test_each_line_stands_once_and_each_test_is_there():
  broken = [f'{mutant.name}: {fault}' for mutant in MUTANTS for fault in faults(mutant)]
  assert not broken, '\n'.join(['in tests/mutants.txt:', *broken])


def test_there_are_enough_and_each_has_a_name():
  counts = collections.Counter(mutant.name for mutant in MUTANTS)
  assert [name for name, count in counts.items() if count > 1] == []
  assert len(MUTANTS) >= 250
