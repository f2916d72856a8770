"""Data sets of TFDS that are no pictures, as its own writer prepares them."""

import csv
import json
import shutil

import numpy as np
import pytest

import moon_jax
from moon_jax.core.errors import ExitCode, KnobError
from moon_jax.data.data_errors import DataError
from moon_jax.predict.command import main as predict
from tests.data.federations import load
from tests.refusals import refused
from tests.selection import few

SIZES = {'train': 24, 'test': 8}
DTYPES = (
  'uint8',
  'int16',
  'uint32',
  'int64',
  'uint64',
  'float16',
  'float32',
  'float64',
)
ENCODINGS = ('none', 'bytes', 'zlib')


def prepare(folder, name, make_features, examples_by_split, supervised_keys=None):
  """Writes a data set by TFDS's writer, in this order; returns its knobs.

  Args:
    folder: folder of TFDS.
    name: name of the data set.
    make_features: module of TFDS's features -> the features.
    examples_by_split: split -> its examples.
    supervised_keys: names of the input and of the label.
  """
  import tensorflow_datasets as tfds

  def info(builder):
    return tfds.core.DatasetInfo(
      builder=builder,
      features=make_features(tfds.features),
      supervised_keys=supervised_keys,
      disable_shuffling=True,
    )

  methods = {
    'VERSION': tfds.core.Version('1.0.0'),
    'name': name,
    '_info': info,
    '_split_generators': lambda builder, _: {
      split: enumerate(examples) for split, examples in examples_by_split.items()
    },
    '_generate_examples': None,
  }
  bases = (tfds.core.GeneratorBasedBuilder,)
  builder = type(tfds.core.GeneratorBasedBuilder)(
    'OfATest', bases, methods, skip_registration=True
  )
  builder(data_dir=str(folder)).download_and_prepare(file_format='array_record')
  return {'data.source': 'tfds', 'data.name': name, 'data.dir': str(folder)}


def all_features(kinds):
  """Signals of every dtype and encoding, a group of numbers, texts, a user, a label."""
  signals = {
    f'{dtype}_{encoding}': kinds.Tensor(
      shape=(6, 2), dtype=np.dtype(dtype), encoding=encoding
    )
    for dtype in DTYPES
    for encoding in ENCODINGS
  }
  return kinds.FeaturesDict(
    signals
    | {
      'body': {'weight': np.float32, 'age': np.int64, 'smokes': np.bool_},
      'sizes': kinds.Tensor(shape=(None,), dtype=np.int64),
      'note': kinds.Text(),
      'person': np.int64,
      'label': kinds.ClassLabel(names=['falling', 'rising']),
    }
  )


def examples_of(split):
  """Examples whose class is in each of their features."""
  rng = np.random.default_rng(list(SIZES).index(split))
  examples = []
  for number in range(SIZES[split]):
    label = number % 2
    steps = np.arange(6) if label else np.arange(6)[::-1]
    signal = 10 * steps[:, None] + rng.integers(0, 9, (6, 2))
    examples.append(
      {
        f'{dtype}_{encoding}': signal.astype(dtype)
        for dtype in DTYPES
        for encoding in ENCODINGS
      }
      | {
        'body': {
          'weight': 60.5 + 9 * label + number / 64,
          'age': 30 + number,
          'smokes': number % 3 == 0,
        },
        'sizes': [1] * number,
        'note': ('it falls', 'up it goes')[label] + f' {number}',
        'person': number % 3,
        'label': label,
      }
    )
  return examples


EXAMPLES = {split: examples_of(split) for split in SIZES}


@pytest.fixture(scope='module')
def knobs(tmp_path_factory):
  folder = tmp_path_factory.mktemp('tfds')
  return prepare(
    folder,
    'measured_walks',
    all_features,
    EXAMPLES,
    supervised_keys=('float32_none', 'label'),
  )


@pytest.mark.parametrize('encoding', ENCODINGS)
@pytest.mark.parametrize('dtype', DTYPES)
def test_numbers_are_those_that_were_written(knobs, dtype, encoding):
  feature = f'{dtype}_{encoding}'
  data = load(knobs, features=feature, axes='TC')
  for split, images in (('train', data.train_images), ('test', data.test_images)):
    written = np.stack([example[feature] for example in EXAMPLES[split]])
    np.testing.assert_array_equal(images.astype(np.float64), written)
  assert data.train_labels.tolist() == [0, 1] * 12
  assert data.class_names == ('falling', 'rising')
  assert data.form.kind == 'signal'
  assert data.train_images.dtype.itemsize <= 4


