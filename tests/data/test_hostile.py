"""Any bytes in a data set: a documented exit code, in time."""

import faulthandler
import json
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moon_jax.core.errors import ExitCode
from moon_jax.data import convert
from tests.data import federations, layouts
from tests.data.federations import flags
from tests.data.test_strangers import FEDERATION, records, tfds
from tests.selection import few
from tests.test_hostile import paths_in, replaced, searched, trees

DOCUMENTED = {ExitCode.DONE, ExitCode.FAILED, ExitCode.USAGE}
SECONDS = 60
FOREIGN = (layouts.tiny_imagenet, layouts.domainnet, layouts.mnist, layouts.cifar10)
FOREIGN += (layouts.svhn, layouts.parquet, layouts.leaf, layouts.pfllib)
FOREIGN += (layouts.pfllib_in_plain_arrays, *layouts.TABLES)
LAYOUTS = (*federations.LAYOUTS, records, tfds, *FOREIGN)
LAYOUTS = {layout.__name__: layout for layout in LAYOUTS}


@st.composite
def changes(draw):
  """A function of a folder that changes one file in it."""
  kind = draw(st.sampled_from(['byte', 'byte', 'bytes', 'json']))
  file_number, offset = draw(st.integers(0, 10**6)), draw(st.integers(0, 10**9))
  data = draw(st.binary(min_size=1, max_size=1 if kind == 'byte' else 40))
  value = draw(trees)

  def change(folder):
    files = sorted(path for path in folder.rglob('*') if path.is_file())
    described = [path for path in files if path.suffix == '.json']
    if kind == 'json' and described:
      path = described[file_number % len(described)]
      tree = json.loads(path.read_text())
      tree_paths = list(paths_in(tree))
      path.write_text(
        json.dumps(replaced(tree, tree_paths[offset % len(tree_paths)], value))
      )
      return
    path = files[file_number % len(files)]
    before = path.read_bytes()
    at = offset % max(len(before), 1)
    path.write_bytes(before[:at] + data + before[at + len(data) :])

  return change


@pytest.mark.parametrize('layout', LAYOUTS)
@pytest.mark.parametrize('examples', few([3], [50]))
def test_a_data_set_of_any_bytes(layout, examples, tmp_path, monkeypatch):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  original = tmp_path / 'original'
  original.mkdir()
  knobs = LAYOUTS[layout](original, FEDERATION)
  if 'data.trust_pickles' in knobs:  # a changed pickle that is trusted may do anything
    knobs['data.trust_pickles'] = False
  folder, out = tmp_path / 'set', tmp_path / 'made/out'
  # A data set without users is written as one file.
  ending = '.npz' if LAYOUTS[layout] in layouts.WITHOUT_USERS else ''
  words = [word.replace(str(original), str(folder)) for word in flags(knobs)]

  @searched(examples)
  @given(change=changes())
  def outlive(change):
    for old_folder in (folder, out.parent):
      shutil.rmtree(old_folder, ignore_errors=True)
    out.parent.mkdir()
    shutil.copytree(original, folder)
    change(folder)
    faulthandler.dump_traceback_later(SECONDS, exit=True)
    try:
      code = convert.main([*words, f'--out={out}{ending}'])
    finally:
      faulthandler.cancel_dump_traceback_later()
    assert code in DOCUMENTED

  outlive()
