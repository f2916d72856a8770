"""All images of a data set, and those of predictions, are on one scale, or refused."""

import json

import numpy as np
import pytest

from moon_jax.catalog import range_of, registry
from moon_jax.core.errors import ExitCode, UsageError
from moon_jax.core.types import Scale
from moon_jax.data import convert
from moon_jax.data.data_errors import DataError
from moon_jax.data.federated import user_records
from moon_jax.data.scale import grey_levels, numbers_of
from moon_jax.predict import inference
from tests.data import federations, layouts
from tests.data.federations import flags, load, save_arrays
from tests.refusals import refused

SHAPE = (4, 4)
LABELS = np.arange(4, dtype=np.int32)  # of each user
DTYPES = (
  *('uint8', 'int8', 'int16', 'uint16', 'int64'),
  *('float16', 'float32', 'float64'),
)
# Ranges from which a part draws its numbers; most draws take one range for all parts.
RANGES = ((0, 1), (-1, 1), (0, 16), (0, 255), (0, 4095))
DECLARED = ('', '', '0,1', '-1,1', '0,16', '0,255', '0,4095', '0.5,7')


# --- the data of a draw ---------------------------------------------------------------


def drawn_images(rng, dtype, ends, shape=SHAPE):
  """Numbers of a range; the ends, and numbers that many dtypes have, are among them."""
  dtype = np.dtype(dtype)
  lowest, highest = ends
  if dtype.kind != 'f':
    lowest, highest = (
      max(lowest, np.iinfo(dtype).min),
      min(highest, np.iinfo(dtype).max),
    )
  numbers = rng.uniform(lowest, highest, (len(LABELS), *shape))
  quarters = lowest + (highest - lowest) * rng.integers(0, 5, numbers.shape) / 4
  numbers = np.where(rng.random(numbers.shape) < 0.5, quarters, numbers)
  if dtype.kind != 'f':
    numbers = np.rint(numbers)
  return numbers.astype(dtype)


def drawn_federation(rng):
  """split -> user -> images and labels, and images for a prediction."""
  common_dtype, common_range = rng.choice(DTYPES), RANGES[rng.integers(len(RANGES))]

  def images():
    dtype, ends = common_dtype, common_range
    if rng.random() < 0.15:
      dtype = rng.choice(DTYPES)
    if rng.random() < 0.15:
      ends = RANGES[rng.integers(len(RANGES))]
    return drawn_images(rng, dtype, ends)

  federation = {
    'train': {'a': (images(), LABELS), 'b': (images(), LABELS)},
    'test': {'a': (images(), LABELS)},
  }
  return federation, images()


def plain(images):
  return images


def npz(folder, federation):
  """One user of each split, and the second one for validation."""
  users = federation['train']
  arrays = {'train_x': users['a'][0], 'train_y': LABELS}
  arrays |= {'val_x': users['b'][0], 'val_y': LABELS}
  arrays |= {'test_x': federation['test']['a'][0], 'test_y': LABELS}
  save_arrays(folder / 'set.npz', arrays)
  return {'data.source': 'npz', 'data.path': str(folder / 'set.npz')}


def registered(folder, federation):
  """A source of the user's own code."""
  (a, _), (b, _), (test, _) = (
    *federation['train'].values(),
    *federation['test'].values(),
  )
  train = np.concatenate([a, b])
  registry.register(
    'data',
    'own_scale',
    lambda: (train, np.tile(LABELS, 2), test, LABELS),
    traits={'arrays'},
  )
  return {'data.source': 'own_scale'}


LAYOUTS = {
  'npz': npz,
  'registered': registered,
  'folder': federations.files,
  'hdf5': lambda folder, data: federations.hdf5(folder, data, plain),
  'sqlite': lambda folder, data: federations.sqlite(folder, data, plain),
  'huggingface': federations.arrays,
  'leaf': lambda folder, data: layouts.leaf(folder, data, plain),
  'pfllib': lambda folder, data: layouts.pfllib(folder, data, plain, pickled=False),
}


def as_stored(layout, federation):
  """The training, other and test arrays as the layout stores them."""
  (a, _), (b, _) = federation['train'].values()
  test = federation['test']['a'][0]
  if layout == 'registered':
    return [np.concatenate([a, b]), test]  # one array has one dtype
  if layout == 'huggingface':
    parts = [by_user(users) for users in federation.values()]
    # It returns float16 as float32.
    return [part.astype('f4') if part.dtype == 'f2' else part for part in parts]
  if layout == 'leaf':
    return [np.array(images.tolist()) for images in (a, b, test)]  # JSON has no float32
  return [a, b, test]


def by_user(users):
  """The images of a split that `federations.mixed` has mixed, user by user."""
  images, _, ids = federations.mixed(users)
  return images[np.argsort(ids, kind='stable')]


