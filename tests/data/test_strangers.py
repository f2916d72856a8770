"""A stranger's data set is what lies in it: one line and exit code 2 for any other.

What it names elsewhere could be read, so that a source which follows it would load.
"""

import contextlib
import json
import shutil
import sqlite3

import numpy as np
import pytest

from moon_jax.core.errors import ExitCode
from moon_jax.data import convert
from moon_jax.data.federated import sqlite as source
from tests.data import layouts
from tests.data.federations import (
  arrays,
  datasets,
  federation,
  files,
  flags,
  h5py,
  hdf5,
  huggingface,
  npz,
  sqlite,
)
from tests.data.test_sources import prepare
from tests.run_directories import edit_json

FOUND = federation()
USER = 'examples/f0003_11'


def tfds(folder, found):
  prepare(folder, 'patch_camelyon', {'train': 12, 'test': 5, 'validation': 2})
  knobs = {'data.source': 'tfds', 'data.name': 'patch_camelyon', 'data.client': 'id'}
  return knobs | {'data.dir': str(folder)}


def records(folder, found):
  knobs = npz(folder, found)
  assert convert.main([*flags(knobs), f'--out={folder}/records']) == ExitCode.DONE
  return {'data.source': 'records', 'data.path': str(folder / 'records')}


# --- what a stranger does, in the folder of the data set ------------------------------


def linked(pattern):
  """The first file that matches is moved out, and a link to it is left."""

  def change(folder):
    path = sorted(folder.glob(pattern))[0]
    outside = folder.parent / f'outside_{path.name}'
    path.rename(outside)
    path.symlink_to(outside)

  return change


def in_file(change):
  def of_file(folder):
    shutil.copy(folder / 'hdf5_train', folder.parent / 'outside')
    with h5py.File(folder / 'hdf5_train', 'r+') as file:
      change(file, str(folder.parent / 'outside'))

  return of_file


def link(name, kind):
  """The object is a link: to that of another file, or to its own by another name."""

  def change(file, outside):
    file.move(name, 'own')
    is_soft = kind is h5py.SoftLink
    file[name] = kind('/own') if is_soft else kind(outside, f'/{name}')

  return in_file(change)


def elsewhere(key, store):
  def change(file, outside):
    shape, dtype = file[USER][key].shape, file[USER][key].dtype
    del file[USER][key]
    store(file[USER], key, shape, dtype, outside)

  return in_file(change)


def external(group, key, shape, dtype, outside):
  size = int(np.prod(shape)) * dtype.itemsize
  group.create_dataset(key, shape, dtype, external=[(outside, 0, size)])


def virtual(group, key, shape, dtype, outside):
  layout = h5py.VirtualLayout(shape, dtype)
  layout[:] = h5py.VirtualSource(outside, f'{USER}/{key}', shape)
  group.create_virtual_dataset(key, layout)


def script(text):
  def change(folder):
    with sqlite3.connect(folder / 'sqlite_train') as base:
      base.executescript(text)
    base.close()

  return change


ROWS = 'WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c)'
ENDLESS = f"AS {ROWS} SELECT x AS client_id, x'00' AS data FROM c WHERE x < 0"
MOVED = 'ALTER TABLE federated_data RENAME TO own;'
FORGED = f"UPDATE sqlite_master SET sql = '{ENDLESS.replace(chr(39), chr(39) * 2)}'"
FORGED = FORGED.replace("'AS", "'CREATE VIEW federated_data AS", 1)


def state(name, moved=True):
  """The files of a split have another name, and may be elsewhere."""

  def change(folder):
    path = folder / 'saved/train/state.json'
    content = json.loads(path.read_text())
    (own,) = content['_data_files']
    outside = name.format(folder=folder)
    if moved:
      (path.parent / own['filename']).rename(path.parent / outside)
    path.write_text(json.dumps(content | {'_data_files': [{'filename': outside}]}))

  return change


def decoded(column):
  """The column has paths of images, which would be opened."""

  def change(folder):
    parts = datasets.load_from_disk(str(folder / 'saved'))
    (folder.parent / 'secret').write_bytes(b'of nobody')
    paths = {one: [str(folder.parent / 'secret')] * len(parts[one]) for one in parts}
    for split, own in parts.items():
      own = own.remove_columns(column).add_column(column, paths[split])
      parts[split] = own.cast_column(column, datasets.Image())
    parts.save_to_disk(str(folder / 'new'))
    shutil.rmtree(folder / 'saved')
    (folder / 'new').rename(folder / 'saved')

  return change


def named(name, line):
  """A list names a picture by a path that leads out."""

  def change(folder):
    outside = folder / 'outside'
    outside.mkdir(parents=True)
    shutil.copy(next(folder.rglob('*.png')), outside / 'a.png')
    path = folder / name
    path.write_text(f'{line}\n{path.read_text()}')

  return change


def template(name):
  """TFDS's own description has another name of the files."""

  def change(folder):
    (path,) = folder.glob('patch_camelyon/*/dataset_info.json')
    named = {'filepathTemplate': name.format(folder=folder.parent)}
    edit_json(path, lambda content: [one.update(named) for one in content['splits']])
    for file in path.parent.glob('*.array_record*'):
      shutil.copy(file, folder.parent)
      shutil.copy(file, folder)

  return change