def test_the_supervised_pair_is_read_and_knobs_say_how(knobs):
  data = load(knobs, axes='TC', normalize='none', range='0,64')
  written = np.stack([example['float32_none'] for example in EXAMPLES['train']])
  np.testing.assert_array_equal(data.train_images, written)
  assert data.train_images.dtype == np.float32
  np.testing.assert_array_equal([data.mean, data.std], [[0, 0], [64, 64]])
  with refused(DataError, 'beyond'):
    load(knobs, axes='TC', normalize='none', range='0,20')
  with refused(DataError, "signals .T, C., --config.data.axes='TC' keeps them"):
    load(knobs)


@pytest.mark.parametrize(
  ('features', 'names'),
  [
    ('body', ('body/age', 'body/smokes', 'body/weight')),
    ('body/weight,person', ('body/weight', 'person')),
    ('body/age', ('body/age',)),
    ('body/smokes', ('body/smokes',)),
    ('*', ('body/age', 'body/smokes', 'body/weight')),
  ],
)
def test_single_numbers_are_a_table(knobs, features, names):
  data = load(knobs, features=features, client='person')
  rows = [
    [*map(example['body'].get, ('age', 'smokes', 'weight')), example['person']]
    for example in EXAMPLES['test']
  ]
  columns = ['body/age', 'body/smokes', 'body/weight', 'person']
  expected = np.array(rows)[:, [columns.index(name) for name in names]]
  np.testing.assert_array_equal(data.test_images, expected)
  assert data.feature_names == names
  assert data.form.kind == 'table'
  assert data.clients[data.test_clients].tolist() == [0, 1, 2] * 2 + [0, 1]


def test_texts_have_the_vocabulary_of_training(knobs):
  data = load(knobs, tokenizer='characters', text_length=9)
  for split, images in (('train', data.train_images), ('test', data.test_images)):
    for row, example in zip(images, EXAMPLES[split], strict=True):
      characters = [data.words[number] for number in row if number >= 0]
      assert ''.join(characters) == example['note'][:9]


@pytest.mark.parametrize(
  ('changes', 'error', 'words'),
  [
    ({'data.features': 'bodi'}, DataError, "no feature 'bodi' .* it has .*, note"),
    (
      {'data.features': 'label'},
      DataError,
      "'label' .* is ClassLabel.*, not numbers of one",
    ),
    (
      {'data.features': 'sizes'},
      DataError,
      r"'sizes' .* is Tensor\(shape=\(None,\), dtype",
    ),
    ({'data.features': 'note'}, DataError, "'note' .* is Text"),
    (
      {'data.features': 'body,int16_none'},
      DataError,
      'is Tensor.*, not a single number',
    ),
    ({'data.features': 'body', 'data.axes': 'TC'}, KnobError, 'must be D with'),
    (
      {'data.features': 'body', 'data.tokenizer': 'characters'},
      KnobError,
      'these are texts',
    ),
    ({'data.text': 'notes', 'data.tokenizer': 'characters'}, DataError, "mean 'note'"),
    ({'data.axes': 'TC', 'data.tokenizer': 'characters'}, KnobError, 'must be T'),
  ],
)
def test_features_that_are_not_so_are_refused(knobs, changes, error, words):
  with refused(error, words):
    load(knobs | changes)


