"""Reads files that anyone may have written; writes files wholly or not at all.

The package reads run directories and data sets through this module: it imports and
unpickles nothing, never waits for a pipe, opens no file because data name it outside
their folder, and checks the shape of what it reads.
"""

import contextlib
import errno
import fcntl
import functools
import hashlib
import itertools
import json
import os
import pathlib
import re
import shutil
import stat
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import IO, Any, BinaryIO, ParamSpec, TypeVar

import fastjsonschema
import numpy as np

from moon_jax.core import machine_memory, paths, signals
from moon_jax.core.errors import NoCheckpointError, RunError, UsageError
from moon_jax.core.flags import option

PARTIAL = '.partial'
_BLOCK_BYTES = 512  # unit of st_blocks
# The shape of the files of a run, and the meaning of each column.
SCHEMA = pathlib.Path(__file__).with_name('run_directory.json')
# These errors may pass: with more space or a larger quota the same write succeeds.
FULL = (errno.ENOSPC, errno.EDQUOT)
# A file system that cannot lock a file answers with one of these.
_NO_LOCKS = (
  errno.ENOSYS,
  errno.ENOLCK,
  errno.ENOTSUP,
  errno.EOPNOTSUPP,
  errno.EINVAL,
  errno.EPERM,
)
# One that cannot flush a folder answers with one of these.
_NO_FLUSH = (
  errno.ENOSYS,
  errno.EINVAL,
  errno.ENOTSUP,
  errno.EOPNOTSUPP,
  errno.EBADF,
)
# A server of files answers with one of these while another host uses a file.
_IN_USE = (errno.EBUSY, errno.ETXTBSY, errno.ESTALE)
_IN_USE_SECONDS = 2.0
_MORE_READS = 3  # of a file that another host has replaced
_IRREGULAR, _OUTSIDE = 'It is no regular file', 'It is not in its folder'
_NAMES_OUTSIDE = 'Data may name files of their own folder only'
# Most bytes of a text that describes data, or lists files: all known ones are smaller.
MOST_TEXT_BYTES = 2**28
Document = dict[str, Any]
Arguments = ParamSpec('Arguments')
Content = TypeVar('Content')
# Array -> its kinds of dtype and its axes, such as 'iu NY': integers of shape [N, Y].
# Equal letters stand for equal lengths, and 2 for two.
Kinds = Mapping[str, str]


# --- reading --------------------------------------------------------------------------


def again_if_replaced(
  read: Callable[Arguments, Content],
) -> Callable[Arguments, Content]:
  """Decorates a function that reads files: reads again what another host replaced."""

  @functools.wraps(read)
  def read_patiently(
    *arguments: Arguments.args, **options: Arguments.kwargs
  ) -> Content:
    for _ in range(_MORE_READS):
      try:
        return read(*arguments, **options)
      except OSError as error:
        if error.errno != errno.ESTALE:
          raise
    return read(*arguments, **options)

  return read_patiently


@again_if_replaced
def opened(path: str | os.PathLike) -> BinaryIO:
  """Opens a regular file for reading; anything else is refused and never waited for.

  A library that opens files by their names gets a name only after `require_regular`.
  Who could exchange the file between the two may write in the user's folders anyway.

  Raises:
    OSError: it cannot be read, or is a folder, a named pipe, a socket or a device.
  """
  # Before it is opened, because opening alone may act: some devices rewind a tape.
  _require_regular(os.stat(path), path)
  descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
  try:
    _require_regular(os.fstat(descriptor), path)
    return os.fdopen(descriptor, 'rb')
  except BaseException:
    os.close(descriptor)
    raise


def _require_regular(status, path):
  if not stat.S_ISREG(status.st_mode):
    raise OSError(errno.EINVAL, _IRREGULAR, os.fspath(path))


def require_regular(path: str | os.PathLike) -> None:
  """Raises OSError unless `opened` opens the file."""
  opened(path).close()


