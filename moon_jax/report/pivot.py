"""A table of final accuracies: a row and a column for each value of two knobs."""

from collections.abc import Sequence

from moon_jax.core.errors import UsageError
from moon_jax.report import groups, naming, statistics
from moon_jax.report.groups import Choice
from moon_jax.report.results import WHICH, cells_of
from moon_jax.report.runs import Run, Value
from moon_jax.report.tables import Column, Table, percents


def table(runs: Sequence[Run], rows: str, columns: str, choice: Choice) -> Table:
  """The table.

  Args:
    runs: the finished runs.
    rows: a knob; each of its values makes a row.
    columns: another knob; each of its values makes a column.
    choice: what is averaged over.

  Raises:
    UsageError: a run has no such knob, or runs of one cell differ in more.
  """
  found: dict[tuple[Value, Value], list[Run]] = {}
  for run in runs:
    for flag, name in (('rows', rows), ('columns', columns)):
      if name not in run.identity:
        raise UsageError(f'--{flag}: {run.name} has no setting {name!r}.')
    key = run.identity[rows], run.identity[columns]
    found.setdefault(key, []).append(run)
  for key, alike in found.items():
    if others := groups.varying(alike, choice.over):
      told = f'{rows}={key[0]} and {columns}={key[1]}'
      raise UsageError(
        f'--rows and --columns: the runs with {told} differ in {", ".join(others)}; '
        'choose some by --where, or average by --over.'
      )
  above = groups.in_order(columns, (head for _, head in found))
  heads = {value: f'of {value}' for value in above}
  made = []
  for value in groups.in_order(rows, (left for left, _ in found)):
    row = {'row': naming.describe(((rows, value),))}
    for head, name in heads.items():
      accuracies = map(WHICH['last'], found.get((value, head), ()))
      row |= cells_of(name, statistics.estimate(accuracies))
    made.append(row)
  within = f' ({", ".join(choice.over)})' if choice.over else ''
  rounds = sorted({run.rounds[-1]['round'] for run in runs})
  after = f'{rounds[0]} to {rounds[-1]}' if rounds[1:] else rounds[0]
  # Only algorithms on equal terms are ranked.
  ranked = int(rows == naming.ALGORITHM and len(rounds) == 1)
  shown = (
    percents(heads[one], naming.describe(((columns, one),)))._replace(better=ranked)
    for one in heads
  )
  return Table(
    'pivot',
    f'Final accuracy by {naming.short(rows)} and {naming.short(columns)}',
    f'Test accuracy in % after {after} rounds, mean ± sample standard deviation over '
    f'the finished runs of a cell{within}.',
    [Column('row', naming.short(rows)), *shown],
    made,
  )
