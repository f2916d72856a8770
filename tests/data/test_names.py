"""Names inside data, and files that are none: nothing outside is opened, or waited for.

A stranger's data set stands beside a folder of files that are none of its business,
each of another kind. inotify sees whatever is opened there, in C as in Python.
"""

import contextlib
import json
import os
import pathlib
import shutil
import socket
import time
import urllib.parse
from collections.abc import Callable
from typing import NamedTuple

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from moon_jax.data.data_errors import DataError
from tests.data import federations, layouts
from tests.data.federations import as_rows, h5py, load
from tests.data.test_strangers import FEDERATION, records, tfds
from tests.selection import few
from tests.test_hostile import searched as shrunk
from tests.watching import openings, within

SECONDS = 10


def searched(examples):
  """As in `test_hostile`, but a failure, which may have waited, is not made smaller."""
  return settings(shrunk(examples), phases=[Phase.generate])


USER = 'f0003_11'


# --- the hostile names ----------------------------------------------------------------


class Spot(NamedTuple):
  """A place in a data set where a name stands.

  Attributes:
    layout: writes the set.
    file: the file in which the name stands.
    base: folder from which the name leads on.
    named: a file that such a name usually means.
    write: (file, name) writes the name there; other names stay.
  """

  layout: Callable
  file: str
  base: str
  named: str
  write: Callable[[pathlib.Path, str], None]


def of_hdf5(write, file='hdf5_train'):
  def write_in_file(path, name):
    with h5py.File(path, 'a') as opened:
      write(opened, name)

  return Spot(federations.hdf5, file, '', 'hdf5_test', write_in_file)


def external_storage(file, name):
  user = file[f'examples/{USER}']
  shape = user['pixels'].shape
  del user['pixels']
  user.create_dataset('pixels', shape, 'f4', external=[(name, 0, 12 * 64 * 4)])


def external_storage_elsewhere(file, name):
  file.create_dataset('a/b/c', (2, 8), 'u1', external=[(name, 0, 8), (name, 8, 8)])


def virtual(file, name):
  user = file[f'examples/{USER}']
  shape = user['pixels'].shape
  del user['pixels']
  pixels = h5py.VirtualLayout(shape, 'f4')
  pixels[:] = h5py.VirtualSource(name, f'examples/{USER}/pixels', shape)
  user.create_virtual_dataset('pixels', pixels)


def link_to_pixels(file, name):
  del file[f'examples/{USER}/pixels']
  file[f'examples/{USER}/pixels'] = h5py.ExternalLink(name, f'examples/{USER}/pixels')


def link_to_user(file, name):
  del file[f'examples/{USER}']
  file[f'examples/{USER}'] = h5py.ExternalLink(name, f'examples/{USER}')


def link_to_all(file, name):
  del file['examples']
  file['examples'] = h5py.ExternalLink(name, 'examples')


def soft_link(file, name):
  """A soft link whose path leads through a link to another file; and a circle."""
  file['far/away'] = h5py.ExternalLink(name, '/')
  file['far/again'] = file['far']
  del file[f'examples/{USER}']
  file[f'examples/{USER}'] = h5py.SoftLink(f'/far/again/away/examples/{USER}')


def in_annotations(path, name):
  _, label, *box = path.read_text().splitlines()[3].split('\t')
  in_line(path, '\t'.join([name, label, *box]))


def in_list(path, name):
  in_line(path, f'{name} {path.read_text().splitlines()[3].split()[1]}')


def in_line(path, line):
  lines = path.read_text().splitlines()
  lines[3] = line
  path.write_text('\n'.join(lines))


def in_state(path, name):
  state = json.loads(path.read_text())
  state['_data_files'][0]['filename'] = name
  path.write_text(json.dumps(state))


def in_splits(path, name):
  path.write_text(json.dumps({'splits': ['train', name]}))


def in_footer(path, name):
  """Parquet's footer says in which file the columns are."""
  metadata = parquet.read_metadata(path)
  metadata.set_file_path(name)
  metadata.write_metadata_file(path.with_suffix('.footer'))
  content, footer = path.read_bytes(), path.with_suffix('.footer').read_bytes()
  length = int.from_bytes(content[-8:-4], 'little')
  path.write_bytes(content[: -8 - length] + footer[len(b'PAR1') :])
  path.with_suffix('.footer').unlink()


