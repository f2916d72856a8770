"""Chooses the devices that compute, and lays out arrays on them."""

import contextlib
import glob
import itertools
import logging
import os
import sys
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from moon_jax.core.errors import KnobError, RunError, UsageError
from moon_jax.core.flags import flag
from moon_jax.core.types import LANES, PyTree
from moon_jax.platform import cores, hosts

# A CPU device that is done waits for the others at the end of a round. After 40 seconds
# XLA takes that for a deadlock and aborts the process, but lanes may differ by more.
# XLA does the same with GPUs before their first exchange.
_TIMEOUTS = (
  'cpu_collective',
  'cpu_collective_call_terminate',
  'cpu_collective_call_warn_stuck',
  'gpu_first_collective_call_terminate',
  'gpu_first_collective_call_warn_stuck',
)
PATIENCE = ' '.join(f'--xla_{name}_timeout_seconds=10000000' for name in _TIMEOUTS)
# These make GPUs avoid atomic additions and algorithms chosen by measuring.
DETERMINISM = '--xla_gpu_deterministic_ops=true'

# Settings that change every draw or number, and are not recorded -> JAX's default.
_DEFAULT_SETTINGS = {
  'jax_disable_jit': False,
  'jax_enable_x64': False,
  'jax_threefry_partitionable': True,
  'jax_default_prng_impl': 'threefry2x32',
}

# Each device holds a copy of the data, so a larger CPU has more devices only if asked.
MAX_CPU_DEVICES = 8


def claim(
  requested: int | str, *, deterministic: bool = False, warn_if_late: bool = True
) -> None:
  """Makes a CPU count as several devices; call it before JAX computes anything.

  Several devices are faster because one device leaves a second core idle: the products
  of one lane are too small to share. A line on stderr says if JAX computes on a CPU
  because no GPU can be used.

  Args:
    requested: 'auto', which is one device for each usable core, or a count; several
      processes of a run share the cores that all of them may use.
    deterministic: whether GPUs must compute the same bits in every run.
    warn_if_late: whether a line on stderr says that JAX is in use already, so that
      'auto' cannot use all cores.

  Raises:
    UsageError: the count is above the number of cores, and above what every CPU may
      have, or GPUs are in use already that need not compute the same bits; see also
      `find`.
  """
  flags = os.environ.get('XLA_FLAGS', '')
  own_flags = [PATIENCE]
  if deterministic:
    own_flags.append(DETERMINISM)
  # Once only: with other flags the compile cache holds other programs.
  missing_flags = [own_flag for own_flag in own_flags if own_flag not in flags]
  if DETERMINISM in missing_flags and _are_gpus_in_use():
    raise KnobError(
      'execution.deterministic',
      True,
      f'comes too late: JAX uses GPUs already, without XLA_FLAGS={DETERMINISM}. Begin '
      'in a new process.',
    )
  os.environ['XLA_FLAGS'] = ' '.join([flags, *missing_flags]).strip()
  if 'xla_force_host_platform_device_count' not in flags:
    _count_cores_as_devices(requested, warn_if_late)
  find()


def _are_gpus_in_use() -> bool:
  """Whether JAX has found GPUs already, on which it computes."""
  count = jax.config.jax_num_cpu_devices
  try:
    jax.config.update('jax_num_cpu_devices', count + 1)
  except RuntimeError:  # as soon as JAX has found its devices
    return jax.default_backend() == 'gpu'
  jax.config.update('jax_num_cpu_devices', count)
  return False


