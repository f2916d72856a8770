"""A folder is what was written, or the manifest says what is wrong with it."""

import json
import pathlib
import shutil

import pytest

from moon_jax.core.errors import ExitCode, NoCheckpointError
from moon_jax.runner import saved_state

MISSING = 'cannot be read: No such file or directory'


@pytest.fixture
def folder(tmp_path):
  (tmp_path / 'deep/er').mkdir(parents=True)
  (tmp_path / 'one').write_bytes(b'first')
  (tmp_path / 'deep/er/two').write_bytes(b'')
  saved_state.write_manifest(tmp_path, 12)
  return tmp_path


def test_the_manifest_by_hand(folder):
  content = json.loads((folder / saved_state.MANIFEST).read_text())
  # `printf first | sha256sum`, and that of nothing.
  assert content['files'] == {
    'deep/er/two': {
      'bytes': 0,
      'sha256': 'e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855',
    },
    'one': {
      'bytes': 5,
      'sha256': 'a7937b64b8caa58f03721bb6bacf5c78cb235febe0e70b1b84cd99541461a08e',
    },
  }
  assert content['round'] == 12
  assert saved_state.fault(folder, 12) == ''


def test_a_manifest_that_says_something_else_is_damage(folder):
  whole = (folder / saved_state.MANIFEST).read_bytes()
  num_told = 0
  for position in range(len(whole)):
    flipped = bytearray(whole)
    flipped[position] ^= 1 << position % 8
    (folder / saved_state.MANIFEST).write_bytes(flipped)
    try:
      told = saved_state.fault(folder, 12)
    except NoCheckpointError:  # the number of the format
      told = 'another format'
    # Only white space and the version that wrote it may change unseen.
    for name in () if told else ('format', 'round', 'files'):
      assert json.loads(flipped)[name] == json.loads(whole)[name], flipped
    num_told += bool(told)
  assert num_told > 0.8 * len(whole)


@pytest.mark.parametrize(
  'text', ['', '{"format": 3, "rou', '[]', '{}', '{"format": 3}']
)
def test_what_is_no_manifest_is_damage(folder, text):
  (folder / saved_state.MANIFEST).write_text(text)
  assert saved_state.fault(folder, 12) == 'manifest.json has changed'


def to_a_folder(path):
  path.unlink()
  path.mkdir()


@pytest.mark.parametrize(
  ('name', 'damage', 'reason'),
  [
    ('not_saved', lambda path: path.write_text('by somebody else'), ''),
    ('one', lambda path: path.write_bytes(b'First'), 'one has changed'),
    ('one', lambda path: path.write_bytes(b'fir'), 'one has changed'),
    ('one', to_a_folder, 'one has changed'),
    ('deep/er/two', lambda path: path.write_bytes(b'x'), 'deep/er/two has changed'),
    ('deep/er/two', pathlib.Path.unlink, f'two {MISSING}'),
    ('manifest.json', pathlib.Path.unlink, f'manifest.json {MISSING}'),
    ('', shutil.rmtree, f'manifest.json {MISSING}'),
  ],
)
def test_faults(folder, name, damage, reason):
  damage(folder / name)
  assert saved_state.fault(folder, 12) == reason


def test_a_folder_under_another_name(folder):
  assert saved_state.fault(folder, 13) == 'it holds round 12'
  file = 'manifest.json cannot be read: Not a directory'
  assert saved_state.fault(folder / 'one', 12) == file
  assert saved_state.fault(folder / 'nothing', 12) == f'manifest.json {MISSING}'


@pytest.mark.parametrize(
  ('content', 'wrote'),
  [
    (
      {'format': 1, 'sha256': 'a' * 64},
      'format 1, which moon_jax 0.2.0 or older wrote',
    ),
    ({'format': 2}, 'format 2, which moon_jax 0.2.0 or older wrote'),
    # As a later version might write it: a format is all that must be there.
    ({'format': 4, 'moon_jax': '9.1.0'}, 'format 4, which moon_jax 9.1.0 wrote'),
    ({'format': 'x'}, "format 'x', which moon_jax 0.2.0 or older wrote"),
  ],
)
def test_another_format_is_told_from_damage(folder, content, wrote):
  (folder / saved_state.MANIFEST).write_text(json.dumps(content))
  with pytest.raises(NoCheckpointError, match=wrote) as caught:
    saved_state.fault(folder, 12)
  assert caught.value.exit_code == ExitCode.NO_CHECKPOINT
  assert '\n' not in str(caught.value)
