"""Runs `python launch.py`, as a real process or in this one; reads what it leaves."""

import contextlib
import io
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import orbax.checkpoint as ocp

from moon_jax import __main__
from moon_jax.core.errors import ExitCode

ROOT = pathlib.Path(__file__).parents[1]
LAUNCH = str(ROOT / 'launch.py')
LIMIT_SECONDS = 300


def surroundings(words, environment, **changes):
  """The environment of a process that a test starts.

  It shares the tests' compiled programs, unless the process has a cache of its own.
  """
  variables = os.environ | changes
  if any('compile_cache' in word for word in words):
    del variables['JAX_COMPILATION_CACHE_DIR']
  return variables | environment


# A killed process could leave a torn program in the compile cache: it only reads.
ONLY_READS = {'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '1e9'}


def launch(folder, *words, program=(LAUNCH,), **environment):
  """Runs a program, by default launch.py, in a folder, to its end."""
  return subprocess.run(
    [sys.executable, *program, *words],
    cwd=folder,
    env=surroundings(words, environment),
    capture_output=True,
    text=True,
    timeout=LIMIT_SECONDS,
    check=False,
  )


def launched(folder, words=(), program=__main__.launch):
  """Runs a program in this process, from a folder; its exit code and output."""
  out, err = io.StringIO(), io.StringIO()
  with (
    contextlib.chdir(folder),
    contextlib.redirect_stdout(out),
    contextlib.redirect_stderr(err),
  ):
    code = program([*words])
  return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def no_signal_ignored():
  """Processes started inside heed signals, even in a background job or under nohup."""
  handlers = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
  inherited = {number: signal.signal(number, h) for number, h in handlers.items()}
  try:
    yield
  finally:
    for number, handler in inherited.items():
      signal.signal(number, handler)


class Running:
  """launch.py at work in a folder. A context manager: at its end the process is dead.

  Attributes:
    pid: id of the process.
  """

  def __init__(self, folder, *words, prefix=(), program=(LAUNCH,), **environment):
    with no_signal_ignored():
      self._process = subprocess.Popen(
        [*prefix, sys.executable, *program, *words],
        cwd=folder,
        env=surroundings(words, environment, **ONLY_READS),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
      )
    self.pid = self._process.pid
    self._shown = {'stdout': b'', 'stderr': b''}

  def __enter__(self):
    return self

  def __exit__(self, *exception):
    self._process.kill()
    self._process.communicate()

  def wait_for(self, text, stream='stdout'):
    """Waits until the process has written `text`."""
    file = getattr(self._process, stream)
    while text.encode() not in self._shown[stream]:
      output = os.read(file.fileno(), 65536)
      assert output, f'{text!r} is not in {self._shown}'
      self._shown[stream] += output

  def pause_when(self, condition):
    """Stops the process at an instant at which condition() is true, once it is."""
    end = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < end:
      assert self._process.poll() is None, 'it ended before'
      if condition():
        self.send(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED)
        if condition():
          return
        self.send(signal.SIGCONT)
      time.sleep(0.002)
    raise AssertionError('that instant did not come')

  def send(self, number):
    """Sends a signal."""
    self._process.send_signal(number)

  def finish(self):
    """Waits for the end of the process: its exit code and all it has written."""
    rest = self._process.communicate(timeout=LIMIT_SECONDS)
    out, err = (
      (self._shown[stream] + text).decode()
      for stream, text in zip(('stdout', 'stderr'), rest, strict=True)
    )
    process = self._process
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)

  def kill(self):
    """Kills the process, paused or not; returns what it has written."""
    self.send(signal.SIGKILL)
    killed = self.finish()
    assert killed.returncode == -signal.SIGKILL, killed
    return killed


def check_success(process):
  """The process has ended well and printed no error."""
  assert process.returncode == ExitCode.DONE, process.stderr
  assert process.stderr == ''


def read_lines(path):
  """The objects of a .jsonl file."""

  def refuse(word):
    raise AssertionError(f'{word} is not JSON')

  text = path.read_text()
  return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


def check_same_records(run, expected):
  """Two runs have left the same metrics and partition, byte for byte."""
  for name in ('metrics.jsonl', 'partition.npz'):
    assert (run / name).read_bytes() == (expected / name).read_bytes(), name


def flip(path, position=None):
  """Flips a bit of a file, by default in the middle."""
  data = bytearray(path.read_bytes())
  data[len(data) // 2 if position is None else position] ^= 1
  path.write_bytes(data)


def contents(folder):
  """Path -> bytes of every file below a folder."""
  files = (path for path in folder.rglob('*') if path.is_file())
  return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def checkpoint(workdir, step):
  """Path -> (dtype, shape, bytes) of every leaf."""
  with contextlib.closing(ocp.StandardCheckpointer()) as checkpointer:
    saved = checkpointer.restore((workdir / f'checkpoints/{step}/default').absolute())
  leaves, todo = {}, [('', saved)]
  while todo:
    path, node = todo.pop()
    if isinstance(node, dict | list | tuple):
      items = node.items() if isinstance(node, dict) else enumerate(node)
      todo += [(f'{path}/{key}', child) for key, child in items]
    elif node is not None:
      array = np.asarray(node)
      leaves[path] = (str(array.dtype), array.shape, array.tobytes())
  return leaves
