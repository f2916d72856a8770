"""The records of a run by hand-worked numbers, and after a crash."""

import json
import subprocess
import time

import numpy as np
import pytest

from moon_jax.algorithms import moon
from moon_jax.config import cli
from moon_jax.core import files
from moon_jax.core.errors import NoCheckpointError, UsageError
from moon_jax.core.types import ClientMetrics, Form
from moon_jax.planning.plan import Cohort, LaneSchedule, RoundPlan
from moon_jax.round.evaluation import Score
from moon_jax.round.traffic import Traffic
from moon_jax.runner import clock as clock_lib
from moon_jax.runner import loop, provenance, round_records, run_directory
from moon_jax.runner import record_files as records_lib
from tests.processes import contents
from tests.refusals import refused
from tests.run_directories import add_metrics

# Clients 2 and 5 train in two lanes; client 5's has filler in the second of two steps.
PLAN = RoundPlan(
  cohort=Cohort(
    clients=np.array([2, 5], np.int32),
    weights=np.array([3.0, 1.0], np.float32),
    client_facts={},
  ),
  schedule=LaneSchedule(
    example_rows=np.zeros((3, 2, 4), np.int32),
    num_real=np.ones((3, 2), np.int32),
    entering=np.array([[0, 1], [-1, -1]], np.int32),
    leaving=np.array([[-1, 1], [0, -1]], np.int32),
    segment_bounds=np.array([[0, 1, 2]], np.int32),
    num_segments=np.array([2], np.int32),
  ),
  second_schedule=None,
  mixing=None,
  attack_seeds=None,
  step_real=np.array([[True, True], [True, False], [False, False]]),
  stragglers=None,
)
IMAGES = {'shape': [8, 8, 1], 'mean': [0.5], 'std': [0.25]}


# --- measures -------------------------------------------------------------------------


def of_two(
  sums,
  num_seen=(1.0, 1.0),
  drift=(0.0, 0.0),
  reports=None,
  *,
  num_summed=None,
  **computed,
):
  """The metrics of two clients; `num_summed` is num_seen unless given."""

  def array(values):
    return np.array(values, np.float32)

  return ClientMetrics(
    sums={name: array(values) for name, values in sums.items()},
    num_summed=array(num_seen if num_summed is None else num_summed),
    num_seen=array(num_seen),
    drift=array(drift),
    reports={name: array(values) for name, values in (reports or {}).items()},
    computed=computed,
    finite=np.ones(2, bool),
    server_finite=np.array(True),
  )


def spread(name, *values):
  names = ('min', 'q1', 'median', 'q3', 'max')
  columns = [f'{name}_{statistic}' for statistic in names]
  return dict(zip(columns, values, strict=True))


def test_round_record():
  sums = {
    # 12 / 4 = 3 nats an example; the mean of the clients' means, 2 and 6, would be 4.
    'train_loss': [6.0, 6.0],
    'proximal_loss': [1.0, 0.0],
    # Only client 5 has a previous model; the cosine of its one example is 0.75.
    'positive_cosine': [0.0, 0.75],
    'contrasted_fraction': [0.0, 1.0],
    # A part of a user's algorithm is a mean over all examples, whatever its name.
    'head_cosine': [1.0, 0.0],
  }
  metrics = of_two(sums, [3.0, 1.0], [0.5, 2.0], {'temperature': [1.0, 0.5]}, p_t=0.25)

  def record_of(metrics):
    return round_records.round_record(
      7, PLAN, metrics, traffic=Traffic(100, 40), measured=moon.MEASURED
    )

  record = record_of(metrics)
  assert record == {
    'round': 7,
    'contrasted_fraction': 0.25,
    'head_cosine': 0.25,
    'positive_cosine': 0.75,
    'proximal_loss': 0.25,
    'train_loss': 3.0,
    # Two clients: the quartiles lie evenly between them.
    **{'drift': 1.25, **spread('drift', 0.5, 0.875, 1.25, 1.625, 2.0)},
    **{'temperature_mean': 0.75, **spread('temperature', 0.5, 0.625, 0.75, 0.875, 1.0)},
    'p_t': 0.25,
    'clients': [2, 5],
    'num_examples': 4,
    'num_steps': 3,
    'bytes_down': 200,
    'bytes_up': 80,
  }
  assert json.loads(json.dumps(record)) == record
  # With three batches a step, the losses are those of the first one.
  of_batches = record_of(of_two(sums, [9.0, 3.0], num_summed=[3.0, 1.0]))
  assert (of_batches['train_loss'], of_batches['num_examples']) == (3.0, 12)
  for clashing in (
    of_two(sums, round=0.0),
    of_two(sums, bytes_up=0.0),
    of_two(sums, stragglers=0.0),  # which this run does not record
    of_two(sums, attackers=0.0),
    of_two(sums | {'skipped_clients': [0.0, 0.0]}),
    of_two(sums, test_accuracy=0.0),
    of_two(sums, temperature_mean=0.0, reports={'temperature': [1.0, 0.5]}),
    of_two(sums, reports={'drift': [0.0, 1.0]}),
    of_two(sums | {'num_examples': [0.0, 0.0]}),
  ):
    with pytest.raises(UsageError, match='is another column of the records: give'):
      record_of(clashing)


