"""Config files that build on other config files."""

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


def test_a_file_that_asks_for_itself_alone(folder):
  (folder / 'mine.py').write_text(ASKS_FOR_ITSELF)
  with pytest.raises(config.ConfigError) as raised:
    config.load('configs/mine.py')
  assert str(raised.value) == (
    "--config='configs/mine.py' failed, line 4: import_config('configs/mine.py'): "
    'there is no such file.'
  )
