"""Convolution, bias, pooling and ReLU in one kernel for a CPU.

With more features, channels and examples than are computed at a time, and with fewer.
"""

import ctypes
import functools
import json
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tempfile

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moon_jax import config as config_lib
from moon_jax.__main__ import launch
from moon_jax.building.network import NetworkOptions, make_network
from moon_jax.core.errors import ExitCode, UsageError
from moon_jax.models import cpu_kernels
from moon_jax.models.convolution import FORMS, forms, fused_cpu, pooling
from moon_jax.runner.rounds import Rounds
from tests.processes import flip
from tests.run_directories import FEDAVG
from tests.watching import within

NONE = ((0, 0), (0, 0))
MODELS = pathlib.Path(__file__).with_name('test_models.py')


@pytest.fixture
def fused():
  """convolve_pool_relu(x, kernel, bias, padding)."""
  if not shutil.which('c++'):
    pytest.skip('there is no C++ compiler c++')
  assert not cpu_kernels.fault()
  return fused_cpu.convolve_pool_relu


def arrays(channels, side, examples, size, features):
  """Normal images, kernel and bias; size: the kernel's, or its height and width."""
  rng = np.random.default_rng(0)
  images = rng.normal(size=(channels, side, side, examples))
  height, width = np.broadcast_to(size, 2)
  kernel = rng.normal(size=(height, width, channels, features)) / width
  return [np.float32(a) for a in (images, kernel, rng.normal(size=features))]


def in_turn(x, kernel, bias, padding):
  """The same computation by the library."""
  y = forms.library(x, kernel, stride=1, padding=padding)
  return nn.relu(pooling.max_pool(y) + bias.reshape(-1, 1, 1, 1))


def with_gradients(function, padding, x, kernel, bias):
  """The function's value, and its gradients along a fixed direction."""
  y, pull = jax.vjp(lambda *a: function(*a, padding), x, kernel, bias)
  direction = np.random.default_rng(1).normal(size=y.shape)
  return (y, *pull(direction.astype(y.dtype)))


@functools.partial(jax.jit, static_argnums=(0, 1))
def values_and_gradients(functions, padding, x, kernel, bias):
  """The values and gradients of two functions, compiled as one program."""
  return [with_gradients(function, padding, x, kernel, bias) for function in functions]


def relative_difference(actual, expected):
  """The largest difference, relative to the largest number."""
  actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
  return np.abs(actual - expected).max() / np.abs(expected).max()


@pytest.mark.parametrize(
  ('shape', 'padding'),
  [
    ((3, 32, 8, 5, 6), NONE),  # conv1 of the MOON CNN
    ((32, 8, 3, 5, 64), NONE),  # conv2 of DCO's CNN
    ((2, 8, 130, 3, 3), NONE),  # many groups of examples, the last one not full
    ((2, 10, 33, 5, 11), NONE),  # tiles of four outputs and of two
    ((2, 9, 3, (4, 2), 5), ((0, 0), (1, 1))),
    ((2, 7, 3, (2, 4), 5), ((2, 0), (1, 1))),
    ((2, 8, 3, (8, 7), 5), ((2, 3), (3, 3))),  # more rows than are summed at a time
  ],
)
def test_values_and_gradients(shape, padding, fused):
  x, kernel, bias = arrays(*shape)
  actual, expected = values_and_gradients((fused, in_turn), padding, x, kernel, bias)
  assert 0.2 < float(jnp.mean(actual[0] > 0)) < 0.98  # ReLU cuts off some
  for array, true_array in zip(actual, expected, strict=True):
    assert relative_difference(array, true_array) < 2e-6


def test_lanes_of_their_own_weights_and_with_common_images(fused):
  x, kernel, bias = arrays(2, 8, 4, 5, 5)
  of_lanes = functools.partial(values_and_gradients, (fused, in_turn), NONE)
  images = np.stack([x, -x])
  kernels, biases = np.stack([kernel, 2 * kernel]), np.stack([bias, bias])
  own_images = jax.vmap(of_lanes)(images, kernels, biases)
  common_images = jax.vmap(of_lanes, (None, 0, 0))(x, kernels, biases)
  for actual, expected in (own_images, common_images):
    for array, true_array in zip(actual, expected, strict=True):
      assert relative_difference(array, true_array) < 2e-6


