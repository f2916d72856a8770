"""Which devices compute, and how are arrays laid out on them?"""

import contextlib
import os

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from moon_jax.errors import UsageError
from moon_jax.types import PyTree

LANES = 'lanes'  # the only axis of the mesh

# A CPU device that is done waits for the others at the end of a round. After 40 seconds
# XLA takes that for a deadlock and aborts the process, but lanes may differ by more.
PATIENCE = ' '.join(
  f'--xla_cpu_collective_{name}_seconds=10000000'
  for name in ('timeout', 'call_terminate_timeout', 'call_warn_stuck_timeout')
)
# On GPUs neither atomic additions nor algorithms chosen by measuring; nothing on CPUs.
DETERMINISM = '--xla_gpu_deterministic_ops=true'
# XLA aborts on a flag that it does not know.
_PATIENCE_IS_KNOWN = jax.__version_info__[:2] == (0, 10)

# Each device holds a copy of the data: a larger CPU gains by a wish, not by default.
_MAX_CPU_DEVICES = 8


def claim(requested: str, *, deterministic: bool = False) -> None:
  """Makes a CPU count as several devices; call before JAX computes anything.

  One device leaves a second core idle: the products of one lane are too small to share.

  Args:
    requested: 'auto', one device for each usable core, or a count. With a JAX that may
      not know how to be patient, 'auto' is one device.
    deterministic: whether GPUs must compute the same bits in every run.

  Raises:
    UsageError: the count is above the cores and above what any CPU may have.
  """
  flags = os.environ.get('XLA_FLAGS', '')
  ours = [PATIENCE] * _PATIENCE_IS_KNOWN + [DETERMINISM] * deterministic
  os.environ['XLA_FLAGS'] = ' '.join([flags, *ours]).strip()
  if 'xla_force_host_platform_device_count' in flags:
    return
  cores = _num_cores()
  automatic = min(cores, _MAX_CPU_DEVICES) if _PATIENCE_IS_KNOWN else 1
  count = automatic if requested == 'auto' else int(requested)
  most = max(cores, _MAX_CPU_DEVICES)
  if count > most:
    raise UsageError(
      f'--config.execution.devices={requested!r} must be at most {most} here.'
    )
  with contextlib.suppress(RuntimeError):
    # JAX computes already, for another run in this process: its devices stay, and
    # `available` tells if they are too few.
    jax.config.update('jax_num_cpu_devices', count)


def _num_cores() -> int:
  """Cores that this process may use; all there are if the system does not tell."""
  if hasattr(os, 'sched_getaffinity'):  # Linux only
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1


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


def replicate(tree: PyTree, mesh: Mesh) -> PyTree:
  """Copies every leaf to every device of the mesh."""
  return jax.device_put(tree, NamedSharding(mesh, PartitionSpec()))


def split(tree: PyTree, specs: PyTree, mesh: Mesh) -> PyTree:
  """Copies every leaf to the mesh, split as its PartitionSpec says."""

  shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)
  return jax.device_put(tree, shardings)
