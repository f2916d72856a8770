"""Starts JAX in one of several processes: the service that connects them, its GPUs.

JAX's service, by which its processes find each other, ends them with a stack trace when
it ends. So it runs in a process of its own, which outlives process 0 by some seconds.
"""

import glob
import os
import subprocess
import sys
from collections.abc import Sequence

from moon_jax.errors import RunError

_NEVER = 10**6
_SERVICE = """
import signal, socket, sys, time
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
  signal.signal(number, signal.SIG_IGN)
from jax._src.lib import _jax
count, never = map(int, sys.argv[1:])
with socket.create_server(('', 0)) as free:
  port = free.getsockname()[1]
serving = _jax.get_distributed_runtime_service(
  f'[::]:{port}', count, heartbeat_timeout=never
)
print(port, flush=True)
sys.stdin.read()
time.sleep(5)
"""
_kept = []  # open as long as this process is there


def serve(count: int) -> int:
  """Starts the service for so many processes, in one of its own; its port.

  Raises:
    RunError: it does not start.
  """
  service = subprocess.Popen(
    [sys.executable, '-c', _SERVICE, str(count), str(_NEVER)],
    stdin=subprocess.PIPE,  # closed by the system when this process ends, however
    stdout=subprocess.PIPE,
    stderr=subprocess.DEVNULL,
    start_new_session=True,
  )
  _kept.append(service)
  if not (told := service.stdout.readline()):
    raise RunError("JAX's coordination service does not start on this host.")
  return int(told)


def connect(host: str, port: int, names: Sequence[str], index: int) -> None:
  """Lets JAX's processes find each other; before any device is asked for.

  Args:
    host: of process 0.
    port: of its service.
    names: of each process's host.
    index: of this process.
  """
  import jax

  jax.config.update('jax_cpu_collectives_implementation', 'gloo')
  # It would take SIGTERM for itself.
  jax.config.update('jax_enable_preemption_service', False)
  address = f'[{host}]' if ':' in host else host
  # Process 0 is made to start a service here, too: it has nobody to serve.
  unused = {} if index else {'coordinator_bind_address': 'localhost:0'}
  jax.distributed.initialize(
    f'{address}:{port}',
    len(names),
    index,
    own_gpus(names, index),
    cluster_detection_method='deactivate',
    heartbeat_timeout_seconds=_NEVER,
    **unused,
  )


def own_gpus(names: Sequence[str], index: int) -> list[int] | None:
  """This process's part of its host's GPUs; None for all that it sees.

  Each of several processes on a host gets its part, unless its starter has seen to it.

  Args:
    names: of each process's host.
    index: of this process.
  """
  seen = len(visible_gpus())
  beside = [other for other, name in enumerate(names) if name == names[index]]
  if 'SLURM_GPUS_ON_NODE' in os.environ:
    whole = seen == int(os.environ['SLURM_GPUS_ON_NODE'])
  else:
    whole = 'CUDA_VISIBLE_DEVICES' not in os.environ
  if len(beside) == 1 or not whole or seen < len(beside):
    return None
  each = seen // len(beside)
  first = each * beside.index(index)
  return list(range(first, first + each))


def visible_gpus() -> list[str]:
  """The NVIDIA GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
  if (named := os.environ.get('CUDA_VISIBLE_DEVICES')) is not None:
    return [name for name in named.split(',') if name]
  return [str(n) for n in range(len(glob.glob('/proc/driver/nvidia/gpus/*')))]
