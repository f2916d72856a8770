"""Data sets that are links, as in the Hub's cache and on clusters, are read as files.

But a column of pictures has the bytes of its pictures, not paths of files elsewhere.
"""

import shutil

import numpy as np
import pytest

from moon_jax.core.errors import ExitCode
from moon_jax.data import convert, sources
from tests.data import layouts
from tests.data.federations import (
  arrays,
  datasets,
  files,
  flags,
  hdf5,
  huggingface,
  load,
  make_federation,
  npz,
  sqlite,
)
from tests.data.test_sources import prepare

FEDERATION = make_federation()


def tfds(folder, federation):
  prepare(folder, 'patch_camelyon', {'train': 12, 'test': 5, 'validation': 2})
  knobs = {'data.source': 'tfds', 'data.name': 'patch_camelyon', 'data.client': 'id'}
  return knobs | {'data.dir': str(folder)}


def records(folder, federation):
  knobs = npz(folder, federation)
  assert convert.main([*flags(knobs), f'--out={folder}/records']) == ExitCode.DONE
  return {'data.source': 'records', 'data.path': str(folder / 'records')}


def linked(pattern):
  """All files or folders that match are moved out, and links to them are left."""

  def change(folder):
    paths = sorted(folder.glob(pattern))
    assert paths
    for number, path in enumerate(paths):
      outside = folder.parent / 'blobs' / str(number)
      outside.parent.mkdir(exist_ok=True)
      path.rename(outside)
      path.symlink_to(outside)

  return change


@pytest.mark.parametrize(
  ('layout', 'change'),
  [
    (hdf5, linked('hdf5_*')),
    (sqlite, linked('sqlite_*')),
    (huggingface, linked('saved/train')),
    (huggingface, linked('saved/*/*.arrow')),
    (tfds, linked('patch_camelyon')),
    (tfds, linked('patch_camelyon/*/*.array_record*')),
    (files, linked('users/*.npz')),
    (layouts.imagefolder, linked('set/train/*')),
    (layouts.imagefolder, linked('set/*/*/*.png')),
    (layouts.tiny_imagenet, linked('set/val/*')),
    (layouts.domainnet, linked('set/*')),
    (layouts.mnist, linked('set/MNIST')),
    (layouts.cifar10, linked('set/*/*')),
    (layouts.svhn, linked('set/*.mat')),
    (layouts.parquet, linked('set/data/*')),
    (layouts.parquet, linked('set/data')),
    (layouts.leaf, linked('set/*')),
    (layouts.pfllib, linked('set/*/*.npz')),
    (layouts.table_parquet, linked('set/*')),
    (records, linked('records/*')),
  ],
)
def test_links_are_followed(layout, change, tmp_path, monkeypatch):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  (folder := tmp_path / 'set').mkdir()
  knobs = layout(folder, FEDERATION)
  before = sources.digest(load(knobs))
  change(folder)
  assert sources.digest(load(knobs)) == before


def test_a_change_behind_a_link_is_seen(tmp_path, monkeypatch):
  """Decoded images are kept, and decoded again after a change."""
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  (folder := tmp_path / 'set').mkdir()
  knobs = layouts.imagefolder(folder, FEDERATION)
  linked('set/train/*')(folder)
  before = sources.digest(load(knobs))
  first = sorted((folder / 'set/train/ant').iterdir())[0]
  layouts.save(first, np.zeros((8, 8, 3), np.uint8))
  assert sources.digest(load(knobs)) != before


def decoded(column):
  """The column has paths of images, which would be opened."""

  def change(folder):
    splits = datasets.load_from_disk(str(folder / 'saved'))
    (folder.parent / 'secret').write_bytes(b'of nobody')
    for split, examples in splits.items():
      paths = [str(folder.parent / 'secret')] * len(examples)
      examples = examples.remove_columns(column).add_column(column, paths)
      splits[split] = examples.cast_column(column, datasets.Image())
    splits.save_to_disk(str(folder / 'new'))
    shutil.rmtree(folder / 'saved')
    (folder / 'new').rename(folder / 'saved')

  return change


@pytest.mark.parametrize(
  ('layout', 'column'), [(huggingface, 'character'), (arrays, 'writer')]
)
def test_no_path_in_a_column_is_opened(layout, column, tmp_path, capsys):
  (folder := tmp_path / 'set').mkdir()
  words = [*flags(layout(folder, FEDERATION)), f'--out={tmp_path}/out']
  decoded(column)(folder)
  capsys.readouterr()
  assert convert.main(words) == ExitCode.USAGE
  (line,) = capsys.readouterr().err.splitlines()
  assert line.startswith('--config.data.path=')
  assert f'the column {column!r} is Image' in line
  assert not (tmp_path / 'out').exists()
