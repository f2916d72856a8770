"""Strict JAX for every test, silent broadcasting and casting are errors; 8 devices.

Most of a test's time would be compiling. So programs are compiled with few
optimizations, unless XLA_FLAGS says otherwise, or a test has its processes compile as
users' do. And each program is compiled once: JAX keeps it in the
user's cache folder, for both workers, the processes that tests start, and later runs.

The rest is tracing, which makes many objects: of these Python looks for cycles less
often than it would, and never among what is there before the first test.
"""

import gc
import os
import pathlib
import re
import subprocess
import time

from moon_jax.core import user_cache

os.environ.setdefault('JAX_PLATFORMS', 'cpu')
# The workers share the cores: more threads of OpenMP, as t-SNE has them, wait spinning.
os.environ.setdefault('OMP_NUM_THREADS', '1')
os.environ['JAX_COMPILATION_CACHE_DIR'] = str(user_cache.folder() / 'tests')
os.environ['JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS'] = '0'
os.environ['JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES'] = 'none'
# If another process is writing a program, JAX warns and compiles it.
os.environ['PYTHONWARNINGS'] = 'ignore:Error reading persistent compilation cache entry'

import jax
import pytest
from matplotlib.figure import Figure

from moon_jax import catalog
from moon_jax.building import programs
from moon_jax.catalog import registry
from moon_jax.models import cpu_kernels
from moon_jax.platform import devices
from moon_jax.runner import callbacks
from tests.processes import check_success, launched
from tests.programs import compile_once
from tests.run_directories import FEDAVG

# With these, rich takes a pipe for a terminal. And nobody else may write in our caches.
for name in ('FORCE_COLOR', 'TTY_COMPATIBLE'):
  os.environ.pop(name, None)
os.umask(0o022)
QUICK = '--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1'
QUICK += ' --xla_llvm_disable_expensive_passes=true'
if jax.__version_info__ < (0, 11):  # later ones abort on the flag
  QUICK += ' --xla_cpu_use_fusion_emitters=false'
# Eight devices on two cores may wait long for each other.
flags = [devices.PATIENCE, QUICK, os.environ.get('XLA_FLAGS', '')]
os.environ['XLA_FLAGS'] = ' '.join(flags)
jax.config.update('jax_num_cpu_devices', 8)
jax.config.update('jax_numpy_rank_promotion', 'raise')
jax.config.update('jax_numpy_dtype_promotion', 'strict')
jax.devices()  # eight, however many a run in this process asks for
# A run would say so, too; many tests call the kernels before any run.
cpu_kernels.keep_in(user_cache.folder())


# The longest tests come first, so that no worker waits for one at the end.
LONGEST = (
  'tests/round/test_round.py',
  'tests/runner/test_faults.py',
  'tests/building/test_experiment.py',
  'tests/runner/',
  'tests/test_site.py',
  'tests/test_frozen.py',
  'tests/test_hospital.py',
  'tests/test_benchmarks.py',
  'tests/data/test_real_data.py',
  'tests/data/test_page.py',
  'tests/sweeps/',
  'tests/config/',
  'tests/round/',
  'tests/building/',
  'tests/planning/',
  'tests/platform/',
  'tests/test_hostile.py',
  'tests/test_untrusted.py',
)


def pytest_collection_modifyitems(items):
  """Sorts the files by LONGEST."""

  def rank(item):
    starts = (i for i, path in enumerate(LONGEST) if item.nodeid.startswith(path))
    return next(starts, len(LONGEST))

  items.sort(key=rank)


def pytest_collection_finish():
  """Exempts modules and tests from the search for cycles."""
  gc.collect()
  gc.freeze()
  gc.set_threshold(20_000, 20, 20)


def pytest_addoption(parser):
  """An option for a machine on which all that the tests need is installed."""
  parser.addoption(
    '--may-skip', help='fails if a test is skipped whose reason has no match for this'
  )


