"""Arrays of any shape keep their axes and numbers in every part, or are refused."""

import json
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import pytest

import moon_jax
from moon_jax.catalog import range_of
from moon_jax.core import weights
from moon_jax.core.errors import KnobError, UsageError
from moon_jax.core.types import Form
from moon_jax.data import convert, example_forms, sources
from moon_jax.data.data_errors import DataError
from moon_jax.data.device_split import normalise
from moon_jax.data.example_forms import Reading, form_of
from moon_jax.predict import inference
from tests.data import federations
from tests.data.federations import load
from tests.data.test_scale import (
  DECLARED,
  DTYPES,
  LABELS,
  RANGES,
  drawn_images,
  is_right,
  npz,
  plain,
  registered,
)
from tests.refusals import refused
from tests.selection import few

pytestmark = pytest.mark.usefixtures('quick_runs', 'own_parts')


def leaf(folder, federation):
  """JSON, which has whole numbers and others, and no dtypes."""
  for split, users in federation.items():
    (folder / split).mkdir()
    user_data = {
      name: {'x': x.tolist(), 'y': y.tolist()} for name, (x, y) in users.items()
    }
    content = {'users': list(users), 'user_data': user_data}
    (folder / split / 'all.json').write_text(json.dumps(content))
  return {'data.source': 'leaf', 'data.path': str(folder)}


def pfllib(folder, federation):
  """PFLlib's files with plain arrays."""
  for split, users in federation.items():
    (folder / split).mkdir()
    for number, (x, y) in enumerate(users.values()):
      federations.save_arrays(folder / split / f'{number}.npz', {'x': x, 'y': y})
  return {'data.source': 'pfllib', 'data.path': str(folder)}


def hub(folder, federation):
  """Columns of arrays of Hugging Face, without users."""
  datasets = federations.datasets
  splits = {}
  for split, users in federation.items():
    x = np.concatenate([x for x, _ in users.values()])
    y = np.concatenate([y for _, y in users.values()])
    dtype = 'float32' if x.dtype == np.float16 else x.dtype.name
    kinds = {
      2: lambda dtype: datasets.Sequence(datasets.Value(dtype)),
      3: lambda dtype, shape=x.shape[1:]: datasets.Array2D(shape, dtype),
      4: lambda dtype, shape=x.shape[1:]: datasets.Array3D(shape, dtype),
      5: lambda dtype, shape=x.shape[1:]: datasets.Array4D(shape, dtype),
    }
    features = {'x': kinds[x.ndim](dtype), 'label': datasets.Value('int64')}
    columns = {'x': list(x.astype(dtype)), 'label': y}
    splits[split] = datasets.Dataset.from_dict(columns, datasets.Features(features))
  datasets.disable_progress_bars()
  datasets.DatasetDict(splits).save_to_disk(str(folder / 'saved'))
  knobs = {'data.source': 'huggingface', 'data.client': ''}
  return knobs | {'data.path': str(folder / 'saved')}


def table(folder, federation):
  """Parquet files, whose columns are numbers."""
  pandas = pytest.importorskip('pandas', reason='pandas is missing')
  for split, users in federation.items():
    x = np.concatenate([x for x, _ in users.values()])
    y = np.concatenate([y for _, y in users.values()])
    frame = pandas.DataFrame({f'c{i}': column for i, column in enumerate(x.T)})
    frame.assign(label=y).to_parquet(folder / f'{split}.parquet')
  return {'data.source': 'table', 'data.path': str(folder), 'data.client': ''}


