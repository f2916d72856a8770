"""Data sets as Hugging Face's Hub has them: read, or refused with a remedy that helps.

Training pictures are dark, test pictures bright, those for validation between them.
"""

import io
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from moon_jax.data.data_errors import DataError
from moon_jax.data.federated import huggingface
from tests.data.federations import datasets, load
from tests.data.layouts import knobs_of
from tests.data.test_split_names import OTHERS, WORDS, styles
from tests.refusals import refused
from tests.selection import few

CATS = datasets.ClassLabel(names=['cat', 'dog'])
LEVELS = {'train': 10, 'test': 200, 'validation': 150}
LABELS = [0, 1] * 6


@pytest.fixture(autouse=True)
def _quiet():
  datasets.disable_progress_bars()


def picture(level, side=8):
  buffer = io.BytesIO()
  Image.new('L', (side, side), level).save(buffer, 'PNG')
  return {'bytes': buffer.getvalue(), 'path': None}


def rows(level, labels=LABELS, feature=CATS, sides=(8,)):
  """A split with a user for each four rows."""
  count = len(labels)
  pictures = [
    picture(level, side) for side in itertools.islice(itertools.cycle(sides), count)
  ]
  columns = {'image': pictures, 'label': labels, 'user': [n // 4 for n in range(count)]}
  features = {'image': datasets.Image(), 'label': feature}
  features['user'] = datasets.Value('int64')
  return datasets.Dataset.from_dict(columns, datasets.Features(features))


def saved(folder, splits):
  """Saves splits, by name; returns the knobs that read them."""
  datasets.DatasetDict(splits).save_to_disk(str(folder / 'set'))
  return knobs_of('huggingface', folder / 'set', client='')


def levels(images):
  return set(np.unique(images))


def require_pure(data, test='test'):
  assert levels(data.train_images) == {LEVELS['train']}
  assert levels(data.test_images) == {LEVELS[test]}


# --- labels ---------------------------------------------------------------------------


@pytest.mark.parametrize(
  ('feature', 'labels', 'names'),
  [
    (datasets.Value('bool'), [False, True] * 6, ('False', 'True')),
    (datasets.List(CATS), [[0], [1]] * 6, ('cat', 'dog')),
    (datasets.List(datasets.Value('int64'), 1), [[0], [1]] * 6, ()),
    (datasets.Value('string'), ['cat', 'dog'] * 6, ('cat', 'dog')),
  ],
)
@pytest.mark.parametrize('client', ['', 'user'])
def test_one_label_of_each_row_is_its_class(feature, labels, names, client, tmp_path):
  splits = {
    'train': rows(LEVELS['train'], labels, feature),
    'test': rows(LEVELS['test'], labels, feature),
  }
  knobs = saved(tmp_path, splits)
  if client and feature == datasets.Value('string'):
    with refused(DataError, 'label.* number the classes'):
      load(knobs, client=client)
    return
  data = load(knobs, client=client)
  assert data.train_labels.tolist() == LABELS
  assert (data.num_classes, data.class_names) == (2, names)
  require_pure(data)


@pytest.mark.parametrize(
  ('feature', 'labels', 'message'),
  [
    (datasets.List(CATS), [[0], [0, 1]] * 6, r'row 1 of train .* 2 labels, \[0, 1\]'),
    (datasets.List(CATS), [[0, 1]] * 12, r'row 0 of train .* 2 labels, \[0, 1\]'),
    (datasets.List(CATS), [[0], []] * 6, r'row 1 of train .* 0 labels, \[\]'),
    (datasets.Value('bool'), [True, None] * 6, 'row 1 of train .* label is None'),
    (datasets.Value('int64'), [0, None] * 6, 'row 1 of train .* it has no label'),
    (CATS, [0, -1] * 6, 'row 1 of train .* label is -1'),
    (datasets.Value('float32'), [0.0, 1.0] * 6, r"cast_column\('label', datasets.Val"),
    (datasets.ClassLabel(names=['cat']), [0] * 12, 'one class only'),
  ],
)
@pytest.mark.parametrize('client', ['', 'user'])
def test_other_labels_are_refused_in_one_line(
  feature, labels, message, client, tmp_path
):
  split = rows(LEVELS['train'], labels, feature)
  with refused(DataError, message):
    load(saved(tmp_path, {'train': split, 'test': split}), client=client)


def test_a_row_without_a_user_is_told(tmp_path):
  split = rows(LEVELS['train'])
  split = split.remove_columns('user').add_column('user', [0, None] * 6)
  knobs = saved(tmp_path, {'train': split, 'test': split})
  with refused(DataError, "the column 'user' names no user in some rows"):
    load(knobs, client='user')


def test_the_remedy_for_float_labels_helps(tmp_path):
  split = rows(LEVELS['train'], [0.0, 1.0] * 6, datasets.Value('float32'))
  split = split.cast_column('label', datasets.Value('int64'))
  assert (
    load(saved(tmp_path, {'train': split, 'test': split})).train_labels.tolist()
    == LABELS
  )


@pytest.mark.parametrize('label', [-1, None])
@pytest.mark.parametrize('client', ['', 'user'])
def test_a_test_without_labels_is_not_used(label, client, tmp_path, capsys):
  """As in ImageNet."""
  splits = {
    'train': rows(LEVELS['train']),
    'test': rows(LEVELS['test'], [label] * 12),
    'validation': rows(LEVELS['validation']),
  }
  data = load(saved(tmp_path, splits), client=client)
  require_pure(data, test='validation')
  assert data.validation_labels is None
  assert (
    "'validation' for test; not used: the split test, which has no labels."
    in capsys.readouterr().err
  )
  del splits['validation']
  knobs = saved(tmp_path / 'new', splits)
  with refused(DataError, 'no test split with labels .*data.test_fraction=0.2'):
    load(knobs, client=client)
  data = load(knobs, client=client, test_fraction=0.2)
  assert levels(data.train_images) == levels(data.test_images) == {LEVELS['train']}


# --- sizes ----------------------------------------------------------------------------


def test_pictures_of_several_sizes_are_resized(tmp_path):
  """As in Food-101."""
  splits = {
    'train': rows(LEVELS['train'], sides=(8, 9)),
    'test': rows(LEVELS['test'], sides=(7,)),
  }
  knobs = saved(tmp_path, splits)
  with refused(DataError, r'\(9, 9, 1\), not \(8, 8, 1\); --config.data.image_size=N'):
    load(knobs)
  for client in ('', 'user'):
    data = load(knobs, client=client, image_size=6)
    assert data.train_images.shape[1:] == data.test_images.shape[1:] == (6, 6, 1)
    require_pure(data)


def test_arrays_are_not_resized(tmp_path):
  features = {'image': datasets.Array2D((4, 4), 'uint8'), 'label': CATS}
  columns = {'image': np.zeros((4, 4, 4), np.uint8), 'label': [0, 1] * 2}
  split = datasets.Dataset.from_dict(columns, datasets.Features(features))
  knobs = saved(tmp_path, {'train': split, 'test': split})
  assert len(load(knobs).train_labels) == 4
  with refused(
    DataError, 'only pictures are resized, .* drop --config.data.image_size'
  ):
    load(knobs, image_size=6)


# --- splits ---------------------------------------------------------------------------


@pytest.mark.parametrize('kind', ['DatasetDict', 'Dataset', 'parquet'])
def test_a_single_split_is_divided_by_class_or_by_user(kind, tmp_path):
  split = rows(LEVELS['train'])
  if kind == 'DatasetDict':
    knobs = saved(tmp_path, {'full': split})
  else:
    knobs = knobs_of('huggingface', tmp_path / 'set', client='')
    if kind == 'Dataset':
      split.save_to_disk(str(tmp_path / 'set'))
    else:
      (tmp_path / 'set/data').mkdir(parents=True)
      split.to_parquet(tmp_path / 'set/data/train-00000-of-00001.parquet')
  with refused(DataError, 'data.test_fraction=0.2 draws a fifth of each class'):
    load(knobs)
  data, same, other = (
    load(knobs, test_fraction=0.34, test_seed=seed) for seed in (0, 0, 1)
  )
  assert np.bincount(data.test_labels).tolist() == [2, 2]
  assert np.bincount(data.train_labels).tolist() == [4, 4]
  np.testing.assert_array_equal(data.test_labels, same.test_labels)
  assert other.test_labels.shape == data.test_labels.shape
  with refused(DataError, 'data.test_fraction=0.2 draws a fifth of each user'):
    load(knobs, client='user')
  data = load(knobs, client='user', test_fraction=0.25)
  assert np.bincount(data.test_clients).tolist() == [1, 1, 1]
  assert np.bincount(data.train_clients).tolist() == [3, 3, 3]


@pytest.mark.parametrize('name', ['validation', 'test'])
def test_a_split_that_is_alone_is_divided_whatever_its_name(name, tmp_path, capsys):
  knobs = saved(tmp_path, {name: rows(LEVELS['train'])})
  only_split = f'{name!r}, the only split, for training'
  with refused(DataError, rf'{only_split}\). --config.data.test_fraction=0.2 draws'):
    load(knobs)
  data = load(knobs, test_fraction=0.34)
  assert np.bincount(data.test_labels).tolist() == [2, 2]
  assert only_split in capsys.readouterr().err


@pytest.mark.parametrize('is_parquet', few([False], [True]))
@pytest.mark.parametrize(
  ('train', 'test', 'not_used'),
  [
    ('train', 'eval', ''),
    ('training', 'holdout', ''),
    ('seg_train', 'seg_test', ''),
    ('Train', 'dev', ''),
    ('train', 'test', 'train_extra'),
    ('train', 'test', 'unsupervised'),
    ('train', 'test', 'eval'),
  ],
)
def test_splits_are_known_by_a_word(
  train, test, not_used, is_parquet, tmp_path, capsys
):
  splits = {train: rows(LEVELS['train']), test: rows(LEVELS['test'])}
  if not_used:
    splits[not_used] = rows(LEVELS['validation'])
  if is_parquet:
    for name, split in splits.items():
      (tmp_path / 'set/data').mkdir(parents=True, exist_ok=True)
      separator = '_' if name == 'train_extra' else '-'
      split.to_parquet(tmp_path / f'set/data/{name}{separator}00000-of-00001.parquet')
    knobs = knobs_of('huggingface', tmp_path / 'set', client='')
  else:
    knobs = saved(tmp_path, splits)
  require_pure(load(knobs))
  line = f'not used: the split {not_used}.' if not_used else ''
  said = capsys.readouterr().err
  assert line in said
  assert (f'{test!r} for test' in said) == ('test' not in test)
  with refused(DataError, 'is divided already: drop --config.data.test_fraction'):
    load(knobs, test_fraction=0.2)


@pytest.mark.parametrize(
  ('names', 'message'),
  [
    (
      ['train', 'my_eval', 'holdout'],
      'holdout and my_eval would each be the test split',
    ),
    (
      ['seg_train', 'training', 'test'],
      'seg_train and training would each be the train',
    ),
    (['test', 'public'], "none of its splits, public, test, is called 'train'"),
  ],
)
def test_splits_that_may_be_read_twice_are_refused(names, message, tmp_path):
  split = rows(LEVELS['train'])
  with refused(DataError, message):
    load(saved(tmp_path, dict.fromkeys(names, split)))


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(
  style=styles,
  words=st.sets(st.sampled_from(sum(WORDS.values(), ())), min_size=1),
  others=st.sets(st.sampled_from(OTHERS), max_size=2),
)
def test_every_split_is_chosen_for_its_word_or_named(style, words, others):
  roles = {style.name(word): role for role in WORDS for word in WORDS[role]}
  names = {style.name(word) for word in words} | others
  chosen, message = None, ''
  try:
    chosen = huggingface._chosen(names)
  except ValueError as error:
    message = str(error)
  if chosen is None:
    assert all(name in message for name in names)
    return
  assert sorted([*chosen.names, *chosen.others]) == sorted(names)
  for role in WORDS:
    name = getattr(chosen, role)
    if name in roles:
      assert roles[name] == role or len(names) == 1


def test_folders_that_have_splits_each_are_named_with_their_flag(tmp_path):
  for folder, split in itertools.product('ab', ('train', 'test')):
    (tmp_path / folder).mkdir(exist_ok=True)
    rows(LEVELS[split]).to_parquet(tmp_path / folder / f'{split}.parquet')
  knobs = knobs_of('huggingface', tmp_path, client='')
  with refused(DataError, f"choose --config.data.path='{tmp_path}/a' or .*/b'"):
    load(knobs)
  require_pure(load(knobs, path=str(tmp_path / 'a')))
