"""A lease keeps others out where a file system has no locks, whatever clocks say."""

import contextlib
import errno
import fcntl
import json
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from moon_jax.runner import lease as lease_lib
from moon_jax.runner import run_directory
from tests.selection import few

NO_LOCKS = (
  errno.ENOSYS,
  errno.ENOLCK,
  errno.ENOTSUP,
  errno.EINVAL,
  errno.EPERM,
)
LIMIT = 0.3  # seconds without a renewal, in these tests
SHORT_LIMIT = 0.004  # in a test of thousands of leases
HOUR = 3600


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
  monkeypatch.setattr(lease_lib, 'LIMIT_SECONDS', LIMIT)
  monkeypatch.setattr(lease_lib, 'RENEW_SECONDS', LIMIT / 3)


@pytest.fixture
def without_locks(monkeypatch):
  """In a test, no file can be locked: number of the error."""

  def refuse(number):
    def lock(*_):
      raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, 'flock', lock)
    monkeypatch.setattr(fcntl, 'lockf', lock)

  return refuse


def leave(folder, age=0.0, **changes):
  """Leaves a lease as another process has it, renewed some seconds ago."""
  holder = lease_lib.this_process()._replace(**changes)
  path = folder / f'{lease_lib.PREFIX}00'
  path.write_text(json.dumps(holder._asdict() | {'renewals': 0}))
  renewed = time.time() - age
  os.utime(path, (renewed, renewed))
  return path


def leases(folder):
  return [path.name for path in folder.glob(f'{lease_lib.PREFIX}*')]


def ended_process():
  """The id of a process that has ended."""
  process = subprocess.Popen([sys.executable, '-c', ''])
  process.wait()
  return process.pid


@pytest.mark.parametrize('number', NO_LOCKS)
def test_a_directory_without_locks_has_a_lease(tmp_path, without_locks, number):
  without_locks(number)
  lines = []
  with run_directory.locked(tmp_path / 'run', lines.append) as hold:
    (name,) = leases(tmp_path / 'run')
    assert lines == [
      f'{tmp_path}/run: the file system has no locks, so only the lease {name} keeps '
      'other starts out'
    ]
    hold.require()
    line = rf'running in .*: process {os.getpid()} on .*, which renewed its lease \d+ s'
    refused = pytest.raises(run_directory.BusyError, match=line)
    with refused, run_directory.locked(tmp_path / 'run', lines.append):
      pass
    # Another lease takes no part in the end of this one.
    assert leases(tmp_path / 'run') == [name]
  assert leases(tmp_path / 'run') == []


def test_where_files_can_be_locked_there_is_no_lease_but_others_count(tmp_path):
  lines = []
  with run_directory.locked(tmp_path, lines.append):
    assert leases(tmp_path) == []
  leave(tmp_path, host='another', machine='another')
  refused = pytest.raises(run_directory.BusyError, match='on another, started')
  with refused, run_directory.locked(tmp_path, lines.append):
    pass
  assert lines == []


# --- stale leases ---------------------------------------------------------------------


def hold(folder, lines):
  with lease_lib.held(folder, lines.append) as lease:
    assert leases(folder) == [lease.name]


@pytest.mark.parametrize('age', [-HOUR, 0, HOUR])
def test_a_process_of_this_host_counts_while_it_lives(tmp_path, age):
  lines = []
  path = leave(tmp_path, age)  # this process
  with pytest.raises(lease_lib.HeldError, match=f'process {os.getpid()} on '):
    hold(tmp_path, lines)
  assert lines == []
  for change in ({'pid': ended_process()}, {'birth': '1'}):
    path.unlink(missing_ok=True)
    leave(tmp_path, age, **change)
    begin = time.monotonic()
    hold(tmp_path, lines)
    assert time.monotonic() - begin < LIMIT
    line = lines.pop()
    assert 'has ended: its lease on' in line
    assert lines == []


@pytest.mark.parametrize('age', [-HOUR, 2 * LIMIT, HOUR])
@pytest.mark.parametrize('is_renewed', [True, False])
def test_a_process_of_another_host_counts_while_it_renews(tmp_path, age, is_renewed):
  """The clocks of the hosts differ by an hour, and files have their times."""
  path = leave(tmp_path, age, host='another', machine='another')
  lines = []

  def renew():
    time.sleep(LIMIT / 3)
    leave(tmp_path, age, host='another', machine='another', started='later')

  if is_renewed:
    thread = threading.Thread(target=renew)
    thread.start()
    with pytest.raises(lease_lib.HeldError, match='has just renewed its lease'):
      hold(tmp_path, lines)
    thread.join()
    assert path.exists()
    assert len(lines) == 1
  else:
    hold(tmp_path, lines)
    watching, taken = lines
    assert 'watching it' in watching
    assert 'on another, started' in taken
    assert 'has not renewed its lease for' in taken


