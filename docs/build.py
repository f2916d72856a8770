"""Writes docs/experiments.md from docs/experiments.in.md and the runs in docs/results/.

  python -m docs.build               builds the page
  python -m docs.build add RUN ...   keeps finished run directories first

In the template a line of its own

  @table FILE: VARIANT ...     what a paper reports beside what was measured
  @costs FILE: VARIANT ...     the commands, and what they cost
  @compare FILE: A B ...       A less each of the others, paired by seed
  @figure NAME FILE: VARIANT ...  the curves of these runs, results/NAME.png
  @pictures FILE: VARIANT ...  the curves of every run alone

becomes Markdown, and {{last RUN}}, {{late RUN}} (the mean of five tests) and
{{rounds RUN}} in a text the number of a run of docs/results/. FILE is configs/FILE.py.
A variant without a run is "not run".
"""

import hashlib
import pathlib
import re
import sys
from collections.abc import Sequence

from docs import draw, records
from docs.records import Kept
from moon_jax import config as config_lib
from moon_jax.config.variants import Variant
from moon_jax.errors import ExitCode, UsageError, did_you_mean, exit_code_of
from moon_jax.report.numbers import statistics

DOCS = pathlib.Path(__file__).parent
# Digest of a data set that is not the original's, and what differs.
_COPY = 'a1928db65e5547bb57a6decf2a309992e6cdbf937a1870e4802fcc6c3f0e5461'
_COPIES = {_COPY: 'pixels decoded from JPEG'}
_NOT_RUN = 'not run'
_TRAINED = 'in training'  # told of a reported figure that is of training accuracy
_HEAD = 'variant,reported,last,mean of 5,best,rounds,seeds,what differs,it says'


class Row:
  """A variant of a paper, with its runs in one setting: of several seeds, or none."""

  def __init__(self, choice: str, variant: Variant, runs: Sequence[Kept]):
    self.choice, self.variant = choice, variant
    self.runs = sorted(runs, key=lambda run: run.seed)

  @property
  def name(self) -> str:
    """Of the variant."""
    return self.choice.rpartition(':')[2]

  def reported(self) -> tuple[float, float | None] | None:
    """The accuracy that the paper reports, and its spread if it has one."""
    found = re.match(r'(\d+\.\d+)(?: \+- (\d+\.\d+))?', self.variant.reported)
    return found and (float(found[1]), float(found[2]) if found[2] else None)

  def accuracy(self, run: Kept) -> dict[int, float]:
    """round -> what the paper reports: of tests, unless its figure is of training."""
    trained = _TRAINED in self.variant.reported
    return run.accuracy('train_accuracy' if trained else 'test_accuracy')

  def estimate(self, of=statistics.last) -> statistics.Estimate | None:
    """The mean over the seeds of the last accuracy, or of another number."""
    return statistics.estimate(of(self.accuracy(run)) for run in self.runs)

  def differs(self) -> str:
    """What sets the runs apart from the variant, and their data from the original."""
    if not self.runs:
      return ''
    wanted = config_lib.flatten(config_lib.validate(config_lib.load(self.choice)))
    told = {
      f'`{name}={value}`'
      for run in self.runs
      for name, value in (config_lib.identity(run.knobs) | _length(run)).items()
      if name != 'seed' and wanted.get(name) != value
    }
    copies = {
      _COPIES[digest] for run in self.runs if (digest := _digest(run)) in _COPIES
    }
    return ', '.join([*sorted(told), *sorted(copies)]) or 'nothing'

  def sentence(self) -> str:
    """What the runs say of the reported figure."""
    ours, theirs = self.estimate(), self.reported()
    if not ours:
      return _NOT_RUN
    seeds = 'One seed' if ours.n == 1 else f'{ours.n} seeds'
    if not theirs:
      return f'{seeds}; no figure to compare with.'
    apart, spread = ours.mean - theirs[0], theirs[1]
    where = f'{abs(apart):.1f} {"above" if apart > 0 else "below"} what is reported'
    if spread is None:
      return f'{seeds}, {where}.'
    inside = 'within' if abs(apart) <= 2 * spread else 'outside'
    return f'{seeds}, {where}, {inside} two of its standard deviations.'


