"""A disk that is full, or cannot be written at all: one line, and nothing is lost."""

import contextlib
import errno
import os
import pathlib
import shutil
import tracemalloc

import pytest

from moon_jax.core import files, paths
from moon_jax.core.errors import ExitCode, RunError, UsageError
from moon_jax.runner import record_files as records_lib
from moon_jax.runner import run_directory
from tests.run_directories import add_metrics


def fill(folder):
  """Fills a disk to the last page; returns the file that takes the space."""
  path = folder / 'filler'
  with path.open('wb', buffering=0) as file, contextlib.suppress(OSError):
    while True:
      file.write(bytes(4096))
  return path


def cannot_be_written(path, reason):
  """The line about a path, with the remedy that is right for the reason."""
  if reason == 'No such file or directory':
    remedy = (
      'Its folder was moved or removed: give the same command with the place where it '
      'is now.'
    )
  else:
    is_full = reason in ('No space left on device', 'Disk quota exceeded')
    cause = 'there is space' if is_full else 'it can be written'
    remedy = (
      f'What was saved before is kept: once {cause}, give the same command again.'
    )
  return f'{path} cannot be written: {reason}. {remedy}'


def names(folder):
  return sorted(path.name for path in folder.iterdir())


def test_a_file_is_replaced_wholly_or_not_at_all(disk):
  folder = disk('small', '64k')
  path = folder / 'a.json'
  files.replace(path, 'old')
  with pytest.raises(RunError) as caught:
    files.replace(path, 'x' * 100_000)
  assert caught.value.exit_code == ExitCode.FAILED
  assert str(caught.value) == cannot_be_written(path, 'No space left on device')
  assert path.read_text() == 'old'
  assert names(folder) == ['a.json']
  files.replace(path, 'new')
  assert path.read_text() == 'new'


def test_a_full_disk_before_a_run_begins(disk):
  folder = disk('small', '64k')
  (folder / 'run').mkdir()
  fill(folder)
  full = pytest.raises(RunError, match=r'\.lock cannot be written: No space left')
  with full, run_directory.locked(folder / 'run'):
    pass
  with pytest.raises(RunError, match='No space left on device') as caught:
    files.require_writable(folder / 'run')
  assert caught.value.exit_code == ExitCode.FAILED


def line(number):
  return {'round': number, 'loss': number / 7, 'clients': list(range(150))}


def add_many(records):
  for number in range(2, 1000):
    add_metrics(records, line(number))


def test_records_on_a_full_disk(disk, tmp_path):
  folder = disk('small', '128k')
  with records_lib.Records(tmp_path, 0) as records:
    for number in range(1, 31):
      add_metrics(records, line(number))
  expected = (tmp_path / run_directory.METRICS).read_bytes()

  with records_lib.Records(folder, 0) as records:
    add_metrics(records, line(1))
    filler = fill(folder)
    with pytest.raises(RunError, match=r'metrics\.jsonl cannot be written: No space'):
      add_many(records)
    written = len(records.rounds) - 1
  # The last line may be incomplete; the lines before are whole.
  assert 1 < written < 10
  content = (folder / run_directory.METRICS).read_bytes()
  assert expected.startswith(content)
  assert content.count(b'\n') == written
  filler.unlink()
  with records_lib.Records(folder, written) as records:
    for number in range(written + 1, 31):
      add_metrics(records, line(number))
  assert (folder / run_directory.METRICS).read_bytes() == expected


# --- shared disks: `test_faults.py` has whole runs on them ---------------------------


def failing(number, times, call):
  """The call, which fails the first times."""
  failures = iter(range(times))

  def fail_or_call(*arguments):
    if next(failures, None) is not None:
      raise OSError(number, os.strerror(number))
    return call(*arguments)

  return fail_or_call


@pytest.mark.parametrize('number', [errno.EINVAL, errno.ENOTSUP, errno.EBADF])
def test_only_a_folder_may_be_left_unflushed(tmp_path, monkeypatch, number):
  path = tmp_path / 'a.json'
  path.write_text('old')
  monkeypatch.setattr(os, 'fsync', failing(number, 10, os.fsync))
  files.flush(tmp_path)
  assert not files.can_flush_folders(tmp_path)
  with pytest.raises(OSError, match=os.strerror(number)):
    files.flush(path)
  with pytest.raises(RunError, match=os.strerror(number)):
    files.replace(path, 'new')
  assert path.read_text() == 'old'
  assert names(tmp_path) == ['a.json']