# Accuracies 0.75, 0.25, 0.5: mean 0.5, deviations 0.25, 0.25, 0, so the variance over
# the three models is 0.125 / 3. The worst model is neither the first nor the last.
SEVERAL = {
  'test_accuracy_std': pytest.approx((0.125 / 3) ** 0.5, rel=1e-12),
  'test_accuracy_worst': 0.25,
}


@pytest.mark.parametrize(
  ('correct', 'losses', 'record'),
  [
    ([7], [4], {'test_accuracy': 0.875, 'test_loss': 0.5}),
    ([6, 2, 4], [8, 16, 24], {'test_accuracy': 0.5, 'test_loss': 2.0} | SEVERAL),
  ],
)
def test_test_record(correct, losses, record):
  score = Score(np.array(correct, np.int32), np.array(losses, np.float32))
  assert round_records.test_record(score, 8) == record


def test_seen_and_unseen_users_by_hand():
  # Accuracies 1/2, 1/4 and 1 of users who train, 1/5 and 3/5 of two who do not.
  num_correct, sizes = np.array([1, 1, 3, 1, 3]), np.array([2, 4, 3, 5, 5])
  record = round_records.columns_of_seen_and_unseen_users(
    num_correct, sizes, num_unseen=2
  )
  assert record == {
    'user_accuracy_seen_mean': pytest.approx(1.75 / 3),
    'user_accuracy_unseen_mean': pytest.approx(0.4),
  }
  for num_unseen in (0, 5):
    assert not round_records.columns_of_seen_and_unseen_users(
      num_correct, sizes, num_unseen
    )


def test_over_clients_by_hand():
  # 3 of 4, 0 of 1 and 5 of 15 are correct: accuracies 3/4, 0 and 1/3. By users the mean
  # is 13/36. Of the 20 examples 8 are correct; sorted by accuracy one is at 0 and the
  # next 15 are at 1/3. A tenth of three users is no user.
  record = round_records.over_clients(np.array([3, 0, 5]), np.array([4, 1, 15]))
  assert len(record) == 14
  expected = {'mean': 13 / 36, 'min': 0, 'q1': 0, 'median': 1 / 3, 'q3': 3 / 4}
  expected |= {'max': 3 / 4, 'std': np.std([3 / 4, 0, 1 / 3])}
  weighted = {'mean': 0.4, 'min': 0, 'q1': 1 / 3, 'median': 1 / 3, 'q3': 1 / 3}
  # The squared differences to 0.4 are 0.16 once, (1/15)^2 fifteen times and 0.35^2 four
  # times.
  weighted |= {'max': 3 / 4, 'std': ((0.16 + 1 / 15 + 0.49) / 20) ** 0.5}
  for name, statistics in ('', expected), ('_weighted', weighted):
    for column, value in statistics.items():
      recorded = record[f'user_accuracy{name}_{column}']
      assert recorded == pytest.approx(value, abs=1e-12), (name, column)
  # A tenth of 15 users is 1.5: the user at 0, and half of one at 0.5.
  num_correct = np.array([1] * 7 + [2] * 7 + [0])
  record = round_records.over_clients(num_correct, np.full(15, 2))
  assert record['user_accuracy_worst_tenth'] == pytest.approx(0.25 / 1.5)
  # Of ten users one is a tenth: the one without a correct example. Of their 19 examples
  # 1.9 are: one at 0, and 0.9 at 0.5.
  record = round_records.over_clients(np.array([0] + [1] * 9), np.array([1] + [2] * 9))
  assert record['user_accuracy_worst_tenth'] == 0
  weighted = record['user_accuracy_weighted_worst_tenth']
  assert weighted == pytest.approx(0.45 / 1.9)
  record = round_records.over_clients(np.array([0] + [1] * 8), np.array([1] + [2] * 8))
  assert not [column for column in record if column.endswith('worst_tenth')]


