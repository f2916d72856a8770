"""The results in docs/results/: reads them, checks their digests, and adds new ones.

docs/results/NAME/metrics.jsonl   the records as the run wrote them
docs/results/NAME/config.json     the configuration, the machine, and the cost
docs/results/NAME/tsne.png        t-SNE of the trained global model, for some runs
docs/results/NAME.sha256          digests of these files, also for `sha256sum -c`

Each run has its own file of digests, so that runs added side by side cannot conflict.
"""

import pathlib
import shlex
import statistics
from collections.abc import Mapping
from typing import Any, NamedTuple

import pandas as pd

from docs import draw
from moon_jax import config as config_lib
from moon_jax.config import cli
from moon_jax.core import files
from moon_jax.core.errors import UsageError
from moon_jax.report import features
from moon_jax.report.runs import class_names, read_arrays
from moon_jax.runner import clock

FILES = ('config.json', 'metrics.jsonl')
TSNE = 'tsne.png'
_EACH = ('train_seconds', 'evaluate_seconds')  # columns of every round
_SUMS = '.sha256'
_KEPT = ('data_digest', 'versions', 'devices', 'machine', 'git_commit')
_OF_A_START = ('git_commit', 'devices')
# These flags belong to the machine that ran the experiment, not to the experiment.
_PRIVATE = (
  '--workdir',
  '--config.data.dir',
  '--config.execution.compile_cache',
  '--config.checkpoint_every_rounds',
)


class Kept(NamedTuple):
  """A finished run.

  Attributes:
    name: name of its folder.
    choice: the config file and its variant, 'configs/FILE.py:VARIANT'.
    command: the command that repeats it.
    knobs: dotted name -> value; a knob that is newer than the run has its default.
    about: config.json without the configuration.
    rounds: the lines of metrics.jsonl.
    files: the names of the files that were kept.
  """

  name: str
  choice: str
  command: str
  knobs: Mapping[str, Any]
  about: Mapping[str, Any]
  rounds: list[dict[str, Any]]
  files: frozenset[str]

  @property
  def seed(self) -> int:
    """The seed of the run's random draws."""
    return self.knobs['seed']

  @property
  def digest(self) -> str:
    """SHA-256 of the data; '' if an old run did not record it."""
    return self.about.get('data_digest', '')

  def accuracy(self, name: str = 'test_accuracy') -> pd.Series:
    """Round -> an accuracy in per cent, where the column `name` was recorded."""
    told = {r['round']: 100 * r[name] for r in self.rounds if name in r}
    return pd.Series(told, dtype=float)


def read(results: pathlib.Path) -> dict[str, Kept]:
  """name -> run, for all runs in the folder.

  Raises:
    UsageError: a file is missing, has changed, or is not listed.
  """
  names = sorted(path.name.removesuffix(_SUMS) for path in results.glob(f'*{_SUMS}'))
  for path in sorted(results.glob('*/')):
    if path.name not in names:
      raise UsageError(f'{path}{_SUMS} is missing: add the run.')
  for name in names:
    _check(results / name, sums(results, name))
  return {name: _kept(results / name) for name in names}


def _check(run: pathlib.Path, listing: pathlib.Path) -> None:
  """Raises UsageError unless the folder holds exactly the files that are listed."""
  digests, listed = _listed(listing), listing.name
  there = {f'{run.name}/{path.name}' for path in run.glob('*')}
  if unlisted := sorted(there - set(digests)):
    raise UsageError(f'{run.parent / unlisted[0]} is not in {listed}: add the run.')
  for name, digest in digests.items():
    path = run.parent / name
    if not path.is_file():
      raise UsageError(f'{path} is missing; {listed} lists it.')
    if files.sha256(path) != digest:
      raise UsageError(f'{path} has changed: its SHA-256 is not that in {listed}.')
  for file in FILES:
    if f'{run.name}/{file}' not in digests:
      raise UsageError(f'{run / file} is missing, also from {listed}.')


def add(run: pathlib.Path, results: pathlib.Path) -> list[str]:
  """Adds a finished run directory to the results, under its own name.

  Returns:
    The files that were kept, as NAME/FILE.

  Raises:
    UsageError: it is no run directory, the run is not finished, or another run is kept
      under the same name.
  """
  about, summary = (files.read_json(run / n) for n in ('config.json', 'summary.json'))
  if not about or 'config' not in about:
    raise UsageError(f'{run} is no run directory.')
  rounds = files.read_lines(run / 'metrics.jsonl')
  wanted = about['config'].get('num_rounds')
  if not summary or [line['round'] for line in rounds] != [*range(1, wanted + 1)]:
    lacks = '' if summary else ', no summary.json'
    raise UsageError(f'{run} is not finished: {len(rounds)} of {wanted} rounds{lacks}.')
  target = results / run.resolve().name
  kept, records = target / 'metrics.jsonl', (run / 'metrics.jsonl').read_bytes()
  # Records without digests were left by a process that was killed in `add`.
  there = sums(results, target.name).exists() and kept.exists()
  if there and kept.read_bytes() != records:
    raise UsageError(f'{target} holds another run: rename one of them.')
  told = _about(about, files.read_lines(run / 'timings.jsonl'))
  sums(results, target.name).unlink(missing_ok=True)
  files.make_folder(target)
  (target / TSNE).unlink(missing_ok=True)
  with files.replacing(kept) as file:
    file.write(records)
  files.write_json(target / 'config.json', told)
  drawn = _drawn(run, target, wanted, about)
  made = [f'{target.name}/{file}' for file in [*FILES, *drawn]]
  lines = [f'{files.sha256(results / name)}  {name}\n' for name in made]
  files.replace(sums(results, target.name), ''.join(lines))
  return made


