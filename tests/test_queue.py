"""papers/queue.py runs each run of its list once; killed, it goes on."""

import contextlib
import re

import pytest

from moon_jax import config
from moon_jax.core import files
from moon_jax.core.errors import DivergedError, ExitCode, UsageError
from moon_jax.runner import run_directory, start, stop_requests
from papers import kept_runs, partitions, queue
from tests.processes import ROOT, launch
from tests.run_directories import TINY, write_lines, write_run
from tests.selection import few

pytestmark = pytest.mark.usefixtures('quick_runs')

SMALL = TINY | {
  'data.source': 'digits',
  'model': 'mlp',
  'num_rounds': 2,
  'num_clients': 10,
  'batch_size': 32,
}
SETTINGS = ' '.join(f'{name}={value}' for name, value in SMALL.items())
TABLE = f"""# SEEDS  FILE: VARIANT ...
1,0  review: fedavg moon {SETTINGS}  # small
"""


class StopInTheFirstRound(stop_requests.Stop):
  """A stop that is requested in the first round."""

  def requested(self):
    self._signal = stop_requests.signal.SIGTERM
    return True


@pytest.fixture
def queued_runs(tmp_path):
  """The runs of the table."""
  (tmp_path / 'table.txt').write_text(TABLE)
  return queue.queued_runs(tmp_path / 'table.txt', tmp_path / 'runs')


@pytest.fixture
def results(tmp_path):
  """The folder of the kept runs."""
  return tmp_path / 'results'


def last_line(queued_runs, results, jobs):
  """The line that sums up what is left."""
  *_, line = queue.table(queued_runs, results, jobs)
  return line


def test_the_order_is_that_of_the_table(queued_runs):
  settings_in_names = SETTINGS.replace(' ', '_') + '_'
  assert [
    queued_run.name.replace(settings_in_names, '') for queued_run in queued_runs
  ] == [
    'review_fedavg_seed1',
    'review_moon_seed1',
    'review_fedavg_seed0',
    'review_moon_seed0',
  ]
  assert [queued_run.request.config.seed for queued_run in queued_runs] == [1, 1, 0, 0]


def test_each_run_is_kept_once_and_what_was_stopped_goes_on(
  queued_runs, results, monkeypatch
):
  two_runs = queued_runs[::2]  # of FedAvg
  names = [queued_run.name for queued_run in two_runs]
  begun_names = []
  run = start.run

  def record_and_run(request, *arguments, **options):
    begun_names.append(request.workdir.name)
    return run(request, *arguments, **options)

  monkeypatch.setattr(start, 'run', record_and_run)
  with pytest.raises(stop_requests.StoppedError):
    queue.work(two_runs, results, StopInTheFirstRound())
  assert kept_runs.read_all(results) == {}
  line = last_line(two_runs, results, 1)
  assert line.startswith('kept: 0 runs; left: 2, 3 rounds, 0.0 hours on 1 ')
  # As if the process was killed while it kept the run.
  path = kept_runs.path_of(results, names[0])
  results.mkdir()
  path.with_name(path.name + files.PARTIAL).write_bytes(b'half')
  assert queue.work(two_runs, results, stop_requests.Stop()) is ExitCode.DONE
  assert begun_names == [names[0], names[0], names[1]]
  runs = kept_runs.read_all(results)
  assert sorted(runs) == sorted(names)
  for kept_run in runs.values():
    assert kept_run.provenance['machine']['cores'] >= 1
    assert kept_run.provenance['machine']['processor']
    assert 'git_commit' in kept_run.provenance
    assert 'checkpoint_every' not in kept_run.command
  assert queue.work(two_runs, results, stop_requests.Stop()) is ExitCode.DONE
  assert len(begun_names) == 3
  line = last_line(two_runs, results, 2)
  assert line == 'kept: 2 runs; left: 0, 0 rounds, 0.0 hours on 2 jobs'


GPU = {'devices': ['gpu: NVIDIA H200']}
CPU = {'devices': ['cpu: cpu']}