# --- what is right --------------------------------------------------------------------


def ends_of(train_images, declared_range, layout):
  """The numbers of black and white, by the rule of docs/data.md."""
  if declared_range:
    return range_of(declared_range)
  if train_images.dtype.kind != 'f':
    return 0, 255
  return (-1, 1) if layout == 'pfllib' else (0, 1)


def is_right(images, train_images, declared_range, ends):
  """Whether images may stand beside the training images."""
  is_same_kind = (images.dtype.kind == 'f') == (train_images.dtype.kind == 'f')
  black, white = (
    images.dtype.type(end) if images.dtype.kind == 'f' else end for end in ends
  )
  is_inside = black <= images.min() and images.max() <= white
  return is_inside and (is_same_kind or bool(declared_range))


class Levels:
  """Number -> grey level, of all parts together."""

  def __init__(self, ends):
    self.ends = ends
    self.level_of_number = {}

  def add(self, images, levels):
    """Adds the pixels of a part, each with the level that reaches the model."""
    black, white = self.ends
    exact = (images.astype(float) - black) * 255 / (white - black)
    assert abs(levels - exact).max() <= 1.0
    for number, level in zip(images.ravel().tolist(), levels.ravel(), strict=True):
      assert self.level_of_number.setdefault(number, level) == level, number


def search(seeds, tmp_path_factory):
  """Loads and predicts what each seed draws; returns how many draws were accepted."""
  num_accepted = 0
  for seed in seeds:
    rng = np.random.default_rng(seed)
    layout = list(LAYOUTS)[seed % len(LAYOUTS)]
    declared_range = rng.choice(DECLARED).item()
    federation, images = drawn_federation(rng)
    parts = as_stored(layout, federation)
    ends = ends_of(parts[0], declared_range, layout)
    knobs = LAYOUTS[layout](tmp_path_factory.mktemp('draw'), federation)
    if not all(is_right(part, parts[0], declared_range, ends) for part in parts):
      with refused(DataError, 'data.range'):
        load(knobs, range=declared_range)
      continue
    num_accepted += 1
    data = load(knobs, range=declared_range)
    levels = Levels(ends)
    splits = [data.train_images, data.validation_images, data.test_images]
    all_levels = np.concatenate([split for split in splits if split is not None])
    all_numbers = np.concatenate([part.astype(float) for part in parts])
    levels.add(all_numbers, all_levels[..., 0])
    # As the run's directory keeps it.
    scale = Scale(**json.loads(json.dumps(data.scale._asdict())))
    numbers = numbers_of(data.test_images, scale)
    of_numbers = inference.as_batch(numbers, (*SHAPE, 1), scale)
    np.testing.assert_array_equal(of_numbers, data.test_images)
    if is_right(images, parts[0], declared_range, ends):
      levels.add(images, inference.as_batch(images, (*SHAPE, 1), scale)[..., 0])
    else:
      with refused(UsageError, 'Convert them'):
        inference.as_batch(images, (*SHAPE, 1), scale)
  return num_accepted


@pytest.fixture
def own_source():
  yield
  registry._parts.pop(('data', 'own_scale'), None)
  registry.every_knob.cache_clear()


@pytest.mark.usefixtures('own_source')
def test_equal_numbers_are_equal_pixels_in_every_part(tmp_path_factory):
  assert 5 < search(range(32), tmp_path_factory) < 27


@pytest.mark.slow
@pytest.mark.usefixtures('own_source')
def test_equal_numbers_are_equal_pixels_in_hundreds_of_draws(tmp_path_factory):
  assert 125 < search(range(500), tmp_path_factory) < 375


@pytest.mark.parametrize('is_declared', [False, True])
@pytest.mark.parametrize('high', [0.001, 1.0, 4095.0, 100_000.0])
def test_half_floats_have_the_levels_of_any_range(high, is_declared):
  """Float16 itself cannot hold 255 / 0.001, nor 100,000."""
  numbers = np.linspace(0, min(high, 65504), 1001).astype(np.float16)
  scale = Scale(0.0, high, 'float16', declared=is_declared)
  levels = grey_levels(numbers, scale)
  exact = numbers.astype(np.float64) * 255 / high
  np.testing.assert_allclose(levels, exact, rtol=0, atol=0.5 + 1e-4)


@pytest.mark.parametrize('dtype', ['float16', 'float32', 'float64'])
def test_an_equal_number_of_another_precision_is_the_same_level(dtype):
  """Also half-way between two levels, where the precisions round differently."""
  narrow = np.arange(15361, dtype=np.uint16).view(np.float16)  # all in [0, 1]
  half_way = ((np.arange(255) + 0.5) / 255).astype(np.float32)
  for numbers in (narrow, half_way):
    levels, *others = (
      grey_levels(numbers.astype(kind), Scale(0.0, 1.0, dtype))
      for kind in (numbers.dtype, 'float32', 'float64')
    )
    for levels_of_other in others:
      np.testing.assert_array_equal(levels_of_other, levels)