def test_what_is_no_number_reaches_the_squares_whose_windows_have_it(fused):
  x, kernel, bias = arrays(2, 8, 4, 3, 5)
  x[0, 4, 3, 1] = np.nan

  def values():
    results = values_and_gradients((fused, in_turn), NONE, x, kernel, bias)
    return [value for value, *_ in results]

  actual, expected = values()
  assert 0 < np.isnan(expected).mean() < 0.25
  np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected))
  difference = relative_difference(np.nan_to_num(actual), np.nan_to_num(expected))
  assert difference < 2e-6
  kernel[0] = np.nan
  assert np.isnan(values()[0]).all()


def test_images_are_not_cut_off(fused):
  x, kernel, bias = arrays(2, 8, 4, 3, 5)
  with pytest.raises(ValueError, match='must not be negative'):
    fused(x, kernel, bias, ((0, -2), (0, 0)))


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != 'x86_64', reason='AVX-512 is of x86')
def test_a_cpu_without_avx_512_computes_the_same(tmp_path):
  compiler = tmp_path / 'c++'
  compiler.write_text('#!/bin/sh\nexec c++ "$@" -mno-avx512f\n')
  compiler.chmod(0o755)
  chosen = 'values_and or (first_of and fused)'
  words = ['-m', 'pytest', '-q', '-n0', '-k', chosen, __file__, str(MODELS)]
  environment = os.environ | {'CXX': str(compiler)}
  words = [sys.executable, *words]
  tests = subprocess.run(words, env=environment, capture_output=True, text=True)
  assert tests.returncode == 0, tests.stdout


@pytest.mark.parametrize('narrow', [(0, 1, 2), (0,), (1,)])
def test_bfloat16_and_mixed_types_are_computed_in_float32(narrow, fused):
  inputs = arrays(2, 8, 4, 3, 5)
  for index in narrow:
    inputs[index] = inputs[index].astype(jnp.bfloat16)
  actual = FORMS['fused'].pooled(*inputs, NONE)
  wide_inputs = [array.astype(jnp.float32) for array in inputs]
  expected = fused(*wide_inputs, NONE).astype(inputs[0].dtype)
  assert actual.dtype == expected.dtype
  np.testing.assert_array_equal(actual, expected)

  def total(layer, x, kernel, bias):
    return layer(x, kernel, bias, NONE).astype(jnp.float32).sum()

  differentiate = jax.grad(total, (1, 2, 3))
  gradients = differentiate(FORMS['fused'].pooled, *inputs)
  exact_gradients = differentiate(fused, *wide_inputs)
  for array, gradient, exact in zip(inputs, gradients, exact_gradients, strict=True):
    assert gradient.dtype == array.dtype
    np.testing.assert_allclose(gradient.astype(jnp.float32), exact, rtol=2**-8)


def moon_cnn(backend):
  """The MOON CNN with `fused`, for a kind of device."""
  changes = {'model': 'moon_cnn', 'execution.convolution': 'fused'}
  config = config_lib.changed(config_lib.defaults(), changes)
  return make_network(NetworkOptions(config), (28, 28, 1), 10, backend)


@pytest.mark.usefixtures('fused')
def test_training_on_cpus_has_the_kernels_and_predictions_do_without():
  for backend in ('cpu', None):
    network = moon_cnn(backend)
    images = jnp.zeros((2, 28, 28, 1))
    program = str(jax.make_jaxpr(network.apply)(network.shapes, images))
    assert ('ffi_call' in program) == (backend == 'cpu')


def test_a_gpu_has_none_of_them():
  with pytest.raises(UsageError, match="convolution='fused': its kernels are for CPUs"):
    moon_cnn('gpu')


@pytest.mark.parametrize(
  ('compiler', 'problem'),
  [
    ('/is/not/there', '/is/not/there cannot be used: there is no such program'),
    ('env false', 'env false cannot be used: .*returned non-zero exit status'),
    ("'c++", "'c.. cannot be used: No closing quotation"),
    ('sh -c "echo no >&2; exit 1"', 'cannot be used: no.$'),
    # Its temporary files are in the folder of the build, and go with it.
    ('sh -c "echo $TMPDIR >&2; exit 1"', rf'used: {tempfile.gettempdir()}/tmp[^/]+$'),
    ('true', 'true cannot be used: .*cannot open shared object'),
  ],
)
def test_without_a_compiler_it_is_refused(monkeypatch, tmp_path, compiler, problem):
  monkeypatch.setenv('CXX', compiler)
  monkeypatch.setattr(cpu_kernels, '_cache_folder', tmp_path)
  build = cpu_kernels._fault_of_build.__wrapped__
  monkeypatch.setattr(cpu_kernels, '_fault_of_build', build)
  with pytest.raises(UsageError, match=problem):
    moon_cnn('cpu')
  assert not [path for path in tmp_path.rglob('*') if path.is_file()]


