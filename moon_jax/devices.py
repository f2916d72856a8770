"""Which devices compute, and how are arrays laid out on them?"""

import os

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from moon_jax.errors import UsageError
from moon_jax.types import PyTree

LANES = 'lanes'  # the only axis of the mesh

_A_YEAR = 365 * 24 * 3600

# Each device holds a copy of the data: a larger CPU gains by a wish, not by default.
_MAX_CPU_DEVICES = 8


def claim(requested: str) -> None:
  """Makes a CPU count as several devices; call before JAX computes anything.

  One device leaves a second core idle: the products of one lane are too small to share.

  Args:
    requested: 'auto', one device for each usable core, or a count.

  Raises:
    UsageError: the count is above the cores and above what any CPU may have.
  """
  if 'xla_force_host_platform_device_count' in os.environ.get('XLA_FLAGS', ''):
    return
  cores = len(os.sched_getaffinity(0))
  count = min(cores, _MAX_CPU_DEVICES) if requested == 'auto' else int(requested)
  most = max(cores, _MAX_CPU_DEVICES)
  if count > most:
    raise UsageError(
      f'--config.execution.devices={requested!r} must be at most {most} here.'
    )
  jax.config.update('jax_num_cpu_devices', count)


def available(requested: str) -> int:
  """How many of the local devices may be used.

  Args:
    requested: 'auto', all of them, or a count.

  Raises:
    UsageError: there are fewer.
  """
  count = jax.local_device_count()
  if requested == 'auto':
    return count
  if int(requested) > count:
    raise UsageError(
      f'--config.execution.devices={requested!r} must be at most {count}, '
      f'the {jax.default_backend()} devices here.'
    )
  return int(requested)


def mesh(num_devices: int) -> Mesh:
  """The first local devices, along the axis LANES."""
  devices = np.array(jax.local_devices()[:num_devices])
  return Mesh(devices, (LANES,), axis_types=(AxisType.Auto,))


def one_at_a_time(mesh: Mesh) -> bool:
  """Whether giving the devices a program waits for the one before.

  JAX does so on several CPU devices: nothing is gained by reading results late.
  """
  return mesh.size > 1 and mesh.devices.flat[0].platform == 'cpu'


def compiler_options(mesh: Mesh) -> dict[str, int]:
  """What a program for these devices is compiled with.

  A CPU device that has trained its clients waits for the others at the exchange, and
  after 40 seconds XLA would take that for a deadlock and abort the process.
  """
  if mesh.size == 1 or mesh.devices.flat[0].platform != 'cpu':
    return {}
  names = ('collective_call_terminate_timeout', 'collective_timeout')
  return {f'xla_cpu_{name}_seconds': _A_YEAR for name in names}


def replicate(tree: PyTree, mesh: Mesh) -> PyTree:
  """Copies every leaf to every device of the mesh."""
  return jax.device_put(tree, NamedSharding(mesh, PartitionSpec()))


def split(tree: PyTree, specs: PyTree, mesh: Mesh) -> PyTree:
  """Copies every leaf to the mesh, split as its PartitionSpec says."""
  shardings = jax.tree.map(
    lambda spec: NamedSharding(mesh, spec),
    specs,
    is_leaf=lambda leaf: isinstance(leaf, PartitionSpec),
  )
  return jax.device_put(tree, shardings)
