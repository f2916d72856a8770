"""Folders and splits by any name: each picture is in its split, or all is refused."""

import contextlib
import io
import pathlib
import re
import shlex
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from PIL import Image

from moon_jax.data import split_names
from moon_jax.data.data_errors import DataError
from tests.data import federations, layouts
from tests.data.federations import load
from tests.data.layouts import knobs_of
from tests.selection import few

# Grey level of the pictures of each split.
LEVELS = {'train': 10, 'test': 200, 'validation': 150, 'other': 100}
SIDE = 2


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path_factory.mktemp('cache')))


def png(level):
  buffer = io.BytesIO()
  Image.new('L', (SIDE, SIDE), level).save(buffer, 'PNG')
  return buffer.getvalue()


PICTURES = {split: png(level) for split, level in LEVELS.items()}


def put(folder, split, count=2):
  folder.mkdir(parents=True, exist_ok=True)
  for n in range(count):
    (folder / f'{n}.png').write_bytes(PICTURES[split])


class Loaded(NamedTuple):
  """What came of a folder.

  Attributes:
    data: the data set; None if it was refused.
    said: the message of the refusal, or the lines that were printed.
  """

  data: object
  said: str


def loaded(path, **options):
  lines = io.StringIO()
  with contextlib.redirect_stderr(lines):
    try:
      return Loaded(load(knobs_of('imagefolder', path), **options), lines.getvalue())
    except DataError as error:
      message = str(error)
      assert message.isprintable()
      return Loaded(None, message)


FLAG = re.compile(r"--config\.data\.(path|test_fraction)=((?:'[^']*'|\\'|[\w.])+)")


def remedies(message):
  """The flags that a message recommends, as a shell reads them."""
  flags = [(name, shlex.split(value)[0]) for name, value in FLAG.findall(message)]
  return [(name, value.rstrip('.')) for name, value in flags[1:]]


def require_pure(outcome, expected_counts, path, **options):
  """No picture of one split is in another; the remedies of a refusal keep it so."""
  if outcome.data is None:
    for name, text in remedies(outcome.said):
      followed = {'path': path} | options
      followed[name] = float(text) if name == 'test_fraction' else text
      assert followed != {'path': path} | options
      again = loaded(**followed)
      require_pure(again, expected_counts, **followed)
      assert again.data is not None
    return
  assert set(np.unique(outcome.data.train_images)) == {LEVELS['train']}
  levels = [LEVELS[split] for split in ('test', 'validation') if expected_counts[split]]
  if levels:
    assert set(np.unique(outcome.data.test_images)) == {levels[0]}
    assert len(outcome.data.train_labels) == expected_counts['train']
    assert len(outcome.data.test_labels) in expected_counts.values()
  if outcome.data.validation_images is not None:
    assert set(np.unique(outcome.data.validation_images)) == {LEVELS['validation']}


# --- names ----------------------------------------------------------------------------


@pytest.mark.parametrize(
  ('name', 'role'),
  [
    *((name, 'train') for name in ('train', 'TRAIN', 'Training_Data', 'trainset')),
    *((name, 'train') for name in ('seg_train', 'train-32', 'my train', 'segTrain')),
    *((name, 'test') for name in ('test1', 'test_images', 'eval', 'hold-out', 'teSt')),
    *((name, 'validation') for name in ('val', 'validation set', 'dev', 'cifar.valid')),
    *((name, 'several') for name in ('trainval', 'train_test_split')),
    *((name, '') for name in ('strain', 'latest', 'device', 'oval', '7', 'détest')),
  ],
)
def test_a_word_of_a_name_is_its_split(name, role):
  assert split_names.parse(name).role == role


# --- folders --------------------------------------------------------------------------

CLASSES = ('cat', 'dog')


def divided(folder, folders_by_split, classes=CLASSES):
  for split, name in folders_by_split.items():
    for label in classes:
      put(folder / name / label, split)


