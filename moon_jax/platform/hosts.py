"""Several processes, on one host or many, run one experiment, and end alike.

`jax.distributed` connects them, and JAX's collectives carry their messages. Only
process 0 has the run directory. All processes call `gather`, and what is built on it,
in the same order, from their main threads: a call waits for the other processes, and
for the earlier work of the devices.

This module imports NumPy and JAX only when there are several processes, because every
program imports it before it heeds signals.
"""

import contextlib
import json
import platform
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from moon_jax.core.errors import ExitCode, RunError, UsageError
from moon_jax.platform import launchers
from moon_jax.platform.launchers import ProcessGroup

_group: ProcessGroup | None = None
_names: list[str] = []


def is_first() -> bool:
  """Whether this is process 0, which has the run directory; true for a lone process."""
  return _group is None or _group.index == 0


def count() -> int:
  """How many processes share the run."""
  return _group.count if _group else 1


def names() -> list[str]:
  """The name of each process's host; [] for a lone process."""
  return _names


def sharing_cores(cores: int) -> int:
  """The number of processes that share the cores that this process may use.

  Args:
    cores: number of these cores.
  """
  return launchers.sharing_cores(_group, cores) if _group else 1


def enter(group: ProcessGroup) -> None:
  """Makes this process one of a group; JAX has connected its processes."""
  global _group
  _group = group


def exchange_names() -> None:
  """Lets every process know the names of all hosts; all processes call it together."""
  _names[:] = gather(platform.node())


def gather(value: Any, error: RunError | None = None) -> list[Any]:
  """The value of each process, in order. Values are JSON.

  Args:
    value: value of this process.
    error: an error of this process, which ends all processes.

  Raises:
    RunError: `error`, or the error of another process.
  """
  messages = [[value, None]]
  if _group:
    import numpy as np
    from jax.experimental.multihost_utils import process_allgather

    failure = error and [str(error), error.exit_code]
    text = json.dumps([value, failure]).encode()
    longest = int(process_allgather(np.int32(len(text))).max())
    # A power of 2: each width compiles a program.
    padded = np.frombuffer(text.ljust(1 << longest.bit_length()), np.uint8)
    messages = [json.loads(bytes(row)) for row in process_allgather(padded)]
  if error:
    error.is_everywhere = True
    raise error
  for index, (_, failure) in enumerate(messages):
    if failure:
      message, exit_code = failure
      raise _error_of_process(index, message, exit_code)
  return [value for value, _ in messages]


def _error_of_process(index: int, message: str, exit_code: int) -> RunError:
  """The error of another process."""
  error = RunError(f'{_process_name(index)}: {message}' if index else message)
  error.exit_code = ExitCode(exit_code)
  error.is_everywhere = True
  return error


def _process_name(index: int) -> str:
  return f'Process {index} on {_names[index]}'


@contextlib.contextmanager
def failing_together() -> Iterator[list[Any]]:
  """A RunError that one process raises inside is raised in all processes at the end.

  Yields:
    An empty list, to which each process may add. After the context it holds the lists
    of all processes.
  """
  error = None
  messages = []
  try:
    yield messages
  except RunError as caught:
    if caught.is_everywhere:
      raise
    error = caught
  messages[:] = gather([*messages], error)


def decided_by_first(decide: Callable[[], Any]) -> Any:
  """The result of `decide` in process 0; it is JSON. Other processes do not call it.

  Raises:
    RunError: process 0 raised it; it is raised in every process.
  """
  with failing_together() as messages:
    if is_first():
      messages.append(decide())
  (decision,) = messages[0]
  return decision


@contextlib.contextmanager
def by_first(context: contextlib.AbstractContextManager) -> Iterator[Any]:
  """Only process 0 enters the context; the others get None.

  Raises:
    RunError: process 0 raised it on entering; it is raised in every process.
  """
  with contextlib.ExitStack() as stack:
    with failing_together():
      entered = stack.enter_context(context) if is_first() else None
    yield entered


def from_first(tree: Any) -> Any:
  """Process 0's numpy arrays, bit for bit, in every process.

  Args:
    tree: tree of arrays; in other processes only the shapes and dtypes count.
  """
  if not _group:
    return tree
  import jax
  import numpy as np
  from jax.experimental.multihost_utils import broadcast_one_to_all

  # A sum of floats would change -0.0.
  sent = jax.tree.map(lambda leaf: np.asarray(leaf).ravel().view(np.uint8), tree)

  def received(data, leaf):
    return data.view(leaf.dtype).reshape(leaf.shape)

  return jax.tree.map(received, broadcast_one_to_all(sent), tree)


def require_same(subject: str, values: Mapping[str, Any]) -> None:
  """Compares values that must be equal in all processes, name by name.

  Args:
    subject: what they are of, for the message.
    values: name -> value of this process, as JSON.

  Raises:
    UsageError: one process has another value than process 0; raised in every process.
  """
  values_of_first, *values_of_others = gather(dict(values))
  for index, others in enumerate(values_of_others, 1):
    differences = []
    for name in values_of_first | others:
      ours, theirs = values_of_first.get(name), others.get(name)
      if ours != theirs:
        differences.append(f'{name}: {ours!r} -> {theirs!r}')
    if differences:
      raise UsageError(
        f'{_process_name(index)} has another {subject} than process 0: '
        f'{"; ".join(differences)}.'
      )