def pytest_terminal_summary(terminalreporter, config):
  """Names the tests that skipped although `--may-skip` does not allow it."""
  if (allowed := config.option.may_skip) is not None:
    for report in terminalreporter.stats.get('skipped', []):
      if not re.search(allowed, reason := report.longrepr[2]):
        terminalreporter.write_line(f'must not be skipped: {report.nodeid}: {reason}')
        terminalreporter._session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_sessionstart(session):
  """Removes the compiled programs that are older than a month."""
  if not hasattr(session.config, 'workerinput'):
    for entry in user_cache.folder().glob('tests/*-cache'):
      if time.time() - entry.stat().st_mtime > 30 * 24 * 3600:
        entry.unlink()


@pytest.fixture
def as_users(monkeypatch):
  """Has a test's processes compile as users' do."""
  monkeypatch.setenv('XLA_FLAGS', devices.PATIENCE)


NEW_MAPPINGS = 10_000  # more than stayed when programs were last dropped
MOST_MAPPINGS = 45_000  # a process has room for 65,530
_mappings_that_stayed = 0  # those of the programs of runs, for the most part


def num_mappings():
  """How many mappings this process has; None if the system does not say."""
  maps = pathlib.Path('/proc/self/maps')
  return maps.read_bytes().count(b'\n') if maps.exists() else None


@pytest.fixture(autouse=True, scope='module')
def forget_programs():
  """Drops the compiled programs, but for those of runs, once new ones are many.

  Each takes some mappings, and memory. Those of runs stay (`tests.programs`), so that
  a plain limit would be passed for ever, and all be traced again in every file.
  """
  global _mappings_that_stayed
  yield
  num = num_mappings()
  if num is None:
    jax.clear_caches()
  elif num > min(_mappings_that_stayed + NEW_MAPPINGS, MOST_MAPPINGS):
    jax.clear_caches()
    _mappings_that_stayed = num_mappings()


draw_pictures = callbacks.PictureDrawer.end


@pytest.fixture(scope='module')
def quick_runs():
  """A file's runs draw no pictures, and trace only programs that no earlier one has."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(programs, 'compile_programs', compile_once)
    patch.setattr(callbacks.PictureDrawer, 'end', lambda self: None)
    yield


@pytest.fixture(scope='module')
def empty_figures():
  """The reports of a file's tests prepare figures, but leave empty files for them."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(Figure, 'savefig', lambda *arguments, **options: None)
    yield


def _forget_parts():
  """Forgets at the end what a test has registered."""
  parts_before = dict(registry._parts)
  yield
  registry._parts.clear()
  registry._parts.update(parts_before)
  registry.every_knob.cache_clear()
  catalog.forget_callbacks()


own_parts = pytest.fixture(_forget_parts)
own_parts_of_the_file = pytest.fixture(_forget_parts, scope='module')


@pytest.fixture(scope='session')
def two_rounds(tmp_path_factory):
  """The run directory of FEDAVG, of which tests take copies."""
  folder = tmp_path_factory.mktemp('two_rounds')
  check_success(launched(folder, [*FEDAVG, '--workdir=run']))
  return folder / 'run'


@pytest.fixture
def disk(tmp_path):
  """Makes small file systems: (name, size) -> the folder where one is mounted."""
  mounted = []

  def mount(name, size):
    folder = tmp_path / name
    folder.mkdir(parents=True, exist_ok=True)
    process = _mount('-t', 'tmpfs', '-o', f'size={size}', 'tmpfs', folder)
    if process.returncode:
      pytest.skip(f'a small disk cannot be mounted here: {process.stderr.strip()}')
    mounted.append(folder)
    return folder

  yield mount
  for folder in reversed(mounted):
    subprocess.run(['umount', '--lazy', folder], check=True)


@pytest.fixture
def remount(disk):
  """Remounts a disk that `disk` made: (folder, options)."""

  def change(folder, options):
    _mount('-o', f'remount,{options}', folder).check_returncode()

  return change


def _mount(*words):
  return subprocess.run(['mount', *words], capture_output=True, text=True)
