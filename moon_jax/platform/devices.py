"""Chooses the devices that compute, and lays out arrays on them."""

import contextlib
import glob
import logging
import os
import sys
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import joblib
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from moon_jax.core.errors import RunError, UsageError
from moon_jax.core.types import LANES, PyTree
from moon_jax.platform import hosts

# A CPU device that is done waits for the others at the end of a round. After 40 seconds
# XLA takes that for a deadlock and aborts the process, but lanes may differ by more.
# XLA does the same with GPUs before their first exchange.
_OF_A_CALL = 'cpu_collective_call', 'gpu_first_collective_call'
_PATIENT = [f'{one}_{act}' for one in _OF_A_CALL for act in ('terminate', 'warn_stuck')]
PATIENCE = ' '.join(
  f'--xla_{name}_timeout_seconds=10000000' for name in ('cpu_collective', *_PATIENT)
)
# These make GPUs avoid atomic additions and algorithms chosen by measuring.
DETERMINISM = '--xla_gpu_deterministic_ops=true'

# Settings that change every draw or number, and are not recorded -> JAX's default.
_PLAIN = {'jax_disable_jit': False, 'jax_enable_x64': False}
_PLAIN |= {'jax_threefry_partitionable': True, 'jax_default_prng_impl': 'threefry2x32'}

# Each device holds a copy of the data, so a larger CPU has more devices only if asked.
_MAX_CPU_DEVICES = 8


def claim(
  requested: int | str, *, deterministic: bool = False, told: bool = True
) -> None:
  """Makes a CPU count as several devices; call it before JAX computes anything.

  Several devices are faster because one device leaves a second core idle: the products
  of one lane are too small to share. A line on stderr says if JAX computes on a CPU
  because no GPU can be used.

  Args:
    requested: 'auto', which is one device for each usable core, or a count; several
      processes of a run share the cores that all of them may use.
    deterministic: whether GPUs must compute the same bits in every run.
    told: whether a line on stderr says that 'auto' comes too late for all cores.

  Raises:
    UsageError: the count is above the number of cores, and above what every CPU may
      have; see also `find`.
  """
  flags = os.environ.get('XLA_FLAGS', '')
  # Once only: with other flags the compile cache holds other programs.
  new = [f for f in [PATIENCE] + [DETERMINISM] * deterministic if f not in flags]
  os.environ['XLA_FLAGS'] = ' '.join([flags, *new]).strip()
  if 'xla_force_host_platform_device_count' not in flags:
    _count_cores_as_devices(requested, told)
  find()