def _length(run: Kept) -> dict[str, int]:
  return {'num_rounds': run.knobs['num_rounds']}


def _digest(run: Kept) -> str:
  return run.about.get('data_digest', '')


def rows(words: str, kept: dict[str, Kept]) -> list[Row]:
  """The rows of 'FILE: VARIANT ...'; of a variant with runs in two settings, two.

  Raises:
    UsageError: there is no such file or variant.
  """
  file, _, names = words.partition(':')
  path = f'configs/{file.strip()}.py'
  variants, found = config_lib.variants(path), []
  for name in names.split():
    if name not in variants:
      hint = did_you_mean(name, variants)
      raise UsageError(f'experiments.in.md: {path} has no variant {name!r}.{hint}')
    choice, settings = f'{path}:{name}', {}
    for run in kept.values():
      if run.choice == choice:
        same = config_lib.identity(run.knobs) | _length(run) | {'seed': 0}
        settings.setdefault(str(sorted(same.items())), []).append(run)
    found += [Row(choice, variants[name], runs) for runs in settings.values() or [()]]
  return found


def _table(given: Sequence[Row]) -> list[str]:
  lines = []
  for row in given:
    best = max((max(row.accuracy(run).values()) for run in row.runs), default=None)
    rounds = {str(run.rounds[-1]['round']) for run in row.runs}
    cells = [
      f'`{row.name}`: {row.variant.setting}',
      row.variant.reported or '-',
      _shown(row.estimate()),
      _shown(row.estimate(statistics.tail_mean)),
      '' if best is None else f'{best:.1f}',
      ', '.join(sorted(rounds)),
      ', '.join(str(run.seed) for run in row.runs),
      row.differs(),
      row.sentence(),
    ]
    lines.append(cells)
  # Without a run most columns would be empty.
  by_column = zip(_HEAD.split(','), *lines, strict=True)
  columns = [(name, '---', *below) for name, *below in by_column if any(below)]
  return [f'| {" | ".join(cells)} |' for cells in zip(*columns, strict=True)]


def _shown(found: statistics.Estimate | None) -> str:
  if found is None:
    return ''
  return f'{found.mean:.1f}' + ('' if found.std is None else f' +- {found.std:.1f}')


def _costs(given: Sequence[Row]) -> list[str]:
  head = '| command | seconds a round, median | hours in all |'
  lines = [head, '| --- | --- | --- |']
  for row in given:
    command = f'`python launch.py --config={row.choice}`'
    for run in row.runs:
      cost = run.about.get('cost', {})
      each, total = cost.get('median'), cost.get('seconds')
      words = 'not recorded' if each is None else f'{each:.0f}'
      hours = 'not recorded' if total is None else f'{total / 3600:.1f}'
      lines.append(f'| `{run.command}` | {words} | {hours} |')
    if not row.runs:
      lines.append(f'| {command} | {_NOT_RUN} | |')
  return lines


def _compare(given: Sequence[Row]) -> list[str]:
  """'MOON - FedAvg: ...': the first variant less each of the others."""
  by_name = {}
  for row in given:
    by_name.setdefault(row.name, []).append(row)
  first, *others = by_name.values()
  return [f'- {_difference(first, other)}' for other in others]


def _difference(ours: Sequence[Row], theirs: Sequence[Row]) -> str:
  """Of the runs with the same seed, length and deviations from their variants."""
  names = f'`{ours[0].name}` - `{theirs[0].name}`'
  pair = [rows[0].reported() for rows in (ours, theirs)]
  told = f'; reported {pair[0][0] - pair[1][0]:+.1f}' if all(pair) else ''
  found = statistics.compare(*map(_by_sample, (ours, theirs)))
  if found is None:
    return f'{names}: {_NOT_RUN}{told}.'
  mean, std, count = found.difference
  words = [f'{count} seed{"s" if count > 1 else ""}']
  words += ['one pair, so it ranks nothing' if std is None else f'+- {std:.1f}']
  if found.p_value is not None:
    words.append(f'p = {found.p_value:.2g} of a paired t-test')
  return f'{names}, mean of 5 tests: {mean:+.1f} points ({", ".join(words)}){told}.'


