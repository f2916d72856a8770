"""A folder is what was written, or the manifest says what is wrong with it."""

import hashlib
import json

import pytest

from moon_jax.errors import ExitCode, NoCheckpointError
from moon_jax.runner import manifest


@pytest.fixture
def folder(tmp_path):
  (tmp_path / 'deep/er').mkdir(parents=True)
  (tmp_path / 'one').write_bytes(b'first')
  (tmp_path / 'deep/er/two').write_bytes(b'')
  manifest.write(tmp_path, 12)
  return tmp_path


def test_the_manifest_by_hand(folder):
  content = json.loads((folder / manifest.NAME).read_text())
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


def test_every_byte_of_the_manifest_counts(folder):
  whole = (folder / manifest.NAME).read_bytes()
  for position in range(len(whole)):
    flipped = bytearray(whole)
    flipped[position] ^= 1 << position % 8
    for damaged in (flipped, whole[:position]):
      (folder / manifest.NAME).write_bytes(damaged)
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
  (folder / manifest.NAME).unlink()


def damage_all(folder):
  for path in (folder / 'one', folder / 'deep/er/two', folder / manifest.NAME):
    path.unlink()
  (folder / 'deep/er').rmdir()
  (folder / 'deep').rmdir()


@pytest.mark.parametrize(
  ('damage', 'reason'),
  [
    (damage_nothing, ''),
    (damage_content, 'one has changed'),
    (damage_size, 'one has 3 of 5 bytes'),
    (damage_empty_file, 'deep/er/two has 1 of 0 bytes'),
    (damage_missing, 'deep/er/two is missing'),
    (damage_kind, 'one is missing'),
    (damage_manifest, 'it has no manifest.json'),
    (damage_all, 'it is empty'),
  ],
)
def test_faults(folder, damage, reason):
  damage(folder)
  assert manifest.fault(folder, 12) == reason


def test_a_folder_under_another_name(folder):
  assert manifest.fault(folder, 13) == 'it holds round 12'
  assert manifest.fault(folder / 'one', 12) == 'it is no folder'
  assert manifest.fault(folder / 'nothing', 12) == 'it is no folder'


def test_another_format_is_told_from_damage(folder):
  # As a later version might write it: a format and a digest are all that must be there.
  content = {'format': 2, 'arrays': ['w']}
  digest = hashlib.sha256(json.dumps(content).encode()).hexdigest()
  text = json.dumps(content | {'sha256': digest}, indent=1) + '\n'
  (folder / manifest.NAME).write_text(text)
  with pytest.raises(NoCheckpointError, match=r'format 2, and .* format 1') as caught:
    manifest.fault(folder, 12)
  assert caught.value.exit_code == ExitCode.NO_CHECKPOINT
  assert '\n' not in str(caught.value)
  (folder / manifest.NAME).write_text(text.replace('"format": 2', '"format": 3'))
  assert manifest.fault(folder, 12) == 'manifest.json has changed'
