"""Data with user ids: every layout, the users that are kept, and refusals."""

import fcntl
import threading

import numpy as np
import pytest

import moon_jax
from moon_jax.core.errors import UsageError
from moon_jax.data import sources
from moon_jax.data.data_errors import DataError
from moon_jax.data.dataset import make_dataset
from moon_jax.data.federated import assembled, hdf5, sqlite, users
from tests.data import federations
from tests.data.federations import as_rows, load
from tests.data.test_sources import prepare, without_tensorflow
from tests.refusals import refused

FEDERATION = federations.make_federation()


def by_user(data, split):
  """user -> images, labels, as the data set has them."""
  images = getattr(data, f'{split}_images')
  labels = getattr(data, f'{split}_labels')
  owner = getattr(data, f'{split}_clients')
  return {
    data.clients[number]: (images[owner == number][..., 0], labels[owner == number])
    for number in np.unique(owner)
  }


@pytest.mark.parametrize(
  'layout', federations.LAYOUTS, ids=lambda layout: layout.__name__
)
def test_every_layout_gives_each_user_its_own_examples(layout, tmp_path):
  data = load(layout(tmp_path, FEDERATION))
  assert data.train_images.dtype == np.uint8
  assert data.num_classes == federations.CLASSES
  for split, expected_users in FEDERATION.items():
    examples_by_user = by_user(data, split)
    assert examples_by_user.keys() == expected_users.keys()
    for name in expected_users:
      assert as_rows(*examples_by_user[name]) == as_rows(*expected_users[name])
  # Users that train have the first numbers, in the order of their names.
  trained = sorted(FEDERATION['train'])
  assert data.clients.tolist() == [*trained, 'f0009_09']
  assert np.unique(data.train_clients).tolist() == list(range(4))


@pytest.mark.parametrize('layout', [federations.hdf5, federations.sqlite])
def test_a_file_is_read_without_a_lock(layout, tmp_path):
  """HDF5 would lock it, which fails if another has it locked, or on shared disks."""
  knobs = layout(tmp_path, FEDERATION)
  with open(knobs['data.path'], 'rb+') as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    fcntl.lockf(file, fcntl.LOCK_EX)
    assert len(load(knobs).clients) == 5


def test_a_reader_that_is_given_up_may_end_in_any_thread(tmp_path):
  """Python's search for cycles ends it in whatever thread then runs."""
  path = federations.hdf5(tmp_path, FEDERATION)['data.path']
  reader = hdf5._read('--config.data.path', path, '', '')
  next(reader)
  ending = threading.Thread(target=reader.close, daemon=True)
  ending.start()
  ending.join(timeout=10)
  assert not ending.is_alive()


def test_reading_a_database_has_a_limit_of_steps(tmp_path, monkeypatch):
  knobs = federations.sqlite(tmp_path, FEDERATION)
  monkeypatch.setattr(sqlite, '_STEPS_PER_CALL', 1)
  assert len(load(knobs).clients) == 5
  monkeypatch.setattr(sqlite, '_MAX_STEPS', 3)
  with refused(DataError, 'must be an SQLite database .*interrupted'):
    load(knobs)


def test_a_database_holds_what_fedjax_packs():
  arrays = {'pixels': np.full((1, 1, 1), 0.5, np.float32), 'label': np.int32([3])}
  # FedJAX 0.0.17's msgpack_serialize(one): a map of two, each of the extension type 1.
  pixels = b'\x93\x93\x01\x01\x01\xa7float32\xc4\x04\x00\x00\x00?'
  label = b'\x93\x91\x01\xa5int32\xc4\x04\x03\x00\x00\x00'
  theirs = b'\x82\xa6pixels\xc7\x13\x01' + pixels + b'\xa5label\xc7\x0f\x01' + label
  assert federations.packed(arrays) == theirs


def test_tfds_with_an_id_feature(tmp_path, monkeypatch):
  without_tensorflow(monkeypatch)
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  sizes = {'train': 12, 'test': 5, 'validation': 2}
  written = prepare(tmp_path, 'patch_camelyon', sizes)
  knobs = {'data.source': 'tfds', 'data.name': 'patch_camelyon', 'dir': str(tmp_path)}
  for _ in ('decoded', 'kept'):
    data = load(knobs, client='id')
    for split, numbers in (('train', data.train_clients), ('test', data.test_clients)):
      named = [example['id'].decode() for example in written[split]]
      assert data.clients[numbers].tolist() == named
  assert load(knobs).clients is None
  with pytest.raises(DataError, match="client='slide' is not among the features of"):
    load(knobs, client='slide')


