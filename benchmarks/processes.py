"""Runs programs on some of the cores and reads the JSON line that each prints."""

import contextlib
import json
import os
import pathlib
import subprocess
import sys
import threading
import time
from collections.abc import Hashable, Mapping

ROOT = pathlib.Path(__file__).parents[1]


def run(
  words: list[str],
  cores: int | None = None,
  seconds: float | None = None,
  environment: Mapping[str, str] | None = None,
) -> dict:
  """The last line that `python *words` prints, as JSON.

  Args:
    words: words of the command, run in the repository's root.
    cores: number of cores that it may use; None: all.
    seconds: time after which it is ended, with subprocess.TimeoutExpired; None: never.
    environment: changes of the environment.
  """
  core_indices = None if cores is None else range(cores)
  with _start(words, core_indices, environment) as process:
    try:
      return _report(process, seconds)
    except subprocess.TimeoutExpired:
      process.kill()
      raise


def run_together(
  words: list[str],
  count: int,
  repeats: int,
  seconds: float,
  environment: Mapping[str, str],
) -> list[dict]:
  """What `python *words --turns` prints in some processes that share the machine.

  When all are warm, each runs `repeats` timed rounds, all processes at once. After
  `seconds` they are ended, with subprocess.TimeoutExpired.
  """
  with contextlib.ExitStack() as stack:
    processes = [
      stack.enter_context(
        _start([*words, '--turns', f'--repeats={repeats}'], environment=environment)
      )
      for _ in range(count)
    ]
    is_late = threading.Event()

    def end():
      is_late.set()
      for process in processes:
        process.kill()

    timer = threading.Timer(seconds, end)
    stack.callback(timer.cancel)
    timer.start()
    try:
      for process in processes:
        Turns.wait(process)
      for process in processes:
        process.stdin.write('\n' * repeats)
        process.stdin.flush()
      return [_report(process) for process in processes]
    except (subprocess.CalledProcessError, BrokenPipeError) as error:
      end_was_late = is_late.is_set()
      end()
      if end_was_late:
        raise subprocess.TimeoutExpired(words, seconds) from error
      raise


class Requests:
  """A program that answers each line of JSON with one; context manager.

  After an answer that does not come in time, or a crash, it is started anew.
  """

  def __init__(self, words: list[str]):
    self._words = words
    self._process = None

  def __enter__(self):
    return self

  def __exit__(self, kind, error, traceback):
    self.end()

  def ask(self, request: dict, seconds: float) -> dict:
    """The answer; after `seconds` subprocess.TimeoutExpired."""
    if self._process is None:
      self._process = _start(self._words)
    process, is_late = self._process, threading.Event()

    def end():
      is_late.set()
      process.kill()

    timer = threading.Timer(seconds, end)
    timer.start()
    try:
      process.stdin.write(json.dumps(request) + '\n')
      process.stdin.flush()
      for line in process.stdout:
        if line.startswith('{'):
          return json.loads(line)
    except BrokenPipeError:
      pass  # it has ended; why is said below
    finally:
      timer.cancel()
    self.end()
    if is_late.is_set():
      raise subprocess.TimeoutExpired(self._words, seconds)
    raise subprocess.CalledProcessError(process.returncode, self._words)

  def end(self) -> None:
    """Ends the program, which gives its memory back."""
    if self._process:
      self._process.kill()
      self._process.communicate()
      self._process = None


def seconds_until(
  path: pathlib.Path,
  words: list[str],
  seconds: float,
  environment: Mapping[str, str],
) -> float:
  """From the start of `python *words` on one core until a file has contents.

  Waits for the program's end; after `seconds` subprocess.TimeoutExpired ends it.
  """
  begin = time.monotonic()
  with _start(words, range(1), environment) as process:
    try:
      _wait_for_file(path, process, seconds)
    except subprocess.TimeoutExpired:
      process.kill()
      raise
    seconds_of_start = time.monotonic() - begin
    process.communicate()
  return seconds_of_start


