"""Any bytes in a run directory: a documented exit code, and no traceback."""

import copy
import json
import shutil
import time

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moon_jax import __main__
from moon_jax.core.errors import ExitCode
from moon_jax.predict import command
from moon_jax.report import features
from moon_jax.report.__main__ import main as report
from moon_jax.runner import checkpoint_folder
from tests.run_directories import FEDAVG
from tests.selection import few

DOCUMENTED = set(ExitCode) - {ExitCode.PREEMPTED, ExitCode.INTERRUPTED}
SECONDS = 60
JSON = ('config.json', 'summary.json', 'metrics.jsonl', 'timings.jsonl')
FILES = (*JSON, 'partition.npz', 'features.npz', 'checkpoints/2/manifest.json')
SEALED = ('_METADATA', 'manifest.ocdbt', '_CHECKPOINT_METADATA')


@pytest.fixture(scope='module')
def finished(tmp_path_factory, two_rounds):
  """A finished run, and images to classify beside it."""
  folder = tmp_path_factory.mktemp('hostile')
  shutil.copytree(two_rounds, folder / 'run')
  features_kept = features.Features(
    round=np.asarray(2),
    confusion=np.eye(10, dtype=np.int64),
    classes=np.arange(10),
    embedded=np.ones((10, 2), np.float32),
  )
  np.savez(folder / 'run/features.npz', **features_kept._asdict())
  np.savez(folder / 'in.npz', images=np.zeros((1, 8, 8), np.uint8))
  return folder


DELETED = 'deleted'
leaves = st.one_of(
  st.none(),
  st.booleans(),
  st.integers(),
  st.sampled_from([10**400, -1, 0, 2**31, 2**63, 1e308]),
  st.floats(allow_nan=False),
  st.text(max_size=20),
  st.sampled_from(['\x1b[31m', '=1+1', '../x', 'x' * 3000, '\ud800']),
)
trees = st.recursive(
  leaves,
  lambda inside: st.one_of(
    st.lists(inside, max_size=3),
    st.dictionaries(st.text(max_size=8), inside, max_size=3),
  ),
  max_leaves=8,
)


def paths_in(tree, path=()):
  """Every place in a JSON document."""
  yield path
  if isinstance(tree, list):
    tree = dict(enumerate(tree))
  for key, child in tree.items() if isinstance(tree, dict) else ():
    yield from paths_in(child, (*path, key))


def replaced(tree, path, value):
  if not path:
    return value
  tree = copy.copy(tree)
  if len(path) == 1 and value == DELETED:
    del tree[path[0]]
  else:
    tree[path[0]] = replaced(tree[path[0]], path[1:], value)
  return tree


@st.composite
def damages(draw):
  """A function that spoils a run directory: any bytes, or other JSON in a place."""
  kind = draw(st.sampled_from(['bytes', 'json', 'json', 'sealed']))
  if kind == 'json':
    kinds = st.sampled_from(JSON), trees | st.just(DELETED), st.integers(0)
    name, value, seed = map(draw, kinds)

    def spoil(run):
      lines = (run / name).read_text().splitlines() if name.endswith('l') else ['']
      documents = [json.loads(line or (run / name).read_text()) for line in lines]
      at = seed % len(documents)
      paths = list(paths_in(documents[at]))
      documents[at] = replaced(documents[at], paths[seed % len(paths)], value)
      lines = [json.dumps(document) + '\n' for document in documents]
      (run / name).write_text(''.join(lines))

    return spoil
  name, data = draw(st.sampled_from(FILES)), draw(st.binary(max_size=60))
  cut = draw(st.integers(0, 400))

  def overwrite(run):
    path = run / name
    if kind == 'sealed':  # by an attacker who also writes a manifest
      path = run / 'checkpoints/2/default' / SEALED[cut % len(SEALED)]
    before = path.read_bytes()
    path.write_bytes(before[:cut] + data + before[cut + len(data) :])
    if kind == 'sealed':
      (run / 'checkpoints/2/manifest.json').unlink()
      checkpoint_folder.write_manifest(run / 'checkpoints/2', 2)

  return overwrite


def commands(finished, folder):
  run = str(folder / 'runs/a')
  images, out = f'--input={finished}/in.npz', f'--output={folder}/p.npz'
  return {
    'compare': lambda: report(['compare', run]),
    'launch': lambda: __main__.launch([*FEDAVG, f'--workdir={run}']),
    'predict': lambda: command.main([f'--workdir={run}', images, out]),
    'report': lambda: report([str(folder / 'runs'), f'--out={folder}/out']),
  }


def searched(examples):
  """Settings of hypothesis: the same examples in every run, however long each takes."""
  return settings(
    max_examples=examples,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
  )


def check(finished, folder, spoil, names):
  for name in names:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(finished / 'run', folder / 'runs/a')
    spoil(folder / 'runs/a')
    begin = time.monotonic()
    assert commands(finished, folder)[name]() in DOCUMENTED, name
    assert time.monotonic() - begin < SECONDS, name


# Orbax reads in a thread of its own. If a damaged checkpoint ends the read early, that
# thread finds its event loop closed; Python tells it beside our line.
@pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning')
@pytest.mark.parametrize(
  ('examples', 'names'),
  few(
    [(8, ('compare', 'launch'))],
    [(60, ('compare', 'launch', 'predict')), (8, ('report',))],
  ),
)
def test_programs_outlive_any_bytes(finished, tmp_path, examples, names):
  @searched(examples)
  @given(spoil=damages())
  def outlive(spoil):
    check(finished, tmp_path / 'copy', spoil, names)

  outlive()