# --- what is said ---------------------------------------------------------------------

WHOLE = np.arange(64, dtype=np.int64).reshape((len(LABELS), *SHAPE))
UNIT = (WHOLE / 63).astype('f4')
OTHER_KIND = 'and the training images are {}; save all with one dtype and scale'


@pytest.mark.parametrize(
  ('train', 'other', 'words'),
  [
    (WHOLE, UNIT, OTHER_KIND.format(r'integers in \[0, 255\]')),
    (UNIT, WHOLE % 2, OTHER_KIND.format(r'floats in \[0, 1\]')),
    (UNIT, UNIT * 63, r"not floats in \[0, 1\]; .*data.range='0,255' declares"),
    (WHOLE, WHOLE - 32, r"not integers .*data.range='-128,127' declares"),
  ],
)
@pytest.mark.parametrize('part', ['train', 'test', 'validation'])
def test_a_part_on_another_scale_is_named(train, other, words, part, tmp_path):
  def images(of_part):
    return other if part == of_part else train, LABELS

  if part == 'validation':
    users = {'a': (train, LABELS), 'b': images('validation')}
    if np.ptp(train) != np.ptp(other):
      words = 'different scales, and no --config.data.range serves both'
    with refused(DataError, f'val_x is .*{words}'):
      load(npz(tmp_path, {'train': users, 'test': users}))
    return
  users = {
    'train': {'a': (train, LABELS), 'f123': images('train')},
    'test': {'f123': images('test')},
  }
  purpose = 'training' if part == 'train' else 'the test'
  with refused(DataError, f"client 'f123': the array for {purpose} is .*{words}"):
    load(federations.files(tmp_path, users))


@pytest.mark.parametrize('declared_range', ['', '0,1', '0,16', '0,255'])
@pytest.mark.parametrize(
  ('train', 'test'), [((WHOLE % 17).astype('u1'), UNIT), (UNIT, UNIT / 32)]
)
def test_no_range_is_proposed_that_cannot_serve_both(
  train, test, declared_range, tmp_path, capsys
):
  parts = {'train': {name: (train, LABELS) for name in 'ab'}}
  knobs = npz(tmp_path, parts | {'test': {'a': (test, LABELS)}})
  try:
    load(knobs, range=declared_range)
    printed = capsys.readouterr().err
  except DataError as error:
    printed = f'{error}\n'
  assert 'test_x is float' in printed
  assert 'bring all images to one scale' in printed
  assert 'data.range=' not in printed
  assert printed.count('different scales') == 1


@pytest.mark.parametrize(
  ('images', 'declared_range', 'proposal'),
  [
    (WHOLE % 2, '', '0,1'),
    (WHOLE % 17, '', '0,16'),
    ((WHOLE % 17).astype(np.uint8), '', '0,16'),
    (UNIT / 32, '', '0,0.03125'),
    (WHOLE % 17, '0,255', '0,16'),
    (WHOLE % 17, '0,17', None),
    (WHOLE, '', None),
    (UNIT, '', None),
    (0 * WHOLE, '', None),
    (255 - WHOLE, '', None),
  ],
)
def test_numbers_that_use_little_of_their_range_are_told(
  images, declared_range, proposal, tmp_path, capsys
):
  parts = {'train': {name: (images, LABELS) for name in 'ab'}}
  parts['test'] = {'a': (images, LABELS)}
  for layout in (npz, federations.files):
    knobs = layout(tmp_path, parts)
    load(knobs, range=declared_range)
    printed = capsys.readouterr().err
    assert printed.count('declares them') == (proposal is not None)
    if proposal:
      assert f"--config.data.range='{proposal}' declares them" in printed
      data = load(knobs, range=proposal)
      assert data.train_images.max() == 255
      assert 'declares them' not in capsys.readouterr().err


def test_records_keep_the_scale_of_their_source(tmp_path):
  federation = federations.make_federation()
  knobs = federations.hdf5(tmp_path, federation)
  out = tmp_path / 'records'
  assert convert.main([*flags(knobs), f'--out={out}']) == ExitCode.DONE
  assert load(knobs).scale == Scale(0, 1, 'float32')
  stored = load({'data.source': 'records', 'data.path': str(out)})
  assert stored.scale == Scale(0, 1, 'float32')
  index = dict(np.load(out / user_records.INDEX))
  save_arrays(out / user_records.INDEX, index | {'scale_high': np.array(-1.0)})
  with refused(DataError, 'it has the scale'):
    load({'data.source': 'records', 'data.path': str(out)})