# Layout -> the dtypes in which it gives whole numbers and others, if not their own.
READ_AS = {
  'leaf': ('int64', 'float64'),
  'hub': ('int64', 'float32'),
  'table': ('float64', 'float64'),
}
LAYOUTS = {
  'npz': npz,
  'registered': registered,
  'folder': federations.files,
  'hdf5': lambda folder, data: federations.hdf5(folder, data, plain),
  'sqlite': lambda folder, data: federations.sqlite(folder, data, plain),
  'leaf': leaf,
  'pfllib': pfllib,
  'hub': hub,
  'table': table,
}
# Shape of an example -> the axes that are evident, None if several are possible, and
# the axes that may be declared. Integers [5] are never evident.
SHAPES = {
  (5,): ('D', ('D', 'T')),
  (6, 4): ('HW', ('HW', 'TC', 'CT')),
  (4, 6, 3): ('HWC', ('HWC', 'CHW', 'DHW')),
  (3, 4, 6): ('CHW', ('HWC', 'CHW', 'DHW')),
  (6, 6, 5): ('HWC', ('HWC', 'CHW', 'DHW')),
  (5, 6, 6): (None, ('HWC', 'CHW', 'DHW')),
  (6, 6, 6): (None, ('HWC', 'CHW', 'DHW')),
  (5, 5, 6, 3): ('DHWC', ('DHWC', 'CDHW')),
  (3, 5, 6, 7): ('CDHW', ('DHWC', 'CDHW')),
  (4, 5, 6, 3): (None, ('DHWC', 'CDHW')),
  (5, 6, 7, 8): (None, ('DHWC', 'CDHW')),
}


class Expected(NamedTuple):
  """What the documentation says of a draw."""

  kind: str
  axes: str
  content: str
  normalize: str


def expectation(shape, dtype, axes, normalize):
  """What the data must be; None if the layout must be refused."""
  evident, _ = SHAPES[shape]
  is_integer = np.dtype(dtype).kind != 'f'
  if not axes and len(shape) == 1 and is_integer:
    return None
  axes = axes or evident
  if axes is None or len(axes) != len(shape):
    return None
  kind = {'D': 'table', 'T': 'words' if is_integer else 'signal'}.get(axes)
  kind = kind or {2: 'picture', 3: 'picture', 4: 'volume'}[len(axes)]
  kind = 'signal' if axes in ('TC', 'CT') else kind
  kind = 'volume' if axes == 'DHW' else kind
  if kind == 'picture' and normalize == 'auto':
    return Expected(kind, axes, 'levels', 'per_channel')
  if kind == 'words':
    is_possible = normalize in ('auto', 'none')
    return Expected(kind, axes, 'words', 'none') if is_possible else None
  usual = 'per_feature' if kind == 'table' else 'per_channel'
  return Expected(kind, axes, 'numbers', usual if normalize == 'auto' else normalize)


def canonical(images, expected):
  """The channels last, by a transposition that is written out."""
  axes = expected.axes
  if expected.kind in ('table', 'words'):
    return images
  if 'C' not in axes:
    return images[..., None]
  order = [axes.index(letter) + 1 for letter in axes.replace('C', '') + 'C']
  return images.transpose([0, *order])


def ends_of(layout, train_images, declared_range):
  """The numbers of black and white."""
  if declared_range:
    return range_of(declared_range)
  if train_images.dtype.kind != 'f':
    return (0, 255)
  return (-1, 1) if layout == 'pfllib' else (0, 1)


def is_accepted(layout, images, train_images, expected, declared_range, last_word):
  """Whether an array may stand beside the training examples."""
  if expected.content == 'levels':
    ends = ends_of(layout, train_images, declared_range)
    return is_right(images, train_images, declared_range, ends)
  if expected.content == 'words':
    is_integer = images.dtype.kind != 'f'
    return is_integer and images.min() >= -1 and images.max() <= last_word
  if declared_range:
    return is_right(images, train_images, declared_range, range_of(declared_range))
  return (images.dtype.kind == 'f') == (train_images.dtype.kind == 'f')


def divisors(train, expected, declared_range):
  """What is subtracted and divided by, in float64."""
  if expected.normalize == 'none':
    low, high = range_of(declared_range) if declared_range else (0, 1)
    return low, high - low
  axes = 0 if expected.normalize == 'per_feature' else tuple(range(train.ndim - 1))
  mean, std = train.mean(axes), train.std(axes)
  return mean, np.where(std > 1e-12 * abs(mean), std, 1)


def same_numbers(stored, source):
  """Whether all numbers are the source's, or its float32."""
  if source.dtype == np.float64:
    source = source.astype(np.float32)
  np.testing.assert_array_equal(stored.astype(float), source.astype(float))