def test_a_process_of_another_host_counts_at_once_after_a_renewal(tmp_path):
  leave(tmp_path, host='another', machine='another', pid=7)
  line = r'process 7 on another, .*, which renewed its lease 0 s ago; after 0 s without'
  with pytest.raises(lease_lib.HeldError, match=line):
    hold(tmp_path, [])


def contents_of_a_lease(rng):
  """Bytes that a crash, another program or a stranger may leave."""
  holder = lease_lib.this_process()._asdict() | {'host': 'another', 'machine': ''}
  name = rng.choice([*holder])
  strange = [None, [], {}, '', 'x' * 5000, 10**30, -1, 0, True, 1.5, '\x1b[2J', '\0']
  holder[name] = strange[rng.integers(len(strange))]
  data = json.dumps(holder).encode()
  return rng.choice(
    [data, data[: rng.integers(len(data))], rng.bytes(20), b'', b'[' * 900]
  )


@pytest.mark.parametrize('count', few([10], [2000]))
def test_a_lease_of_any_content_is_refused_or_taken_over(tmp_path, monkeypatch, count):
  monkeypatch.setattr(lease_lib, 'LIMIT_SECONDS', SHORT_LIMIT)
  rng = np.random.default_rng(count)
  for _ in range(count):
    path = leave(tmp_path, HOUR)
    path.write_bytes(contents_of_a_lease(rng))
    is_old = rng.random() < 0.5
    renewed = time.time() - (HOUR if is_old else -0.5 * SHORT_LIMIT)
    os.utime(path, (renewed, renewed))
    lines = []
    with contextlib.suppress(lease_lib.HeldError):
      hold(tmp_path, lines)
    assert all(line.isprintable() and len(line) < 600 for line in lines)
    assert not is_old or not path.exists()


# --- races ----------------------------------------------------------------------------


@pytest.mark.parametrize('count', few([4], [300]))
def test_of_those_that_start_at_once_one_stays(tmp_path, monkeypatch, count):
  monkeypatch.setattr(lease_lib, '_SETTLE_SECONDS', 2.0)
  num_processes = 6
  dead = ended_process()
  for number in range(count):
    folder = tmp_path / str(number)
    folder.mkdir()
    if number % 2:
      leave(folder, pid=dead)
    barrier = threading.Barrier(num_processes)
    num_holding, most_holding, num_held = [0], [0], [0]
    refused = threading.Semaphore(0)

    def start(folder=folder, barrier=barrier, refused=refused, counts=None):
      num_holding, most_holding, num_held = counts
      barrier.wait()
      try:
        with lease_lib.held(folder, lambda line: None):
          num_holding[0] += 1
          num_held[0] += 1
          most_holding[0] = max(most_holding[0], num_holding[0])
          for _ in range(num_processes - 1):
            refused.acquire(timeout=10)
          num_holding[0] -= 1
      except lease_lib.HeldError:
        refused.release()

    threads = [
      threading.Thread(
        target=start, kwargs={'counts': (num_holding, most_holding, num_held)}
      )
      for _ in range(num_processes)
    ]
    for thread in threads:
      thread.start()
    for thread in threads:
      thread.join()
    assert (num_held[0], most_holding[0]) == (1, 1)
    assert leases(folder) == []


# --- after a standstill ---------------------------------------------------------------


def test_a_lease_is_renewed_and_missed(tmp_path, without_locks):
  without_locks(errno.ENOLCK)
  run = tmp_path / 'run'
  with run_directory.locked(run, print) as hold:
    (name,) = leases(run)
    before = (run / name).read_bytes()
    time.sleep(LIMIT)
    assert (run / name).read_bytes() != before
    run.rename(tmp_path / 'moved')  # a lease moves with its folder
    run = tmp_path / 'moved'
    before = (run / name).read_bytes()
    time.sleep(LIMIT)
    hold.require()
    assert (run / name).read_bytes() != before
    (run / name).unlink()  # another process has taken over
    with pytest.raises(run_directory.BusyError, match='is gone: another process has'):
      hold.require()
    assert leases(run) == []
    time.sleep(LIMIT)
    assert leases(run) == []


def test_a_fault_of_the_disk_says_nothing_about_the_lease(tmp_path, monkeypatch):
  with lease_lib.held(tmp_path, print) as lease:

    def fail(*_, **__):
      raise OSError(errno.EIO, 'Input/output error')

    monkeypatch.setattr(os, 'stat', fail)
    lease.require()
