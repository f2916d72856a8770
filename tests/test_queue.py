"""docs/queue.py runs each run of its list once; killed, it goes on."""

import contextlib
import re

import pytest

from configs import ablation, curve, moon_cvpr21
from docs import queue, records
from moon_jax import config
from moon_jax.core import files
from moon_jax.core.errors import ExitCode, UsageError
from moon_jax.runner import loop, run_directory, signals
from tests.processes import ROOT, launch
from tests.run_directories import TINY, write_lines
from tests.selection import few

pytestmark = pytest.mark.usefixtures('quick_runs')

SMALL = TINY | {'data.source': 'digits', 'model': 'mlp', 'num_rounds': 2}
SMALL |= {'num_clients': 10, 'batch_size': 32}
WORDS = ' '.join(f'{name}={value}' for name, value in SMALL.items())
TABLE = f"""# SEEDS  FILE: VARIANT ...
1,0  review: fedavg moon {WORDS}  # small
"""


class Stopping(signals.Stop):
  """A stop that is requested in the first round."""

  def requested(self):
    self._signal = signals.signal.SIGTERM
    return True


@pytest.fixture
def place(tmp_path):
  """The table's runs, and the folder of the kept ones."""
  (tmp_path / 'table.txt').write_text(TABLE)
  (tmp_path / 'results').mkdir()
  return queue.cells(tmp_path / 'table.txt', tmp_path / 'runs'), tmp_path / 'results'


def short(names):
  return [name.replace(WORDS.replace(' ', '_') + '_', '') for name in names]


def test_the_order_is_that_of_the_table(place):
  names = [cell.name for cell in place[0]]
  assert short(names) == [
    *('review_fedavg_seed1', 'review_moon_seed1'),
    *('review_fedavg_seed0', 'review_moon_seed0'),
  ]
  assert [cell.request.config.seed for cell in place[0]] == [1, 1, 0, 0]


def test_each_run_is_kept_once_and_what_was_stopped_goes_on(place, monkeypatch, capfd):
  cells, results = place[0][1::2], place[1]  # of MOON, with two seeds
  begun, run = [], loop.run

  def count(request, *words, **more):
    begun.append(request.workdir.name)
    return run(request, *words, **more)

  monkeypatch.setattr(loop, 'run', count)
  with pytest.raises(signals.StoppedError):
    queue.work(cells, results, Stopping())
  assert records.read(results) == {}
  *_, left = queue.table(cells, results, 1)
  assert left.startswith('kept: 0 runs; left: 2, 3 rounds, 0.0 hours on 1 ')
  # As if the process was killed while it added the run.
  (results / cells[0].name).mkdir()
  (results / cells[0].name / 'metrics.jsonl').write_bytes(b'')
  with pytest.raises(UsageError, match='add the run'):
    records.read(results)
  assert queue.work(cells, results, signals.Stop()) is ExitCode.DONE
  assert begun == [cells[0].name, cells[0].name, cells[1].name]
  kept = records.read(results)
  assert sorted(kept) == sorted(cell.name for cell in cells)
  for one in kept.values():
    assert one.about['machine']['cores'] >= 1
    assert one.about['machine']['processor']
    assert 'git_commit' in one.about
    assert 'checkpoint_every' not in one.command
  assert queue.work(cells, results, signals.Stop()) is ExitCode.DONE
  assert len(begun) == 3
  (left,) = queue.table(cells, results, 2)
  assert left == 'kept: 2 runs; left: 0, 0 rounds, 0.0 hours on 2 jobs'


def test_a_run_of_a_gpu_does_not_predict_the_hours_of_a_cpu(place, monkeypatch):
  (cell, *_), results = place
  gpu, cpu = {'devices': ['gpu: NVIDIA H200']}, {'devices': ['cpu: cpu']}
  line = {'round': 1, 'train_seconds': 0.1}  # less than a second is known too
  for folder, about in (
    (results / cell.name, {'cost': {'seconds': 14400}}),
    (cell.request.workdir, {}),
  ):
    folder.mkdir(parents=True)
    write_lines(folder / run_directory.TIMINGS, [line])
    hours = '4.0' if folder.parent == results else '0.0'  # 2 rounds of 2 hours
    for starts, of_cpu, of_gpu in (
      (gpu, '?', hours),
      (cpu, hours, '?'),
      (cpu | {'earlier': [gpu]}, '?', '?'),
    ):
      files.write_json(folder / run_directory.CONFIG, about | starts)
      for gpus, told in (([], of_cpu), (['0'], of_gpu)):
        monkeypatch.setattr(queue.devices, 'visible_gpus', lambda gpus=gpus: gpus)
        *_, left = queue.table([cell], results, 1)
        assert left.endswith(f'left: 1, 2 rounds, {told} hours on 1 jobs')
    (folder / run_directory.CONFIG).unlink()


def add(run, results):
  records.sums(results, run.name).touch()
  return []


def test_what_another_process_runs_is_left_to_it(place, monkeypatch):
  cells, results = place
  held, begun = contextlib.ExitStack(), []
  folder = cells[0].request.workdir.parent / 'held'
  held.enter_context(run_directory.held(folder / cells[0].name))

  def run(request, *words, **more):
    begun.append(request.workdir.name)
    if len(begun) == 3:
      held.close()  # the other one is killed

  monkeypatch.setattr(loop, 'run', run)
  monkeypatch.setattr(records, 'add', add)
  assert queue.work(cells, results, signals.Stop()) is ExitCode.DONE
  assert begun == [cell.name for cell in (*cells[1:], cells[0])]


