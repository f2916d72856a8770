"""What is counted and written, the baseline's model, and answers to bad input."""

import importlib.util
import json
import sys

import numpy as np
import pytest

from benchmarks import __main__ as suites
from benchmarks import cpu, engine, gpu, gpu_compile, hlo, processes
from benchmarks.rows import Row
from moon_jax.config import cli
from moon_jax.core.errors import ExitCode
from moon_jax.engine import experiment
from tests.processes import ROOT, launch

# One product before a loop of 7 steps, in which stands a loop of unknown length.
PROGRAM = """
HloModule m

%fused (p: f32[1000,8], i: s32[]) -> f32[8] {
  %p = f32[1000,8]{1,0} parameter(0)
  %i = s32[] parameter(1)
  ROOT %s = f32[1,8]{1,0} dynamic-slice(%p, %i, %i), dynamic_slice_sizes={1,8}
}

%inner (a: (f32[8], s32[])) -> (f32[8], s32[]) {
  %a = (f32[8]{0}, s32[]) parameter(0)
  %x = f32[8]{0} get-tuple-element(%a), index=0
  %y = f32[8]{0} add(%x, %x)
  %conv = (f32[8]{0}, u8[64]{0}) custom-call(%y), custom_call_target="__cudnn$convForward"
  ROOT %t = (f32[8]{0}, s32[]) tuple(%y, %x)
}

%outer (a: (f32[8], s32[])) -> (f32[8], s32[]) {
  %a = (f32[8]{0}, s32[]) parameter(0)
  %w = (f32[8]{0}, s32[]) while(%a), condition=%c, body=%inner, metadata={op_name="r/in"}
  ROOT %t = (f32[8]{0}, s32[]) tuple(%w, %w)
}

ENTRY %main (p: f32[1000,8], q: f32[8,16]) -> f32[8] {
  %p = f32[1000,8]{1,0} parameter(0)
  %q = f32[8,16]{1,0} parameter(1)
  %i = s32[] constant(0)
  %k = f32[8,16]{1,0} custom-call(%q), custom_call_target="topk"
  %d = f32[1000,16]{1,0} dot(%p, %q), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %f = f32[1,8]{1,0} fusion(%p, %i), kind=kLoop, calls=%fused
  %g = ((f32[1000,8], s32[]), f32[1,8], u32[]) fusion-start(%p, %i), kind=kLoop, calls=%fused
  %h = f32[1,8]{1,0} fusion-done(%g)
  %w = (f32[8]{0}, s32[]) while(%f), condition=%c, body=%outer, metadata={op_name="r"}, backend_config={"known_trip_count":{"n":"7"}}
  ROOT %r = f32[8]{0} get-tuple-element(%w), index=0
}
"""  # noqa: E501


def test_kernels_bytes_and_loops_of_a_program_by_hand():
  program = hlo.read(PROGRAM, lambda where, depth: {('r/in', 1): 3}[where, depth])
  outer, inner = list(program.walk())[1:]
  assert [(loop.name, loop.trips, loop.known) for loop in (outer, inner)] == [
    ('r', 7, True),
    ('r/in', 3, False),
  ]
  own, *others = program.kernels
  assert (own.bytes, own.flops) == (2 * 4 * 128, 0)
  assert [kernel.kind for kernel in others] == ['dot', 'loop', 'loop']
  # All of both factors and the product; of what is sliced the slice, twice.
  assert [kernel.bytes for kernel in others] == [
    4 * (8000 + 128 + 16000),
    4 * (8 + 8) + 4,
    4 * (8 + 8) + 4,
  ]
  assert [kernel.bytes for kernel in inner.kernels] == [3 * 32, 2 * 32]
  assert program.total(lambda loop: len(loop.kernels)) == 4 + 7 * 3 * 2
  assert program.total(lambda loop: not loop.known) == 21
  assert not inner.in_graph
  assert outer.in_graph
  # The host reads a condition, and cuDNN starts outside a graph.
  assert inner.seconds() == pytest.approx(15e-6 + 2 * 4e-6)


@pytest.mark.parametrize(
  ('suite', 'code', 'told'),
  [
    ('gpu', ExitCode.USAGE, '--suite=gpu needs a GPU that JAX can use; see docs/gpu'),
    ('gpu-compile', None, 'Skipped: --suite=gpu-compile needs'),
  ],
)
def test_a_suite_that_cannot_run_here_says_so_in_a_line(
  monkeypatch, capsys, suite, code, told
):
  monkeypatch.setattr(sys, 'argv', ['benchmarks', f'--suite={suite}'])
  monkeypatch.setattr(processes, 'run', lambda words: {'backend': 'cpu', 'kind': ''})
  monkeypatch.setattr(gpu_compile, 'is_possible', lambda: False)
  with pytest.raises(SystemExit) as ended:
    suites.main()
  assert ended.value.code == code
  out, error = capsys.readouterr()
  assert (out + error).startswith(told)


def test_what_the_minutes_leave_no_time_for_is_left_out():
  workload = gpu.Workload('', 640, 2, 1, quick=True)
  details = {}
  measured = gpu._until(0, 'a row', None, details)
  assert measured == [Row('a row', 'not run: the minutes were over', '')]
  quick, whole = (
    list(gpu.tasks(workload._replace(quick=quick), {})) for quick in (True, False)
  )
  assert whole[: len(quick)] == quick


