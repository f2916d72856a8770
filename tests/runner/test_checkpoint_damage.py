"""A folder is what was written, or the manifest says what is wrong with it."""

import json

import pytest

from moon_jax.errors import ExitCode, NoCheckpointError
from moon_jax.runner import manifest

MISSING = 'cannot be read: No such file or directory'


@pytest.fixture
def folder(tmp_path):
  (tmp_path / 'deep/er').mkdir(parents=True)
  (tmp_path / 'one').write_bytes(b'first')
  (tmp_path / 'deep/er/two').write_bytes(b'')
  manifest.write(tmp_path, 12)
  return tmp_path


def test_the_manifest_by_hand(folder):
  content = json.loads((folder / manifest.MANIFEST).read_text())
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
  assert manifest.fault(folder, 12) == ''


def test_a_manifest_that_says_something_else_is_damage(folder):
  whole = (folder / manifest.MANIFEST).read_bytes()
  num_told = 0
  for position in range(len(whole)):
    flipped = bytearray(whole)
    flipped[position] ^= 1 << position % 8
    (folder / manifest.MANIFEST).write_bytes(flipped)
    try:
      told = manifest.fault(folder, 12)
    except NoCheckpointError:  # the number of the format
      told = 'another format'
    # Only white space may change unseen.
    assert told or json.loads(flipped) == json.loads(whole), flipped
    num_told += bool(told)
  assert num_told > 0.8 * len(whole)


@pytest.mark.parametrize(
  'text', ['', '{"format": 2, "rou', '[]', '{}', '{"format": 2}']
)
def test_what_is_no_manifest_is_damage(folder, text):
  (folder / manifest.MANIFEST).write_text(text)
  assert manifest.fault(folder, 12) == 'manifest.json has changed'


def damage_nothing(folder):
  (folder / 'not_saved').write_text('by somebody else')


def damage_content(folder):
  (folder / 'one').write_bytes(b'First')


def damage_size(folder):
  (folder / 'one').write_bytes(b'fir')


def damage_empty_file(folder):
  (folder / 'deep/er/two').write_bytes(b'x')


def damage_missing(folder):
  (folder / 'deep/er/two').unlink()


def damage_kind(folder):
  (folder / 'one').unlink()
  (folder / 'one').mkdir()


def damage_manifest(folder):
  (folder / manifest.MANIFEST).unlink()


def damage_all(folder):
  for path in (
    folder / 'one',
    folder / 'deep/er/two',
    folder / manifest.MANIFEST,
  ):
    path.unlink()
  (folder / 'deep/er').rmdir()
  (folder / 'deep').rmdir()


@pytest.mark.parametrize(
  ('damage', 'reason'),
  [
    (damage_nothing, ''),
    (damage_content, 'one has changed'),
    (damage_size, 'one has changed'),
    (damage_empty_file, 'deep/er/two has changed'),
    (damage_missing, f'two {MISSING}'),
    (damage_kind, 'one has changed'),
    (damage_manifest, f'manifest.json {MISSING}'),
    (damage_all, f'manifest.json {MISSING}'),
  ],
)
def test_faults(folder, damage, reason):
  damage(folder)
  assert manifest.fault(folder, 12) == reason


def test_a_folder_under_another_name(folder):
  assert manifest.fault(folder, 13) == 'it holds round 12'
  file = 'manifest.json cannot be read: Not a directory'
  assert manifest.fault(folder / 'one', 12) == file
  assert manifest.fault(folder / 'nothing', 12) == f'manifest.json {MISSING}'


def test_another_format_is_told_from_damage(folder):
  # As a later version might write it: a format is all that must be there.
  (folder / manifest.MANIFEST).write_text('{"format": 4, "arrays": ["w"]}')
  with pytest.raises(NoCheckpointError, match=r'format 4, and .* format 3') as caught:
    manifest.fault(folder, 12)
  assert caught.value.exit_code == ExitCode.NO_CHECKPOINT
  assert '\n' not in str(caught.value)


def test_a_manifest_of_format_1_has_a_digest_of_itself_too(folder):
  content = json.loads((folder / manifest.MANIFEST).read_text())
  older = json.dumps(content | {'format': 1, 'sha256': 'a' * 64})
  (folder / manifest.MANIFEST).write_text(older)
  assert manifest.fault(folder, 12) == ''