def check_draw(seed, folder):
  """Loads and predicts what a seed draws; returns the content that was accepted."""
  rng = np.random.default_rng(seed)
  layout = list(LAYOUTS)[seed % len(LAYOUTS)]
  shapes = [*SHAPES, (5,), (5,), (5,)]
  shape = shapes[rng.integers(len(shapes))]
  if layout == 'table':
    shape = (5,)
  _, possible_axes = SHAPES[shape]
  if layout == 'table':
    possible_axes = ('D',)
  axes = rng.choice(
    ['', '', *possible_axes, possible_axes[0] if layout == 'table' else 'TC']
  ).item()
  normalize = rng.choice(
    ['auto', 'auto', 'auto', 'none', 'per_channel', 'per_feature']
  ).item()
  declared_range = rng.choice(DECLARED).item()
  common_dtype, common_range = rng.choice(DTYPES), RANGES[rng.integers(len(RANGES))]

  def images():
    dtype, ends = common_dtype, common_range
    if rng.random() < 0.1:
      dtype = rng.choice(DTYPES)
    if rng.random() < 0.1:
      ends = RANGES[rng.integers(len(RANGES))]
    drawn = drawn_images(rng, dtype, ends, shape)
    integer_dtype, float_dtype = READ_AS.get(layout, (drawn.dtype, drawn.dtype))
    return drawn.astype(float_dtype if drawn.dtype.kind == 'f' else integer_dtype)

  a, b, test, to_predict = images(), images(), images(), images()
  federation = {
    'train': {'a': (a, LABELS), 'b': (b, LABELS)},
    'test': {'a': (test, LABELS)},
  }
  parts, train = [a, b, test], [a, b]
  if layout in ('registered', 'hub', 'table'):
    train = [np.concatenate(train)]
    parts = [*train, test]
  if layout == 'npz':
    train = [a]  # the second user's are for validation
  knobs = LAYOUTS[layout](folder, federation) | {
    'data.range': declared_range,
    'data.axes': axes,
    'data.normalize': normalize,
  }
  expected = expectation(shape, parts[0].dtype, axes, normalize)
  if expected is None:
    with refused(DataError, r'data\.(axes|normalize|range)'):
      load(knobs)
    return 'layout refused'
  is_words = expected.content == 'words'
  last_word = max(array.max() for array in train)
  if declared_range:
    low, last_word = range_of(declared_range)
  if not all(
    is_accepted(layout, part, parts[0], expected, declared_range, last_word)
    for part in parts
  ) or (is_words and declared_range and low != 0):
    with refused(DataError, r'data\.range|on one scale|words are integers|from 0'):
      load(knobs)
    return 'numbers refused'

  data = load(knobs)
  # As the run's directory keeps it.
  form = inference._form({'form': json.loads(json.dumps(data.form._asdict()))})
  assert (form.kind, form.content) == (expected.kind, expected.content)
  train = canonical(np.concatenate([part.astype(float) for part in train]), expected)
  test_numbers = canonical(test, expected)
  network_shape = data.test_images.shape[1:]
  assert data.test_images.shape == test_numbers.shape
  if expected.content == 'levels':
    low, high = ends_of(layout, parts[0], declared_range)
    exact = (test_numbers.astype(float) - low) * 255 / (high - low)
    assert abs(data.test_images - exact).max() <= 1
  else:
    same_numbers(data.test_images, test_numbers)
    normalised = np.asarray(
      normalise(data.test_images, data.mean, data.std, form.content)
    )
    if is_words:
      np.testing.assert_array_equal(normalised, test_numbers)
    else:
      mean, std = divisors(train, expected, declared_range)
      exact = (test_numbers.astype(float) - mean) / std
      np.testing.assert_allclose(normalised, exact, rtol=1e-3, atol=1e-3)

  def predicted(images):
    if form.content == 'levels':
      return inference.as_batch(images, network_shape, data.scale, form)
    return inference.as_numbers(images, network_shape, form)

  if is_accepted(layout, to_predict, parts[0], expected, declared_range, last_word):
    numbers = canonical(to_predict, expected)
    if expected.content == 'levels':
      exact = (numbers.astype(float) - low) * 255 / (high - low)
      assert abs(predicted(to_predict) - exact).max() <= 1
    else:
      same_numbers(predicted(to_predict), numbers)
  else:
    with pytest.raises(UsageError):
      predicted(to_predict)
  return expected.content