def _count_cores_as_devices(requested: int | str, warn_if_late: bool) -> None:
  num_cores = cores.count_usable()
  os.environ['NPROC'] = str(num_cores)  # how many threads XLA starts
  if requested == 'auto':
    cores_of_process = max(num_cores // hosts.sharing_cores(num_cores), 1)
    count = min(cores_of_process, MAX_CPU_DEVICES)
  else:
    count = requested
  limit = max(num_cores, MAX_CPU_DEVICES)
  if count > limit:
    raise KnobError('execution.devices', requested, f'must be at most {limit} here.')
  try:
    jax.config.update('jax_num_cpu_devices', count)
  except RuntimeError:
    # JAX already computes, and its devices stay. If more are requested, `available`
    # raises an error.
    num_devices = jax.local_device_count()
    is_on_cpu = jax.default_backend() == 'cpu'
    if warn_if_late and requested == 'auto' and is_on_cpu and num_devices < count:
      print(
        f'JAX is in use already, with {num_devices} of {count} cores; so is this run',
        file=sys.stderr,
      )


def find() -> None:
  """Finds the devices. A line on stderr says if JAX's package for GPUs finds no GPU.

  Raises:
    UsageError: there is no device of the kind that JAX_PLATFORMS names, or a setting
      would make JAX compute something else.
  """
  for name, default in _DEFAULT_SETTINGS.items():
    if getattr(jax.config, name) != default:
      raise UsageError(
        f'{name.upper()} changes what is computed, and is not recorded: unset it.'
      )
  logged_errors = []
  logger = logging.getLogger(jax.devices.__module__)

  def keep_error(record):  # in place of nine lines of traceback
    if record.levelno < logging.ERROR:
      return True
    error = record.exc_info[1] if record.exc_info else record.getMessage()
    logged_errors.append(error)
    return False

  logger.addFilter(keep_error)
  try:
    jax.devices()
  except (RuntimeError, AssertionError) as error:
    platforms = os.environ.get('JAX_PLATFORMS', '')
    cause = logged_errors[0] if logged_errors else error
    raise UsageError(
      f'JAX_PLATFORMS={platforms!r}: no such device can be used. {_first_line(cause)}'
    ) from None
  finally:
    logger.removeFilter(keep_error)
  if logged_errors:
    reason = _first_line(logged_errors[0])
    print(f'No GPU can be used, the CPU computes: {reason}', file=sys.stderr)


def _first_line(error: object) -> str:
  lines = str(error).splitlines()
  return lines[0] if lines else ''


@contextlib.contextmanager
def explaining_out_of_memory(buffers: Callable[[], Mapping[str, int]] = dict):
  """Inside, a device that runs out of memory ends the run with one line.

  Args:
    buffers: returns name -> bytes of the buffers that are known to be large.

  Raises:
    RunError: the device has run out of memory.
  """
  try:
    yield
  except jax.errors.JaxRuntimeError as error:
    if 'RESOURCE_EXHAUSTED' not in str(error):
      raise
    largest_first = sorted(buffers().items(), key=lambda item: -item[1])
    sizes = [f'{name} {size / 2**20:,.0f} MiB' for name, size in largest_first]
    details = f' ({", ".join(sizes)})' if sizes else ''
    raise RunError(
      f'Out of memory on the device{details}. Lower {flag("execution.lanes")} or '
      f'{flag("execution.cache_mib")}; a run then goes on from what was saved. '
      f'{_first_line(error)}'
    ) from None


def visible_gpus() -> list[str]:
  """The NVIDIA GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them.

  There is none if JAX_PLATFORMS names only other devices.
  """
  platforms = os.environ.get('JAX_PLATFORMS')
  if platforms and not {'cuda', 'gpu'} & set(platforms.split(',')):
    return []
  visible = os.environ.get('CUDA_VISIBLE_DEVICES')
  if visible is not None:
    # CUDA reads no further than a name such as -1, or an empty one.
    return list(
      itertools.takewhile(
        lambda name: name.strip() and not name.strip().startswith('-'),
        visible.split(','),
      )
    )
  num_gpus = len(glob.glob('/proc/driver/nvidia/gpus/*'))
  return [str(index) for index in range(num_gpus)]


def is_mps_running() -> bool:
  """Whether NVIDIA's MPS, which lets processes use a GPU at the same time, is found.

  Its daemon has a pipe `control` in CUDA_MPS_PIPE_DIRECTORY, or in /tmp/nvidia-mps.
  """
  folder = os.environ.get('CUDA_MPS_PIPE_DIRECTORY') or '/tmp/nvidia-mps'
  return os.path.exists(os.path.join(folder, 'control'))


def available(requested: int | str) -> int:
  """The number of usable devices, in all processes of the run together.

  Args:
    requested: 'auto', which is all devices, or a count for each process.

  Raises:
    UsageError: there are fewer devices.
  """
  if requested == 'auto':
    return jax.device_count()
  count = jax.local_device_count()
  if requested > count:
    raise KnobError(
      'execution.devices',
      requested,
      f'must be at most {count}, the {jax.default_backend()} devices here.',
    )
  return requested * hosts.count()


def mesh(num_devices: int) -> Mesh:
  """A mesh of the given number of devices, along the axis LANES.

  The processes contribute one device each in turn.
  """
  in_turns = np.array(jax.devices()).reshape(hosts.count(), -1).T.ravel()
  mesh_devices = sorted(in_turns[:num_devices], key=lambda device: device.process_index)
  return Mesh(np.array(mesh_devices), (LANES,), axis_types=(AxisType.Auto,))


def lanes_of_process(mesh: Mesh, num_lanes: int) -> range:
  """The lanes of this process's devices."""
  lanes_per_device = num_lanes // mesh.size
  positions = [
    position
    for position, device in enumerate(mesh.devices)
    if device.process_index == jax.process_index()
  ]
  return range(lanes_per_device * positions[0], lanes_per_device * (positions[-1] + 1))


def replicate(tree: PyTree, mesh: Mesh) -> PyTree:
  """Copies every leaf to every device of the mesh."""
  return split(tree, PartitionSpec(), mesh)


def shapes(tree: PyTree, mesh: Mesh) -> PyTree:
  """What `replicate` would return, as ShapeDtypeStructs; copies nothing."""
  everywhere = NamedSharding(mesh, PartitionSpec())

  def shape_of(leaf):
    is_weak = getattr(leaf, 'weak_type', False)
    return jax.ShapeDtypeStruct(
      leaf.shape, leaf.dtype, sharding=everywhere, weak_type=is_weak
    )

  return jax.tree.map(shape_of, tree)


def split(tree: PyTree, specs: PyTree, mesh: Mesh) -> PyTree:
  """Copies every leaf to the mesh, split as its PartitionSpec says.

  With several processes, each copies only the parts that its own devices hold.
  """
  shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)
  if hosts.count() == 1:
    return jax.device_put(tree, shardings)

  def own_parts(sharding, leaf):
    leaf = np.asarray(leaf)
    return jax.make_array_from_callback(leaf.shape, sharding, leaf.__getitem__)

  # A spec may stand for a whole subtree.
  sharding_of_leaf = jax.tree.broadcast(shardings, tree)
  return jax.tree.map(own_parts, sharding_of_leaf, tree)


def connect(mesh: Mesh) -> None:
  """Lets the devices of several processes connect, before anything is compiled.

  Gloo waits only 30 seconds for a late process at the first sum over these devices, but
  without limit at a sum over other devices.
  """
  if hosts.count() > 1:
    hosts.gather(None)  # now all processes are here
    ones = split(np.ones(mesh.size, np.int32), PartitionSpec(LANES), mesh)
    jax.jit(jnp.sum)(ones).block_until_ready()