def test_a_run_that_fails_holds_no_other_back(place, monkeypatch, capsys):
  cells, results = place

  def run(request, *words, **more):
    if request.workdir.name == cells[0].name:
      raise UsageError('no data')
    if request.workdir.name == cells[1].name:
      raise ValueError('not mine')  # of a callback

  monkeypatch.setattr(loop, 'run', run)
  monkeypatch.setattr(records, 'add', add)
  assert queue.work(cells, results, signals.Stop()) is ExitCode.FAILED
  first, *_, last = capsys.readouterr().err.splitlines()
  assert first == f'{cells[0].name}: no data'
  assert last == f'{cells[1].name}: not mine'
  kept = [records.sums(results, cell.name).exists() for cell in cells]
  assert kept == [False, False, True, True]


def test_a_request_in_the_last_round_of_a_run_begins_no_other(place, monkeypatch):
  (cells, results), stop = place, Stopping()
  monkeypatch.setattr(loop, 'run', lambda *words, **more: None)
  monkeypatch.setattr(records, 'add', add)
  with pytest.raises(signals.StoppedError):
    queue.work(cells, results, stop)
  assert [records.sums(results, c.name).exists() for c in cells] == [True] + 3 * [False]


def test_processes_say_where_their_errors_are(tmp_path):
  (tmp_path / 'table.txt').write_text(f'0 review: moon {WORDS} data.limit=1\n')
  folders = [f'--{name}={tmp_path / name}' for name in ('runs', 'results')]
  words = [f'--table={tmp_path / "table.txt"}', '--jobs=2', *folders]
  done = launch(ROOT, *words, program=('-m', 'docs.queue'))
  assert done.returncode == ExitCode.FAILED
  (line,) = done.stderr.splitlines()
  assert line.endswith(f'see {tmp_path / "runs/log"}.')
  logs = [path.read_text() for path in (tmp_path / 'runs/log').iterdir()]
  assert len(logs) == 2
  assert any('there are 1: lower --config.num_clients' in log for log in logs)


@pytest.mark.parametrize(
  ('line', 'words'),
  [
    ('0 review: fedavg num_round=3', 'num_round is not a knob'),
    ('review: fedavg', 'must be SEEDS FILE: VARIANT ...'),
    ('0,0 review: fedavg', 'Several runs would be in review_fedavg_seed0'),
  ],
)
def test_a_line_of_the_table_that_is_wrong_is_told(tmp_path, line, words, capsys):
  (tmp_path / 'table.txt').write_text(f'{line}\n')
  assert queue.main([f'--table={tmp_path / "table.txt"}', '--list']) == ExitCode.USAGE
  (told,) = capsys.readouterr().err.splitlines()
  assert words in told


@pytest.mark.parametrize('which', few(['the first of each file'], ['all']))
def test_the_committed_table_is_listed(which, tmp_path, capsys):
  table = queue.DOCS / 'queue.txt'
  if which != 'all':
    table, committed = tmp_path / 'table.txt', table.read_text()
    lines = re.findall(r'^\d\S* +(\w+): (\S+)', committed, re.M)
    files = dict(reversed(lines))
    assert len(files) > 5
    first = [f'0 {file}: {files[file]}' for file, _ in lines]
    table.write_text('\n'.join(dict.fromkeys(first)))
  words = [f'--runs={tmp_path}', f'--results={tmp_path}', '--list', '--jobs=2']
  assert queue.main([*words, f'--table={table}']) == ExitCode.DONE
  *lines, left = capsys.readouterr().out.splitlines()
  assert lines[0].split() == ['new', 'review_fedavg_seed0']
  assert left.startswith(f'kept: 0 runs; left: {len(lines)}, ')
  for wrong in ('--table=missing.txt', 'x', '--jobs=0', '--job'):
    assert queue.main([wrong]) == ExitCode.USAGE
  assert queue.main(['--help']) == ExitCode.DONE


def test_the_columns_of_the_curve_differ_in_their_partitions():
  knobs = {'beta': 'beta', 'shards': 'name', 'same': 'seed'}
  for name in curve.VARIANTS:
    (algorithm,) = [a for a in moon_cvpr21.VARIANTS if name.endswith(f'_{a}')][-1:]
    flat = config.load(f'configs/curve.py:{name}')
    plain = config.load(f'configs/moon_cvpr21.py:{algorithm}')
    changed = {knob for knob in flat if flat[knob] != plain[knob]}
    assert changed == {f'partition.{knobs[name.partition("_")[0]]}'}


def test_an_ablation_has_one_change_and_half_the_rounds():
  knobs = {
    'no_head': ('moon_cnn.head', 'none'),
    'no_balance': ('partition.balance', False),
    'equal_weights': ('client_weight', 'uniform'),
    'all_batches': ('drop_last', False),
  }
  for name in ablation.VARIANTS:
    change = next(each for each in knobs if name.startswith(each))
    algorithm = name.removeprefix(f'{change}_')
    plain = config.load(f'configs/moon_cvpr21.py:{algorithm}')
    wanted = plain | {'num_rounds': 50} | dict([knobs[change]])
    assert config.load(f'configs/ablation.py:{name}') == wanted != plain