def sums(results: pathlib.Path, name: str) -> pathlib.Path:
  """The path of a run's file of digests, which is written after all other files."""
  return results / f'{name}{_SUMS}'


def _drawn(
  run: pathlib.Path, target: pathlib.Path, rounds: int, about: Mapping[str, Any]
) -> list[str]:
  """Draws the t-SNE of the final model, if a report has computed it; the file names."""
  found = read_arrays(run / features.CACHE, files.FEATURES)
  if not found or found['round'] != rounds:
    return []
  title = f'{target.name}, after {rounds} rounds'
  points, names = found['embedded'], class_names(about, len(found['confusion']))
  draw.representations(target / TSNE, points, found['classes'], names, title)
  return [TSNE]


def _about(about: Mapping[str, Any], timings: list[dict[str, Any]]) -> dict[str, Any]:
  """The content of the kept config.json: without folders of the machine, with costs."""
  words, earlier = _words(about['command']), about.get('earlier', [])
  command = [word for word in words if word.partition('=')[0] not in _PRIVATE]
  knobs = config_lib.flatten(about['config'])
  if 'data.dir' in knobs:
    knobs['data.dir'] = ''
  return {
    'command': shlex.join(command),
    'config': config_lib.nest(knobs),
    **{name: about[name] for name in _KEPT if name in about},
    'earlier': [{name: start.get(name) for name in _OF_A_START} for start in earlier],
    'cost': cost(timings) if timings else {},
  }


def _words(command: str) -> list[str]:
  """The words of a command, a flag and its value in one word."""
  words = []
  for word in shlex.split(command):
    if words and words[-1].startswith('--') and '=' not in words[-1]:
      words[-1] += f'={word}'
    else:
      words.append(word)
  return words


def devices(about: Mapping[str, Any]) -> list[str]:
  """The devices of all starts of a run, 'KIND: NAME', each once.

  about: its config.json, in its run directory or as it is kept.
  """
  starts = [*about.get('earlier', []), about]
  told = (device for start in starts for device in start.get('devices') or [])
  return list(dict.fromkeys(told))


def cost(timings: list[dict[str, Any]]) -> dict[str, float]:
  """Seconds of the whole run, and the median seconds of a round with its test."""
  each = [sum(line.get(name, 0.0) for name in _EACH) for line in timings]
  total = sum(clock.time_spent(timings).values())
  return {'seconds': round(total), 'median': round(statistics.median(each), 1)}


def _kept(path: pathlib.Path) -> Kept:
  about = files.read_json(path / 'config.json') or {}
  rounds = files.read_lines(path / 'metrics.jsonl')
  try:
    words = _words(about['command'])
    flags = dict(word.split('=', 1) for word in words if '=' in word)
    knobs = config_lib.with_defaults(config_lib.flatten(about.pop('config')))
    kept = Kept(
      name=path.name,
      choice=flags.get('--config', cli.DEFAULT_CONFIG),
      command=about['command'],
      knobs=knobs,
      about=about,
      rounds=rounds,
      files=frozenset(file.name for file in path.iterdir()),
    )
  except KeyError as error:
    raise UsageError(f'{path / "config.json"} lacks {error}.') from None
  except ValueError as error:
    raise UsageError(f'{path / "config.json"} is damaged: {error}.') from None
  if [line['round'] for line in rounds] != [*range(1, knobs['num_rounds'] + 1)]:
    wanted = f'must have the rounds 1 to {knobs["num_rounds"]}'
    raise UsageError(f'{path / "metrics.jsonl"} {wanted}.')
  return kept


def _listed(path: pathlib.Path) -> dict[str, str]:
  """'NAME/FILE' -> SHA-256 in hexadecimal, from a run's file of digests."""
  lines = path.read_text().splitlines()
  if any(len(line.split('  ')) != 2 for line in lines):
    raise UsageError(f'{path} must have lines of a digest, two spaces and a file.')
  return {name: digest for digest, name in (line.split('  ') for line in lines)}
