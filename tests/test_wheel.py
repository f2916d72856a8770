"""An installed copy runs in a folder with config files of the user's own."""

import pathlib
import shutil
import site
import subprocess
import sys
import zipfile

import pytest

from tests.processes import LIMIT_SECONDS

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parents[1]
SOURCES = ('moon_jax', 'configs', 'pyproject.toml', 'setup.py', 'README.md', 'LICENSE')

# A config file of the user's that builds on one of ours.
DERIVED = """
from moon_jax.config import import_config

def get_config():
  config = import_config('configs/digits_moon.py').get_config()
  config.num_rounds = 1
  return config
"""
# A config file of the user's that has the name of one of ours.
SAME_NAME = """
from moon_jax.config import defaults

def get_config():
  config = defaults()
  config.seed = 7
  return config
"""


def output_of(*command, folder):
  process = subprocess.run(
    command,
    cwd=folder,
    capture_output=True,
    text=True,
    timeout=LIMIT_SECONDS,
    check=False,
  )
  assert process.returncode == 0, process.stderr
  return process.stdout


@pytest.fixture(scope='module')
def wheel(tmp_path_factory):
  """The wheel of the repository; the build leaves nothing in the checkout."""
  folder = tmp_path_factory.mktemp('build')
  for name in SOURCES:
    if (ROOT / name).is_dir():
      ignored = shutil.ignore_patterns('__pycache__')
      shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    else:
      shutil.copy(ROOT / name, folder)
  options = ('--quiet', '--no-deps', '--no-build-isolation', '--wheel-dir', '.')
  output_of(sys.executable, '-m', 'pip', 'wheel', *options, '.', folder=folder)
  (path,) = folder.glob('*.whl')
  return path


@pytest.fixture(scope='module')
def programs(wheel, tmp_path_factory):
  """The folder of programs of a new environment with the wheel."""
  folder = tmp_path_factory.mktemp('environment')
  output_of(sys.executable, '-m', 'venv', '--without-pip', '.', folder=folder)
  (packages,) = folder.glob('lib/python*/site-packages')
  # What moon_jax depends on comes from the environment of the tests.
  (packages / 'dependencies.pth').write_text('\n'.join(site.getsitepackages()))
  python = str(folder / 'bin/python')
  install = ('-m', 'pip', '--python', python, 'install', '--quiet', '--no-deps')
  output_of(sys.executable, *install, str(wheel), folder=folder)
  return folder / 'bin'


@pytest.fixture
def working_folder(tmp_path):
  """A working directory with a folder configs/ of the user's own."""
  (tmp_path / 'configs').mkdir()
  (tmp_path / 'configs/derived.py').write_text(DERIVED)
  return tmp_path


def test_the_wheel_has_the_config_files_inside_the_package(wheel):
  names = zipfile.ZipFile(wheel).namelist()
  tops = {name.partition('/')[0] for name in names if '.dist-info/' not in name}
  assert tops == {'moon_jax'}
  folder = 'moon_jax/_shipped/configs/'
  shipped = {name.removeprefix(folder) for name in names if name.startswith(folder)}
  assert shipped == {path.name for path in (ROOT / 'configs').glob('*.py')}


def test_our_config_files_and_the_users_run(programs, working_folder):
  command = (str(programs / 'moon-jax'), '--config.data.limit=300')
  ours = ('--config=configs/digits_moon.py', '--config.num_rounds=1')
  output_of(*command, *ours, '--workdir=ours', folder=working_folder)
  output_of(
    *command, '--config=configs/derived.py', '--workdir=users', folder=working_folder
  )
  for run in ('ours', 'users'):
    assert (working_folder / run / 'summary.json').exists()


def test_a_file_of_the_user_comes_before_ours(programs, working_folder):
  (working_folder / 'configs/digits_moon.py').write_text(SAME_NAME)
  names = ('digits_moon', 'derived', 'fashion_mnist_moon')
  code = 'import moon_jax\n' + '\n'.join(
    f"print(moon_jax.load_config('configs/{name}.py').seed)" for name in names
  )
  output = output_of(str(programs / 'python'), '-c', code, folder=working_folder)
  assert output.split() == ['7', '7', '0']


def test_nothing_named_configs_can_be_imported(programs, tmp_path):
  code = "from importlib import util; print(util.find_spec('configs'))"
  output = output_of(str(programs / 'python'), '-c', code, folder=tmp_path)
  assert output == 'None\n'