@pytest.mark.parametrize(
  ('train', 'test'),
  [
    *(
      ('seg_train', 'seg_test'),
      ('cifar_train', 'cifar_test'),
      ('train-32', 'test-32'),
    ),
    *(('train', 'eval'), ('Training_Data', 'Testing_Data'), ('my-train', 'my-dev')),
    *(('mytrain', 'mytest'), ('traincats', 'devcats')),
    *(('TRAIN', 'TEST'), ('trainset', 'testset'), ('train images', 'validation set')),
    *(('training', 'holdout'), ('segTrain', 'segTest'), ('imgs.train', 'imgs.eval')),
    # As Kaggle packs them.
    *(('seg_train/seg_train', 'seg_test/seg_test'), ('train/train', 'test/Test')),
    *(('archive/train', 'archive/test'), ('a/b/train', 'a/b/val')),
    ('chest_xray/train', 'chest_xray/test'),
    ('train_data/train', 'train_data/test'),
    ('train/train', 'train/val'),
  ],
)
def test_a_split_by_its_word_is_that_split(train, test, tmp_path):
  divided(tmp_path, {'train': train, 'test': test})
  (tmp_path / 'README.md').write_text('none')
  outcome = loaded(tmp_path)
  counts = {'train': 4, 'test': 4, 'validation': 0}
  require_pure(outcome, counts, tmp_path)
  assert outcome.data is not None
  if train in ('mytrain', 'traincats') or 'test' not in test.lower():
    names = [pathlib.Path(name).name for name in (train, test)]
    assert f'{names[0]!r} for training, {names[1]!r} for test.' in outcome.said
  else:
    assert not outcome.said
  assert outcome.data.class_names == CLASSES
  assert outcome.data.clients is None
  assert 'is divided already' in loaded(tmp_path, test_fraction=0.2).said


@pytest.mark.parametrize(
  ('names', 'parts'),
  [
    (['train', 'training', 'test'], ["'train' and 'training'", 'train split']),
    (['train', 'Train-2', 'val'], ["'Train-2' and 'train'", 'train split']),
    (['train', 'test', 'eval'], ["'eval' and 'test'", 'test split']),
    (['train', 'val', 'dev', 'test'], ["'dev' and 'val'", 'validation split']),
    # These may be domains or classes, too.
    (['train', 'bus', 'car'], ["If 'train' is a split", 'bus, car, train']),
    (['test', 'bus'], ["If 'test' is a split"]),
    (['train_val', 'sketch'], ["'train_val' is a split"]),
    # The splits lie deeper, more than once.
    (
      ['a/train', 'a/test', 'b/train', 'b/test'],
      ["/a' or --config.data.path=", "/b'", 'train/SITE/CLASS/* and test/SITE/CLASS/*'],
    ),
    (['a/train', 'a/test', 'sample'], ['sample', "/a'"]),
    (['x/y'], ["/x/y' has"]),
  ],
)
@pytest.mark.parametrize('fraction', [0.0, 0.2])
def test_what_may_be_read_twice_is_refused(names, parts, fraction, tmp_path):
  for name in names:
    for label in CLASSES:
      level = 'test' if re.search('test|eval', name) else 'train'
      put(tmp_path / name / label, level)
  outcome = loaded(tmp_path, test_fraction=fraction)
  assert outcome.data is None
  for part in parts:
    assert part in outcome.said
  assert 'test_fraction' not in outcome.said


@pytest.mark.parametrize(
  'classes',
  [
    ('bus', 'car', 'train'),
    ('set1', 'set2'),
    ('beaker', 'test_tube'),
    ('test_tube', 'train'),
  ],
)
@pytest.mark.parametrize('inside', ['', 'images'])
@pytest.mark.parametrize('split', ['', 'train/'])
def test_a_class_may_have_a_word_of_a_split(classes, inside, split, tmp_path):
  for label in classes:
    put(tmp_path / f'{split}{label}' / inside, 'train', 4)
  outcome = loaded(tmp_path)
  assert remedies(outcome.said) == [('test_fraction', '0.2')]
  require_pure(outcome, {'test': 0, 'validation': 0}, tmp_path)
  data = loaded(tmp_path, test_fraction=0.2).data
  assert data.class_names == classes
  assert len(data.train_labels) == 3 * len(classes)


