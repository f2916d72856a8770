"""Federations that stay on disk: read as they were written, or refused."""

import pathlib
import shutil

import numpy as np
import pytest

from moon_jax.core.errors import ExitCode, UsageError
from moon_jax.data import convert, sources
from moon_jax.data.data_errors import DataError
from moon_jax.data.federated import user_records, users
from tests.data import federations, layouts
from tests.data.federations import flags, load, save_arrays
from tests.refusals import refused

FEDERATION = federations.make_federation()


def converted(folder, layout, federation=FEDERATION):
  """The source that `layout` wrote, and the records made of it."""
  knobs = layout(folder, federation)
  out = folder / 'records'
  words = [*flags(knobs), f'--out={out}']
  assert convert.main(words) == ExitCode.DONE
  return knobs, {'data.source': 'records', 'data.path': str(out)}


def channels_first(folder, federation):
  return layouts.pfllib(folder, federations.in_colour(federation))


def test_records_are_not_made_of_records(tmp_path, capsys):
  _, stored = converted(tmp_path, federations.npz)
  code = convert.main([*flags(stored), f'--out={tmp_path}/new'])
  assert code == ExitCode.USAGE
  assert 'the data are records already' in capsys.readouterr().err


LAYOUTS = (*federations.LAYOUTS, channels_first)


@pytest.mark.parametrize('layout', LAYOUTS, ids=lambda layout: layout.__name__)
def test_the_records_are_what_the_source_has(layout, tmp_path, capsys):
  knobs, stored = converted(tmp_path, layout)
  output = capsys.readouterr().out
  assert output == f'{tmp_path}/records: 4 clients with 52 training examples\n'
  memory, disk = load(knobs), load(stored)
  assert disk.clients.tolist() == memory.clients.tolist()
  sizes = np.bincount(memory.train_clients)
  assert disk.stored.sizes.tolist() == sizes.tolist()
  class_counts = [
    np.bincount(memory.train_labels[memory.train_clients == i], minlength=4).tolist()
    for i in range(4)
  ]
  assert disk.stored.class_counts.tolist() == class_counts
  for name in ('test_images', 'test_labels', 'test_clients', 'mean', 'std'):
    np.testing.assert_array_equal(getattr(disk, name), getattr(memory, name))
  chosen = np.array([2, 0, 3])
  for client, (images, labels) in zip(
    chosen, disk.stored.read(disk.stored.records[chosen]), strict=True
  ):
    is_owned = memory.train_clients == client
    np.testing.assert_array_equal(images, memory.train_images[is_owned])
    np.testing.assert_array_equal(labels, memory.train_labels[is_owned])


def test_the_same_users_are_kept_as_of_data_in_memory(tmp_path):
  knobs, stored = converted(tmp_path, federations.hdf5)
  for limit, min_size in ((0, 5), (0, 10), (12, 1), (25, 5), (1, 1)):
    memory, num_left_out = users.without_small(load(knobs, limit=limit), min_size)
    disk, num_left_out_of_disk = users.without_small(
      load(stored, limit=limit), min_size
    )
    assert num_left_out == num_left_out_of_disk
    assert disk.clients.tolist() == memory.clients.tolist()
    assert users.sizes_of(disk).tolist() == users.sizes_of(memory).tolist()
    for name in ('test_images', 'test_labels', 'test_clients'):
      np.testing.assert_array_equal(getattr(disk, name), getattr(memory, name))
    for client, (images, _) in enumerate(disk.stored.read(disk.stored.records)):
      mine = memory.train_clients == client
      np.testing.assert_array_equal(images, memory.train_images[mine])
  with pytest.raises(UsageError, match='leaves none'):
    users.without_small(disk, 100)


def test_the_digest_is_of_every_record(tmp_path):
  digests = set()
  for number, change in enumerate([None, 'pixel', 'label', 'name']):
    federation = federations.make_federation()
    images, labels = federation['train']['f0001_41']
    if change == 'pixel':
      images[0, 0, 0] ^= 1
    elif change == 'label':
      labels[:2] = labels[1::-1]
    elif change == 'name':
      federation['train']['f0001_42'] = federation['train'].pop('f0001_41')
    folder = tmp_path / str(number)
    folder.mkdir()
    _, stored = converted(folder, federations.files, federation)
    digests.add(sources.digest(load(stored)))
  assert len(digests) == 4


