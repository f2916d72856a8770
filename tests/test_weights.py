"""Weights in a file are those of the model, for this program and for others."""

import re
import struct

import numpy as np
import pytest

from moon_jax.core import weights
from moon_jax.core.errors import UsageError
from tests.refusals import refused

VARIABLES = {
  'params': {
    'conv1': {'bias': np.arange(6, dtype=np.float32)},
    # Not in C order, as what a device hands back may be.
    'fc1': {'kernel': np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3))},
  },
  'batch_stats': {'norm': {'mean': np.full(2, 0.5, np.float32)}},
}
FORMATS = ('x.npz', 'x.safetensors')


def written(path):
  weights.write(path, weights.flat(VARIABLES), {'round': '4', 'a': '{"b": "é"}'})
  return path


@pytest.mark.parametrize('name', FORMATS)
def test_what_is_read_is_what_was_written(tmp_path, name):
  path = written(tmp_path / name)
  arrays, texts = weights.read(path)
  assert texts == {'round': '4', 'a': '{"b": "é"}'}
  assert weights.read_weights(str(path)).keys() == arrays.keys()
  assert arrays.keys() == {
    'batch_stats/norm/mean',
    'params/conv1/bias',
    'params/fc1/kernel',
  }
  assert {array.dtype for array in arrays.values()} == {np.dtype('float32')}
  variables = weights.nested(arrays)
  kernel = variables['params']['fc1']['kernel']
  np.testing.assert_array_equal(kernel, [[0, 1, 2], [3, 4, 5]])
  assert variables.keys() == VARIABLES.keys()


@pytest.mark.parametrize(
  ('name', 'content', 'words'),
  [
    ('absent.npz', None, 'must be a file that ends in .safetensors or .npz'),
    ('x.txt', b'', 'must be a file that ends in .safetensors or .npz'),
    ('x.npz', b'text', 'cannot be read: File is not a zip file'),
    ('x.safetensors', struct.pack('<Q', 2**62), 'cannot be read'),
  ],
)
def test_what_is_no_file_of_weights(tmp_path, name, content, words):
  path = tmp_path / name
  if content is not None:
    path.write_bytes(content)
  with refused(UsageError, re.escape(words)):
    weights.read_weights(path)


def test_nothing_is_unpickled(tmp_path):
  np.savez(tmp_path / 'x.npz', a=np.array([None]))
  with pytest.raises(UsageError, match='cannot be read: a holds Python objects'):
    weights.read_weights(tmp_path / 'x.npz')


def test_another_suffix_is_refused_before_anything_is_written(tmp_path):
  with pytest.raises(UsageError, match=r'must end in \.safetensors'):
    weights.write(tmp_path / 'x.pt', {}, {})
  assert list(tmp_path.iterdir()) == []