@again_if_replaced
def contents(path: str | os.PathLike, most_bytes: int | None = None) -> bytes:
  """The content of a file; see `opened`.

  Args:
    path: the file.
    most_bytes: the size from which a file is refused; None: the machine's memory.

  Raises:
    OSError: it cannot be read, is no regular file, or is larger.
  """
  with opened(path) as file:
    # The size is compared first: a file of holes may be larger than the memory.
    num_bytes = os.fstat(file.fileno()).st_size
    if most_bytes is None:
      machine_memory.require_file_fits(path, num_bytes)
      return file.read()
    if num_bytes <= most_bytes:
      # As much space as the file needs. Files of the system have no size, and others
      # may grow while they are read.
      content = file.read(num_bytes + 1)
      if len(content) > num_bytes:
        content += file.read(most_bytes + 1 - len(content))
      if len(content) <= most_bytes:
        return content
  problem = f'It is larger than {most_bytes:,} bytes'
  raise OSError(errno.EFBIG, problem, os.fspath(path))


def unpacked(data: bytes, format_bits: int, most_bytes: int | None = None) -> bytes:
  """What was compressed by zlib or gzip, unless it is too large.

  Args:
    data: the compressed bytes: one stream, which ends where they end.
    format_bits: `wbits` of zlib: 15 for zlib's format, 31 for gzip's.
    most_bytes: the most that the content may have; None: the machine's memory.

  Raises:
    ValueError: the content is too large, or the data are something else.
    zlib.error: the data are damaged.
  """
  if most_bytes is None:
    most_bytes = machine_memory.total_bytes()
  decompressor = zlib.decompressobj(format_bits)
  content = decompressor.decompress(data, most_bytes + 1)
  if len(content) > most_bytes:
    raise ValueError(f'its content has more than {most_bytes:,} bytes')
  if not decompressor.eof or decompressor.unused_data:
    raise ValueError('it is not one whole compressed stream')
  return content


def text(path: str | os.PathLike, encoding: str = 'utf-8') -> str:
  """The content of a description or a list, of at most MOST_TEXT_BYTES.

  Raises:
    OSError: as `contents` raises it.
    UnicodeDecodeError: it is no text.
  """
  return contents(path, MOST_TEXT_BYTES).decode(encoding)


def named(folder: pathlib.Path, name: str | os.PathLike) -> pathlib.Path:
  """The path of a file that data name, in the folder of these data.

  Every name that comes from data goes through this function. It looks at the name only:
  links of the file system, of which the Hub's cache and many clusters' folders consist,
  are followed as `opened` follows them.

  >>> str(named(pathlib.Path('set'), 'val/1.png'))
  'set/val/1.png'

  Raises:
    OSError: the name leads out of the folder, or could do so behind a link, with `..`.
    TypeError: it is no text.
  """
  path = folder / name
  is_inside = path.is_relative_to(folder) and path != folder
  if not is_inside or '..' in path.relative_to(folder).parts:
    raise OSError(errno.EINVAL, _NAMES_OUTSIDE, os.fspath(name))
  return path


@again_if_replaced
def require_inside(folder: pathlib.Path, names: Iterable[os.PathLike] = ()) -> None:
  """Checks that a folder, and files that are named in it, lead nowhere else.

  Raises:
    OSError: a path is neither a file nor a folder, or a link or a name leads out.
  """
  root = folder.resolve()
  named_paths = {folder / name for name in names}
  for path in itertools.chain(paths.below(folder), named_paths):
    # What is below the folder leads out as a link only; to follow the path of each of
    # many nested folders would take minutes.
    may_lead_out = path in named_paths or path.is_symlink()
    if may_lead_out and not path.resolve().is_relative_to(root):
      raise OSError(errno.EINVAL, _OUTSIDE, str(path))
    if path.exists() and not path.is_dir() and not path.is_file():
      raise OSError(errno.EINVAL, _IRREGULAR, str(path))


@again_if_replaced
def size(path: pathlib.Path) -> int:
  """The size of a file, in bytes."""
  return path.stat().st_size


@again_if_replaced
def sha256(path: pathlib.Path) -> str:
  """The digest of a file's content, in hexadecimal."""
  with opened(path) as file:
    return hashlib.file_digest(file, 'sha256').hexdigest()


def document(path: pathlib.Path, data: bytes) -> Document:
  """The JSON object in a file, or in a line of it; the file's name selects its shape.

  Raises:
    ValueError: it is no JSON, or has another shape.
  """
  try:
    return _check()({path.name: json.loads(data, parse_constant=int)})[path.name]
  except (ValueError, RecursionError) as error:
    raise ValueError(f'{str(error)[:100]!r}.') from None


@functools.cache
def _check() -> Callable[[Any], Any]:
  return fastjsonschema.compile(_schema())


@functools.cache
def _schema() -> Document:
  return json.loads(SCHEMA.read_bytes())


