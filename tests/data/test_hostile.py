"""Any bytes in a data set: a documented exit code, and no other file is read."""

import faulthandler
import json
import os
import shutil
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moon_jax.core.errors import ExitCode
from moon_jax.data import convert
from tests.data import federations, layouts
from tests.data.federations import flags
from tests.data.test_strangers import FOUND, records, tfds
from tests.selection import few
from tests.test_hostile import places, replaced, searched, trees

DOCUMENTED = {ExitCode.DONE, ExitCode.FAILED, ExitCode.USAGE}
SECONDS = 60
FOREIGN = (layouts.tiny_imagenet, layouts.domainnet, layouts.mnist, layouts.cifar10)
FOREIGN += (layouts.svhn, layouts.parquet, layouts.leaf, layouts.pfllib)
LAYOUTS = (*federations.LAYOUTS, records, tfds, *FOREIGN)
LAYOUTS = {one.__name__: one for one in LAYOUTS}
# Folders that every test may read: code, and files of the system.
SYSTEM = [sys.prefix, sys.base_prefix, *sys.path, '/proc', '/sys', '/usr', '/dev']
SYSTEM = [os.path.realpath(place) for place in SYSTEM if place]

STARTS = ('', '../', '../../', 'x/../../')

watched = []  # [roots, opened] while a data set is read


def _watch(event, args):
  if watched and event == 'open' and isinstance(args[0], str | bytes | os.PathLike):
    roots, opened = watched[0]
    path = os.path.realpath(os.fsdecode(args[0]))
    if os.path.isfile(path) and not path.startswith(roots):
      opened.append(path)


@pytest.fixture(scope='module')
def hooked():
  """Records Python's opens; an audit hook cannot be removed, so it is switched off."""
  sys.addaudithook(_watch)


@st.composite
def changes(draw):
  """A function (folder, outside) that changes one file, or one name in it."""
  kind = draw(st.sampled_from(['byte', 'byte', 'bytes', 'json', 'link']))
  number, place = draw(st.integers(0, 10**6)), draw(st.integers(0, 10**9))
  data = draw(st.binary(min_size=1, max_size=1 if kind == 'byte' else 40))
  value = draw(trees | st.sampled_from([f'{start}{{}}' for start in STARTS]))
  target = draw(st.sampled_from(['secret', 'fifo', 'folder', 'missing', 'itself']))

  def change(folder, outside):
    files = sorted(path for path in folder.rglob('*') if path.is_file())
    described = [path for path in files if path.suffix == '.json']
    if kind == 'json' and described:
      path = described[number % len(described)]
      tree = json.loads(path.read_text())
      every = list(places(tree))
      is_name = isinstance(value, str) and value.endswith('{}')
      new = f'{value[:-2]}{outside}' if is_name else value
      path.write_text(json.dumps(replaced(tree, every[place % len(every)], new)))
      return
    path = files[number % len(files)]
    if kind == 'link':
      path.unlink()
      at = {'itself': path.parent, 'missing': outside / 'no', 'folder': outside}
      if path.parent == folder:  # the user has named this file, wherever it lies
        at['secret'] = folder
      path.symlink_to(at.get(target, outside / target))
      return
    before = path.read_bytes()
    at = place % max(len(before), 1)
    path.write_bytes(before[:at] + data + before[at + len(data) :])

  return change


@pytest.mark.parametrize('layout', LAYOUTS)
@pytest.mark.parametrize('examples', few([6], [50]))
def test_a_data_set_of_any_bytes(layout, examples, tmp_path, monkeypatch, hooked):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  (whole := tmp_path / 'whole').mkdir()
  knobs = LAYOUTS[layout](whole, FOUND)
  folder, outside, out = (tmp_path / name for name in ('set', 'outside', 'made/out'))
  # A data set without users is written as one file.
  ending = '.npz' if LAYOUTS[layout] in layouts.WITHOUT_USERS else ''
  words = [word.replace(str(whole), str(folder)) for word in flags(knobs)]
  outside.mkdir()
  (outside / 'secret').write_bytes(b'of nobody' * 100)
  os.mkfifo(outside / 'fifo')
  own = map(os.path.realpath, (folder, out.parent, tmp_path / 'cache'))
  roots = (*SYSTEM, *own)

  @searched(examples)
  @given(change=changes())
  def outlive(change):
    for made in (folder, out.parent):
      shutil.rmtree(made, ignore_errors=True)
    out.parent.mkdir()
    shutil.copytree(whole, folder)
    change(folder, outside)
    opened = []
    watched.append((roots, opened))
    faulthandler.dump_traceback_later(SECONDS, exit=True)
    try:
      code = convert.main([*words, f'--out={out}{ending}'])
    finally:
      faulthandler.cancel_dump_traceback_later()
      watched.clear()
    assert code in DOCUMENTED
    assert opened == []

  outlive()
