"""The devices that a run may use, and the queue of programs on them."""

import os

import jax
import pytest

from moon_jax.core.errors import ExitCode, UsageError
from moon_jax.platform import cores, devices
from tests.processes import LAUNCH, ROOT, launch
from tests.run_directories import FEDAVG
from tests.selection import few


def test_all_devices_or_as_many_as_asked_for():
  # tests/conftest.py makes eight devices.
  assert devices.available('auto') == 8
  assert devices.available(3) == 3
  with pytest.raises(UsageError, match='devices=9 must be at most 8'):
    devices.available(9)


def test_devices_and_threads_are_as_many_as_usable_cores(monkeypatch):
  settings = {}
  monkeypatch.setattr(cores, 'count_usable', lambda: 6)
  monkeypatch.setattr(jax.config, 'update', settings.__setitem__)
  for name in ('XLA_FLAGS', 'NPROC'):
    monkeypatch.setenv(name, '')
  devices.claim('auto')
  assert (settings['jax_num_cpu_devices'], os.environ['NPROC']) == (6, '6')


def test_fewer_devices_than_cores_are_told(monkeypatch, capsys):
  monkeypatch.setenv('XLA_FLAGS', '')
  monkeypatch.setenv('NPROC', '')
  monkeypatch.setattr(devices, 'MAX_CPU_DEVICES', 16)
  monkeypatch.setattr(cores, 'count_usable', lambda: 12)
  devices.claim('auto')  # this process has eight
  devices.claim('auto', warn_if_late=False)
  devices.claim(8)
  monkeypatch.setattr(jax, 'default_backend', lambda: 'gpu')
  devices.claim('auto')
  assert capsys.readouterr().err == (
    'JAX is in use already, with 8 of 12 cores; so is this run\n'
  )


@pytest.mark.parametrize('deterministic', [False, True])
def test_the_flags_that_claiming_gives_xla(monkeypatch, deterministic):
  # XLA aborts a process after 40 seconds by default, too long to try in a test.
  monkeypatch.setenv('XLA_FLAGS', '--xla_force_host_platform_device_count=8')
  devices.claim('auto', deterministic=deterministic)
  flags = os.environ['XLA_FLAGS'].split()
  assert flags[0] == '--xla_force_host_platform_device_count=8'
  for name in ('timeout', 'call_terminate_timeout', 'call_warn_stuck_timeout'):
    assert f'--xla_cpu_collective_{name}_seconds=10000000' in flags
  for name in ('terminate_timeout', 'warn_stuck_timeout'):
    assert f'--xla_gpu_first_collective_call_{name}_seconds=10000000' in flags
  assert ('--xla_gpu_deterministic_ops=true' in flags) == deterministic


def test_what_makes_gpus_deterministic_cannot_come_when_they_are_in_use(monkeypatch):
  monkeypatch.setenv('XLA_FLAGS', '--xla_force_host_platform_device_count=8')
  jax.devices()  # from now on JAX is in use
  monkeypatch.setattr(jax, 'default_backend', lambda: 'gpu')
  devices.claim('auto')
  flags = os.environ['XLA_FLAGS']
  with pytest.raises(UsageError, match='deterministic=true comes too late: JAX uses G'):
    devices.claim('auto', deterministic=True)
  assert os.environ['XLA_FLAGS'] == flags  # so that a second try is refused, too
  monkeypatch.setenv('XLA_FLAGS', f'{flags} --xla_gpu_deterministic_ops=true')
  devices.claim('auto', deterministic=True)


@pytest.mark.parametrize(
  ('platforms', 'visible', 'gpus'),
  [
    ('', '4,7', ['4', '7']),
    ('cuda,cpu', 'GPU-8932f937', ['GPU-8932f937']),
    ('gpu', '', []),
    ('', '-1', []),
    ('', '0,-1,1', ['0']),
    ('', '0,,1', ['0']),
    ('cpu', '0,1', []),
  ],
)
def test_the_gpus_that_jax_will_use(monkeypatch, platforms, visible, gpus):
  monkeypatch.setenv('JAX_PLATFORMS', platforms)
  monkeypatch.setenv('CUDA_VISIBLE_DEVICES', visible)
  assert devices.visible_gpus() == gpus


CLAIM = """
import jax
from moon_jax.platform import devices
devices.claim('auto')
print(jax.numpy.ones(3).sum().devices())
"""


@pytest.mark.parametrize(
  ('words', 'program', 'printed'),
  few([((), ('-c', CLAIM), 'CpuDevice')], [(FEDAVG, (LAUNCH,), 'x cpu (cpu)')]),
  ids=['claim', 'launch'],
)
def test_a_gpu_that_cannot_be_used_is_one_line_and_the_cpu_computes(
  words, program, printed, tmp_path
):
  # JAX's package for GPUs behaves like this without a driver.
  plugin = tmp_path / 'jax_plugins/broken/__init__.py'
  plugin.parent.mkdir(parents=True)
  plugin.write_text("def initialize():\n  raise RuntimeError('no driver\\nat all')\n")
  path = f'{tmp_path}:{ROOT}'
  process = launch(tmp_path, *words, program=program, PYTHONPATH=path, JAX_PLATFORMS='')
  assert process.returncode == ExitCode.DONE
  # Where there is a card, JAX has a word of its own.
  assert 'No GPU can be used, the CPU computes: no driver\n' in process.stderr
  assert 'Traceback' not in process.stderr
  assert printed in process.stdout


@pytest.mark.parametrize(
  ('name', 'value'),
  [
    ('jax_enable_x64', True),
    ('jax_disable_jit', True),
    ('jax_threefry_partitionable', False),
    ('jax_default_prng_impl', 'rbg'),
  ],
)
def test_what_changes_every_number_is_refused(name, value):
  plain = getattr(jax.config, name)
  jax.config.update(name, value)
  try:
    with pytest.raises(UsageError, match=f'^{name.upper()} changes what is computed'):
      devices.claim('auto')
  finally:
    jax.config.update(name, plain)
  devices.claim('auto')


@pytest.mark.slow
def test_an_environment_that_is_refused_is_one_line(tmp_path):
  process = launch(tmp_path, '--workdir=run', JAX_PLATFORMS='cuda')
  assert process.returncode == ExitCode.USAGE
  assert process.stderr.startswith("JAX_PLATFORMS='cuda': no such device can be used. ")
  assert process.stderr.count('\n') == 1
  assert (process.stdout, os.listdir(tmp_path)) == ('', [])