def is_explained_column(name: str) -> bool:
  """Whether the schema explains a column of metrics.jsonl with this name."""
  line = _schema()['definitions']['line']
  patterns = line['patternProperties']
  return name in line['properties'] or any(re.search(p, name) for p in patterns)


def read_json(path: pathlib.Path) -> Document | None:
  """The object in a JSON file; None if there is no such file.

  Raises:
    NoCheckpointError: it cannot be read, is not an object, or has another shape.
  """
  data = _read(path)
  return None if data is None else _parse(path, data)


def read_lines(path: pathlib.Path) -> list[Document]:
  """The objects of a .jsonl file; [] if there is none.

  A crash may leave the last line half written: a line without its end does not count.

  Raises:
    NoCheckpointError: it cannot be read, or a line is not an object of its shape.
  """
  lines = (_read(path) or b'').splitlines(keepends=True)
  return [_parse(path, line) for line in lines if line.endswith(b'\n')]


def _read(path: pathlib.Path) -> bytes | None:
  try:
    return contents(path)
  except (FileNotFoundError, NotADirectoryError):
    return None
  except OSError as error:
    raise NoCheckpointError(f'{path} cannot be read: {error.strerror}.') from None


def _parse(path: pathlib.Path, data: bytes) -> Document:
  try:
    return document(path, data)
  except ValueError as error:
    raise NoCheckpointError(f'{path} is damaged: {error}') from None


@again_if_replaced
def arrays(
  path: str | os.PathLike, names: Iterable[str] = (), kinds: Kinds | None = None
) -> dict[str, np.ndarray]:
  """The arrays of an .npz file; nothing is unpickled.

  Args:
    path: the file.
    names: the arrays to read, if the file has them.
    kinds: arrays that the file must have -> the shape of each.

  Raises:
    Exception: of any class, if the file cannot be read or has other content.
  """
  arrays_by_name = {}
  with opened(path) as file:
    if not zipfile.is_zipfile(file):  # np.load would advise to unpickle it
      raise ValueError('it is no archive; save it with np.savez')
    with np.load(file) as archive:
      array_names = [name for name in kinds or names if name in archive]
      machine_memory.require_file_fits(path, _unpacked_bytes(archive, array_names))
      for name in array_names:
        arrays_by_name[name] = _array(archive, name)
  if kinds:
    _require_kinds(arrays_by_name, kinds)
  return arrays_by_name


def _unpacked_bytes(archive, names):
  """Bytes of some arrays of an .npz file; zipfile reads no more of them."""
  members = {f'{name}{ending}' for name in names for ending in ('', '.npy')}
  return sum(
    member.file_size for member in archive.zip.infolist() if member.filename in members
  )


def _array(archive, name):
  """An array of an .npz file; raises ValueError if it is none."""
  try:
    array = archive[name]
  except ValueError as error:
    if 'allow_pickle' not in str(error):
      raise
    problem = 'holds Python objects; save it as numbers, or as text by .astype(str)'
    raise ValueError(f'{name} {problem}') from None
  if not isinstance(array, np.ndarray):
    raise ValueError(f'{name} is no array')
  return array


def _require_kinds(arrays_by_name, kinds):
  """Raises an error if an array is missing, or is of another kind or shape."""
  sizes = {'2': 2}  # of the axes
  for name, kind in kinds.items():
    array = arrays_by_name[name]
    dtype_kinds, axes = kind.split(' ')
    is_valid = array.ndim == len(axes) and array.dtype.kind in dtype_kinds
    is_valid = is_valid and array.size > 0
    if is_valid:
      for axis, size in zip(axes, array.shape, strict=True):
        is_valid = is_valid and sizes.setdefault(axis, size) == size
    if not is_valid or (dtype_kinds == 'iu' and array.min() < 0):
      raise ValueError(f'{name} is {array.dtype} of shape {array.shape}, or below 0')


def array_names(path: str | os.PathLike) -> list[str]:
  """The names of all arrays of an .npz file that `arrays` has read."""
  with opened(path) as file, zipfile.ZipFile(file) as archive:
    return [name.removesuffix('.npy') for name in archive.namelist()]


# --- writing --------------------------------------------------------------------------