def in_template(path, name):
  info = json.loads(path.read_text())
  info['splits'][0]['filepathTemplate'] = name
  path.write_text(json.dumps(info))


def in_set_name(path, name):
  info = json.loads(path.read_text())
  path.write_text(json.dumps(info | {'name': name}))


def in_split_name(path, name):
  info = json.loads(path.read_text())
  info['splits'][0]['name'] = name
  path.write_text(json.dumps(info))


def in_default_config(path, name):
  """No version is below the set's folder, so TFDS looks for one where this leads."""
  builder = path.parent.parent
  (builder / '1.0.0').rename(builder / 'moved')
  path.write_text(json.dumps({'default_config_name': name}))


def in_feature_name(path, name):
  features = json.loads(path.read_text())
  named_features = features['featuresDict']['features']
  named_features[name] = named_features.pop('label')
  path.write_text(json.dumps(features))


def unknown_tfds(folder, federation):
  """A prepared set of which TFDS knows only the files."""
  knobs = tfds(folder, federation)
  (folder / 'patch_camelyon').rename(folder / 'mine')
  (version,) = (folder / 'mine').iterdir()
  version.rename(folder / 'mine/1.0.0')
  for path in (folder / 'mine/1.0.0').glob('patch_camelyon*'):
    path.rename(path.with_name(path.name.replace('patch_camelyon', 'mine')))
  path = folder / 'mine/1.0.0/dataset_info.json'
  in_set_name(path, 'mine')
  info = json.loads(path.read_text())
  path.write_text(json.dumps(info | {'version': '1.0.0'}))
  (folder / 'mine/.config').mkdir()
  (folder / 'mine/.config/metadata.json').write_text('{}')
  return knobs | {'data.name': 'mine', 'data.prepare': False}


def of_tfds(write, file='1.0.0/dataset_info.json', base='1.0.0'):
  named = 'mine/1.0.0/mine-train.array_record-00000-of-00001'
  return Spot(unknown_tfds, f'mine/{file}', f'mine/{base}', named, write)


SPOTS = {
  'HDF5, external storage': of_hdf5(external_storage),
  'HDF5, external storage elsewhere': of_hdf5(external_storage_elsewhere),
  'HDF5, virtual data set': of_hdf5(virtual),
  'HDF5, link to pixels': of_hdf5(link_to_pixels),
  'HDF5, link to a user': of_hdf5(link_to_user, 'hdf5_test'),
  'HDF5, link to all': of_hdf5(link_to_all),
  'HDF5, soft link': of_hdf5(soft_link),
  'Tiny-ImageNet': Spot(
    layout=layouts.tiny_imagenet,
    file='set/val/val_annotations.txt',
    base='set/val/images',
    named='set/val/images/val_3.png',
    write=in_annotations,
  ),
  'DomainNet': Spot(
    layout=layouts.domainnet,
    file='set/f0003_11_train.txt',
    base='set',
    named='set/f0003_11/dog/train_3.png',
    write=in_list,
  ),
  'state.json': Spot(
    layout=federations.huggingface,
    file='saved/train/state.json',
    base='saved/train',
    named='saved/train/data-00000-of-00001.arrow',
    write=in_state,
  ),
  'dataset_dict.json': Spot(
    layout=federations.huggingface,
    file='saved/dataset_dict.json',
    base='saved',
    named='saved/test/data-00000-of-00001.arrow',
    write=in_splits,
  ),
  'parquet, footer': Spot(
    layout=layouts.parquet,
    file='set/data/train-00000-of-00002.parquet',
    base='set/data',
    named='set/data/train-00000-of-00002.parquet',
    write=in_footer,
  ),
  'table, footer': Spot(
    layout=layouts.table_parquet,
    file='set/train.parquet',
    base='set',
    named='set/test.parquet',
    write=in_footer,
  ),
  'TFDS, template': of_tfds(in_template),
  'TFDS, name of the set': of_tfds(in_set_name),
  'TFDS, name of a split': of_tfds(in_split_name),
  'TFDS, name of a feature': of_tfds(in_feature_name, '1.0.0/features.json'),
  'TFDS, default configuration': of_tfds(
    in_default_config, '.config/metadata.json', ''
  ),
}
SPELLINGS = {
  'relative': os.path.relpath,
  'dotted': lambda target, base: f'./{os.path.relpath(target, base)}',
  'through a folder': lambda target, base: f'x/../{os.path.relpath(target, base)}',
  'absolute': lambda target, base: target,
  'doubled': lambda target, base: f'/{target}',
  'from the root': lambda target, base: '../' * 60 + target[1:],
  'proc': lambda target, base: f'/proc/self/root{target}',
  'home': lambda target, base: f'~/{os.path.relpath(target, os.path.expanduser("~"))}',
  'URL': lambda target, base: f'file://{target}',
  'quoted': lambda target, base: urllib.parse.quote(os.path.relpath(target, base), ''),
  'backslash': lambda target, base: os.path.relpath(target, base).replace('/', '\\'),
  'empty': lambda target, base: '',
  'dot': lambda target, base: '.',
  'with a tail': lambda target, base: f'{target}/',
  'NUL': lambda target, base: f'{target}\0',
}
KINDS = ('file', 'folder', 'pipe', 'socket', 'terminal', 'zeros', 'circle', 'missing')
LINKS = tuple(f'link to {kind}' for kind in KINDS)


