"""Writes docs/experiments.md from docs/experiments.in.md and the runs in docs/results/.

  python -m docs.build               builds the page
  python -m docs.build add RUN ...   first adds run directories to docs/results/

The template is Markdown. These lines of the template are replaced:

  @table FILE: VARIANT ...     the accuracies that a paper reports beside the measured
  @costs FILE: VARIANT ...     the commands of the runs, and what they cost
  @compare FILE: A B ...       the accuracy of A minus that of each other variant,
                               paired by seed
  @personal FILE: VARIANT ...  accuracies of the shared and of the clients' own models
  @figure NAME FILE: VARIANT ...      training curves side by side
  @drift NAME FILE: VARIANT ...       curves of MOON's term and of the clients' drift
  @sweep NAME KNOB FILE: VARIANT ...  accuracy over the values of a knob
  @attacks NAME FILE: VARIANT ...     accuracy over the fraction of attackers
  @tsne FILE: VARIANT ...      t-SNE of the global models' representations
  @curve ALGORITHM ROUND       an algorithm's differences to FedAvg (docs/curve.py)
  @means ROUND                 the means of all algorithms' differences to FedAvg
  @differences NAME ALGORITHM ROUND ROUND  those differences over beta, as a picture
  @partitions ROUND            deviations over partitions, and within one partition
  @ablation ROUND              accuracies with one change of the setting each

FILE stands for configs/FILE.py, and NAME for the picture docs/results/NAME.png. In a
text, {{late RUN}} is the mean of the last five accuracies of a run in docs/results/, in
per cent, and {{COLUMN@ROUND RUN}} is the mean of a column of its metrics.jsonl over the
five rounds that end with ROUND; for the RUN ..._seed0,1,2 there is a number for each
of these seeds. A table names the variants without a run; pictures, costs and
comparisons leave them out. A run has a t-SNE if its directory was reported on
(`python -m moon_jax.report RUN`) before it was added.
"""

import functools
import hashlib
import pathlib
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd

from docs import curve, draw, records
from docs.rows import NOT_RUN, Estimate, Row, estimate, rows
from moon_jax import config as config_lib
from moon_jax.core.errors import ExitCode, UsageError, did_you_mean, exit_code_of
from moon_jax.report.statistics import paired_difference

DOCS = pathlib.Path(__file__).parent
_HEAD = 'variant,reported,last,mean of 5,best,rounds,seeds,what differs,comparison'


def _table(given: Sequence[Row]) -> list[str]:
  """A table of the rows that have runs; the others are folded up below it."""
  head, lines = _HEAD.split(','), [_cells(row) for row in given if row.runs]
  table = [head, ['---'] * len(head), *lines] if lines else []
  told = [f'| {" | ".join(cells)} |' for cells in table]
  left = [f'`{row.name}`{_reported(row)}' for row in given if not row.runs]
  summary = f'Not run: {len(left)} of {len(given)}'
  below = _folded(summary, [f'{"; ".join(left)}.']) if left else []
  return [*told, *([''] if told and below else []), *below]


def _cells(row: Row) -> list[str]:
  """The cells of a row that has runs."""
  best = max(row.accuracy(run).max() for run in row.runs)
  rounds = {str(run.rounds[-1]['round']) for run in row.runs}
  return [
    f'`{row.name}`: {row.variant.setting}',
    row.variant.reported or '-',
    _last(row),
    _shown(row.estimate(5)),
    f'{best:.1f}',
    ', '.join(sorted(rounds)),
    ', '.join(str(run.seed) for run in row.runs),
    row.differs(),
    row.comparison(),
  ]


def _reported(row: Row) -> str:
  return f', reported {row.variant.reported}' if row.variant.reported else ''