def require_writable(folder: pathlib.Path, option_name: str = 'workdir') -> None:
  """Tries to write in a folder, or where the folder will be made; leaves nothing.

  Args:
    folder: the folder.
    option_name: the option of the command line that names it.

  Raises:
    UsageError: it is a file, or cannot be written.
    RunError: the disk is full.
  """
  try:
    nearest = _nearest(folder)
    str(folder).encode()
    for part in folder.absolute().relative_to(nearest).parts:
      with contextlib.suppress(FileNotFoundError):
        os.stat(nearest / part)  # fails if the name is too long
      if (nearest / part).is_symlink():
        words = option(option_name, str(folder))
        raise UsageError(f'{words} cannot be written: it is behind a link to nothing.')
    with tempfile.TemporaryFile(dir=nearest, buffering=0) as file:
      file.write(b'.')
  except UnicodeEncodeError:
    words = option(option_name, str(folder))
    raise UsageError(f'{words} must be a name in UTF-8.') from None
  except OSError as error:
    if error.errno in FULL:
      raise failure(folder, error) from None
    words = option(option_name, str(folder))
    raise UsageError(f'{words} cannot be written: {error.strerror}.') from None


def require_space(folder: pathlib.Path, num_bytes: int) -> None:
  """Raises OSError if the disk of the folder has less free space than this."""
  if shutil.disk_usage(folder).free < num_bytes:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))


def try_to_write(folder: pathlib.Path, num_bytes: int) -> None:
  """Writes and flushes a temporary file of so many bytes in a folder; leaves nothing.

  Raises:
    OSError: what the system says of it.
  """
  block = bytes(2**20)
  with tempfile.TemporaryFile(dir=folder) as file:
    for start in range(0, num_bytes, len(block)):
      file.write(block[: num_bytes - start])
    file.flush()
    os.fsync(file.fileno())
  can_flush_folders(folder)


def bytes_on_disk(folder: pathlib.Path) -> int:
  """The space that the files of a folder take, also while somebody writes them."""
  num_bytes = 0
  for parent, _, names in paths.walk(folder):
    for name in names:
      with contextlib.suppress(FileNotFoundError):  # it has got another name
        num_bytes += _BLOCK_BYTES * os.lstat(os.path.join(parent, name)).st_blocks
  return num_bytes


def failure(path: pathlib.Path, error: OSError) -> RunError:
  """The error that a path could not be written; its message has the remedy.

  Whatever the program was, the same command is right once the cause has gone: a run
  goes on from its newest checkpoint, and other programs begin again.
  """
  if error.errno in (errno.ENOENT, errno.ENOTDIR):
    remedy = (
      'Its folder was moved or removed: give the same command with the place where it '
      'is now.'
    )
  else:
    cause = 'there is space' if error.errno in FULL else 'it can be written'
    remedy = (
      f'What was saved before is kept: once {cause}, give the same command again.'
    )
  return RunError(f'{path} cannot be written: {error.strerror or error}. {remedy}')


@contextlib.contextmanager
def writing(path: pathlib.Path) -> Iterator[None]:
  """Makes an OSError while the path is written a RunError that names both."""
  try:
    yield
  except OSError as error:
    raise failure(path, error) from error


@contextlib.contextmanager
def replacing(path: pathlib.Path) -> Iterator[BinaryIO]:
  """`new_file`, in a run: an OSError becomes one line that says what to do.

  Raises:
    RunError: it cannot be written.
  """
  with writing(path), new_file(path) as file:
    yield file


@contextlib.contextmanager
def new_file(path: pathlib.Path) -> Iterator[BinaryIO]:
  """Yields a new file, which takes the place of the old one in one step, on disk.

  A failure, or a signal that ends the process, leaves the old file and nothing else.
  Nothing is written through a link, and other names of the old file keep its content.

  Raises:
    OSError: it cannot be written.
  """
  partial = path.with_name(path.name + PARTIAL)
  with signals.unfinished(partial):
    try:
      partial.unlink(missing_ok=True)
      with partial.open('xb') as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
      rename(partial, path)
      flush(path.parent)
    finally:
      with contextlib.suppress(OSError):
        partial.unlink(missing_ok=True)


def replace(path: pathlib.Path, text: str) -> None:
  """Replaces a file by a text, wholly or not at all."""
  with replacing(path) as file:
    file.write(text.encode())


def write_json(path: pathlib.Path, content: Document) -> None:
  """Replaces a file by a JSON document, wholly or not at all."""
  replace(path, json.dumps(content, indent=2) + '\n')


