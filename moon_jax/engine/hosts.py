"""Several processes, on one host or many, run one experiment, and end alike.

Each stays connected with process 0, which alone has the run directory. Over these
connections they compare what they were given, learn what process 0 has decided, and see
at once when one of them ends. Training goes by JAX's own collectives.
"""

import atexit
import contextlib
import itertools
import json
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from moon_jax.engine import rendezvous
from moon_jax.engine.rendezvous import END, PACKED, VALUE
from moon_jax.errors import ExitCode, RunError, UsageError, printable

# Seconds that a process has to come to its own end when it is told of another's: it may
# be saving. Seconds until the end is known that an exchange has failed by.
_GRACE, _NEWS = 20.0, 3.0


class _Group:
  """The processes of a run, all of which have come.

  Attributes:
    index: of this process.
    hosts: where each process is.
    news: of another process's end: [line to print, exit code, grace].
  """

  def __init__(self, index, hosts, peers):
    self.index, self.hosts, self.news = index, hosts, None
    self._leaving = threading.Event()
    self._lock, self._ending = threading.Lock(), threading.Lock()
    self._peers = peers
    each = itertools.product(peers, (VALUE, PACKED, END))
    self._inbox = {key: queue.SimpleQueue() for key in each}
    for peer in peers:
      threading.Thread(target=self._read, args=(peer,), daemon=True).start()

  def who(self, index):
    return f'Process {index} on {self.hosts[index].name}'

  def _read(self, index):
    try:
      kind = VALUE
      while kind != END:
        kind, message = rendezvous.receive(self._peers[index])
        self._inbox[index, kind].put(message)
      self.news = json.loads(message)
    except OSError:
      line = 'has ended; the same command goes on from what was saved.'
      self.news = [f'{self.who(index)} {line}', ExitCode.FAILED, 0]
    self._inbox[index, VALUE].put(None)
    if not self._leaving.wait(self.news[2]):
      self.follow()

  def follow(self):
    """Ends this process as another one did; process 0 tells all others."""
    self._ending.acquire()  # for good
    line, code, _ = self.news
    self.tell([line, code, 0], END)
    with contextlib.suppress(OSError):
      os.write(2, f'{printable(line)}\n'.encode())
    os._exit(code)

  def tell(self, data, kind=VALUE):
    """To all others; from another process than 0 that is process 0 alone."""
    for peer in self._peers.values():
      with self._lock, contextlib.suppress(OSError):  # its end is seen where it is read
        rendezvous.send(peer, kind, data)

  def hear(self, index=0, kind=VALUE):
    message = self._inbox[index, kind].get()
    if message is None:  # nothing will come from there
      self.follow()
    return message

  def leave(self, code):
    """Tells the others that this process ends, if not well."""
    self._leaving.set()
    if code:
      line = f'{self.who(self.index)} has ended with exit code {code}; it says why.'
      self.tell([line, code, _GRACE], END)


_group: _Group | None = None


def is_first() -> bool:
  """Whether this is process 0, which alone has the run directory; so is a lone one."""
  return _group is None or _group.index == 0


def count() -> int:
  """How many processes share the run."""
  return len(_group.hosts) if _group else 1


def names() -> list[str]:
  """The name of each process's host; none of a lone one."""
  return [host.name for host in _group.hosts] if _group else []


def sharing_cores() -> int:
  """How many of the processes may use the very cores that this one may."""
  return _group.hosts.count(_group.hosts[_group.index]) if _group else 1


def gather(value: Any) -> list[Any]:
  """The value of each process, in order; all have to call it. Values are JSON."""
  if not _group:
    return [value]
  if _group.index:
    _group.tell(value)
    return json.loads(_group.hear())
  others = [json.loads(_group.hear(index)) for index in range(1, count())]
  values = json.dumps([value, *others]).encode()
  _group.tell(values)
  return json.loads(values)  # as the others have it


def decided(decide: Callable[[], Any]) -> Any:
  """What process 0 finds; it is JSON. The others learn it, and do not call `decide`.

  Raises:
    RunError: that of process 0, in every process.
  """
  if not _group:
    return decide()
  told = raised = None
  if is_first():
    try:
      told = [decide(), None, 0]
    except RunError as error:
      told, raised = [None, str(error), error.exit_code], error
  value, message, code = gather(told)[0]
  if message is not None:
    raise raised or rendezvous.failure(message, code)
  return value


@contextlib.contextmanager
def by_first(context: contextlib.AbstractContextManager) -> Iterator[Any]:
  """Process 0 alone enters the context; the others get None.

  Raises:
    RunError: that process 0 raises when it enters, in every process.
  """
  entered = [None]
  with contextlib.ExitStack() as stack:
    decided(lambda: entered.append(stack.enter_context(context)))
    yield entered[-1]


def from_first(tree: Any, kind: bytes = VALUE) -> Any:
  """Process 0's numpy arrays, bit for bit, in every process.

  Args:
    tree: of arrays; of other processes' only the shapes and dtypes count.
    kind: VALUE; PACKED for another thread than the main one.
  """
  if not _group:
    return tree
  import jax
  import numpy as np

  def move(leaf):
    if _group.index:
      return np.frombuffer(_group.hear(0, kind), leaf.dtype).reshape(leaf.shape)
    _group.tell(np.ascontiguousarray(leaf).reshape(-1).view(np.uint8).data, kind)
    return leaf

  return jax.tree.map(move, tree)


def require_same(what: str, given: Mapping[str, Any]) -> None:
  """Compares what the processes were given, name by name; values are JSON.

  Raises:
    UsageError: in every process, if one was given anything else than process 0.
  """
  first, *others = gather(dict(given))
  for index, other in enumerate(others, 1):
    pairs = {name: (first.get(name), other.get(name)) for name in first | other}
    parts = [f'{name}: {a!r} -> {b!r}' for name, (a, b) in pairs.items() if a != b]
    if parts:
      raise UsageError(
        f'{_group.who(index)} has another {what} than process 0: {"; ".join(parts)}.'
      )


@contextlib.contextmanager
def joined(given: Callable[[], Mapping[str, Any]]) -> Iterator[None]:
  """Inside, processes that were started together are one run. Does nothing for one.

  Args:
    given: what has to be the same in all of them.

  Raises:
    UsageError: they were given different things, or do not fit together.
    RunError: some did not come in time.
  """
  global _group
  place = rendezvous.detect(os.environ)
  if not place:
    yield
    return
  from moon_jax.engine import jax_service  # one alone does without

  _group = _Group(place.index, *rendezvous.meet(place))
  code = ExitCode.FAILED
  try:
    require_same('command or program', given())
    port = decided(lambda: jax_service.serve(count()))
    jax_service.connect(place.coordinator[0], port, names(), place.index)
    yield
    _group.leave(ExitCode.DONE)
    gather(None)  # process 0 has written the last file
    code = ExitCode.DONE
  except RunError as error:
    code = error.exit_code
    raise
  except Exception:
    time.sleep(_NEWS)
    if _group.news:
      _group.follow()
    raise
  finally:
    _group.leave(code)
    # The last that is registered is the first that is called: JAX would wait.
    atexit.register(_exit_with, code)


def _exit_with(code):
  for stream in filter(None, (sys.stdout, sys.stderr)):
    stream.flush()
  os._exit(code)


def leave_at_once(code: int) -> None:
  """Ends this process; the others follow."""
  if _group:
    _group.leave(code)
  os._exit(code)