def search(seeds, tmp_path_factory):
  """How often each content was accepted, and the data refused."""
  outcomes = [check_draw(seed, tmp_path_factory.mktemp('draw')) for seed in seeds]
  return {outcome: outcomes.count(outcome) for outcome in set(outcomes)}


def test_no_number_and_no_axis_changes_in_silence(tmp_path_factory):
  counts = search(range(72), tmp_path_factory)
  assert min(counts.values()) > 0
  assert len(counts) >= 4


@pytest.mark.slow
def test_no_number_and_no_axis_changes_in_hundreds_of_draws(tmp_path_factory):
  counts = search(range(500), tmp_path_factory)
  assert min(counts.values()) > 1
  assert len(counts) >= 4


# --- readings -------------------------------------------------------------------------


@pytest.mark.parametrize(
  ('shape', 'dtype', 'proposed'),
  [
    ((28, 28, 28), 'uint8', ('DHW', 'HWC', 'CHW')),
    ((13, 64, 64), 'float32', ('DHW', 'HWC', 'CHW')),
    ((80,), 'int64', ('D', 'T')),
    ((4, 16, 16, 3), 'float32', ('DHWC', 'CDHW')),
  ],
)
def test_a_layout_that_can_be_two_things_is_refused_with_all_readings(
  shape, dtype, proposed
):
  examples = np.zeros((2, *shape), dtype)
  with refused(DataError, f'{len(proposed)} ways') as caught:
    form_of('it', 'train_x', examples, Reading())
  for axes in proposed:
    assert f"--config.data.axes='{axes}' (" in str(caught.value)
    assert form_of('it', 'train_x', examples, Reading(axes=axes)).axes == axes


def test_floats_that_may_be_signals_are_told_to_be_pictures(tmp_path, capsys):
  rng = np.random.default_rng(0)
  signals = rng.random((8, 6, 4)).astype('f4')
  arrays = {'train_x': signals, 'train_y': np.arange(8) % 2}
  arrays |= {'test_x': signals, 'test_y': np.arange(8) % 2}
  federations.save_arrays(tmp_path / 'it.npz', arrays)
  knobs = {'data.source': 'npz', 'data.path': str(tmp_path / 'it.npz')}
  assert load(knobs).form == Form()
  assert "data.axes='TC' reads signals of 6 steps" in capsys.readouterr().err
  load(knobs, axes='TC')
  assert 'data.axes' not in capsys.readouterr().err


def test_numbers_that_float32_cannot_tell_apart_are_told(tmp_path, capsys):
  table = np.array([[1.6e9 + i, i] for i in range(8)])
  arrays = {'train_x': table, 'train_y': np.arange(8) % 2}
  arrays |= {'test_x': table[:2], 'test_y': np.arange(2)}
  federations.save_arrays(tmp_path / 'it.npz', arrays)
  load({'data.source': 'npz', 'data.path': str(tmp_path / 'it.npz')})
  assert 'number 0 of the examples' in capsys.readouterr().err
  for split in ('train_x', 'test_x'):
    arrays[split][:, 0] = 94105.0  # a constant, which becomes 0
  federations.save_arrays(tmp_path / 'constant.npz', arrays)
  load({'data.source': 'npz', 'data.path': str(tmp_path / 'constant.npz')})
  assert 'of the examples' not in capsys.readouterr().err


@pytest.mark.parametrize(
  ('dtype', 'number', 'words'),
  [
    ('float32', np.nan, 'first in example 3'),
    ('float64', 1e39, 'float32 ends at'),
    ('int64', 2**31, 'int32 ends at'),
  ],
)
def test_a_number_that_cannot_be_kept_is_refused(dtype, number, words, tmp_path):
  table = np.arange(16).reshape(8, 2).astype(dtype)
  table[3, 1] = number
  arrays = {'train_x': table, 'train_y': np.arange(8) % 2}
  arrays |= {'test_x': table, 'test_y': np.arange(8) % 2}
  federations.save_arrays(tmp_path / 'it.npz', arrays)
  knobs = {'data.source': 'npz', 'data.path': str(tmp_path / 'it.npz')}
  with refused(DataError, words):
    load(knobs, axes='D')