@pytest.mark.parametrize('is_kept', [True, False])
def test_a_run_of_a_gpu_does_not_predict_the_hours_of_a_cpu(
  queued_runs, results, is_kept, monkeypatch
):
  queued_run, other_run, *_ = queued_runs
  workdir = queued_run.request.workdir
  workdir.mkdir(parents=True)
  # Less than a second is known too.
  write_lines(workdir / run_directory.TIMINGS, [{'round': 1, 'train_seconds': 0.1}])
  known_hours = '4.0' if is_kept else '0.0'  # 2 rounds of 2 hours
  for starts, hours_of_cpu, hours_of_gpu in (
    (GPU, '?', known_hours),
    (CPU, known_hours, '?'),
    (CPU | {'earlier': [GPU]}, '?', '?'),
  ):
    if is_kept:
      description = {'cost': {'seconds': 14400}} | starts
      kept_runs.write(kept_runs.path_of(results, queued_run.name), description, b'')
    else:
      files.write_json(workdir / run_directory.CONFIG, starts)
    for gpus, hours in (([], hours_of_cpu), (['0'], hours_of_gpu)):
      monkeypatch.setattr(queue.devices, 'visible_gpus', lambda gpus=gpus: gpus)
      line = last_line([queued_run, other_run], results, 1)
      left = '1, 2 rounds' if is_kept else '2, 4 rounds'
      assert line.endswith(f'left: {left}, {hours} hours on 1 jobs')


@pytest.fixture
def keeps_all(monkeypatch):
  """Makes the queue keep a run whose directory is empty."""

  def write_empty(run, folder):
    path = kept_runs.path_of(folder, run.name)
    kept_runs.write(path, {}, b'')
    return path

  monkeypatch.setattr(kept_runs, 'keep_run', write_empty)


def are_kept(queued_runs, results):
  """Whether each of the runs is kept."""
  return [
    kept_runs.path_of(results, queued_run.name).exists() for queued_run in queued_runs
  ]


@pytest.mark.usefixtures('keeps_all')
def test_what_another_process_runs_is_left_to_it(queued_runs, results, monkeypatch):
  begun_names = []
  locks = contextlib.ExitStack()
  folder = queued_runs[0].request.workdir.parent / 'held'
  locks.enter_context(run_directory.locked(folder / queued_runs[0].name))

  def run(request, *arguments, **options):
    begun_names.append(request.workdir.name)
    if len(begun_names) == 3:
      locks.close()  # the other one is killed

  monkeypatch.setattr(start, 'run', run)
  assert queue.work(queued_runs, results, stop_requests.Stop()) is ExitCode.DONE
  assert begun_names == [
    queued_run.name for queued_run in (*queued_runs[1:], queued_runs[0])
  ]


@pytest.mark.usefixtures('keeps_all')
def test_a_run_that_fails_holds_no_other_back(
  queued_runs, results, monkeypatch, capsys
):
  errors = {
    queued_runs[0].name: UsageError('no data'),
    queued_runs[1].name: ValueError('not mine'),  # of a callback
  }

  def run(request, *arguments, **options):
    if request.workdir.name in errors:
      raise errors[request.workdir.name]

  monkeypatch.setattr(start, 'run', run)
  assert queue.work(queued_runs, results, stop_requests.Stop()) is ExitCode.FAILED
  first, *_, last = capsys.readouterr().err.splitlines()
  assert first == f'{queued_runs[0].name}: no data'
  assert last == f'{queued_runs[1].name}: not mine'
  assert are_kept(queued_runs, results) == [False, False, True, True]


def test_a_run_that_diverges_is_kept_once_in_a_folder_of_its_own(
  queued_runs, results, monkeypatch
):
  begun_names = []

  def run(request, *arguments, **options):
    begun_names.append(request.workdir.name)
    write_run(request.workdir, [0.5], finished=False, train_loss=None)
    raise DivergedError('Diverged in round 1')

  monkeypatch.setattr(start, 'run', run)
  one_run = queued_runs[:1]
  assert queue.work(one_run, results, stop_requests.Stop()) is ExitCode.FAILED
  assert kept_runs.read_all(results) == {}
  (kept,) = kept_runs.read_all(results / kept_runs.DIVERGED, finished=False).values()
  assert kept.has_diverged
  assert kept.name == begun_names[0]
  assert last_line(one_run, results, 1).startswith('kept: 1 runs; left: 0')
  assert queue.work(one_run, results, stop_requests.Stop()) is ExitCode.DONE
  assert len(begun_names) == 1
  assert [*partitions.read(results.parent / partitions.TABLE.name)] == begun_names


@pytest.mark.usefixtures('keeps_all')
def test_a_request_in_the_last_round_of_a_run_begins_no_other(
  queued_runs, results, monkeypatch
):
  monkeypatch.setattr(start, 'run', lambda *arguments, **options: None)
  with pytest.raises(stop_requests.StoppedError):
    queue.work(queued_runs, results, StopInTheFirstRound())
  assert are_kept(queued_runs, results) == [True, False, False, False]