@pytest.fixture(scope='module')
def _records(tmp_path_factory):
  folder = tmp_path_factory.mktemp('made')
  converted(folder, federations.hdf5)
  return folder / 'records'


@pytest.fixture
def folder(_records, tmp_path):
  """A federation that a test may damage."""
  return pathlib.Path(shutil.copytree(_records, tmp_path / 'records'))


def read_all(folder):
  data = load({'data.source': 'records', 'data.path': str(folder)})
  return data.stored.read(data.stored.records)


def test_a_folder_of_two_federations_is_refused(folder, tmp_path):
  (tmp_path / 'b').mkdir()
  converted(tmp_path / 'b', federations.hdf5, federations.make_federation(1))
  (tmp_path / 'b/records' / user_records.RECORDS).replace(folder / user_records.RECORDS)
  with pytest.raises(DataError, match='record 0 is damaged; convert it again'):
    read_all(folder)


def test_an_index_of_an_older_version_is_refused(folder):
  """It took the height for the channels, where these come first."""
  path = folder / user_records.INDEX
  index = dict(np.load(path))
  index['test_x'] = index['test_x'].transpose(0, 3, 1, 2)
  index |= {name: np.repeat(index[name], 8) for name in ('mean', 'std')}
  save_arrays(path, index)
  with refused(DataError, 'convert it again'):
    read_all(folder)


def test_sizes_that_the_records_do_not_have_are_one_line(folder):
  path = folder / user_records.INDEX
  index = dict(np.load(path))
  index['class_counts'][0, 0] += 1
  index['sizes'][0] += 1
  save_arrays(path, index)
  with pytest.raises(DataError, match='record 0 is damaged'):
    read_all(folder)


def test_a_federation_of_random_images_is_written_as_records(tmp_path, capsys):
  out = tmp_path / 'made'
  assert convert.main([f'--out={out}', '--synthetic=30x7']) == ExitCode.DONE
  assert capsys.readouterr().out == f'{out}: 30 clients with 210 training examples\n'
  data = load({'data.source': 'records', 'data.path': str(out)})
  assert data.stored.sizes.tolist() == [7] * 30
  assert ((data.stored.class_counts > 0).sum(1) <= 3).all()
  assert data.num_classes == 10
  assert len(set(data.test_clients.tolist())) == 30
  images, _ = data.stored.read(data.stored.records[[3]])[0]
  assert images.shape == (7, 28, 28, 1)


@pytest.mark.parametrize(
  ('words', 'line'),
  [
    ([], '--out is missing; see --help.'),
    (['--out=here'], "--out='here' exists already; give a new name."),
    (['--out=new', '--synthetic=5'], "--synthetic='5' must be NxM: N users with M im"),
    (['--out=new', '--synthetic=5x5', 'x'], "'x' is not used with --synthetic."),
    (['--out=new.npz', '--synthetic=5x5'], "--synthetic='5x5' writes a folder of rec"),
    (['--out=new'], "--config.data.source='digits': the data have no user ids; "),
    (['--out=new', '--config.data.limit=9'], '--config.data.limit=9 is not used here'),
  ],
)
def test_bad_command_lines(words, line, tmp_path, monkeypatch, capsys):
  (tmp_path / 'here').mkdir()
  monkeypatch.chdir(tmp_path)
  assert convert.main(words) == ExitCode.USAGE
  assert capsys.readouterr().err.startswith(line)
  assert [path.name for path in tmp_path.iterdir()] == ['here']


def test_labels_with_a_gap_are_refused_and_nothing_is_left(tmp_path, capsys):
  federation = federations.make_federation()
  for _, labels in federation['train'].values():
    labels[labels == 2] = 1
  knobs = federations.hdf5(tmp_path, federation)
  words = [*flags(knobs), f'--out={tmp_path / "out"}']
  assert convert.main(words) == ExitCode.USAGE
  message = 'train_y holds no 2; number the classes from 0 without gaps'
  assert message in capsys.readouterr().err
  assert not list(tmp_path.glob('out*'))


def test_a_full_disk_is_one_line_and_leaves_nothing(disk, tmp_path, capsys):
  folder = pathlib.Path(disk('small', '2m'))
  code = convert.main([f'--out={folder / "out"}', '--synthetic=400x50'])
  err = capsys.readouterr().err
  assert code == ExitCode.FAILED, err
  assert err.count('\n') == 1
  assert 'cannot be written: ' in err
  assert not list(folder.iterdir())