@pytest.mark.usefixtures('own_parts')
def test_a_registered_source_may_have_user_ids():
  images, labels = np.zeros((6, 2, 2), np.uint8), np.arange(6) % 2

  arrays = images, labels, images, labels, ['a', 'b'] * 3, None
  moon_jax.register_data('mine', lambda: arrays)
  data = sources.load('mine', limit=0)
  assert data.clients[data.train_clients].tolist() == ['a', 'b'] * 3
  assert data.test_clients is None
  text = np.array(['x', 'y'] * 3, object)  # as of pandas
  objects = images, text, images, text, np.array(['a', 'b'] * 3, object), None
  moon_jax.register_data('mine', lambda: objects)
  of_objects = sources.load('mine', limit=0)
  assert of_objects.class_names == ('x', 'y')
  np.testing.assert_array_equal(of_objects.train_clients, data.train_clients)
  ragged = [images[0], images[0, :1]] * 3, labels, images, labels
  moon_jax.register_data('mine', lambda: ragged)
  with pytest.raises(DataError, match="source='mine' must return arrays: ValueError"):
    sources.load('mine', limit=0)


# --- who is who -----------------------------------------------------------------------


def tiny(train, test=None):
  """A data set of these users, whose images show their row."""
  sizes = len(train), 3 if test is None else len(test)
  splits = [
    (
      np.full((size, 2, 2), np.arange(size)[:, None, None], np.uint8),
      np.arange(size) % 2,
    )
    for size in sizes
  ]
  data = make_dataset('tiny', *splits, 2)
  test = None if test is None else np.array(test)
  return users.named('it', data, np.array(train), test)


def row_numbers(images):
  return images[:, 0, 0, 0].tolist()


def test_users_that_train_are_numbered_in_the_order_of_their_names():
  data = tiny([30, 7, 30, 100], test=[8, 7, 100])
  assert data.clients.tolist() == [7, 30, 100, 8]
  assert data.train_clients.tolist() == [1, 0, 1, 2]
  assert data.test_clients.tolist() == [3, 0, 2]
  assert tiny([b'b', b'a']).clients.tolist() == ['a', 'b']
  assert tiny([b'\xff']).clients.tolist() == ['\\xff']


def test_users_of_the_test_alone():
  data = users.named('it', tiny([1])._replace(clients=None), None, np.array(['x'] * 3))
  assert data.train_clients is None
  assert data.test_clients.tolist() == [0, 0, 0]


def test_users_with_too_few_examples_are_tested_but_do_not_train():
  data = tiny(['b', 'a', 'b', 'c', 'b', 'a'], test=['a', 'c', 'b', 'd'])
  larger, num_dropped = users.without_small(data, 2)
  assert num_dropped == 1
  assert row_numbers(larger.train_images) == [0, 1, 2, 4, 5]
  assert larger.clients[larger.train_clients].tolist() == ['b', 'a', 'b', 'b', 'a']
  assert larger.clients[larger.test_clients].tolist() == ['a', 'c', 'b', 'd']
  assert larger.train_clients.max() == 1
  assert users.without_small(data, 1) == (data, 0)
  with pytest.raises(UsageError, match=r'min_size=4 leaves none of 3 .* owns 3 exam'):
    users.without_small(data, 4)


def test_a_limit_keeps_whole_users_the_same_in_both_splits():
  names = [f'u{i:02}' for i in range(20)]
  data = tiny(np.repeat(names, 3), test=np.repeat(names, 2))
  users_by_limit = {}
  for limit in (1, 10, 30, 10**6):
    part = users.limited(data, limit)
    assert len(part.train_labels) == min(max(3, limit // 3 * 3), 60)
    assert len(part.test_labels) == min(max(2, limit // 2 * 2), 40)
    users_by_limit[limit] = set(part.clients[part.train_clients])
    sizes = np.bincount(part.train_clients)
    assert sizes.tolist() == [3] * len(users_by_limit[limit])
    assert users_by_limit[limit] <= set(part.clients[part.test_clients]) or limit == 1
    for row, number in zip(
      row_numbers(part.train_images), part.train_clients, strict=True
    ):
      assert part.clients[number] == names[row // 3]
  assert (
    users_by_limit[1] < users_by_limit[10] < users_by_limit[30] < users_by_limit[10**6]
  )
  assert sources.digest(users.limited(data, 60)) == sources.digest(data)


def test_the_owner_of_each_example_counts_in_the_digest():
  data, other = tiny([1, 1, 2]), tiny([1, 2, 2])
  assert sources.digest(data) != sources.digest(other)
  assert sources.digest(data) != sources.digest(tiny([1, 1, 3]))


# --- what is refused ------------------------------------------------------------------


@pytest.mark.parametrize(
  ('ids', 'message'),
  [
    (np.arange(3), r'train_client has shape \(3,\); it must name the user of each'),
    (np.zeros((4, 1), int), r'train_client has shape \(4, 1\)'),
    (np.zeros(4), 'train_client is float64, neither integers nor text'),
    (np.array(list('abcd')), 'train_client and test_client must be of one type'),
    (
      np.array([1, 2, 3, 2**63], np.uint64),
      'train_client has 9223372036854775808, beyond int64: write them as text',
    ),
  ],
)
def test_ids_of_another_length_or_type(ids, message):
  data = tiny([1, 2, 3, 4])
  with pytest.raises(DataError, match=f'^it: {message}'):
    users.named('it', data, ids, np.array([1, 1, 2]))


def test_a_package_that_is_not_installed():
  line = "source='hdf5' needs the package no_h5py.part: pip install no_h5py$"
  with pytest.raises(DataError, match=line):
    assembled.package('hdf5', 'no_h5py.part')