def test_timing_record(monkeypatch):
  now = iter([10.0, 12.0, 12.5, 13.0, 13.25, 15.0, 15.5, 16.0, 16.25])
  monkeypatch.setattr(time, 'perf_counter', lambda: next(now))
  before = clock_lib.Clock()  # given at 10
  before.arrived('train')  # 12
  before.arrived('evaluate')  # 12.5
  clock = clock_lib.Clock(before)  # given at 13, after the device was free
  with clock('pack'):  # 13.25 to 15
    pass
  clock.arrived('train')  # 15.5
  with clock('save'):  # 16 to 16.25
    pass
  no_time = dict.fromkeys(clock_lib.PHASES, 0.0)
  assert before.seconds == no_time | {'train': 2.0, 'evaluate': 0.5}
  record = clock_lib.timing_record(clock, PLAN, {'round': 7, 'num_examples': 300})
  assert record.pop('peak_memory_bytes') > 1_000_000
  # A logger's thread asks later, and gets the same.
  monkeypatch.setattr(clock_lib, 'peak_memory_bytes', lambda: 2**60)
  asked_later = clock_lib.timing_record(clock, PLAN, {'round': 7, 'num_examples': 300})
  assert asked_later.pop('peak_memory_bytes') < 2**60
  assert asked_later == record
  seconds = no_time | {'pack': 1.75, 'idle': 0.5, 'train': 2.5, 'save': 0.25}
  assert record == {
    'round': 7,
    **{f'{phase}_seconds': value for phase, value in seconds.items()},
    'samples_per_second': 120.0,
    # Three steps of two lanes times two steps.
    'useful_steps_fraction': 0.75,
  }


def test_a_round_given_early_begins_when_the_one_before_ends(monkeypatch):
  now = iter([10.0, 11.0, 14.0, 15.5])
  monkeypatch.setattr(time, 'perf_counter', lambda: next(now))
  before = clock_lib.Clock()
  clock = clock_lib.Clock(before)  # given at 11, while the device is busy until 14
  before.arrived('train')
  clock.arrived('train')
  assert (clock.seconds['idle'], clock.seconds['train']) == (0.0, 1.5)


def test_summary_takes_the_last_test_and_the_first_close_to_the_best():
  accuracies = {1: 0.5, 2: 0.9375, 4: 0.95, 5: 1.0, 6: 1.0, 7: 0.625}
  rounds = [{'round': n, 'bytes_down': 100, 'bytes_up': n} for n in range(1, 8)]
  for number, accuracy in accuracies.items():
    rounds[number - 1] |= {'test_accuracy': accuracy, 'test_loss': number + 0.5}
  phases = {'compile': 2.0, 'pack': 0.5, 'store': 0.0, 'idle': 0.125, 'train': 1.0}
  phases |= {'evaluate': 0.25, 'save': 0.0004}
  seconds = {f'{phase}_seconds': value for phase, value in phases.items()}
  assert round_records.summarise(rounds, [seconds, seconds]) == {
    'rounds': 7,
    'test_accuracy': 0.625,
    'test_loss': 7.5,
    'best_test_accuracy': 1.0,
    'best_round': 5,
    'target_test_accuracy': 0.95,
    'target_round': 4,
    'bytes_down': 700,
    'bytes_up': 28,
    **{name: round(2 * value, 3) for name, value in seconds.items()},
  }


def test_with_a_validation_split_it_chooses_the_best_round():
  tested = {1: (0.5, 0.75), 2: (1.0, 0.25), 3: (0.625, 0.5)}
  rounds = [
    {'round': n, 'bytes_down': 0, 'bytes_up': 0, 'test_accuracy': test, 'test_loss': 1}
    | {'validation_accuracy': validation, 'validation_loss': n / 4}
    for n, (test, validation) in tested.items()
  ]
  summary = round_records.summarise(rounds, [])
  # By the test set it would be round 2.
  assert (summary['best_round'], summary['best_test_accuracy']) == (1, 0.5)
  assert summary['best_validation_accuracy'] == 0.75
  assert (summary['target_round'], summary['target_test_accuracy']) == (1, 0.475)
  assert (summary['validation_accuracy'], summary['validation_loss']) == (0.5, 0.75)


