"""Clients are found by the name that the data give them, and by their number."""

import numpy as np
import pytest

from moon_jax.core import client_names
from moon_jax.core.errors import UsageError


def test_a_name_comes_before_a_number():
  names = ['2', '1', 'rural']
  expected = {'2': 0, '1': 1, 'rural': 2, '0': 0, 1: 1, 2: 2}
  for word, number in expected.items():
    assert client_names.number_of(word, names, 3, 'the run') == number
  # As of argmax; a file of weights says it as JSON.
  assert type(client_names.number_of(np.int64(2), names, 3, 'the run')) is int


@pytest.mark.parametrize('word', [3, -1, '-1', '3', '1.0', '', '²', 'Rural'])
def test_an_unknown_client_lists_the_names(word):
  with pytest.raises(
    UsageError, match=r'must be a name \(city, rural\) or a number, 0'
  ):
    client_names.number_of(word, ['city', 'rural'], 2, 'the run')


def test_the_nearest_of_many_names_is_named_and_few_are_listed():
  names = [f'site{number}' for number in range(1000)]
  with pytest.raises(UsageError) as caught:
    client_names.number_of('sitte512', names, 1000, 'the run in x')
  assert str(caught.value) == (
    "client='sitte512' must be a name (site0, site1, site2, site3, site4, site5, "
    'site6, site7, site8, site9, ...) or a number, 0 to 999, for the run in x. Did you '
    "mean 'site512'?"
  )


def test_the_names_of_a_partition(tmp_path):
  path = tmp_path / 'partition.npz'
  np.savez(path, indices=np.arange(3))
  assert client_names.saved_names(path) is None
  np.savez(path, clients=np.array(['b', 'a\udcff']))
  assert client_names.saved_names(path) == ['b', 'a\\udcff']
  np.savez(path, clients=np.array([7, 3]))
  assert client_names.saved_names(path) == ['7', '3']
  np.savez(path, clients=np.array([[7, 3]]))
  with pytest.raises(ValueError, match='clients is int64 of shape'):
    client_names.saved_names(path)