@pytest.mark.parametrize(
  ('names', 'part'),
  [
    (['cat', 'dog', 'test'], "'test' is a split"),
    (['train_cat', 'train_dog', 'test_cat', 'test_dog'], "'test_cat' and 'test_dog'"),
    (['trainseg', 'testseg', 'dog'], "'testseg' and 'trainseg'"),
    (['train', 'test1'], 'would be the classes'),
    (['cat'], "one class only, 'cat'"),
  ],
)
@pytest.mark.parametrize('fraction', [0.0, 0.2])
def test_splits_are_not_taken_for_classes(names, part, fraction, tmp_path):
  for name in names:
    put(tmp_path / name, 'train')
  outcome = loaded(tmp_path, test_fraction=fraction)
  assert outcome.data is None
  assert part in outcome.said
  assert 'test_fraction' not in outcome.said


@pytest.mark.parametrize('name', [r'a\b', "it's $HOME", 'two words', 'x[1]*'])
def test_a_flag_in_a_message_is_right_in_a_shell(name, tmp_path):
  for wrapper in ('a', 'b'):
    divided(tmp_path / name / wrapper, {'train': 'seg_train', 'test': 'seg_test'})
  outcome = loaded(tmp_path / name)
  paths = [('path', f'{tmp_path}/{name}/{wrapper}') for wrapper in ('a', 'b')]
  assert remedies(outcome.said) == paths
  counts = {'train': 4, 'test': 4, 'validation': 0}
  require_pure(outcome, counts, tmp_path / name)


def test_a_folder_that_is_not_used_is_named(tmp_path):
  """As in Intel's images: seg_pred/ has no classes."""
  folders = {'train': 'seg_train/seg_train', 'test': 'seg_test/seg_test'}
  divided(tmp_path, folders)
  put(tmp_path / 'seg_pred/seg_pred', 'other')
  for _ in range(2):  # also when the images come from the cache
    outcome = loaded(tmp_path)
    require_pure(outcome, {'train': 4, 'test': 4, 'validation': 0}, tmp_path)
    (line,) = outcome.said.splitlines()
    assert line.endswith(
      "'seg_train' for training, 'seg_test' for test; not used: seg_pred."
    )


def test_a_training_folder_beside_others_can_be_given_alone(tmp_path):
  divided(tmp_path, {'train': 'train', 'other': 'bus'})
  for path in (tmp_path, remedies(loaded(tmp_path).said)[0][1]):
    outcome = loaded(path)
    assert outcome.data is None
  assert remedies(outcome.said) == [('test_fraction', '0.2')]
  data = loaded(path, test_fraction=0.2).data
  assert data.train_images.max() == data.test_images.max() == LEVELS['train']


def test_a_domain_that_no_list_names_is_named(tmp_path):
  knobs = layouts.domainnet(tmp_path, federations.make_federation())
  for label in CLASSES:
    put(tmp_path / 'set/infograph' / label, 'other')
  outcome = loaded(knobs['data.path'])
  assert len(outcome.data.train_labels) == 52
  assert 'not used, because no list names them: infograph.' in outcome.said


def test_test_images_without_classes_are_not_drawn_from(tmp_path):
  divided(tmp_path, {'train': 'train'})
  put(tmp_path / 'test', 'test')
  outcome = loaded(tmp_path)
  assert remedies(outcome.said) == [('test_fraction', '0.2')]
  data = loaded(tmp_path, test_fraction=0.2)
  assert "'train' for training; not used: test.\n" in data.said
  assert data.data.train_images.max() == data.data.test_images.max() == LEVELS['train']


# --- any names ------------------------------------------------------------------------

WORDS = {
  'train': ('train', 'training', 'trn'),
  'test': ('test', 'testing', 'tst', 'eval', 'evaluation', 'holdout', 'hold-out'),
  'validation': ('val', 'valid', 'validation', 'dev'),
}
CLASS_NAMES = ('cat', 'dog', 'train', 'test_tube', 'val', 'x_ray-2', '7', 'Test')
# Folders beside the splits, with and without pictures by class.
EVAL = 'my eval'
OTHERS = ('public', 'docs', 'seg_pred', 'labels', 'extra-2', 'training', EVAL)


class Style(NamedTuple):
  """How the names of all splits of a set are made.

  Attributes:
    stem: another word of the name.
    separator: between the words.
    stem_is_first: whether the stem comes before the split.
    filler: a word such as 'set' after the split, or ''.
    digits: the end of the name.
    case: function of the whole name.
  """

  stem: str
  separator: str
  stem_is_first: bool
  filler: str
  digits: str
  case: object

  def name(self, word):
    words = [self.stem, word] if self.stem_is_first else [word, self.stem]
    words = [word for word in [*words, self.filler] if word]
    return self.case(self.separator.join(words)) + self.digits

  @property
  def is_clear(self):
    """Whether the split is a word of its own."""
    return bool(self.separator) or not self.stem


