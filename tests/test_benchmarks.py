"""Counts and records, the baseline's model, and answers to bad input."""

import importlib.util
import json
import sys

import jax
import numpy as np
import pytest

from benchmarks import __main__ as suites
from benchmarks import against_pytorch, cpu, engine, gpu, gpu_plan, processes
from benchmarks.rows import Row
from moon_jax.building import experiment
from moon_jax.config import cli
from moon_jax.core.errors import ExitCode
from tests.processes import ROOT, launch


def test_the_gpu_suite_without_a_gpu_ends_with_a_line(monkeypatch, capsys):
  monkeypatch.setattr(sys, 'argv', ['benchmarks', '--suite=gpu'])
  monkeypatch.setattr(processes, 'run', lambda words: {'backend': 'cpu', 'kind': ''})
  with pytest.raises(SystemExit) as ended:
    suites.main()
  assert ended.value.code == ExitCode.USAGE
  error = '--suite=gpu needs a GPU that JAX can use; see docs/gpu.md.\n'
  assert capsys.readouterr().err == error


def test_what_the_minutes_leave_no_time_for_is_left_out():
  rows = gpu._until(0, 'a row', measure=None, details={})
  assert rows == [Row('a row', 'not run: the minutes were over', '')]
  quick_workload = gpu.Workload('', 640, 2, 1, quick=True, device='cpu')
  quick_tasks = list(gpu.tasks(quick_workload, {}))
  all_tasks = list(gpu.tasks(quick_workload._replace(quick=False), {}))
  assert all_tasks[: len(quick_tasks)] == quick_tasks


def test_a_row_is_written_before_the_next_is_measured(tmp_path, capsys):
  path = tmp_path / 'results.json'
  rows_before_the_second = []

  def measure_second():
    rows_before_the_second.extend(json.loads(path.read_text())['rows'])
    assert 'a: 1' in capsys.readouterr().out
    return [Row('b', '2', '')]

  tasks = {'first': lambda: [Row('a', '1', '')], 'second': measure_second}
  suites.measure(tasks, path, {})
  assert rows_before_the_second == [{'measured': 'a', 'value': '1', 'bar': ''}]
  assert [row['measured'] for row in json.loads(path.read_text())['rows']] == ['a', 'b']
  # A part of the suite replaces its own rows.
  suites.measure({'first': lambda: [Row('a', '3', '')]}, path, {}, keep_rows=True)
  rows = json.loads(path.read_text())['rows']
  assert {row['measured']: row['value'] for row in rows} == {'a': '3', 'b': '2'}


def test_queues_of_clients_leave_few_steps_to_filler():
  assert 0.95 <= float(cpu._utilisation().value) <= 1


def test_the_cpu_suite_measures_each_network_against_pytorch():
  all_tasks = list(cpu.tasks('', 1, False, {}))
  for model in against_pytorch.SETTINGS:
    # Crops of the larger networks come last: they are left out when time is up.
    plain, crops = (f'{model}, moon, {name}, 1 core' for name in ('none', 'crop_flip'))
    assert all_tasks.index(plain) < all_tasks.index(crops)
  quick_tasks = cpu.tasks('', 1, True, {})
  assert {name.partition(',')[0] for name in quick_tasks} == {'moon_cnn'}
  assert 'moon_cnn, moon, crop_flip, 1 core' in quick_tasks


# --- what is counted, and the baseline's model ------------------------------------