@pytest.mark.parametrize('number', [errno.EBUSY, errno.ETXTBSY, errno.ESTALE])
def test_a_file_in_use_is_replaced_a_little_later(tmp_path, monkeypatch, number):
  monkeypatch.setattr(files, '_IN_USE_SECONDS', 0.1)
  path = tmp_path / 'a.json'
  replace = os.replace
  monkeypatch.setattr(os, 'replace', failing(number, 3, replace))
  files.replace(path, 'old')
  monkeypatch.setattr(os, 'replace', failing(number, 1000, replace))
  with pytest.raises(RunError) as caught:
    files.replace(path, 'new')
  assert str(caught.value) == cannot_be_written(path, os.strerror(number))
  assert path.read_text() == 'old'
  assert names(tmp_path) == ['a.json']


def test_a_file_that_another_host_has_replaced_is_read_again(tmp_path, monkeypatch):
  path = tmp_path / 'a.json'
  path.write_text('new')
  with monkeypatch.context() as patch:
    patch.setattr(os, 'open', failing(errno.ESTALE, 2, os.open))
    assert files.contents(path) == b'new'
  for number, times in ((errno.ESTALE, 1000), (errno.EIO, 1)):
    with monkeypatch.context() as patch:
      patch.setattr(os, 'open', failing(number, times, os.open))
      with pytest.raises(OSError, match=os.strerror(number)):
        files.contents(path)


def test_a_small_file_takes_little_memory_whatever_it_may_have(tmp_path):
  path = tmp_path / 'a.json'
  path.write_bytes(b'x' * 1000)
  tracemalloc.start()
  content = files.contents(path, most_bytes=2**28)
  _, peak = tracemalloc.get_traced_memory()
  tracemalloc.stop()
  assert content == path.read_bytes()
  assert peak < 2**20
  # Files of the system say that they have no bytes.
  assert b'Name:' in files.contents('/proc/self/status', most_bytes=2**20)
  for most_bytes, file in ((999, path), (9, '/proc/self/status')):
    with pytest.raises(OSError, match=f'larger than {most_bytes} bytes'):
      files.contents(file, most_bytes)


def test_a_folder_that_vanishes_while_its_parent_is_walked_is_left_out(tmp_path):
  for name in ('a', 'b'):
    (tmp_path / name).mkdir()
    (tmp_path / name / 'file').touch()
  for follow in (False, True):
    (tmp_path / 'b').mkdir(exist_ok=True)
    (tmp_path / 'b' / 'file').touch()
    found = []
    for path in paths.below(tmp_path, follow=follow):
      found.append(path.relative_to(tmp_path).as_posix())
      if path.name == 'a':
        shutil.rmtree(tmp_path / 'b')
    assert sorted(found) == ['a', 'a/file', 'b']


# --- before anything is loaded --------------------------------------------------------


def test_a_place_that_can_be_written_is_left_as_it_was(tmp_path):
  files.require_writable(tmp_path)
  files.require_writable(tmp_path / 'not' / 'there')
  files.require_writable(pathlib.Path('relative'))
  assert names(tmp_path) == []


def test_places_that_cannot_be_written(disk, remount, tmp_path):
  (tmp_path / 'file').write_text('')
  (tmp_path / 'link').symlink_to('purged')
  folder = disk('frozen', '64k')
  remount(folder, 'ro')
  for folder_or_file, problem in {
    tmp_path / 'file': 'cannot be written: Not a directory',
    tmp_path / 'file/run': 'cannot be written: Not a directory',
    tmp_path / 'link': 'cannot be written: it is behind a link to nothing',
    tmp_path / 'link/run': 'cannot be written: it is behind a link to nothing',
    folder: 'cannot be written: Read-only file system',
    folder / 'deep/run': 'cannot be written: Read-only file system',
    pathlib.Path('/proc/run'): 'cannot be written: No such file or directory',
    tmp_path / ('long' * 100): 'cannot be written: File name too long',
    tmp_path / 'new' / ('long' * 100): 'cannot be written: File name too long',
    tmp_path / 'no\udcff': 'must be a name in UTF-8',
  }.items():
    with pytest.raises(UsageError) as caught:
      files.require_writable(folder_or_file)
    assert str(caught.value) == f'--workdir={str(folder_or_file)!r} {problem}.'