def test_a_compiler_has_a_minute_of_a_core_and_ten_minutes(monkeypatch, tmp_path):
  """A busy machine builds the same kernels, later."""

  def problem_of(compiler):
    with pytest.raises(subprocess.SubprocessError) as caught:
      cpu_kernels._build(['sh', '-c', compiler], tmp_path / 'new.so')
    return str(caught.value)

  monkeypatch.setattr(cpu_kernels, '_CPU_SECONDS', 1)
  assert 'died with <Signals.SIG' in problem_of('while :; do :; done')
  monkeypatch.setattr(cpu_kernels, '_WALL_SECONDS', 2)
  # What it has started ends as well, and lets go of the pipe.
  pipe = tmp_path / 'pipe'
  os.mkfifo(pipe)
  receiver = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
  problem = problem_of(f'sleep 90 > {pipe} & wait')
  assert problem.endswith('timed out after 2 seconds')
  os.set_blocking(receiver, True)
  with within(10):
    assert os.read(receiver, 1) == b''
  os.close(receiver)


@pytest.mark.usefixtures('fused')
def test_what_was_built_is_kept_for_its_source_and_compiler(
  tmp_path, monkeypatch, capsys
):
  new, folder = tmp_path / 'new.so', tmp_path / 'kept'
  folder.mkdir()
  # In place of the kernels, which take seconds: what is built is the same to `_build`.
  sources = tmp_path / 'one.cc', tmp_path / 'two.cc'
  for number, source in enumerate(sources):
    source.write_text(f'extern "C" int number_{number}() {{ return {number}; }}\n')
  monkeypatch.setattr(cpu_kernels, '_SOURCES', sources)
  monkeypatch.setattr(cpu_kernels, '_cache_folder', None)
  compiler, log = tmp_path / 'compiler', tmp_path / 'log'

  def is_built_anew(also=''):
    compiler.write_text(f'#!/bin/sh\necho "$@" >> {log}\nexec c++ {also} "$@" -O0\n')
    compiler.chmod(0o700)
    log.unlink(missing_ok=True)
    new.unlink(missing_ok=True)
    cpu_kernels._build([str(compiler)], new)
    assert ctypes.CDLL(new).number_1() == 1
    return ' -o ' in log.read_text()

  cpu_kernels.keep_in(folder)
  assert [is_built_anew() for _ in range(2)] == [True, False]
  (library,) = (folder / 'kernels').iterdir()
  assert library.read_bytes().endswith(new.read_bytes())
  flip(library)
  assert [is_built_anew() for _ in range(2)] == [True, False]
  # Another compiler version or processor, in the macros, compiles anew.
  assert [is_built_anew('-DOTHER') for _ in range(2)] == [True, False]
  sources[0].write_text(sources[0].read_text() + '\n')
  assert is_built_anew()
  monkeypatch.setattr(cpu_kernels.jaxlib, '__version__', '0')
  assert is_built_anew()
  assert len(list(library.parent.iterdir())) == 4
  # A library that others may have written is not run.
  folder.chmod(0o770)
  assert is_built_anew()
  assert 'nobody else may write there' in capsys.readouterr().err


@pytest.mark.usefixtures('quick_runs')
def test_a_run_says_that_its_network_is_slower(monkeypatch, tmp_path, capsys):
  monkeypatch.setattr(cpu_kernels, '_fault_of_build', lambda: 'there is none')
  compile_rounds = Rounds.compile

  def compile_with_kernels(rounds, print_text, ahead):
    cpu_kernels.fault()  # as a network calls it that needs kernels in training alone
    compile_rounds(rounds, print_text, ahead)

  # The last run is in the process of one whose network needs them, and needs none.
  for number, is_needed in enumerate((False, True, False)):
    compile_run = compile_with_kernels if is_needed else compile_rounds
    monkeypatch.setattr(Rounds, 'compile', compile_run)
    workdir = tmp_path / str(number)
    assert launch([*FEDAVG, f'--workdir={workdir}']) == ExitCode.DONE
    out = capsys.readouterr().out
    assert ('in a slower form: there is none\n' in out) == is_needed
    saved = json.loads((workdir / 'config.json').read_text())
    assert saved.get('kernels') == ('XLA' if is_needed else None)