def write_arrays(path: pathlib.Path, arrays: Mapping[str, np.ndarray]) -> None:
  """Replaces an .npz file, wholly or not at all."""
  with replacing(path) as file:
    np.savez(file, **arrays)


def rename(source: pathlib.Path, target: pathlib.Path) -> None:
  """Renames a file or a folder; waits a while if another host uses the target.

  Raises:
    OSError: it cannot be renamed.
  """
  end = time.monotonic() + _IN_USE_SECONDS
  while True:
    try:
      os.replace(source, target)
      return
    except OSError as error:
      if error.errno not in _IN_USE or time.monotonic() > end:
        raise
    time.sleep(_IN_USE_SECONDS / 20)


def appended(path: pathlib.Path) -> BinaryIO:
  """Opens a file to add to its end, such as a log; makes it if there is none.

  Raises:
    UsageError: it is a link, or the file has another name: it may be of somebody else.
    RunError: it cannot be written.
  """
  require_no_link(path)
  flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
  with writing(path):
    descriptor = os.open(path, flags, 0o666)
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
      return os.fdopen(descriptor, 'ab', buffering=0)
    os.close(descriptor)
    raise OSError(errno.EINVAL, _IRREGULAR)


def require_no_link(path: pathlib.Path) -> None:
  """Raises UsageError if a path is a link, through which a program would write."""
  if path.is_symlink():
    raise UsageError(f'{path} is a link; remove it, or give another folder.')


def flush(path: pathlib.Path) -> None:
  """Waits until a file, or the names in a folder, are on the disk."""
  descriptor = os.open(path, os.O_RDONLY)
  try:
    flush_descriptor(descriptor)
  finally:
    os.close(descriptor)


def flush_descriptor(descriptor: int) -> None:
  """The same for an open file or folder. Some file systems cannot flush a folder.

  Raises:
    OSError: it cannot be flushed.
  """
  try:
    os.fsync(descriptor)
  except OSError as error:
    is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
    if not is_folder or error.errno not in _NO_FLUSH:
      raise


def close(file: IO[bytes]) -> None:
  """Closes a file of which all that matters has been flushed.

  A server may tell only now that a quota is exceeded, of what did not matter.
  """
  with contextlib.suppress(OSError):
    file.close()


def lock(file: IO[bytes]) -> bool:
  """Locks an open file for this process; does not wait for another.

  Returns:
    False if the file system cannot lock files.

  Raises:
    BlockingIOError: another process has locked it.
    OSError: another fault of the disk.
  """
  return _is_supported(lambda: fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB))


def has_locks(folder: pathlib.Path) -> bool:
  """Whether a program can lock files in a folder, by `flock` and by `fcntl`.

  Raises:
    OSError: the folder cannot be written.
  """
  with tempfile.TemporaryFile(dir=folder) as file:
    return lock(file) and _has_record_lock(file)


def has_record_locks(folder: pathlib.Path) -> bool:
  """Whether a program can lock files in a folder by `fcntl`, as tensorstore does.

  Raises:
    OSError: the folder cannot be written.
  """
  with tempfile.TemporaryFile(dir=folder) as file:
    return _has_record_lock(file)


def _has_record_lock(file: IO[bytes]) -> bool:
  return _is_supported(lambda: fcntl.lockf(file, fcntl.LOCK_EX))


def _is_supported(lock_file: Callable[[], None]) -> bool:
  try:
    lock_file()
  except OSError as error:
    if error.errno not in _NO_LOCKS:
      raise
    return False
  return True


def can_flush_folders(folder: pathlib.Path) -> bool:
  """Whether the file system can flush a folder.

  Raises:
    OSError: another fault of the disk.
  """
  descriptor = os.open(folder, os.O_RDONLY)
  try:
    os.fsync(descriptor)
  except OSError as error:
    if error.errno not in _NO_FLUSH:
      raise
    return False
  finally:
    os.close(descriptor)
  return True


def make_folder(path: pathlib.Path) -> None:
  """Makes a folder, and those above it, unless it is there; on disk."""
  with writing(path):
    existing = _nearest(path)
    path = path.absolute()
    path.mkdir(parents=True, exist_ok=True)
    while path != existing:
      path = path.parent
      flush(path)


def _nearest(path: pathlib.Path) -> pathlib.Path:
  """The path itself, or the nearest folder above it that is there."""
  path = path.absolute()
  while not path.exists():
    path = path.parent
  return path