def test_saving_is_not_counted_as_idle_too():
  def line(compiling, idle, train, save):
    names = ('compile', 'idle', 'train', 'evaluate', 'save')
    values = (compiling, idle, train, 0.25, save)
    return {f'{n}_seconds': v for n, v in zip(names, values, strict=True)}

  # The second line's 0.75 holds the 0.5 of saving; a new process writes the third.
  lines = [line(4.0, 0, 1.0, 0.5), line(0.0, 0.75, 2.0, 1.0), line(3.0, 0.0, 1.5, 0.5)]
  spent = {'compiling': 7.0, 'training': 4.5, 'testing': 0.75, 'saving': 2.0}
  assert clock_lib.time_spent(lines) == spent | {'idle': 0.25}
  # A run that has lost its timings took no time.
  assert clock_lib.time_spent([]) == dict.fromkeys(spent | {'idle': 0.0}, 0.0)


# --- the growing files ----------------------------------------------------------------


def metrics_line(number):
  return {'round': number, 'train_loss': 0.1 * number, 'clients': [0, 1]}


def write_run(workdir, numbers):
  """Writes metrics and timings of some rounds; returns the bytes of the metrics."""
  with records_lib.Records(workdir, 0) as records:
    for number in numbers:
      add_metrics(records, metrics_line(number))
      records.add_timings({'round': number, 'train_seconds': 1.0})
  return (workdir / run_directory.METRICS).read_bytes()


def test_resuming_drops_the_rounds_that_are_done_again(tmp_path):
  all_lines = write_run(tmp_path, [1, 2, 3, 4, 5])
  with records_lib.Records(tmp_path, 3) as records:
    assert records.rounds == [metrics_line(i) for i in (1, 2, 3)]
    for name in (run_directory.METRICS, run_directory.TIMINGS):
      lines = files.read_lines(tmp_path / name)
      assert [line['round'] for line in lines] == [1, 2, 3]
    add_metrics(records, metrics_line(4))
    # The line is on disk at once: a crash a moment later must not lose it.
    assert len(files.read_lines(tmp_path / run_directory.METRICS)) == 4
    add_metrics(records, metrics_line(5))
    assert len(records.rounds) == 5
  assert (tmp_path / run_directory.METRICS).read_bytes() == all_lines
  assert write_run(tmp_path, []) == b''  # a fresh run


def test_a_half_written_line_is_dropped(tmp_path):
  all_lines = write_run(tmp_path, [1, 2, 3])
  (tmp_path / run_directory.METRICS).write_bytes(all_lines[:-10])
  (tmp_path / run_directory.TIMINGS).write_text('{"rou')
  assert len(files.read_lines(tmp_path / run_directory.METRICS)) == 2
  with records_lib.Records(tmp_path, 2) as records:
    add_metrics(records, metrics_line(3))
  assert (tmp_path / run_directory.METRICS).read_bytes() == all_lines


def test_a_diverged_loss_is_null(tmp_path):
  values = {'a': float('nan'), 'b': float('inf'), 'c': float('-inf'), 'd': 1.5}
  with records_lib.Records(tmp_path, 0) as records:
    add_metrics(records, {'round': 1, **values})
  text = (tmp_path / run_directory.METRICS).read_text()
  assert text == '{"round": 1, "a": null, "b": null, "c": null, "d": 1.5}\n'


@pytest.mark.parametrize('garbage', [b'\x00\x00', b'{"round\xff": 2}'])
def test_garbage_in_the_middle_of_the_records_is_one_line(tmp_path, garbage):
  path = tmp_path / run_directory.METRICS
  path.write_bytes(b'{"round": 1}\n' + garbage + b'\n{"round": 3}\n')
  with pytest.raises(NoCheckpointError, match='is damaged'):
    files.read_lines(path)


@pytest.mark.parametrize(
  ('num_rounds', 'last', 'left'),
  [(3, {}, True), (2, {'test_accuracy': 0.5}, False), (2, {}, None), (1, {}, None)],
)
def test_rounds_left(num_rounds, last, left):
  lines = [{'round': 1, 'test_accuracy': 0.1}, {'round': 2} | last]
  if left is None:
    with pytest.raises(UsageError, match='must be above the 2 rounds saved here'):
      loop.has_rounds_left(num_rounds, lines, '')
  else:
    assert loop.has_rounds_left(num_rounds, lines, '') == left