def _personal(given: Sequence[Row]) -> list[str]:
  """A table of accuracies in per cent, each the mean of the last five tests.

  The columns are the shared model on the test set, the shared model on the clients' own
  tests, there also after each client has fine-tuned it, and the clients' own models on
  their own tests.
  """
  head = '| algorithm | test set | own tests | fine-tuned | own models | seeds |'
  lines = [head, f'|{" --- |" * 6}']
  for row in given:
    cells = []
    own = (f'{model}_accuracy_mean' for model in ('local', 'tuned', 'personal'))
    for column in ('test_accuracy', *own):
      found = (run.accuracy(column).tail(5).mean() for run in row.runs)
      cells.append(_shown(estimate(found)))
    seeds = ', '.join(str(run.seed) for run in row.runs) or NOT_RUN
    lines.append(f'| {" | ".join([row.variant.setting, *cells, seeds])} |')
  return lines


def _last(row: Row) -> str:
  among = row.among()
  return _shown(row.estimate()) + (f' (clients +- {among.mean:.1f})' if among else '')


def _shown(found: Estimate | None) -> str:
  if found is None:
    return ''
  return f'{found.mean:.1f}' + ('' if found.std is None else f' +- {found.std:.1f}')


def _costs(given: Sequence[Row]) -> list[str]:
  """The commands and costs of the rows that have runs."""
  head = '| command | seconds a round, median | minutes in all | machine | commit |'
  lines, hours = [head, f'|{" --- |" * 5}'], 0.0
  for run in (run for row in given for run in row.runs):
    cost = run.about.get('cost', {})
    each, total = cost.get('median'), cost.get('seconds')
    words = 'not recorded' if each is None else f'{each:.1f}'
    minutes = 'not recorded' if total is None else f'{total / 60:.1f}'
    hours += (total or 0) / 3600
    commit = (run.about.get('git_commit') or '')[:7]
    machine = _machine(run.about)
    lines.append(f'| `{run.command}` | {words} | {minutes} | {machine} | {commit} |')
  told = f'Commands and costs of {len(lines) - 2} runs, {hours:.1f} hours in all'
  return _folded(told, lines) if len(lines) > 2 else []


def _folded(told: str, lines: Sequence[str]) -> list[str]:
  return [f'<details><summary>{told}</summary>', '', *lines, '', '</details>']


def _machine(about: Mapping[str, Any]) -> str:
  """The accelerators that computed a run, and the processor if it did."""
  every, machine = records.devices(about), about.get('machine')
  told = [name for kind, _, name in (d.partition(': ') for d in every) if kind != 'cpu']
  if machine and (not told or len(told) < len(every)):
    told.append(f'{machine["processor"]}, {machine["cores"]} core(s)')
  return ' and '.join(told)


def _compare(given: Sequence[Row]) -> list[str]:
  """'MOON - FedAvg: ...': the first variant minus each of the others."""
  first = [row for row in given if row.name == given[0].name]
  return [
    f'- {_difference(ours, theirs)}'
    for theirs in given
    for ours in first
    if ours.name != theirs.name and ours.conditions == theirs.conditions
    if {run.seed for run in ours.runs} & {run.seed for run in theirs.runs}
  ]


def _difference(ours: Row, theirs: Row) -> str:
  """The difference of two rows under equal conditions, paired by seed."""
  names = f'`{ours.name}` - `{theirs.name}`'
  if changed := ours.changed():
    names += f' ({", ".join(changed)})'
  pair = [row.reported() for row in (ours, theirs)]
  is_reported = all(pair) and not changed
  told = f'; reported {round(pair[0][0] - pair[1][0], 2):+g}' if is_reported else ''
  difference = paired_difference(_by_seed(ours), _by_seed(theirs))
  mean, std, count = difference.estimate
  words = [f'{count} seed{"s" if count > 1 else ""}']
  words += ['too few to rank them' if count == 1 else f'+- {std:.1f}']
  if difference.p_value is not None:
    words.append(f'p = {difference.p_value:.2g} of a paired t-test')
  return f'{names}, mean of 5 tests: {mean:+.1f} points ({", ".join(words)}){told}.'