@pytest.mark.parametrize(
  ('make_features', 'words'),
  [
    (
      lambda kinds: {'a': kinds.Tensor(shape=(2,), dtype=np.float32)},
      r'must have a class label .ClassLabel.* convert it',
    ),
    (
      lambda kinds: {
        'label': kinds.ClassLabel(num_classes=2),
        'a': kinds.Tensor(shape=(2,), dtype=np.bool_),
      },
      "tensors of numbers of one shape, or texts, and has .*'a'",
    ),
    (
      lambda kinds: {
        'label': kinds.ClassLabel(num_classes=2),
        'a': np.float32,
        'b': np.float32,
      },
      r"several features of numbers, a, b: --config.data.features='NAME' names one",
    ),
    (
      lambda kinds: {'label': kinds.ClassLabel(num_classes=2), 'text': kinds.Text()},
      'the examples are texts; --config.data.tokenizer=',
    ),
  ],
)
def test_a_set_without_evident_examples_is_refused(tmp_path, make_features, words):
  values = {'a': 0.0, 'b': 1.0, 'label': 1, 'text': 'a'}

  def features(kinds):
    return kinds.FeaturesDict(make_features(kinds))

  import tensorflow_datasets as tfds

  names = make_features(tfds.features)
  example = {name: values[name] for name in names}
  if isinstance(names.get('a'), tfds.features.Tensor):
    example['a'] = [0, 1]
  splits = {'train': [example], 'test': [example]}
  with refused(DataError, words):
    load(prepare(tmp_path, 'mine', features, splits))


def test_sounds_are_refused(knobs, tmp_path):
  shutil.copytree(knobs['data.dir'], tmp_path / 'tfds')
  path = tmp_path / 'tfds/measured_walks/1.0.0/features.json'
  description = json.loads(path.read_text())
  description['featuresDict']['features']['sizes'] = {
    'pythonClassName': 'tensorflow_datasets.core.features.audio_feature.Audio',
    'audio': {'shape': {'dimensions': ['-1']}, 'dtype': 'int64', 'encoding': 'none'},
  }
  path.write_text(json.dumps(description))
  with refused(DataError, 'such as sounds.*audiofolder'):
    load(knobs, dir=str(tmp_path / 'tfds'))


@pytest.mark.parametrize(
  ('feature', 'changes'),
  [
    ('int16_none', {'dtype': 'int8'}),
    ('int16_none', {'shape': {'dimensions': ['6', '3']}}),
    ('int16_zlib', {'shape': {'dimensions': ['6', '1']}}),
    ('int16_bytes', {'dtype': 'float64'}),
  ],
)
def test_records_that_the_description_does_not_fit(tmp_path, feature, changes):
  large = [
    example | {'int16_none': example['int16_none'] + np.int16(500)}
    for example in EXAMPLES['test']
  ]
  knobs = prepare(
    tmp_path, 'measured_walks', all_features, {'train': large, 'test': large}
  )
  path = tmp_path / 'measured_walks/1.0.0/features.json'
  description = json.loads(path.read_text())
  description['featuresDict']['features'][feature]['tensor'] |= changes
  path.write_text(json.dumps(description))
  with refused(DataError, 'train example 0 cannot be used'):
    load(knobs, features=feature, axes='TC')


@pytest.mark.parametrize(
  ('model', 'changes'),
  few(
    [('mlp', {'data.features': 'body'})],
    [('cnn_1d', {'data.axes': 'TC'}), ('gru', {'data.tokenizer': 'characters'})],
  ),
)
def test_a_run_learns_and_predicts(knobs, model, changes, tmp_path, quick_runs):
  config = moon_jax.load_config(
    'configs/base.py',
    knobs
    | changes
    | {
      'model': model,
      'algorithm': 'fedavg',
      'num_clients': 2,
      'num_rounds': 2,
      'batch_size': 4,
      'partition.name': 'iid',
      'partition.min_size': 1,
      'optimizer.learning_rate': 0.1,
      'logger': '',
      'execution.devices': 1,
    },
  )
  finished_run = moon_jax.run(config, tmp_path / 'run')
  assert finished_run.summary['test_accuracy'] > 0.9
  flags = [f'--workdir={tmp_path}/run', f'--output={tmp_path}/out.csv']
  assert predict([*flags, '--source=tfds', '--input=measured_walks']) == ExitCode.DONE
  with open(tmp_path / 'out.csv', newline='') as file:
    predicted = [row['predicted'] for row in csv.DictReader(file)]
  trained = moon_jax.load(tmp_path / 'run')
  examples, _ = trained.test_data()
  names = np.array(['falling', 'rising'])
  assert predicted == names[trained.predict(examples).labels].tolist()
  if model == 'gru':
    notes = [example['note'] for example in EXAMPLES['test']]
    assert predicted == names[trained.predict(notes).labels].tolist()
