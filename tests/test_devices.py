"""Which devices there are, and how programs queue on them."""

import jax
import pytest

from moon_jax import devices
from moon_jax.errors import UsageError


def test_a_mesh_has_the_first_devices():
  assert devices.mesh(3).shape == {devices.LANES: 3}


def test_only_several_cpu_devices_take_one_program_at_a_time():
  assert not devices.one_at_a_time(devices.mesh(1))
  assert devices.one_at_a_time(devices.mesh(2))


def test_available():
  # tests/conftest.py makes eight.
  assert devices.available('auto') == 8
  assert devices.available('3') == 3
  with pytest.raises(UsageError, match="devices='9' must be at most 8"):
    devices.available('9')


def test_unequal_work_on_cpu_devices_is_no_deadlock():
  # XLA aborts a process after 40 seconds of waiting: too long to try in a test.
  assert devices.compiler_options(devices.mesh(1)) == {}
  options = devices.compiler_options(devices.mesh(2))
  assert min(options.values()) > 30 * 24 * 3600
  jax.jit(lambda x: x).lower(0).compile(compiler_options=options)  # known to XLA
