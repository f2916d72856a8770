"""Tables in LaTeX, the table by two knobs, and that of classes."""

import pytest

from moon_jax.core.errors import UsageError
from moon_jax.report import latex, tables
from moon_jax.report.tables import Better, Column, Table
from tests.report.reports import Collected, write_runs

# --- LaTeX ----------------------------------------------------------------------------


def lines_of(columns, rows):
  """The lines of a tabular."""
  table = Table(name='n', title='t', caption='c', columns=columns, rows=rows)
  return latex.text(table).splitlines()


def test_latex_of_numbers_of_all_kinds():
  columns = (
    Column('name', 'a_b & c'),
    tables.percent_estimate('x', 'x, %'),
    Column('d', 'd', '+.1f'),
    Column('command', 'command'),
  )
  rows = [
    {'name': 'A', 'x_mean': 0.5, 'x_std': 0.01, 'd': -1.5, 'command': 'python'},
    {'name': 'B', 'x_mean': 0.7, 'x_std': None, 'd': 2.0, 'command': 'python'},
    {'name': 'C', 'x_mean': 0.70004, 'x_std': 0.1, 'd': None, 'command': 'python'},
    {'name': 'D', 'x_mean': 0.1, 'x_std': 0.1, 'd': 0.0, 'command': 'python'},
  ]
  lines = lines_of(columns, rows)
  assert lines[0] == r'\begin{tabular}{lr@{\,$\pm$\,}lr}'
  assert lines[2] == r'a\_b \& c & \multicolumn{2}{c}{x, \%} & d \\'
  a, b, c, d = lines[4:8]
  assert a == r'A & \underline{50.00} & 1.00 & $-$1.5 \\'
  # B and C have equal printed means, so both are marked as best.
  assert b.startswith(r'B & \multicolumn{1}{r')
  assert r'\textbf{70.00}' in b
  assert b.endswith(r' & $+$2.0 \\')
  assert c == r'C & \textbf{70.00} & 10.00 & - \\'
  assert d == r'D & 10.00 & 10.00 & $+$0.0 \\'


def test_latex_leaves_room_where_a_number_has_fewer_decimals():
  rows = [{'beta': 0.05}, {'beta': 5.0}, {'beta': 0.5}, {'beta': None}]
  assert lines_of([Column('beta', 'beta')], rows)[4:8] == [
    r'0.05 \\',
    r'5\phantom{.05} \\',
    r'0.5\phantom{5} \\',
    r'- \\',
  ]


def test_the_best_is_that_of_its_setting():
  columns = (
    Column('setting', 's'),
    tables.percent_estimate('x', 'x'),
    Column('r', 'rounds', '.1f', better=Better.LOWER),
  )
  rows = [
    {'setting': '1', 'x_mean': 0.5, 'r': 9.0},
    {'setting': '1', 'x_mean': 0.6, 'r': 3.0},
    {'setting': '2', 'x_mean': 0.1, 'r': 1.0},
  ]
  assert lines_of(columns, rows)[4:7] == [
    r'1 & \underline{50.00} & \underline{9.0} \\',
    r'1 & \textbf{60.00} & \textbf{3.0} \\',
    r'2 & 10.00 & 1.0 \\',  # nothing to compare with
  ]
  # Nothing is best among runs of unequal lengths.
  unequal_rows = [row | {'rounds': '5 to 30'} for row in rows]
  assert not [line for line in lines_of(columns, unequal_rows) if 'textbf' in line]


# --- by two knobs ---------------------------------------------------------------------


@pytest.fixture(scope='module')
def two_knobs(tmp_path_factory):
  """Runs of FedAvg with two betas and of MOON with one, each with two seeds.

  Their best accuracy, 0.95, is not their last.
  """
  finals = {
    'algorithm=fedavg partition.beta=0.5': 0.35,
    'algorithm=fedavg partition.beta=5': 0.80,
    'algorithm=moon partition.beta=0.5': 0.45,
  }
  runs_by_name = {
    f'{words} {seed}': ([0.95, final + seed / 100], f'{words} seed={seed}')
    for words, final in finals.items()
    for seed in (0, 1)
  }
  return write_runs(tmp_path_factory.mktemp('pivot'), runs_by_name)


def test_a_pivot_has_a_row_and_a_column_for_each_value(two_knobs):
  report = Collected(two_knobs, ['--rows=algorithm', '--columns=partition.beta'])
  fedavg, moon = report.rows('pivot')
  assert (fedavg['row'], moon['row']) == ('FedAvg', 'MOON')
  # Means of the last accuracies of two seeds: 0.35 and 0.36, 0.80 and 0.81.
  assert float(fedavg['of 0.5_mean']) == pytest.approx(0.355)
  assert float(fedavg['of 5.0_mean']) == pytest.approx(0.805)
  assert fedavg['of 0.5_n'] == '2'
  assert float(moon['of 0.5_mean']) == pytest.approx(0.455)
  assert moon['of 5.0_mean'] == ''  # no run has these values


def test_a_pivot_ranks_algorithms_and_no_values(two_knobs):
  by_algorithm = ['--rows=algorithm', '--columns=partition.beta']
  columns = Collected(two_knobs, by_algorithm).table('pivot').columns
  ranks = [column.better for column in columns]
  assert ranks == [Better.NEITHER, Better.HIGHER, Better.HIGHER]
  by_beta = ['--rows=partition.beta', '--columns=algorithm']
  columns = Collected(two_knobs, by_beta).table('pivot').columns
  assert {column.better for column in columns} == {Better.NEITHER}


@pytest.mark.parametrize(
  ('flags', 'complaint'),
  [
    (
      ['--rows=algorithm', '--columns=partition.beta', '--over=partition.beta'],
      'differ in seed; choose',
    ),
    (['--rows=seed'], 'go together, each with another knob'),
    (['--rows=seed', '--columns=seed'], 'go together, each with another knob'),
    (['--rows=moon.mu', '--columns=algorithm'], r"has no setting 'moon\.mu'"),
  ],
)
def test_a_pivot_that_is_not_to_be_had_is_refused(two_knobs, flags, complaint):
  with pytest.raises(UsageError, match=complaint):
    Collected(two_knobs, flags)


# --- by class -------------------------------------------------------------------------


@pytest.mark.parametrize(
  ('setting', 'caption'),
  [
    ('', 'Trained global model on the test images of each class.'),
    ('beta=0.5', 'Trained global model on the test images of each class: beta=0.5.'),
  ],
)
def test_a_table_by_class_names_its_setting(setting, caption):
  table = tables.by_class(number=1, setting=setting, headings={}, rows=[])
  assert table.caption == caption