def test_a_row_is_written_before_the_next_is_measured(tmp_path, capsys):
  path, seen = tmp_path / 'results.json', []

  def second():
    seen.extend(json.loads(path.read_text())['rows'])
    assert 'a: 1' in capsys.readouterr().out
    return [Row('b', '2', '')]

  suites.measure({'first': lambda: [Row('a', '1', '')], 'second': second}, path, {})
  assert seen == [{'measured': 'a', 'value': '1', 'bar': ''}]
  assert [row['measured'] for row in json.loads(path.read_text())['rows']] == ['a', 'b']


def test_queues_of_clients_leave_few_steps_to_filler():
  assert 0.95 <= float(cpu._utilisation().value) <= 1


def test_the_cpu_suite_measures_each_network_beside_pytorch():
  quick, whole = (list(cpu.tasks('', 1, quick, {})) for quick in (True, False))
  wanted = {
    f'{model}, {algorithm}, {augmentation}, 1 core'
    for model in ('moon_cnn', 'dco_cnn', 'cnn_transformer', 'resnet18')
    for algorithm in ('fedavg', 'moon')
    for augmentation in ('none', 'crop_flip')
  }
  assert wanted <= set(whole)
  assert quick == whole[1:5]
  # When the minutes are over, crops that no bar is set for are left out.
  first, crops = (f'dco_cnn, fedavg, {kind}, 1 core' for kind in ('none', 'crop_flip'))
  order = ['first round', first, 'moon_cnn, fedavg, 1,000 users, 1 core', crops]
  assert sorted(order, key=whole.index) == order
  assert set(quick) == {name for name in wanted if name.startswith('moon_cnn')}


# --- what is counted, and the baseline's model ------------------------------------


@pytest.fixture(scope='module')
def images(tmp_path_factory):
  """An .npz file of random pixels: 24 images in training, 10 classes."""
  path = tmp_path_factory.mktemp('data') / 'images.npz'
  arrays, rng = {}, np.random.default_rng(0)
  for split, count in (('train', 24), ('test', 10)):
    arrays[f'{split}_x'] = rng.integers(0, 256, (count, 32, 32, 3), np.uint8)
    arrays[f'{split}_y'] = np.arange(count) % 10
  np.savez(path, **arrays)
  return path


def flags(images, model, *more):
  words = ['data.source=npz', f'data.path={images}', f'model={model}', 'num_clients=2']
  words += ['partition.name=iid', 'partition.min_size=1', 'batch_size=8']
  return [f'--config.{word}' for word in (*words, 'local_epochs=2')] + list(more)


def step_flops(images, *more):
  built = experiment.build(cli.parse(flags(images, 'moon_cnn', *more)).config)
  return engine._step_flops(built, experiment.initial_state(built))


def test_frozen_networks_count_in_each_step_that_runs_them(images):
  crops = '--config.augmentation.name=crop_flip'
  per_step = {
    epochs: step_flops(images, f'--config.local_epochs={epochs}') for epochs in (2, 4)
  }
  once = 4 * (per_step[2] - per_step[4])  # both frozen networks, on one batch
  pixels = 28**2 * 6 * 75 + 10**2 * 16 * 150
  dense = 400 * 120 + 120 * 84 + 84 * 84 + 84 * 256
  assert once == pytest.approx(2 * 8 * 2 * (pixels + dense), rel=0.05)
  augmented = step_flops(images, crops)
  assert augmented == pytest.approx(per_step[2] + once / 2, rel=1e-3)
  # One epoch looks each representation up once, and keeps none.
  assert step_flops(images, '--config.local_epochs=1') == pytest.approx(augmented)


def program(*words):
  done = launch(ROOT, program=['-m', *words], OPENBLAS_NUM_THREADS='1')
  assert done.returncode == 0, done.stderr
  return json.loads(done.stdout.splitlines()[-1])


with_torch = pytest.mark.skipif(
  importlib.util.find_spec('torch') is None, reason='no torch'
)


@pytest.mark.slow  # starts three processes
@with_torch
@pytest.mark.parametrize('algorithm', ['fedavg', 'moon'])
@pytest.mark.parametrize('model', ['moon_cnn', 'dco_cnn'])
def test_pytorch_ends_with_the_same_averaged_model(images, tmp_path, model, algorithm):
  file, result = tmp_path / 'round.npz', tmp_path / 'result.npz'
  more = f'--config.algorithm={algorithm}'
  words = '--repeats=1', f'--out={file}', *flags(images, model, more)
  program('benchmarks.engine', *words)
  words = f'--workload={file}', f'--out={result}', f'--algorithm={algorithm}'
  told = program('benchmarks.pytorch_baseline', *words, '--repeats=1', '--no-compile')
  assert len(told['step_seconds']) == 2
  with np.load(file) as ours, np.load(result) as theirs:
    assert_same_average(dict(ours), dict(theirs), 1e-3)


def assert_same_average(ours, theirs, bound):
  """ours: as `benchmarks.engine` writes it; bound: of the way a leaf went."""
  assert set(theirs) == {
    name.removeprefix('result/') for name in ours if name.startswith('result/')
  }
  for name, mean in theirs.items():
    start, end = ours[f'received/{name}'], ours[f'result/{name}']
    off, moved = np.linalg.norm(mean - end), np.linalg.norm(end - start)
    assert off <= bound * (moved + 1e-3), (name, off, moved)