OUT, NO_TABLE = 'It is not in its folder', 'not a view or the like'
ANNOTATIONS = 'set/val/val_annotations.txt'
TEMPLATE = '{{DATASET}}-{{SPLIT}}.{{FILEFORMAT}}-{{SHARD_X_OF_Y}}'
VIEW = f'{MOVED} CREATE VIEW federated_data'
FTS = f'{MOVED} CREATE VIRTUAL TABLE federated_data USING fts5(a)'
EXTERNAL, STORED = h5py.ExternalLink, 'is stored in another file'
CASES = [
  (hdf5, elsewhere('pixels', external), STORED),
  (hdf5, elsewhere('label', external), STORED),
  (hdf5, elsewhere('pixels', virtual), STORED),
  (hdf5, elsewhere('label', virtual), STORED),
  (hdf5, link('examples', EXTERNAL), "'examples' in '/' is a link"),
  (hdf5, link(USER, EXTERNAL), "'f0003_11' in '/examples' is a link"),
  (hdf5, link(f'{USER}/label', EXTERNAL), 'is a link'),
  (hdf5, link(f'{USER}/label', h5py.SoftLink), 'is a link'),
  (sqlite, script(f'{VIEW} {ENDLESS}'), NO_TABLE),
  (sqlite, script(f'{VIEW} AS SELECT * FROM own'), NO_TABLE),
  (sqlite, script(FTS), NO_TABLE),
  (sqlite, script(f'PRAGMA writable_schema = on; {FORGED}'), 'malformed'),
  (huggingface, state('../../outside'), OUT),
  (huggingface, state('{folder}/outside'), OUT),
  (huggingface, state('/dev/zero', moved=False), OUT),
  (huggingface, linked('saved/train/*.arrow'), OUT),
  (huggingface, linked('saved/test'), OUT),
  (huggingface, linked('saved/train/dataset_info.json'), OUT),
  (huggingface, decoded('character'), "the column 'character' is Image"),
  (arrays, state('../test/../../outside'), OUT),
  (arrays, decoded('writer'), "the column 'writer' is Image"),
  (tfds, template(f'../{TEMPLATE}'), OUT),
  (tfds, template(f'../../{TEMPLATE}'), OUT),
  (tfds, template(f'{{folder}}/{TEMPLATE}'), OUT),
  (tfds, linked('patch_camelyon/*/*-train*'), OUT),
  (tfds, linked('patch_camelyon/*'), OUT),
  (files, linked('users/*.npz'), OUT),
  (layouts.imagefolder, linked('set/train/ant/*.png'), OUT),
  (layouts.imagefolder, linked('set/train/ant'), OUT),
  (layouts.imagefolder, linked('set/test'), OUT),
  (layouts.tiny_imagenet, linked('set/val/val_annotations.txt'), OUT),
  (layouts.tiny_imagenet, linked('set/val/images'), OUT),
  (layouts.tiny_imagenet, named(ANNOTATIONS, '../../../outside/a.png\tant'), OUT),
  (layouts.domainnet, linked('set/f0001_41_train.txt'), OUT),
  (layouts.domainnet, named('set/f0001_41_train.txt', '../outside/a.png 0'), OUT),
  (layouts.mnist, linked('set/MNIST/raw/*-labels*'), OUT),
  (layouts.mnist, linked('set/MNIST'), OUT),
  (layouts.cifar10, linked('set/*/test_batch'), OUT),
  (layouts.cifar10, linked('set/*/batches.meta'), OUT),
  (layouts.svhn, linked('set/test_32x32.mat'), OUT),
  (layouts.parquet, linked('set/data/train*'), OUT),
  (layouts.parquet, linked('set/README.md'), OUT),
  (layouts.leaf, linked('set/test/*.json'), OUT),
  (layouts.pfllib, linked('set/test/0.npz'), OUT),
  (records, linked('records/train.array_record'), OUT),
  (records, linked('records/index.npz'), OUT),
]


@pytest.mark.parametrize('number', range(len(CASES)))
def test_nothing_outside_is_read(number, tmp_path, capsys, monkeypatch):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  layout, change, message = CASES[number]
  (folder := tmp_path / 'set').mkdir()
  # A data set without users is written as one file.
  out = tmp_path / ('out.npz' if layout in layouts.WITHOUT_USERS else 'out')
  words = [*flags(layout(folder, FOUND)), f'--out={out}']
  change(folder)
  capsys.readouterr()
  assert convert.main(words) == ExitCode.USAGE
  (line,) = capsys.readouterr().err.splitlines()
  assert message in line
  assert line.startswith(('--config.data.', 'cannot open --config.data.name='))
  assert not out.exists()


def test_links_within_a_data_set_are_its_own(tmp_path):
  knobs = files(tmp_path, FOUND)
  (tmp_path / 'users/0.npz').rename(tmp_path / 'users/own')
  (tmp_path / 'users/0.npz').symlink_to('own')
  (tmp_path / 'link').symlink_to(tmp_path / 'users')
  words = flags(knobs | {'data.path': f'{tmp_path}/link'})
  assert convert.main([*words, f'--out={tmp_path}/out']) == ExitCode.DONE


def test_sqlite_has_a_time_for_each_row(monkeypatch):
  monkeypatch.setattr(source, 'SECONDS', 0.2)
  with contextlib.closing(sqlite3.connect(':memory:')) as base:
    rows = source._within(base, f'{ROWS} SELECT x FROM c WHERE x < 4 OR x > 1e12')
    assert [next(rows), next(rows)] == [(1,), (2,)]
    with pytest.raises(sqlite3.OperationalError, match='interrupted'):
      next(rows)