@pytest.mark.slow
def test_processes_say_where_their_errors_are(tmp_path):
  (tmp_path / 'table.txt').write_text(f'0 review: moon {SETTINGS} data.limit=1\n')
  process = launch(
    ROOT,
    f'--table={tmp_path / "table.txt"}',
    '--jobs=2',
    f'--runs={tmp_path / "runs"}',
    f'--results={tmp_path / "results"}',
    program=('-m', 'papers.queue'),
  )
  assert process.returncode == ExitCode.FAILED
  (line,) = process.stderr.splitlines()
  assert line.endswith(f'see {tmp_path / "runs/log"}.')
  logs = [path.read_text() for path in (tmp_path / 'runs/log').iterdir()]
  assert len(logs) == 2
  assert any('there are 1: lower --config.num_clients' in log for log in logs)


@pytest.mark.parametrize(
  ('line', 'message'),
  [
    ('0 review: fedavg num_round=3', 'num_round is not a knob'),
    ('review: fedavg', 'must be SEEDS FILE: VARIANT ...'),
    ('0,0 review: fedavg', 'Several runs would be in review_fedavg_seed0'),
  ],
)
def test_a_line_of_the_table_that_is_wrong_is_told(tmp_path, line, message, capsys):
  (tmp_path / 'table.txt').write_text(f'{line}\n')
  assert queue.main([f'--table={tmp_path / "table.txt"}', '--list']) == ExitCode.USAGE
  (error,) = capsys.readouterr().err.splitlines()
  assert message in error


def first_variants(table):
  """A table of the first variant of each file that a table names."""
  lines = re.findall(r'^\d\S* +(\w+): (\S+)', table, re.M)
  variants = {}
  for file, variant in lines:
    variants.setdefault(file, variant)
  assert len(variants) > 5
  return ''.join(f'0 {file}: {variant}\n' for file, variant in variants.items())


@pytest.mark.parametrize('extent', few(['the first of each file'], ['all']))
def test_the_committed_table_is_listed(extent, tmp_path, capsys):
  table = (queue.PAPERS / 'queue.txt').read_text()
  table_file = tmp_path / 'table.txt'
  table_file.write_text(table if extent == 'all' else first_variants(table))
  flags = [f'--runs={tmp_path}', f'--results={tmp_path}', '--list', '--jobs=2']
  assert queue.main([*flags, f'--table={table_file}']) == ExitCode.DONE
  *lines, last = capsys.readouterr().out.splitlines()
  assert lines[0].split() == ['new', 'review_fedavg_seed0']
  assert last.startswith(f'kept: 0 runs; left: {len(lines)}, ')
  for flag in ('--table=missing.txt', 'x', '--jobs=0', '--job'):
    assert queue.main([flag]) == ExitCode.USAGE
  assert queue.main(['--help']) == ExitCode.DONE


# --- the config files that the list names ---------------------------------------------


def changes(config_choice, of_choice):
  """Knob -> its value, where a choice differs from another one."""
  knobs, other_knobs = (config.load(name) for name in (config_choice, of_choice))
  return {name: knobs[name] for name in knobs if knobs[name] != other_knobs[name]}


def test_the_columns_of_the_curve_differ_in_their_partitions():
  knobs = {'beta': 'beta', 'shards': 'name', 'same': 'seed'}
  algorithms = config.variants('configs/moon_cvpr21.py')
  for name in config.variants('configs/curve.py'):
    algorithm = [a for a in algorithms if name.endswith(f'_{a}')][-1]
    changed = changes(f'configs/curve.py:{name}', f'configs/moon_cvpr21.py:{algorithm}')
    assert list(changed) == [f'partition.{knobs[name.partition("_")[0]]}']


@pytest.mark.slow
def test_an_ablation_has_one_change_and_half_the_rounds():
  expected_changes = {
    'no_head': {'moon_cnn.head': 'none'},
    'no_balance': {'partition.balance': False},
    'equal_weights': {'client_weight': 'uniform'},
    'all_batches': {'drop_last': False},
  }
  for name in config.variants('configs/ablation.py'):
    (change,) = [words for words in expected_changes if name.startswith(words)]
    algorithm = name.removeprefix(f'{change}_')
    assert (
      changes(f'configs/ablation.py:{name}', f'configs/moon_cvpr21.py:{algorithm}')
      == {'num_rounds': 50} | expected_changes[change]
    )