def _wait_for_file(path, process, seconds=float('inf')):
  """Waits until a file that a process writes has contents."""
  end = time.monotonic() + seconds
  while not (path.exists() and path.stat().st_size):
    if process.poll() is not None:
      raise subprocess.CalledProcessError(process.returncode, process.args)
    if time.monotonic() > end:
      raise subprocess.TimeoutExpired(process.args, seconds)
    time.sleep(0.01)


class Turns:
  """Programs that are timed in turn: what disturbs the machine disturbs all of them.

  Each program waits for a line before each of its timed rounds, and does nothing
  meanwhile. All are timed on the same cores, the first ones. Until then each program
  has cores of its own, as long as there are free ones, so that all compile at once. It
  is a context manager, which ends with subprocess.TimeoutExpired after some seconds.
  """

  def __init__(self, repeats: int, seconds: float):
    self._repeats = repeats
    self._seconds = seconds
    self._processes = {}  # name -> process
    self._preparing = {}  # process that is not warm yet -> number of its cores
    self._stack = contextlib.ExitStack()
    self._time_is_over = threading.Event()
    self._timer = threading.Timer(seconds, self._end)

  def __enter__(self):
    self._timer.start()
    return self

  def __exit__(self, kind, error, traceback):
    self._timer.cancel()
    if error:
      self._kill()
    self._stack.close()
    if error and self._time_is_over.is_set():
      raise subprocess.TimeoutExpired('turns', self._seconds) from error

  def _end(self):
    self._time_is_over.set()
    self._kill()

  def _kill(self):
    for process in self._processes.values():
      process.kill()

  def add(
    self,
    name: Hashable,
    words: list[str],
    python: str = sys.executable,
    writes: pathlib.Path | None = None,
    cores: int = 1,
  ) -> None:
    """Starts `python *words --turns --repeats=N`.

    Args:
      name: name under which it reports.
      words: words of the command.
      python: the Python that runs it.
      writes: a file that it writes, and that is waited for.
      cores: number of cores that it may use.
    """
    first_core = sum(self._preparing.values())
    if first_core + cores > len(os.sched_getaffinity(0)):
      self.ready()
      first_core = 0
    words = [*words, '--turns', f'--repeats={self._repeats}']
    core_indices = range(first_core, first_core + cores)
    process = self._stack.enter_context(_start(words, core_indices, python=python))
    self._processes[name] = process
    self._preparing[process] = cores
    if writes:
      _wait_for_file(writes, process)

  def ready(self) -> None:
    """Waits until all are warm, and moves them to the first cores."""
    for process, cores in self._preparing.items():
      self.wait(process)
      for thread in os.listdir(f'/proc/{process.pid}/task'):
        with contextlib.suppress(ProcessLookupError):
          os.sched_setaffinity(int(thread), _cores_at(range(cores)))
    self._preparing.clear()

  def reports(self) -> dict[Hashable, dict]:
    """Runs all rounds; name -> the JSON that the program printed at its end."""
    self.ready()
    reports = {}
    for turn in range(self._repeats):
      for name, process in self._processes.items():
        process.stdin.write('\n')
        process.stdin.flush()
        if turn + 1 < self._repeats:
          self.wait(process)
        else:
          reports[name] = _report(process)
    return reports

  @staticmethod
  def wait(process):
    """Waits until a program is warm."""
    if not any(line == 'ready\n' for line in process.stdout):
      raise subprocess.CalledProcessError(process.wait(), process.args)


def _cores_at(core_indices):
  """The cores of this process at these indices."""
  return sorted(os.sched_getaffinity(0))[core_indices.start : core_indices.stop]


def _start(words, core_indices=None, environment=None, python=sys.executable):
  """Starts a Python on the cores of this process at some indices; None: on all."""
  cores = os.sched_getaffinity(0) if core_indices is None else _cores_at(core_indices)
  return subprocess.Popen(
    [python, *words],
    cwd=ROOT,
    env=os.environ | (environment or {}),
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    text=True,
    preexec_fn=lambda: os.sched_setaffinity(0, cores),
  )


def _report(process, seconds=None) -> dict:
  """The last line that a program prints, as JSON."""
  lines = process.communicate(timeout=seconds)[0].splitlines()
  if process.returncode:
    raise subprocess.CalledProcessError(process.returncode, process.args)
  return json.loads(lines[-1])
