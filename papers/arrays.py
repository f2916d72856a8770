"""Writes the data of configs/arrays.py: five sets whose users are people or sites.

  python -m papers.arrays FOLDER OUT

FOLDER has watch.npz, audio_prompts.npz, randhie.npz, sotu.npz and
shakespeare_roles.npz, with train_x, train_y, train_users, test_x, test_y and
test_users; docs/experiments.md says where they are from. OUT gets NAME.npz, in which
all users train, and NAME_unseen.npz, in which the last fifth of the users (by number,
rounded up) does not train: all their examples are test examples.
"""

import pathlib
import sys

import numpy as np

# Characters before the one to predict; the files have 80.
CONTEXT = 10
NAMES = ('watch', 'audio_prompts', 'randhie', 'sotu', 'shakespeare_roles')
TEXTS = ('sotu', 'shakespeare_roles')


def read(path: pathlib.Path) -> dict[str, np.ndarray]:
  """The arrays of a file, with the names that `data.source=npz` reads."""
  with np.load(path) as file:
    arrays = {
      'train_x': file['train_x'],
      'train_y': file['train_y'],
      'train_client': file['train_users'],
      'test_x': file['test_x'],
      'test_y': file['test_y'],
      'test_client': file['test_users'],
    }
    if path.stem in TEXTS:
      arrays['class_names'] = file['vocab']
  for part in ('train_x', 'test_x'):
    if path.stem in TEXTS:
      arrays[part] = arrays[part][:, -CONTEXT:].astype(np.int32)
    else:
      arrays[part] = arrays[part].astype(np.float32)
  return arrays


def with_unseen_users(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
  """The same, with all examples of the last fifth of the users in the test."""
  num_users = int(arrays['train_client'].max()) + 1
  num_unseen = -(-num_users // 5)
  is_unseen = arrays['train_client'] >= num_users - num_unseen
  divided = dict(arrays)
  for part in ('x', 'y', 'client'):
    train, test = arrays[f'train_{part}'], arrays[f'test_{part}']
    divided[f'train_{part}'] = train[~is_unseen]
    divided[f'test_{part}'] = np.concatenate([test, train[is_unseen]])
  return divided


def main(folder: str, out: str) -> None:
  """Writes all files."""
  pathlib.Path(out).mkdir(parents=True, exist_ok=True)
  for name in NAMES:
    arrays = read(pathlib.Path(folder, f'{name}.npz'))
    np.savez_compressed(pathlib.Path(out, f'{name}.npz'), **arrays)
    divided = with_unseen_users(arrays)
    np.savez_compressed(pathlib.Path(out, f'{name}_unseen.npz'), **divided)


if __name__ == '__main__':
  main(*sys.argv[1:])