def _count_cores_as_devices(requested, told):
  # The cores of the process's affinity, or fewer if a container's quota gives less
  # time.
  cores = joblib.cpu_count()
  os.environ['NPROC'] = str(cores)  # how many threads XLA starts
  mine = max(cores // hosts.sharing_cores(cores), 1)
  count = min(mine, _MAX_CPU_DEVICES) if requested == 'auto' else requested
  most = max(cores, _MAX_CPU_DEVICES)
  if count > most:
    raise UsageError(
      f'--config.execution.devices={requested} must be at most {most} here.'
    )
  try:
    jax.config.update('jax_num_cpu_devices', count)
  except RuntimeError:
    # JAX already computes, and its devices stay. If more are requested, `available`
    # raises an error.
    there, cpu = jax.local_device_count(), jax.default_backend() == 'cpu'
    if told and requested == 'auto' and cpu and there < count:
      line = f'JAX is in use already, with {there} of {count} cores; so is this run'
      print(line, file=sys.stderr)


def find() -> None:
  """Finds the devices. A line on stderr says if JAX's package for GPUs finds no GPU.

  Raises:
    UsageError: there is no device of the kind that JAX_PLATFORMS names, or a setting
      would make JAX compute something else.
  """
  for name, plain in _PLAIN.items():
    if getattr(jax.config, name) != plain:
      raise UsageError(
        f'{name.upper()} changes what is computed, and is not recorded: unset it.'
      )
  logged, log = [], logging.getLogger(jax.devices.__module__)

  def is_no_error(record):  # in place of nine lines of traceback
    if record.levelno >= logging.ERROR:
      logged.append(record.exc_info[1] if record.exc_info else record.getMessage())
    return record.levelno < logging.ERROR

  log.addFilter(is_no_error)
  try:
    jax.devices()
  except (RuntimeError, AssertionError) as error:
    asked, first = os.environ.get('JAX_PLATFORMS', ''), [*logged, error][0]
    raise UsageError(
      f'JAX_PLATFORMS={asked!r}: no such device can be used. {_first_line(first)}'
    ) from None
  finally:
    log.removeFilter(is_no_error)
  if logged:
    reason = _first_line(logged[0])
    print(f'No GPU can be used, the CPU computes: {reason}', file=sys.stderr)


def _first_line(error):
  return (str(error).splitlines() or [''])[0]


@contextlib.contextmanager
def out_of_memory_is_told(buffers: Callable[[], Mapping[str, int]] = dict):
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
    largest = sorted(buffers().items(), key=lambda item: -item[1])
    sizes = ', '.join(f'{name} {size / 2**20:,.0f} MiB' for name, size in largest)
    raise RunError(
      'Out of memory on the device' + (f' ({sizes})' if sizes else '') + '. Lower '
      '--config.execution.lanes or --config.execution.cache_mib; the same command goes '
      f'on from the newest checkpoint. {_first_line(error)}'
    ) from None


def visible_gpus() -> list[str]:
  """The NVIDIA GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
  if (named := os.environ.get('CUDA_VISIBLE_DEVICES')) is not None:
    return [name for name in named.split(',') if name]
  return [str(n) for n in range(len(glob.glob('/proc/driver/nvidia/gpus/*')))]


def available(requested: int | str) -> int:
  """The number of usable devices, in all processes of the run together.

  Args:
    requested: 'auto', which is all devices, or a count for each process.

  Raises:
    UsageError: there are fewer devices.
  """
  count = jax.local_device_count()
  if requested == 'auto':
    return jax.device_count()
  if requested > count:
    raise UsageError(
      f'--config.execution.devices={requested} must be at most {count}, '
      f'the {jax.default_backend()} devices here.'
    )
  return requested * hosts.count()


def mesh(num_devices: int) -> Mesh:
  """A mesh of the given number of devices, along the axis LANES.

  The processes contribute one device each in turn.
  """
  in_turns = np.array(jax.devices()).reshape(hosts.count(), -1).T.ravel()
  chosen = sorted(in_turns[:num_devices], key=lambda one: one.process_index)
  return Mesh(np.array(chosen), (LANES,), axis_types=(AxisType.Auto,))


def own_lanes(mesh: Mesh, num_lanes: int) -> range:
  """The lanes of this process's devices."""
  each, mine = num_lanes // mesh.size, jax.process_index()
  own = [p for p, one in enumerate(mesh.devices) if one.process_index == mine]
  return range(each * own[0], each * (own[-1] + 1))


def replicate(tree: PyTree, mesh: Mesh) -> PyTree:
  """Copies every leaf to every device of the mesh."""
  return split(tree, PartitionSpec(), mesh)


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
  whole = jax.tree.broadcast(shardings, tree)
  return jax.tree.map(own_parts, whole, tree)


def meet(mesh: Mesh) -> None:
  """Lets the devices of several processes connect, before anything is compiled.

  Gloo waits only 30 seconds for a late process at the first sum over these devices, but
  without limit at a sum over other devices.
  """
  if hosts.count() > 1:
    hosts.gather(None)  # now all processes are here
    ones = split(np.ones(mesh.size, np.int32), PartitionSpec(LANES), mesh)
    jax.jit(jnp.sum)(ones).block_until_ready()