# --- runs -----------------------------------------------------------------------------


def configuration(folder, x, changes=MappingProxyType({})):
  """A run on arrays whose class is in the numbers, with users."""
  y = np.arange(len(x)) % 2
  users = np.arange(len(x)) // 2 % 3
  half = len(x) // 2
  arrays = {'train_x': x[:half], 'train_y': y[:half], 'train_client': users[:half]}
  arrays |= {'test_x': x[half:], 'test_y': y[half:], 'test_client': users[half:]}
  federations.save_arrays(folder / 'it.npz', arrays)
  knobs = {
    'data.source': 'npz',
    'data.path': str(folder / 'it.npz'),
    'model': 'mlp',
    'algorithm': 'fedavg',
    'partition.name': 'natural',
    'partition.min_size': 1,
    'num_rounds': 2,
    'logger': '',
    'optimizer.learning_rate': 0.1,
    'execution.devices': 1,
  }
  return moon_jax.load_config('configs/base.py', knobs | changes)


def table_of(num_examples=48):
  """Two columns on far scales; the second one tells the class."""
  rng = np.random.default_rng(0)
  classes = np.arange(num_examples) % 2
  columns = [1000 * rng.random(num_examples), classes + 0.1 * rng.random(num_examples)]
  return np.stack(columns, 1).astype('f4')


@pytest.mark.slow
def test_a_model_of_a_table_predicts_what_the_run_has_tested(tmp_path):
  x = table_of()
  result = moon_jax.run(configuration(tmp_path, x), tmp_path / 'run')
  assert result.summary['test_accuracy'] > 0.9
  trained = moon_jax.load(tmp_path / 'run')
  images, labels = trained.test_data()
  np.testing.assert_array_equal(images, x[24:])
  logits = trained.predict(images).logits
  accuracy = np.mean(logits.argmax(1) == labels)
  assert accuracy == pytest.approx(result.summary['test_accuracy'])
  saved = json.loads((tmp_path / 'run/config.json').read_text())['images']
  np.testing.assert_allclose(saved['mean'], x[:24].mean(0), rtol=1e-6)
  assert saved['form']['kind'] == 'table'
  assert saved['scale'] is None
  trained.save(tmp_path / 'it.safetensors')
  of_file = moon_jax.load(tmp_path / 'it.safetensors').predict(images.astype('f8'))
  np.testing.assert_array_equal(of_file.logits, logits)
  with refused(UsageError, r'needs \[M, 2\]'):
    trained.predict(images[:, :1])
  with refused(UsageError, 'no grey levels'):
    trained.grey_levels(images)
  trained.save(tmp_path / 'it.py')  # tests/exchange runs such files
  arrays = weights.read(tmp_path / 'it_weights.safetensors')[0]
  np.testing.assert_allclose(arrays['mean'], x[:24].mean(0)[None], rtol=1e-6)


@pytest.mark.parametrize(
  ('model', 'shape', 'words'),
  [
    ('cnn_1d', (9, 3), "--config.data.axes='TC' reads them as signals; for pictures"),
    ('cnn_3d', (8, 9, 3), "--config.data.axes='DHW' reads them as volumes; for pict"),
  ],
)
def test_arrays_that_were_read_as_pictures_may_be_something_else(
  model, shape, words, tmp_path
):
  config = configuration(tmp_path, np.zeros((48, *shape), 'f4'), {'model': model})
  with refused(UsageError, words):
    moon_jax.run(config, tmp_path / 'run')


@pytest.mark.parametrize(
  ('changes', 'words'),
  [
    (
      {'augmentation.name': 'flip'},
      'is for pictures, and these data are signals: choose .*time_flip',
    ),
    ({'partition.name': 'noise', 'num_clients': 2}, 'adds noise to grey levels'),
    (
      {'model': 'moon_cnn'},
      r'does not take the signals of these data, \[8, 3\]: .*mlp',
    ),
  ],
)
def test_what_only_pictures_have_is_refused(changes, words, tmp_path):
  x = np.zeros((48, 8, 3), 'f4')
  config = configuration(tmp_path, x, changes | {'data.axes': 'TC'})
  with refused(KnobError, words):
    moon_jax.run(config, tmp_path / 'run')


