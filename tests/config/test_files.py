"""Config files that build on other config files."""

import itertools
import re

import pytest

from moon_jax import config

# In get_config, and so when the module of the file has been made.
BUILDS_ON_OURS = """
from moon_jax.config import import_config

def get_config():
  config = import_config('configs/digits_moon.py').get_config()
  config.seed += 7
  return config
"""
# While the module is being made.
HAS_OUR_VARIANTS = """
from moon_jax.config import import_config

moon_cvpr21 = import_config('moon_cvpr21.py', relative_to=__file__)
VARIANTS = moon_cvpr21.VARIANTS
get_config = moon_cvpr21.get_config
"""
ASKS_FOR_ITSELF = """
from moon_jax.config import import_config

import_config('configs/mine.py')
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
  """The folder configs/ of the working directory."""
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'configs').mkdir()
  return tmp_path / 'configs'


def test_a_file_builds_on_ours_of_the_same_name(folder):
  (folder / 'digits_moon.py').write_text(BUILDS_ON_OURS)
  (folder / 'moon_cvpr21.py').write_text(HAS_OUR_VARIANTS)
  assert config.load('configs/digits_moon.py')['seed'] == 7
  assert config.load('configs/moon_cvpr21.py:moon')['moon.mu'] == 5.0


def test_a_file_builds_on_the_users_before_ours(folder):
  (folder / 'digits_moon.py').write_text(BUILDS_ON_OURS)
  (folder / 'mine.py').write_text(BUILDS_ON_OURS)
  assert config.load('configs/mine.py')['seed'] == 14


IMPORTS = """
from moon_jax.config import import_config

imported = import_config('{}.py', relative_to=__file__)
get_config = imported.get_config
"""
IMPORTS_WHEN_CALLED = """
from moon_jax.config import import_config

def get_config():
  return import_config('{}.py', relative_to=__file__).get_config()
"""


@pytest.mark.parametrize('text', [IMPORTS, IMPORTS_WHEN_CALLED])
@pytest.mark.parametrize('names', ['ab', 'abc'])
def test_files_that_import_each_other(folder, text, names):
  for name, imported in itertools.pairwise(names + names[0]):
    (folder / f'{name}.py').write_text(text.format(imported))
  # The file of `--config` need not be one of them.
  (folder / 'mine.py').write_text(text.format('a'))
  for start in ('a', 'mine'):
    with pytest.raises(config.ConfigError) as raised:
      config.load(f'configs/{start}.py')
    (circle,) = re.fullmatch(
      '--config: the files (.*) import each other: move .*', str(raised.value)
    ).groups()
    files = circle.split(' -> ')
    assert len(files) == len(names) + 1
    assert files[0] == files[-1]
    assert {*files} == {f'{name}.py' for name in names}


def test_a_file_that_asks_for_itself_alone(folder):
  (folder / 'mine.py').write_text(ASKS_FOR_ITSELF)
  with pytest.raises(config.ConfigError) as raised:
    config.load('configs/mine.py')
  assert str(raised.value) == (
    "--config='configs/mine.py' failed, line 4: import_config('configs/mine.py'): "
    'there is no other file of this name.'
  )