def _by_seed(row: Row) -> pd.Series:
  """Seed -> the mean of the last five tests of its run."""
  found = {run.seed: run.accuracy().tail(5).mean() for run in row.runs}
  return pd.Series(found, dtype=float)


def _tsne(given: Sequence[Row]) -> list[str]:
  """The t-SNE pictures that were kept with the runs."""
  shown = [
    f'![t-SNE of {row.variant.setting}, seed {run.seed}]'
    f'(results/{run.name}/{records.TSNE})'
    for row in given
    for run in row.runs
    if records.TSNE in run.files
  ]
  return [' '.join(shown)]


class _Pictures:
  """Draws pictures of several runs, or checks that the pictures show these runs.

  Curves and sweeps show no run with another number of rounds than its variant's.
  """

  def __init__(self, results: pathlib.Path, anew: bool):
    self.results, self.anew = results, anew

  def figure(self, name: str, given: Sequence[Row]) -> list[str]:
    """The training curves of the runs."""
    return self._curves(name, given, draw.PROGRESS)

  def drift(self, name: str, given: Sequence[Row]) -> list[str]:
    """The curves of MOON's term, the cosines in it, and the clients' drift."""
    return self._curves(name, given, draw.DRIFT)

  def sweep(self, name: str, knob: str, given: Sequence[Row]) -> list[str]:
    """The last test and training accuracies of the runs, over a knob."""
    knobs = config_lib.flatten(config_lib.defaults())
    if knob not in knobs:
      hint = did_you_mean(knob, knobs)
      raise UsageError(f'experiments.in.md: there is no knob {knob!r}.{hint}')
    points, whole = {}, list(filter(Row.is_whole, given))
    if len({row.runs[0].knobs[knob] for row in whole}) < 2:
      whole = []  # one point shows no effect
    for column in ('test_accuracy', 'train_accuracy'):
      for row in whole:
        found = estimate(run.accuracy(column).tail(1).mean() for run in row.runs)
        if found and found.n == len(row.runs):
          point = row.runs[0].knobs[knob], found.mean, found.std or 0.0
          points.setdefault(column.replace('_', ' '), []).append(point)
    drawing = functools.partial(draw.over_knob, knob=knob)
    return self.picture(name, points, drawing, f'accuracy over {knob}')

  def attacks(self, name: str, given: Sequence[Row]) -> list[str]:
    """The mean of five tests over the fraction of attackers, a panel for each attack.

    The last words of a variant's setting name the server's rule. A variant without an
    attack is the point at 0 in each panel.
    """
    found = []
    for row in given:
      if of_row := row.estimate(5):
        attack, share = (row.runs[0].knobs[f'attack.{n}'] for n in ('name', 'fraction'))
        rule = row.variant.setting.rpartition(', ')[2]
        honest = attack == 'none'
        point = 0.0 if honest else share, of_row.mean, of_row.std or 0.0
        found.append((attack, rule, point))
    panels = {attack: {} for attack, *_ in found if attack != 'none'}
    for attack, rule, point in found:
      for panel in panels if attack == 'none' else (attack,):
        panels[panel].setdefault(rule, []).append(point)
    words = 'accuracy over the fraction of attackers'
    return self.picture(name, panels, draw.under_attack, words)

  def _curves(self, name: str, given: Sequence[Row], panels: Sequence) -> list[str]:
    whole = filter(Row.is_whole, given)
    runs = {row.title: [run.rounds for run in row.runs] for row in whole}
    drawing = functools.partial(draw.side_by_side, given=panels)
    return self.picture(name, runs, drawing, '; '.join(runs))

  def picture(
    self, name: str, shown: Mapping, drawing: Callable, words: str
  ) -> list[str]:
    """The line that shows a picture of what is shown, which `drawing` draws."""
    if not shown:
      return []
    path = self.results / f'{name}.png'
    digest = hashlib.sha256(repr(shown).encode()).hexdigest()
    if self.anew:
      drawing(path, shown, digest=digest)
    elif draw.digest_of(path) != digest:
      raise UsageError(f'{path} does not show these runs: run python -m docs.build.')
    return [f'![{name}: {words}](results/{name}.png)']