@pytest.fixture
def terminal():
  """A device that nobody else opens: reading it would wait for a key."""
  ends = os.openpty()
  yield os.ttyname(ends[1])
  for end in ends:
    os.close(end)


def make(path, kind, source, terminal):
  """Makes a thing of a kind; a file is a copy of `source`, which may be a folder."""
  if kind.startswith('link to '):
    kind = kind.removeprefix('link to ')
    target = {'terminal': terminal, 'zeros': '/dev/zero'}.get(kind)
    if target is None:
      target = path.with_name(f'{path.name}-{kind}')
      make(target, kind, source, terminal)
    path.symlink_to(target)
  elif kind == 'file':
    shutil.copy(source, path)
  elif kind == 'folder':
    shutil.copytree(source.parent, path, symlinks=True)
  elif kind == 'pipe':
    os.mkfifo(path)
  elif kind == 'socket':
    with socket.socket(socket.AF_UNIX) as listener, contextlib.chdir(path.parent):
      listener.bind(path.name)  # the whole path may be too long
  elif kind == 'circle':
    path.symlink_to(path)
  elif kind in ('terminal', 'zeros'):
    path.symlink_to({'terminal': terminal, 'zeros': '/dev/zero'}[kind])


def target_of(path, kind, terminal):
  """The path that a name means: a device has its own."""
  return {'terminal': terminal, 'zeros': '/dev/zero'}.get(kind, str(path))


def outcome(knobs):
  """The examples, in any order; None if they are refused, which takes one line."""
  begin = time.monotonic()
  try:
    dataset = load(knobs)
    rows = [as_rows(dataset.test_images, dataset.test_labels)]
    if dataset.stored:
      rows.append(dataset.stored.digest)
    else:
      rows.append(as_rows(dataset.train_images, dataset.train_labels))
  except DataError as error:
    (line,) = str(error).splitlines()
    assert line
    rows = None
  assert time.monotonic() - begin < SECONDS
  return rows


@pytest.mark.parametrize('spot', SPOTS)
@pytest.mark.parametrize('examples', few([3], [130]))
def test_a_name_inside_data(spot, examples, tmp_path, monkeypatch, terminal):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  spot = SPOTS[spot]
  original, folder, outside = (tmp_path / name for name in ('original', 'set', 'out'))
  original.mkdir()
  knobs = spot.layout(original, FEDERATION)
  knobs = {
    key: value.replace(str(original), str(folder)) if isinstance(value, str) else value
    for key, value in knobs.items()
  }
  shutil.copytree(original, folder)
  expected = outcome(knobs)
  assert expected
  outside.mkdir()
  for kind in (*KINDS, *LINKS):
    make(outside / kind, kind, original / spot.named, terminal)
  num_draws = 0

  @searched(examples)
  @given(
    spelling=st.sampled_from(list(SPELLINGS)),
    kind=st.sampled_from((*KINDS, *LINKS)),
    is_inside=st.booleans(),
  )
  def search(spelling, kind, is_inside):
    nonlocal num_draws
    num_draws += 1
    shutil.rmtree(folder)
    shutil.copytree(original, folder)
    base = folder / spot.base
    target = outside / kind
    if is_inside:
      target = (folder / spot.named).with_name(kind)
      make(target, kind, original / spot.named, terminal)
    name = SPELLINGS[spelling](target_of(target, kind, terminal), str(base))
    try:
      spot.write(folder / spot.file, name)
    except (ValueError, RuntimeError):  # HDF5 takes no such name
      shutil.copy(original / spot.file, folder / spot.file)
    opened_outside()
    with within(SECONDS):
      rows = outcome(knobs)
    assert opened_outside() == []
    assert rows in (None, expected)

  folders = [path for path in (outside, *outside.iterdir()) if path.is_dir()]
  with openings(*folders, pathlib.Path(terminal)) as opened_outside:
    search()
  assert num_draws >= examples


