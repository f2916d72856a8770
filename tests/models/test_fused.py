"""Convolution, bias, pooling and ReLU in one kernel for a CPU.

With more features, channels and examples than are computed at a time, and with fewer.
"""

import os
import pathlib
import platform
import shutil
import subprocess
import sys

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moon_jax import config as config_lib
from moon_jax.core.errors import UsageError
from moon_jax.engine import experiment
from moon_jax.models.convolution import FORMS, forms, fused_cpu, pooling
from tests.processes import check_success, launch

NONE = ((0, 0), (0, 0))
MODELS = pathlib.Path(__file__).with_name('test_models.py')


@pytest.fixture
def fused():
  """convolve_pool_relu(x, kernel, bias, padding)."""
  if not shutil.which('c++'):
    pytest.skip('there is no C++ compiler c++')
  assert not fused_cpu.fault()
  return fused_cpu.convolve_pool_relu


def arrays(channels, side, examples, size, features, dtype=np.float32):
  """Images, kernel and bias, normal; size: of the kernel, or its height and width."""
  rng = np.random.default_rng(0)
  images = rng.normal(size=(channels, side, side, examples))
  height, width = np.broadcast_to(size, 2)
  kernel = rng.normal(size=(height, width, channels, features)) / width
  return [jnp.asarray(a, dtype) for a in (images, kernel, rng.normal(size=features))]


def in_turn(x, kernel, bias, padding):
  """What it computes, by the library."""
  y = forms.library(x, kernel, stride=1, padding=padding)
  return nn.relu(pooling.max_pool(y) + bias.reshape(-1, 1, 1, 1))


def with_gradients(function, *given):
  """Its value, and its gradients along a fixed direction."""
  y, pull = jax.vjp(function, *given)
  direction = np.random.default_rng(1).normal(size=y.shape)
  return (y, *pull(direction.astype(y.dtype)))


def relative(found, expected):
  """The largest difference, as a part of the largest number."""
  found, expected = (np.asarray(a, np.float64) for a in (found, expected))
  return np.abs(found - expected).max() / np.abs(expected).max()


@pytest.mark.parametrize(
  'shape',
  [
    (3, 32, 8, 5, 6),  # conv1 of the MOON CNN
    (6, 14, 10, 5, 16),  # conv2
    (1, 28, 5, 5, 6),
    (2, 8, 130, 3, 3),  # many groups of examples, the last one not full
    (2, 8, 33, 5, 48),
    (32, 8, 3, 5, 64),  # conv2 of DCO's CNN
  ],
)
def test_values_and_gradients_of_the_networks_layers(shape, fused):
  given = arrays(*shape)
  found = with_gradients(lambda *a: fused(*a, NONE), *given)
  expected = with_gradients(lambda *a: in_turn(*a, NONE), *given)
  assert 0.2 < float(jnp.mean(found[0] > 0)) < 0.98  # ReLU cuts off some
  for one, other in zip(found, expected, strict=True):
    assert relative(one, other) < 2e-6


@pytest.mark.parametrize(
  ('side', 'size', 'padding'),
  [
    (9, (4, 2), ((0, 0), (1, 1))),
    (7, (2, 4), ((2, 0), (1, 1))),
    (4, (3, 3), ((1, 1), (1, 1))),
    (6, (1, 1), NONE),
    (8, (8, 7), ((2, 3), (3, 3))),  # more rows than are summed up at a time
  ],
)
def test_values_and_gradients_with_zeros_around(side, size, padding, fused):
  given = arrays(2, side, 3, size, 5)
  found = with_gradients(lambda *a: fused(*a, padding), *given)
  expected = with_gradients(lambda *a: in_turn(*a, padding), *given)
  for one, other in zip(found, expected, strict=True):
    assert relative(one, other) < 2e-6


def test_nothing_differs_with_and_without_a_gradient(fused):
  given = arrays(2, 8, 4, 3, 5)
  alone = fused(*given, NONE)
  pulled, _ = jax.vjp(lambda *a: fused(*a, NONE), *given)
  np.testing.assert_array_equal(alone, pulled)