# --- the other files ------------------------------------------------------------------


BESTS = {'test_accuracy': 0.5, 'best_test_accuracy': 0.5, 'best_round': 1}
BESTS |= {'target_round': 1}


def test_a_run_that_goes_on_is_not_finished(tmp_path):
  assert run_directory.rounds_finished(tmp_path) == 0
  files.write_json(tmp_path / run_directory.SUMMARY, {'rounds': 4} | BESTS)
  # Records begin only with a saved state: an earlier failure leaves all as it was.
  with pytest.raises(NoCheckpointError):
    records_lib.Records(tmp_path, 1)
  assert run_directory.rounds_finished(tmp_path) == 4
  with records_lib.Records(tmp_path, 0) as records:
    assert run_directory.rounds_finished(tmp_path) == 4  # what comes next may fail, too
    add_metrics(records, metrics_line(1))
    assert run_directory.rounds_finished(tmp_path) == 0
  # A run that has lost rounds is not finished, whatever comes next.
  files.write_json(tmp_path / run_directory.SUMMARY, {'rounds': 1} | BESTS)
  with records_lib.Records(tmp_path, 0):
    assert run_directory.rounds_finished(tmp_path) == 0


def test_a_summary_that_has_lost_why_the_run_was_ended(tmp_path):
  lost = {'rounds': 4, 'rounds_asked': 10**6} | BESTS
  files.write_json(tmp_path / run_directory.SUMMARY, lost)
  config = cli.parse(['--config.num_rounds=10']).config
  assert run_directory.why_finished(tmp_path, config) == ''


def test_a_table_of_very_many_columns_is_described(tmp_path):
  numbers = {'mean': [0.0] * 20_000, 'std': [1.0] * 20_000}
  form = Form(kind='table', content='numbers')._asdict()
  description = {'shape': [20_000], 'form': form} | numbers
  with begin(tmp_path, images=description):
    config = files.read_json(tmp_path / run_directory.CONFIG)
  assert config['images']['shape'] == [20_000]


def test_rounds_saved(tmp_path):
  with begin(tmp_path):
    pass
  assert run_directory.rounds_saved(tmp_path) == 0
  with records_lib.Records(tmp_path, 0) as records:
    for number, seconds in ((1, 0.0), (2, 0.5), (3, 0.0)):
      records.add_timings({'round': number, 'save_seconds': seconds})
  assert run_directory.rounds_saved(tmp_path) == 2
  with refused(UsageError, 'num_rounds=1 must be at least the 2 rounds saved'):
    run_directory.check(tmp_path, cli.parse(['--config.num_rounds=1']).config)
  files.write_json(tmp_path / run_directory.SUMMARY, {'rounds': 3} | BESTS)
  (tmp_path / run_directory.TIMINGS).unlink()
  assert run_directory.rounds_saved(tmp_path) == 3


def begin(
  workdir,
  digest='digest',
  *words,
  of_words='',
  of_weights='',
  of_trace='',
  images=IMAGES,
):
  """Begins a run in the directory."""
  request = cli.parse([f'--workdir={workdir}', *words])
  digests = run_directory.InputDigests(
    data_digest=digest,
    words_digest=of_words,
    weights_digest=of_weights,
    trace_digest=of_trace,
  )
  return run_directory.begin(request, digests, images)


def test_a_run_says_that_its_network_was_computed_otherwise(tmp_path, monkeypatch):
  lines = []
  for kernels in ('', 'C++', 'C++', '', 'XLA'):
    monkeypatch.setattr(provenance, 'kernels', lambda kernels=kernels: kernels)
    with begin(tmp_path):
      lines.append(run_directory.record_kernels(tmp_path))
  saved = files.read_json(tmp_path / run_directory.CONFIG)
  starts = [*saved['earlier'], saved]
  recorded = [start.get('kernels', '') for start in starts]
  assert recorded == ['', 'C++', 'C++', '', 'XLA']
  assert lines == [''] * 4 + [
    f'{tmp_path}: C++ computed earlier rounds of the network, and XLA computes these: '
    'the run equals an uninterrupted one up to rounding only'
  ]