def write_images(path, num_train, side, levels):
  """An .npz file of random pixels with `levels` values from 0 to 255; 10 classes."""
  rng = np.random.default_rng(0)

  def pixels(count):
    drawn = rng.integers(0, levels, (count, side, side, 3)) * (255 // (levels - 1))
    return drawn.astype(np.uint8)

  np.savez(
    path,
    train_x=pixels(num_train),
    train_y=np.arange(num_train) % 10,
    test_x=pixels(10),
    test_y=np.arange(10),
  )


@pytest.fixture(scope='module')
def images(tmp_path_factory):
  path = tmp_path_factory.mktemp('data') / 'images.npz'
  write_images(path, 24, 32, 256)
  return path


def flags(images, changes):
  """The flags of two clients with these images."""
  knobs = {
    'data.source': 'npz',
    'data.path': images,
    'num_clients': 2,
    'partition.name': 'iid',
    'partition.min_size': 1,
    'batch_size': 8,
    'local_epochs': 2,
  }
  return [f'--config.{name}={value}' for name, value in (knobs | changes).items()]


def step_flops(images, changes):
  network = {'model': 'mlp', 'mlp.width': 64, 'mlp.representation': 16}
  words = flags(images, network | changes)
  built = experiment.build(cli.parse(words).config)
  return engine._step_flops(built, experiment.initial_state(built))


@pytest.mark.slow
def test_frozen_networks_count_in_each_step_that_runs_them(images):
  of_two_epochs = step_flops(images, {'local_epochs': 2})
  of_four_epochs = step_flops(images, {'local_epochs': 4})
  of_frozen_networks = 4 * (of_two_epochs - of_four_epochs)  # both, on one batch
  products = 32 * 32 * 3 * 64 + 64 * 64 + 64 * 16
  assert of_frozen_networks == pytest.approx(2 * 8 * 2 * products, rel=0.05)
  augmented = step_flops(images, {'augmentation.name': 'crop_flip'})
  assert augmented == pytest.approx(of_two_epochs + of_frozen_networks / 2, rel=1e-3)
  # In one epoch each representation is looked up once, so none is kept.
  of_one_epoch = step_flops(images, {'local_epochs': 1})
  assert of_one_epoch == pytest.approx(augmented)


def report_of(module, words):
  """What a program of the benchmarks prints."""
  process = launch(ROOT, program=['-m', module, *words], OPENBLAS_NUM_THREADS='1')
  assert process.returncode == 0, process.stderr
  return json.loads(process.stdout.splitlines()[-1])


with_torch = pytest.mark.skipif(
  importlib.util.find_spec('torch') is None, reason='no torch'
)


@pytest.mark.slow  # starts three processes
@with_torch
@pytest.mark.parametrize('algorithm', ['fedavg', 'moon', 'moon_once'])
@pytest.mark.parametrize('model', ['moon_cnn', 'dco_cnn', 'mlp'])
def test_pytorch_ends_with_the_same_averaged_model(images, tmp_path, model, algorithm):
  file = tmp_path / 'round.npz'
  averaged_file = tmp_path / 'averaged.npz'
  our_algorithm = algorithm.removesuffix('_once')
  words = flags(images, {'model': model, 'algorithm': our_algorithm})
  report_of('benchmarks.engine', ['--repeats=1', f'--out={file}', *words])
  report = report_of(
    'benchmarks.pytorch_baseline',
    [
      f'--workload={file}',
      f'--out={averaged_file}',
      f'--algorithm={algorithm}',
      '--repeats=1',
      '--no-compile',
    ],
  )
  assert len(report['step_seconds']) == 2
  with np.load(file) as ours, np.load(averaged_file) as theirs:
    assert_same_average(dict(ours), dict(theirs), max_difference=1e-3)


def assert_same_average(ours, theirs, max_difference):
  """ours: as `benchmarks.engine` writes it; the difference is of a leaf's movement."""
  assert set(theirs) == {
    name.removeprefix('result/') for name in ours if name.startswith('result/')
  }
  for name, mean in theirs.items():
    start, end = ours[f'received/{name}'], ours[f'result/{name}']
    difference = np.linalg.norm(mean - end)
    movement = np.linalg.norm(end - start)
    assert difference <= max_difference * (movement + 1e-3), name


# --- the plan for a day with a GPU --------------------------------------------------


def plan_flags(images):
  """The smallest rounds; the form of the convolutions is refused for this network."""
  changes = {'model': 'mlp', 'local_epochs': 1, 'num_rounds': 1}
  return flags(images, changes | {'execution.devices': 1})


def lines_of(path):
  return [json.loads(line) for line in path.read_text().splitlines()]


# The first row of each kind, a second round of the same program, and one that fails.
ROWS_OF_EACH_KIND = {row.measure: row for row in reversed(gpu_plan.ROWS)}.values()
MEASURED = {row.name for row in ROWS_OF_EACH_KIND} | {'without CUDA graphs', 'cuDNN'}


@pytest.mark.slow  # starts seven processes
@pytest.mark.filterwarnings('ignore:os.fork')  # JAX's, which this process has loaded
def test_a_row_of_each_kind_is_written_with_its_prediction(
  images, tmp_path, monkeypatch
):
  path = tmp_path / 'plan.jsonl'
  rows = [row for row in gpu_plan.ROWS if row.name in MEASURED]
  monkeypatch.setattr(gpu_plan, 'ROWS', rows)
  words = ['gpu_plan', f'--out={path}', *plan_flags(images)]
  monkeypatch.setattr(sys, 'argv', words)
  gpu_plan.main()
  lines = lines_of(path)
  assert [line['name'] for line in lines] == [row.name for row in rows]
  assert len(lines) == 7
  for line in lines:
    assert ('error' in line) != ('measured' in line)
    if 'measured' in line:
      assert line['predicted for an H200'].keys() <= line['measured'].keys()
  by_name = {line['name']: line for line in lines}
  assert 'execution.convolution' in by_name['cuDNN']['error']
  # What only a GPU, or another package, can do.
  excepted = ('cuDNN', 'three processes with MPS', 'PyTorch')
  unmeasured = [name for name, line in by_name.items() if 'error' in line]
  assert not [name for name in unmeasured if not name.endswith(excepted)], unmeasured


@pytest.mark.parametrize('row', gpu_plan.ROWS, ids=lambda row: row.name)
def test_every_row_of_the_plan_has_flags_and_options_that_exist(row):
  assert row.predicted
  assert row.source
  plan = gpu_plan.Plan(rounds=None, flags=[], folder=None)
  cli.parse(plan.all_flags(row))
  program = jax.jit(lambda x: x + 1).lower(np.float32(1))
  assert program.compile(compiler_options=dict(row.options))(np.float32(1)) == 2


@pytest.mark.slow  # starts two processes
@pytest.mark.filterwarnings('ignore:os.fork')  # JAX's, which this process has loaded
def test_a_row_that_fails_stops_neither_the_plan_nor_the_rows_before_it(
  images, tmp_path
):
  path = tmp_path / 'plan.jsonl'
  row = gpu_plan.ROWS[0]
  names_before = []

  def measure_last(row, plan, seconds):
    names_before.extend(line['name'] for line in lines_of(path))
    return gpu_plan.measure_round(row, plan, seconds)

  rows = [
    row._replace(name='late', seconds=0.2),
    row._replace(name='unknown', options={'xla_nonsense': 1}),
    row._replace(name='last', measure=measure_last),
  ]
  gpu_plan.measure(rows, path, 300, plan_flags(images))
  assert names_before == ['late', 'unknown']
  gpu_plan.measure([row], path, 0, plan_flags(images))
  *lines, left_out = lines_of(path)
  assert lines[0]['error'] == 'not done after 0 s'
  assert "No such compile option: 'xla_nonsense'" in lines[1]['error']
  assert lines[2]['measured']['seconds a round'] > 0
  assert left_out['error'] == 'not run: the minutes were over'


def test_the_models_agree_with_the_h200_and_the_page_has_what_they_say_of_cards():
  h200 = gpu_plan.CARDS['H200 SXM']
  measured = 0.419 / gpu_plan.STEPS  # seconds of a step
  for model in gpu_plan.MODELS.values():
    assert gpu_plan.step_seconds(h200, model) == pytest.approx(measured, rel=0.05)
  assert gpu_plan.modelled_cards() in (ROOT / 'docs/gpu.md').read_text()


# --- docs/performance.md ------------------------------------------------------------

KEPT = [
  json.loads((ROOT / f'benchmarks/results/x86_64-2-cores-{machine}.json').read_text())
  for machine in ('epyc-4', 'amx')  # in the order of the table's columns
]


def case_of(label):
  """A row's label in the table -> the name of its case in the files."""
  network, algorithm, *crops = label.strip('* ').replace('`', '').lower().split(', ')
  augmentation = 'crop_flip' if crops else 'none'
  name = f'{network}, {algorithm}, {augmentation}, 1 core'
  if algorithm == 'moon' and not crops:
    name += ', PyTorch with frozen networks once a round'
  return name


def least_median_most(reports):
  """Of PyTorch's time in ours, over the turns, as the page has them."""
  ratios = np.divide(reports['pytorch']['cpu_seconds'], reports['ours']['cpu_seconds'])
  return [f'{f(ratios):.2f}' for f in (np.min, np.median, np.max)]


def test_each_figure_of_the_table_is_in_its_kept_file():
  page = (ROOT / 'docs/performance.md').read_text()
  bars = {case.name: case.bar for case in against_pytorch.cases('', quick=False)}
  rows = [
    [cell.strip() for cell in line.strip('|').split('|')]
    for line in page.splitlines()
    if line.startswith('| `')
  ]
  rows = [row for row in rows if len(row) == 8]
  assert len(rows) == 14
  for label, bar, *cells in rows:
    name = case_of(label)
    assert float(bar) == bars[name], label
    for kept, figures in zip(KEPT, (cells[:3], cells[3:]), strict=True):
      reports = kept['details'].get(name)
      expected = least_median_most(reports) if reports else ['', '', '']
      marked = [
        f'**{figure}**' if figure and float(figure) < bars[name] else figure
        for figure in expected
      ]
      assert figures == marked, label