def test_lanes_of_their_own_weights_and_with_common_images(fused):
  x, kernel, bias = arrays(2, 8, 4, 3, 5)
  lanes = (jnp.stack([x, -x]), jnp.stack([kernel, 2 * kernel]), jnp.stack([bias, bias]))

  def batched(function, axes, *given):
    run = jax.vmap(lambda *a: with_gradients(lambda *b: function(*b, NONE), *a), axes)
    return run(*given)

  for axes, given in ((0, lanes), ((None, 0, 0), (x, *lanes[1:]))):
    found = batched(fused, axes, *given)
    for one, other in zip(found, batched(in_turn, axes, *given), strict=True):
      assert relative(one, other) < 2e-6


def test_no_number_stays_none(fused):
  x, kernel, bias = arrays(2, 8, 4, 3, 5)
  y = fused(x, kernel.at[0].set(jnp.nan), bias, NONE)
  assert jnp.isnan(y).all()


def test_what_is_no_number_reaches_the_squares_whose_windows_have_it(fused):
  x, kernel, bias = arrays(2, 8, 4, 3, 5)
  x = x.at[0, 4, 3, 1].set(jnp.nan)
  found = fused(x, kernel, bias, NONE)
  expected = in_turn(x, kernel, bias, NONE)
  assert 0 < jnp.isnan(expected).mean() < 0.25
  np.testing.assert_array_equal(jnp.isnan(found), jnp.isnan(expected))
  assert relative(jnp.nan_to_num(found), jnp.nan_to_num(expected)) < 2e-6


def test_images_are_not_cut_off(fused):
  given = arrays(2, 8, 4, 3, 5)
  with pytest.raises(ValueError, match='must not be negative'):
    fused(*given, ((0, -2), (0, 0)))


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != 'x86_64', reason='AVX-512 is of x86')
def test_a_cpu_without_avx_512_computes_the_same(tmp_path):
  compiler = tmp_path / 'c++'
  compiler.write_text('#!/bin/sh\nexec c++ "$@" -mno-avx512f\n')
  compiler.chmod(0o755)
  chosen = 'values_and or (first_of and fused)'
  words = ['-m', 'pytest', '-q', '-n0', '-k', chosen, __file__, str(MODELS)]
  environment = os.environ | {'CXX': str(compiler)}
  done = subprocess.run(
    [sys.executable, *words], env=environment, capture_output=True, text=True
  )
  assert done.returncode == 0, done.stdout


@pytest.mark.parametrize('dtype', [jnp.bfloat16, jnp.float64])
def test_other_types_are_computed_by_the_banded_form(dtype):
  with jax.enable_x64(True):
    given = arrays(2, 8, 4, 3, 5, dtype)
    found, expected = (
      with_gradients(lambda *a: FORMS[form].pooled(*a, NONE), *given)  # noqa: B023
      for form in ('fused', 'banded')
    )
  for one, other in zip(found, expected, strict=True):
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize('which', [0, 1])
def test_mixed_types_are_computed_by_the_banded_form(which):
  given = arrays(2, 8, 4, 3, 5)
  given[which] = given[which].astype(jnp.bfloat16)
  found, expected = (FORMS[form].pooled(*given, NONE) for form in ('fused', 'banded'))
  np.testing.assert_array_equal(found, expected)


def made(backend):
  """The MOON CNN with `fused`, for a kind of device."""
  changes = {'model': 'moon_cnn', 'execution.convolution': 'fused'}
  config = config_lib.changed(config_lib.defaults(), changes)
  return experiment.make_network(config, (28, 28, 1), 10, backend)


@pytest.mark.usefixtures('fused')
def test_training_on_cpus_has_the_kernels_and_predictions_do_without():
  for backend in ('cpu', None):
    network = made(backend)
    images = jnp.zeros((2, 28, 28, 1))
    program = str(jax.make_jaxpr(network.apply)(network.shapes, images))
    assert ('ffi_call' in program) == (backend == 'cpu')