_MADE = {'table': _table, 'costs': _costs, 'compare': _compare}
_MADE |= {'personal': _personal, 'tsne': _tsne}


def _number(what: str, run: records.Kept) -> str | None:
  """The number that {{WHAT RUN}} stands for; None if the run has no such number."""
  column, _, last = what.partition('@')
  if what == 'late':
    return f'{run.accuracy().tail(5).mean():.1f}'
  values = {
    line['round']: line[column]
    for line in run.rounds
    if isinstance(line.get(column), float)
  }
  found = curve.endpoint(values, int(last)) if last.isdigit() else None
  return None if found is None else f'{found:#.3g}'


def page(docs: pathlib.Path, anew: bool = False) -> str:
  """The text of experiments.md.

  Args:
    docs: the folder of the template and of results/.
    anew: whether pictures of several runs are drawn; otherwise they are checked.

  Raises:
    UsageError: a run is missing or has changed; a line asks for what is not there.
  """
  results = docs / 'results'
  kept, shown = records.read(results), set()
  pictures = _Pictures(results, anew)

  def number(found):
    what, names = found.groups()
    first, *seeds = names.split(',')
    runs = [first, *(re.sub(r'\d+$', seed, first) for seed in seeds)]
    told = [_number(what, kept[run]) if run in kept else None for run in runs]
    if None in told:
      raise UsageError(f'experiments.in.md: there is no {found[0]} in {results}.')
    return ', '.join(told)

  if not (template := docs / 'experiments.in.md').is_file():
    raise UsageError(f'{template} is missing.')
  lines = []
  for line in template.read_text().splitlines():
    if not line.startswith('@'):
      lines.append(re.sub(r'\{\{([\w@]+) ([^}]+)\}\}', number, line))
      continue
    if found := curve.section(line, kept, pictures.picture):
      lines += found[0]
      shown |= found[1]
      continue
    made, words = _maker(line, pictures)
    given = rows(words, kept)
    shown |= {run.name for row in given for run in row.runs}
    lines += made(given)
  if left := sorted(set(kept) - shown):
    raise UsageError(
      f'{results / left[0]} is in no row of experiments.in.md: name its variant there, '
      f'or delete it, with {left[0]}.sha256.'
    )
  return re.sub('\n{3,}', '\n\n', '\n'.join(lines)) + '\n'


def _maker(line: str, pictures: _Pictures) -> tuple[Callable, str]:
  """The function that turns rows into lines, and the rows as 'FILE: VARIANT ...'."""
  before, _, names = line.partition(':')
  word, *own = before.split()
  lengths = {'figure': 2, 'drift': 2, 'sweep': 3, 'attacks': 2}
  drawn = {name: getattr(pictures, name) for name in lengths}
  made = {**_MADE, **drawn}.get(word[1:])
  if made is None:
    raise UsageError(f'experiments.in.md: there is no {word!r}.')
  if len(own) != lengths.get(word[1:], 1) or not names.split():
    raise UsageError(f'experiments.in.md: {word} has another form than in {line!r}.')
  *first, file = own
  return functools.partial(made, *first), f'{file}:{names}'


def main(argv: Sequence[str], docs: pathlib.Path = DOCS) -> int:
  """Runs the program; returns the exit code."""

  def program():
    word, *runs = argv or ['']
    if argv and (word != 'add' or not runs):
      raise UsageError('python -m docs.build [add RUN ...]')
    for run in runs:
      print('kept', *records.add(pathlib.Path(run), docs / 'results'))
    (docs / 'experiments.md').write_text(page(docs, anew=True))
    return ExitCode.DONE

  return exit_code_of(program)


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
