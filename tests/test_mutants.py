"""The table of `tests/mutants.py` names lines and tests that exist."""

import pytest

from tests import mutants

MUTANTS = mutants.table()


def test_there_are_enough_and_each_has_a_name():
  assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 250


@pytest.mark.parametrize('mutant', MUTANTS, ids=lambda mutant: mutant.name)
def test_its_line_stands_once_and_its_tests_are_there(mutant):
  assert len(mutants.places(mutant)) == 1
  assert mutant.new[:2] == '+ '
  assert mutant.new[2:] != mutant.old[2:]
  for test in mutant.tests.removesuffix(' slow').split():
    path, *names = test.partition('[')[0].split('::')
    text = (mutants.ROOT / path).read_text()
    assert all(f'def {name}(' in text for name in names)