styles = st.builds(
  Style,
  stem=st.sampled_from(['', 'seg', 'cifar', 'my', 'valley', 'x']),
  separator=st.sampled_from(['_', '-', ' ', '.', '', '__', '+']),
  stem_is_first=st.booleans(),
  filler=st.sampled_from(['', '', 'set', 'data', 'images']),
  digits=st.sampled_from(['', '', '32', '-32', '_1']),
  case=st.sampled_from([str.lower, str.upper, str.title, str]),
)


class Tree(NamedTuple):
  """A tree of folders.

  Attributes:
    names: split -> name of its folder.
    others: name of a folder beside the splits -> what it has: CLASS/*, pictures or ''.
    classes: names of the classes.
    wrappers: names of folders around the splits, from the outermost.
    twice: whether the folder of a split holds one of the same name, as from Kaggle.
    is_clear: whether no name can be read in two ways.
  """

  names: dict
  others: dict
  classes: list
  wrappers: list
  twice: bool
  is_clear: bool

  def write(self, root):
    level = root.joinpath(*self.wrappers)
    for split, name in self.names.items():
      folder = level / name / name if self.twice else level / name
      for label in self.classes:
        put(folder / label, split)
    for name, content in self.others.items():
      split = 'test' if name == EVAL else 'other'
      put(level / name / content, split, count=0 if content == 'nothing' else 2)
    (root / 'README.md').write_text('none')
    return level


@st.composite
def trees(draw):
  style = draw(styles)
  splits = draw(
    st.sampled_from([('train', 'test')] * 3 + [tuple(WORDS), ('train', 'validation')])
  )
  names = {split: style.name(draw(st.sampled_from(WORDS[split]))) for split in splits}
  contents = st.sampled_from(['', 'cat', 'nothing'])
  others = draw(st.dictionaries(st.sampled_from(OTHERS), contents, max_size=2))
  labels = st.sampled_from(CLASS_NAMES)
  return Tree(
    names=names,
    others={name: other for name, other in others.items() if name not in names},
    classes=sorted({'cat', *draw(st.sets(labels, min_size=2, max_size=3))}),
    wrappers=draw(st.lists(st.sampled_from(['archive', 'data', 'x']), max_size=2)),
    twice=draw(st.booleans()),
    is_clear=style.is_clear and not {'training', EVAL} & set(others),
  )


@pytest.mark.parametrize('examples', few([20], [1500]))
def test_pictures_are_in_the_split_of_their_name(examples, tmp_path_factory):
  @settings(
    max_examples=examples,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],
  )
  @given(tree=trees(), fraction=st.sampled_from([0.0, 0.0, 0.2]))
  def divide(tree, fraction):
    root = tmp_path_factory.mktemp('tree')
    level = tree.write(root)
    outcome = loaded(root, test_fraction=fraction)
    counts = dict.fromkeys(WORDS, 0)
    if tree.others.get(EVAL) == 'cat':
      counts['test'] = 2
    counts |= dict.fromkeys(tree.names, 2 * len(tree.classes))
    options = {'test_fraction': fraction} if fraction else {}
    require_pure(outcome, counts, root, **options)
    if tree.is_clear and not fraction:
      assert outcome.data is not None, outcome.said
    if 'divided already' in outcome.said:
      assert fraction
      return
    for folder in level.glob('*/'):
      is_used = outcome.data is not None and folder.name in {EVAL, *tree.names.values()}
      assert is_used or folder.name in outcome.said

  divide()


@given(
  labels=st.lists(st.sampled_from([*CLASS_NAMES, 'test', 'train_cat']), unique=True)
)
@settings(max_examples=30, deadline=None, derandomize=True, database=None)
def test_folders_of_one_tree_are_classes_or_all_are_named(labels, tmp_path_factory):
  root = tmp_path_factory.mktemp('tree')
  for label in labels:
    put(root / label, 'train', 4)
  outcome = loaded(root, test_fraction=0.25)
  if outcome.data is not None:
    assert outcome.data.class_names == tuple(sorted(labels))
  else:
    assert all(label in outcome.said for label in labels)