def test_a_gpu_has_none_of_them():
  with pytest.raises(UsageError, match="convolution='fused': its kernels are for CPUs"):
    made('gpu')


@pytest.mark.parametrize(
  ('compiler', 'says'),
  [
    ('/is/not/there', '/is/not/there cannot be run: No such file'),
    ('false', 'false fails'),
    ('env false', 'env false fails'),
    ("'c++", "'c.. cannot be run: No closing quotation"),
    ('sh -c "exec sleep 90"', 'has not ended within 0.2 s'),
    ('true', 'what the C.. compiler true built cannot be loaded: '),
  ],
)
def test_without_a_compiler_it_is_refused(monkeypatch, tmp_path, compiler, says):
  monkeypatch.setenv('CXX', compiler)
  monkeypatch.setattr(fused_cpu, '_SECONDS', 0.2 if 'sleep' in compiler else 60)
  monkeypatch.setattr(fused_cpu, '_kept_in', tmp_path)
  monkeypatch.setattr(fused_cpu, 'fault', fused_cpu.fault.__wrapped__)
  with pytest.raises(UsageError, match=says):
    made('cpu')
  assert not list(tmp_path.rglob('*.so'))


@pytest.mark.usefixtures('fused')
def test_what_was_built_is_kept_for_its_source_and_compiler(
  tmp_path, monkeypatch, capsys
):
  new, folder = tmp_path / 'new.so', tmp_path / 'kept'
  folder.mkdir()
  monkeypatch.setattr(fused_cpu, '_kept_in', None)
  compiler, log = tmp_path / 'compiler', tmp_path / 'log'

  def is_built_anew(also=''):
    compiler.write_text(f'#!/bin/sh\necho "$@" >> {log}\nexec c++ {also} "$@"\n')
    compiler.chmod(0o700)
    log.unlink(missing_ok=True)
    new.unlink(missing_ok=True)
    fused_cpu._build([str(compiler)], new)
    assert new.stat().st_size > 10_000
    return ' -o ' in log.read_text()

  assert is_built_anew()
  fused_cpu.keep_in(folder)
  assert [is_built_anew() for _ in range(3)] == [True, False, False]
  (kept,) = (folder / 'kernels').iterdir()
  assert kept.read_bytes() == new.read_bytes()
  # One that is torn is built anew.
  whole = kept.read_bytes()
  kept.write_bytes(whole[:-1])
  assert is_built_anew()
  assert kept.read_bytes() == whole
  # As of another version, or on another processor.
  assert [is_built_anew('-DOTHER') for _ in range(2)] == [True, False]
  source = tmp_path / 'source.cc'
  source.write_text(fused_cpu._SOURCE.read_text() + '\n')
  with monkeypatch.context() as changed:
    changed.setattr(fused_cpu, '_SOURCE', source)
    assert is_built_anew()
  with monkeypatch.context() as changed:
    changed.setattr(fused_cpu.jaxlib, '__version__', '0')
    assert is_built_anew()
  assert len(list(kept.parent.iterdir())) == 4
  # What others may have written is not run.
  folder.chmod(0o770)
  assert is_built_anew()
  assert 'nobody else may write there' in capsys.readouterr().err


def test_without_a_compiler_a_run_says_that_it_is_slower(tmp_path):
  rng = np.random.default_rng(0)
  arrays = {}
  for split in ('train', 'test'):
    arrays[f'{split}_x'] = rng.integers(0, 256, (300, 28, 28, 1), np.uint8)
    arrays[f'{split}_y'] = np.arange(300) % 10
  np.savez(tmp_path / 'data.npz', **arrays)
  words = ['--config.data.source=npz', '--config.data.path=data.npz']
  words += ['--config.num_rounds=1', '--config.local_epochs=1']
  words += ['--config.model=moon_cnn', '--config.data.limit=300']
  done = launch(tmp_path, *words, CXX='/is/not/there')
  check_success(done)
  assert (
    'convolutions in a slower form: the C++ compiler /is/not/there cannot be run: '
    'No such file or directory\n'
  ) in done.stdout