def test_one_process_at_a_time_and_always_the_same_experiment_and_data(tmp_path):
  request = cli.parse([f'--workdir={tmp_path / "a" / "run"}'])
  run, config = request.workdir, request.config
  run_directory.check(run, config)
  assert not run.exists()
  with begin(run), refused(UsageError, 'Another process is running'), begin(run):
    pass
  run_directory.check(run, config)
  run_directory.check(run, cli.parse(['--config.num_rounds=99']).config)
  other, change = '--config.moon.tau=0.25', r'moon\.tau: 0\.5 -> 0\.25 \(saved -> given'
  change += r'\)\. Give this one a new directory by --workdir \(--out of a sweep\)\.$'
  before = contents(run)
  with refused(UsageError, change):
    run_directory.check(run, cli.parse([other]).config)
  assert contents(run) == before
  # This run was checked before the first one began.
  with refused(UsageError, change), begin(run, 'digest', other):
    pass
  with refused(UsageError, 'trained on other data'), begin(run, 'another digest'):
    pass
  with refused(UsageError, 'by another vocabulary'), begin(run, of_words='any'):
    pass
  with refused(UsageError, 'began with other weights'), begin(run, of_weights='any'):
    pass
  with refused(UsageError, 'available at other times'), begin(run, of_trace='any'):
    pass
  with begin(run):
    saved = files.read_json(run / run_directory.CONFIG)
  assert 'weights_digest' not in saved
  (earlier,) = saved['earlier']
  assert earlier['command'] == f'python launch.py --workdir={run}'


def test_a_run_that_goes_on_by_other_versions_says_so(tmp_path):
  config = cli.parse([]).config
  with begin(tmp_path):
    pass
  assert run_directory.check(tmp_path, config) == []
  path = tmp_path / run_directory.CONFIG
  saved = files.read_json(path)
  versions = saved['versions'] | {'jax': '0.1', 'flax': '0.1'}
  path.write_text(json.dumps(saved | {'versions': versions}))
  assert run_directory.check(tmp_path, config) == [
    f'{tmp_path} was trained by other versions: jax 0.1 -> {saved["versions"]["jax"]}, '
    'so it has rounds of another version; a new --workdir begins anew'
  ]
  # Runs of old versions do not say.
  path.write_text(json.dumps(saved | {'versions': {}}))
  assert run_directory.check(tmp_path, config) == []


@pytest.mark.parametrize(
  'data', [b'', b'{"a": ', b'[]', b'{}', b'{"a\xff": 1}', b'{"config": "x"}']
)
def test_a_damaged_config_is_one_line(tmp_path, data):
  (tmp_path / run_directory.CONFIG).write_bytes(data)
  with refused(NoCheckpointError, r'config\.json is'):
    run_directory.check(tmp_path, cli.parse([]).config)


@pytest.mark.parametrize('left', ['metrics.jsonl', 'checkpoints/2'])
def test_a_run_that_has_lost_its_config_is_refused(tmp_path, left):
  (tmp_path / 'checkpoints').mkdir()
  run_directory.check(tmp_path, cli.parse([]).config)
  (tmp_path / left).touch()
  with refused(NoCheckpointError, r'config\.json is lost or damaged'):
    run_directory.check(tmp_path, cli.parse([]).config)


def test_git_commit_is_that_of_the_code_alone(tmp_path, monkeypatch):
  def git(*words):
    who = ['-c', 'user.name=Somebody', '-c', 'user.email=somebody@example.org']
    who += ['-c', 'commit.gpgsign=false', '-c', 'core.hooksPath=/dev/null']
    words = ['git', '-C', tmp_path, *who, *words]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout

  for name in ('GIT_DIR', 'GIT_WORK_TREE', 'GIT_INDEX_FILE'):  # a hook has them
    monkeypatch.delenv(name, raising=False)
  commit_of, loaded = provenance.git_commit.__wrapped__, provenance.git_commit()
  monkeypatch.setattr(provenance, '__file__', str(tmp_path / 'provenance.py'))
  monkeypatch.setenv('GIT_CEILING_DIRECTORIES', str(tmp_path.parent))
  (tmp_path / 'provenance.py').write_text('')
  assert commit_of() is None
  # The code is installed in a repository that does not contain it.
  git('init')
  git('commit', '--allow-empty', '--message=thesis')
  assert commit_of() is None
  git('add', 'provenance.py')
  git('commit', '--message=code')
  commit = git('rev-parse', 'HEAD').strip()
  assert commit_of() == commit
  (tmp_path / 'provenance.py').write_text('edited')
  assert commit_of() == f'{commit}+changes'
  monkeypatch.setenv('PATH', '')
  assert commit_of() is None
  assert provenance.git_commit() == loaded