@pytest.mark.parametrize('name', few(['jitter'], ['time_flip']))
def test_signals_are_flipped_and_jittered(name, tmp_path):
  x = np.stack([table_of()] * 8, axis=1)  # 8 equal steps: flipping changes nothing
  changes = {'data.axes': 'TC', 'augmentation.name': name}
  finished_run = moon_jax.run(configuration(tmp_path, x, changes), tmp_path / 'run')
  assert finished_run.summary['test_accuracy'] > 0.9


def test_integers_of_two_types_stay_integers():
  arrays = [np.array([[1, 2]], np.uint64), np.array([[-3, 4]], np.int64)]
  form = form_of('data', 'train_x', arrays[0], Reading(axes='D'))
  stored, form = example_forms.as_stored(arrays, form)
  assert [array.dtype.name for array in stored] == ['int32', 'int32']
  assert form.dtype == 'int32'


def test_records_of_other_data_are_refused(tmp_path):
  configuration(tmp_path, table_of())
  flags = ['--config.data.source=npz', f'--config.data.path={tmp_path}/it.npz']
  with refused(UsageError, r'records are for pictures.*--out='):
    convert.convert([*flags, f'--out={tmp_path}/records'])


def test_what_normalises_numbers_is_part_of_the_data(tmp_path):
  config = configuration(tmp_path, table_of())
  knobs = {'data.source': 'npz', 'data.path': config.data.path}
  not_normalised = knobs | {'data.normalize': 'none'}
  digests = {
    sources.digest(load(knobs)),
    sources.digest(load(not_normalised)),
    sources.digest(load(not_normalised | {'data.range': '-1,2000'})),
  }
  assert len(digests) == 3


def converted(knobs, path):
  flags = [f'--config.{name}={value}' for name, value in knobs.items()]
  convert.convert([*flags, f'--out={path}'])
  return load({'data.source': 'npz', 'data.path': str(path)})


@pytest.mark.parametrize(
  ('shape', 'dtype', 'changes'),
  [
    ((3, 6), 'float16', {'data.axes': 'CT'}),
    ((4, 5, 6), 'int16', {'data.axes': 'DHW', 'data.normalize': 'none'}),
    ((2, 4, 5, 6), 'uint8', {'data.axes': 'CDHW', 'data.range': '0,255'}),
    ((5,), 'int64', {'data.axes': 'T', 'data.range': '0,99'}),
    ((5,), 'float32', {'data.normalize': 'per_channel'}),
    ((3, 6, 7), 'float32', {'data.axes': 'CHW', 'data.normalize': 'per_feature'}),
    # Grey levels that could be read with the channels first.
    ((4, 6, 6), 'uint8', {'data.axes': 'HWC'}),
  ],
)
def test_a_converted_file_says_what_its_arrays_are(shape, dtype, changes, tmp_path):
  x = np.random.default_rng(0).integers(0, 50, (12, *shape)).astype(dtype)
  y = np.arange(12) % 2
  arrays = {'train_x': x, 'train_y': y, 'test_x': x[:4], 'test_y': y[:4]}
  federations.save_arrays(tmp_path / 'it.npz', arrays)
  knobs = {'data.source': 'npz', 'data.path': str(tmp_path / 'it.npz')} | changes
  data, kept = load(knobs), converted(knobs, tmp_path / 'kept.npz')
  np.testing.assert_array_equal(kept.train_images, data.train_images)
  assert kept.train_images.dtype == data.train_images.dtype
  np.testing.assert_array_equal(kept.mean, data.mean)
  np.testing.assert_array_equal(kept.std, data.std)
  assert kept.form._replace(axes='', range=()) == data.form._replace(axes='', range=())
  with refused(DataError, 'says that its axes are'):
    load({'data.source': 'npz', 'data.path': str(tmp_path / 'kept.npz')}, axes='HW')
