"""Numbers out of all proportion are refused in one line, or change nothing else."""

import contextlib
import pathlib
import resource
import time

import numpy as np
import pytest
from PIL import Image

from moon_jax import catalog
from moon_jax.building import experiment
from moon_jax.config import ConfigError, from_word, validate
from moon_jax.core import machine_memory
from moon_jax.core.errors import UsageError
from moon_jax.data import sources

INTEGERS = ('-1', '-0', '2147483647', '2147483648', '99999999999', '9' * 400)
FLOATS = ('-0.0', '-1', '1e-400', '1e-39', '1.2e-38', '3.4e38', '1e39', '1e400', 'nan')
NUMBERS = [
  name for name, knob in catalog.every_knob().items() if knob.kind in (int, float)
]
# Each of these knobs needs more of a setting than its own parts.
FURTHER = {
  'fine_tune_epochs': {'data.local_test': 0.2},
  'ditto': {'data.local_test': 0.2},
  'apfl': {'data.local_test': 0.2},
  'pfedme': {'data.local_test': 0.2},
  'per_fedavg': {'data.local_test': 0.2},
  'per_fedavg.delta': {'data.local_test': 0.2, 'per_fedavg.hessian': 'difference'},
  'fedala': {'data.local_test': 0.2},
  'dco_moon.normalise': {'dco_moon.mu': 1.0},
}
MACHINE_BYTES = 2**33  # the memory that these tests' machine seems to have
ROOM_BYTES = 2**34  # addresses for what a test allocates
LIMIT_SECONDS = 20  # of the processor


def setting(name, data):
  """The knobs with which a knob is used."""
  every_knob = catalog.every_knob()
  values = {
    'data.source': 'npz',
    'data.path': str(data),
    'partition.name': 'iid',
    'partition.min_size': 1,
    'local_epochs': 1,
    **FURTHER.get(name, FURTHER.get(name.split('.')[0], {})),
  }
  for kind, trait in every_knob[name].needs:
    selecting = catalog.KINDS[kind]
    users = [
      part for part in catalog.names(kind) if catalog.part(kind, part).has(trait)
    ]
    if values.get(selecting, every_knob[selecting].default) not in users:
      values[selecting] = users[0]
  if every_knob[name].used_if:
    other, _ = every_knob[name].used_if
    values.setdefault(
      other, {bool: True, float: 0.3, str: 'mlp'}[every_knob[other].kind]
    )
  if 'data.tokenizer' in values:
    texts = {'data.path': str(data.with_name('texts.npz')), 'model': 'gru'}
    values |= texts | {'data.tokenizer': 'wordpiece'}
  return values


@pytest.fixture(scope='module')
def data(tmp_path_factory):
  rng = np.random.default_rng(0)
  path = tmp_path_factory.mktemp('extremes') / 'small.npz'
  arrays = {'train_y': np.arange(120) % 3, 'test_y': np.arange(30) % 3}
  for split, size in (('train_x', 120), ('test_x', 30)):
    arrays[split] = rng.integers(0, 256, (size, 32, 32, 3), np.uint8)
  np.savez(path, **arrays)
  texts = {
    f'{split}_x': np.resize(['a good day', 'a bad day', 'a day'], size)
    for split, size in (('train', 120), ('test', 30))
  }
  np.savez(path.with_name('texts.npz'), **arrays | texts)
  return path


@contextlib.contextmanager
def little_memory():
  """What the machine seems to have is the same on each; no allocation burdens it.

  A failed allocation outside of Python would end the process, so the limit counts from
  what the process has already, and is far above what passes the product's own checks.
  """
  limits = resource.getrlimit(resource.RLIMIT_AS)
  num_pages = int(pathlib.Path('/proc/self/statm').read_text().split()[0])
  most_bytes = num_pages * resource.getpagesize() + ROOM_BYTES
  resource.setrlimit(resource.RLIMIT_AS, (most_bytes, limits[1]))
  try:
    with pytest.MonkeyPatch.context() as patch:
      patch.setattr(machine_memory, 'total_bytes', lambda: MACHINE_BYTES)
      yield
  finally:
    resource.setrlimit(resource.RLIMIT_AS, limits)


@pytest.mark.slow
@pytest.mark.parametrize('name', NUMBERS)
def test_an_extreme_number_is_one_line_or_builds(name, data):
  if catalog.every_knob()[name].needs[:1] == (('data', 'imagefolder'),):
    pytest.skip('test_images_larger_than_the_memory has it')
  words = INTEGERS if catalog.every_knob()[name].kind is int else FLOATS
  for word in words:
    begin = time.process_time()
    problem = ''
    with little_memory():
      try:
        values = setting(name, data) | {name: from_word(name, word)}
        experiment.build(validate(values)).planner.plan(0)
      except UsageError as error:
        problem = str(error)
    assert '\n' not in problem
    assert time.process_time() - begin < LIMIT_SECONDS, word


def test_every_whole_number_fits_32_bits():
  for name, knob in catalog.every_knob().items():
    if knob.kind is int:
      with pytest.raises(ConfigError, match=f'{name}=2147483648 must be '):
        validate({name: 2**31})


def test_a_negative_zero_is_zero():
  assert str(validate({'data.validation': -0.0}).data.validation) == '0.0'


def test_images_larger_than_the_memory(tmp_path):
  for split in ('train', 'test'):
    for label in ('a', 'b'):
      (tmp_path / split / label).mkdir(parents=True)
      Image.new('L', (4, 4)).save(tmp_path / split / label / '0.png')
  with pytest.raises(UsageError, match=r'image_size=2147483647 needs .* the images'):
    sources.load('imagefolder', limit=0, path=str(tmp_path), image_size=2**31 - 1)