def _by_sample(given: Sequence[Row]) -> dict[tuple, float]:
  """What two runs must have in common to be a pair -> the mean of five tests."""
  return {
    (run.seed, len(run.rounds), row.differs()): statistics.tail_mean(run.accuracy())
    for row in given
    for run in row.runs
  }


def _pictures(given: Sequence[Row]) -> list[str]:
  lines = [
    f'![Test accuracy and losses of {_title(row, run)}](results/{run.name}/curves.png)'
    for row in given
    for run in row.runs
  ]
  return '\n\n'.join(lines).splitlines() or ['No picture: ' + _NOT_RUN + '.']


def _title(row: Row, run: Kept) -> str:
  return f'{row.variant.setting}, seed {run.seed}'


def _figure(
  name: str, given: Sequence[Row], results: pathlib.Path, anew: bool
) -> list[str]:
  """A picture of several runs: drawn anew, or the one there is, if it is theirs."""
  runs = {_title(row, run): run.rounds for row in given for run in row.runs}
  if not runs:
    return [f'No picture: {_NOT_RUN}.']
  path = results / f'{name}.png'
  digest = hashlib.sha256(repr(runs).encode()).hexdigest()
  if anew:
    draw.side_by_side(path, runs, digest)
  elif draw.digest_of(path) != digest:
    raise UsageError(f'{path} does not show these runs: run python -m docs.build.')
  return [f'![{name}: {"; ".join(runs)}](results/{name}.png)']


_MADE = {'table': _table, 'costs': _costs, 'compare': _compare, 'pictures': _pictures}
_NUMBERS = {
  'last': lambda run: f'{statistics.last(run.accuracy()):.1f}',
  'late': lambda run: f'{statistics.tail_mean(run.accuracy()):.1f}',
  'rounds': lambda run: str(run.rounds[-1]['round']),
}


def page(docs: pathlib.Path, anew: bool = False) -> str:
  """The text of experiments.md.

  Args:
    docs: the folder of the template and of results/.
    anew: whether pictures of several runs are drawn, or looked at.

  Raises:
    UsageError: a run is missing or has changed; a line asks for what is not there.
  """
  results = docs / 'results'
  kept = records.read(results)

  def number(found):
    what, name = found.groups()
    if what not in _NUMBERS or name not in kept:
      raise UsageError(f'experiments.in.md: there is no {found[0]} in {results}.')
    return _NUMBERS[what](kept[name])

  lines = []
  for line in (docs / 'experiments.in.md').read_text().splitlines():
    word, _, words = line.partition(' ')
    if word == '@figure':
      name, _, words = words.partition(' ')
      lines += _figure(name, rows(words, kept), results, anew)
    elif word.startswith('@'):
      if word[1:] not in _MADE:
        raise UsageError(f'experiments.in.md: there is no {word!r}.')
      lines += _MADE[word[1:]](rows(words, kept))
    else:
      lines.append(re.sub(r'\{\{(\w+) ([^}]+)\}\}', number, line))
  return '\n'.join(lines) + '\n'


def main(argv: Sequence[str], docs: pathlib.Path = DOCS) -> int:
  """The program; the exit code."""

  def program():
    word, *runs = argv or ['']
    if argv and (word != 'add' or not runs):
      raise UsageError('python -m docs.build [add RUN ...]')
    for run in runs:
      print(f'kept {records.add(pathlib.Path(run), docs / "results")}')
    (docs / 'experiments.md').write_text(page(docs, anew=True))
    return ExitCode.DONE

  return exit_code_of(program)


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