@pytest.mark.parametrize(
  'spot', ['Tiny-ImageNet', 'DomainNet', 'state.json', 'TFDS, template']
)
@pytest.mark.parametrize('kind', ['file', 'link to file'])
def test_a_name_of_a_file_of_the_set_is_read(spot, kind, tmp_path, monkeypatch):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  spot = SPOTS[spot]
  knobs = spot.layout(tmp_path, FEDERATION)
  expected = outcome(knobs)
  named = tmp_path / spot.named
  make(named.with_name('another'), kind, named, '')
  named.unlink()
  assert outcome(knobs) is None
  base = tmp_path / spot.base
  spot.write(tmp_path / spot.file, os.path.relpath(named.with_name('another'), base))
  assert outcome(knobs) == expected


# --- what is no file ------------------------------------------------------------------

# In place of a file of the set: a link to another file is followed, as elsewhere.
NO_FILES = tuple(kind for kind in (*KINDS, *LINKS) if not kind.endswith('file'))
LAYOUTS = (*federations.LAYOUTS, records, tfds, unknown_tfds, *layouts.WITH_USERS)
LAYOUTS += layouts.TABLES
LAYOUTS += (layouts.keras, layouts.imagefolder, layouts.tiny_imagenet, layouts.mnist)
LAYOUTS += (layouts.cifar10, layouts.svhn, layouts.parquet, layouts.saved)
LAYOUTS = {layout.__name__: layout for layout in LAYOUTS}


# Those that a library opens by their names come first.
FEW = [
  (name, 3)
  for name in ('hdf5', 'sqlite', 'records', 'unknown_tfds', 'saved', 'table_csv')
]


@pytest.mark.parametrize(
  ('layout', 'examples'), few(FEW, [(name, 60) for name in LAYOUTS])
)
def test_no_file_in_place_of_a_file(layout, examples, tmp_path, monkeypatch, terminal):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  folder = tmp_path / 'set'
  folder.mkdir()
  knobs = LAYOUTS[layout](folder, FEDERATION)
  expected = outcome(knobs)
  assert expected
  names = sorted(path for path in folder.rglob('*') if path.is_file())
  num_draws = 0

  @searched(examples)
  @given(number=st.integers(0, 10**6), kind=st.sampled_from(NO_FILES))
  def search(number, kind):
    nonlocal num_draws
    num_draws += 1
    path = names[number % len(names)]
    aside = tmp_path / 'aside'
    aside.mkdir()
    path.rename(aside / path.name)
    make(path, kind, aside / path.name, terminal)
    opened()
    try:
      with within(SECONDS):
        rows = outcome(knobs)
      assert not [name for name in opened() if name.startswith(terminal)]
      assert rows in (None, expected) or kind.endswith('missing')
    finally:
      for made in (path, *path.parent.glob(f'{path.name}-*')):
        if made.is_dir() and not made.is_symlink():
          shutil.rmtree(made)
        else:
          made.unlink(missing_ok=True)
      (aside / path.name).rename(path)
      aside.rmdir()

  with openings(pathlib.Path(terminal)) as opened:
    search()
  assert num_draws >= examples
  assert outcome(knobs) == expected


@pytest.mark.parametrize('library', ['h5py', 'sqlite3', 'pyarrow'])
def test_the_watch_sees_what_is_opened_in_c(library, tmp_path):
  """Otherwise the searches above prove nothing."""
  layout = {'h5py': federations.hdf5, 'sqlite3': federations.sqlite}.get(library)
  knobs = (layout or federations.huggingface)(tmp_path, FEDERATION)
  paths = [path for path in tmp_path.rglob('*') if path.suffix in ('', '.arrow')]
  folders = {path.parent for path in paths if path.is_file()}
  with openings(*folders) as opened:
    for path in paths:
      path.exists()
    assert opened() == []
    load(knobs)
    assert set(map(str, filter(pathlib.Path.is_file, paths))) <= set(opened())
