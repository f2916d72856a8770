"""Pickles: published files are read, trusted ones too, and all others run nothing."""

import hashlib
import os
import pathlib
import pickle
import re
import subprocess
import sys

import numpy as np
import pytest

from moon_jax.core.errors import ExitCode
from moon_jax.data import convert, pickles, sources
from moon_jax.data.data_errors import DataError
from tests.data import federations, layouts
from tests.data.federations import flags, load
from tests.refusals import refused

FEDERATION = federations.make_federation()
FEDERATIONS_PAGE = pathlib.Path(__file__).parents[2] / 'docs/federations.md'


class Calls:
  """An object whose pickle calls a function, and may then set a state and entries."""

  def __init__(self, *parts):
    self._parts = parts

  def __reduce__(self):
    return self._parts


def array_with_state(state):
  return Calls(np._core.multiarray._reconstruct, (np.ndarray, (0,), b'b'), state)


BUFFER = np.zeros(64, np.uint8)
# Objects that say they are none: NumPy would take bytes for their addresses.
OBJECTS_WITHOUT_FLAG = Calls(
  np.dtype, ('O', False, True), (3, '|', None, None, None, -1, -1, 0)
)
EXPLOITS = {
  'system call': Calls(os.system, ('touch pwned',)),
  'evaluation': Calls(eval, ("open('pwned', 'w').close()",)),
  'memory map': Calls(np.memmap, ('pwned', 'uint8', 'w+', 0, (9,))),
  'addresses as objects': array_with_state((1, (8,), np.dtype('O'), False, b'a' * 64)),
  'objects without flag': array_with_state(
    (1, (1,), OBJECTS_WITHOUT_FLAG, False, b'a' * 8)
  ),
  # An array, a view of its memory, a state that frees the memory, and a write to it.
  'view of freed memory': [
    BUFFER,
    Calls(np._core.numeric._frombuffer, (BUFFER, np.dtype('i8'), (8,), 'C')),
    array_with_state((1, (10**6,), np.dtype('u1'), False, bytes(10**6))),
  ],
}
PICKLED_LAYOUTS = {
  layouts.cifar10: 'cifar-10-batches-py/test_batch',
  layouts.cifar100: 'cifar-100-python/meta',
  layouts.pfllib: 'train/0.npz',
}


def replace_by_pickle(path, content):
  if path.suffix == '.npz':
    np.savez(path, data=np.array([content], object))
  else:
    path.write_bytes(pickle.dumps(content, 2))


@pytest.mark.parametrize('exploit', EXPLOITS)
@pytest.mark.parametrize('layout', PICKLED_LAYOUTS, ids=lambda layout: layout.__name__)
def test_a_pickle_that_is_not_trusted_runs_nothing(
  layout, exploit, tmp_path, monkeypatch, capsys
):
  monkeypatch.chdir(tmp_path)
  options = layout(tmp_path, FEDERATION) | {'data.trust_pickles': False}
  path = tmp_path / 'set' / PICKLED_LAYOUTS[layout]
  replace_by_pickle(path, EXPLOITS[exploit])
  assert convert.main([*flags(options), '--out=out']) == ExitCode.USAGE
  (line,) = capsys.readouterr().err.splitlines()
  assert line.startswith('--config.data.trust_pickles=false: ')
  assert str(path.parent) in line
  assert '--config.data.trust_pickles=true' in line
  assert not (tmp_path / 'pwned').exists()
  assert not (tmp_path / 'out').exists()


def test_no_other_source_is_advised_for_a_pickle(tmp_path):
  options = layouts.cifar10(tmp_path, FEDERATION) | {'data.trust_pickles': False}
  (tmp_path / 'set/train.parquet').touch()
  with pytest.raises(pickles.UntrustedPickleError) as raised:
    load(options)
  assert 'is read by' not in str(raised.value)


@pytest.mark.parametrize('layout', PICKLED_LAYOUTS, ids=lambda layout: layout.__name__)
def test_a_trusted_pickle_is_read_by_python_itself(layout, tmp_path, monkeypatch):
  """The other half of the test above: with the knob, the code does run."""
  monkeypatch.chdir(tmp_path)
  options = layout(tmp_path, FEDERATION)
  replace_by_pickle(tmp_path / 'set' / PICKLED_LAYOUTS[layout], EXPLOITS['system call'])
  with refused(DataError, 'must be the root of torchvision|is no file of PFLlib'):
    load(options)
  assert (tmp_path / 'pwned').exists()


@pytest.fixture
def published(tmp_path, monkeypatch):
  """CIFAR-10 in small, whose files are published."""
  options = layouts.cifar10(tmp_path, FEDERATION) | {'data.trust_pickles': False}
  folder = tmp_path / 'set/cifar-10-batches-py'
  for path in folder.iterdir():
    name = f'cifar-10-batches-py/{path.name}'
    assert name in pickles.PUBLISHED_MD5
    digest = hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()
    monkeypatch.setitem(pickles.PUBLISHED_MD5, name, digest)
  return options, folder


def test_published_files_are_read_without_asking(published):
  options, _ = published
  trusted = load(options, trust_pickles=True)
  assert sources.digest(load(options)) == sources.digest(trusted)


@pytest.mark.parametrize('name', ['data_batch_3', 'test_batch', 'batches.meta'])
def test_each_published_file_is_checked_whole(published, name):
  options, folder = published
  content = bytearray((folder / name).read_bytes())
  content[-2] ^= 1
  (folder / name).write_bytes(content)
  with refused(pickles.UntrustedPickleError, f'{name}.*Download it again'):
    load(options)


def test_a_published_file_under_another_name_is_refused(published):
  options, folder = published
  (folder / 'data_batch_2').write_bytes((folder / 'data_batch_1').read_bytes())
  with refused(pickles.UntrustedPickleError, 'data_batch_2'):
    load(options)


def test_the_bytes_that_were_checked_are_unpickled(monkeypatch):
  path = pathlib.Path('cifar-100-python/meta')  # nothing is there to be opened
  content = pickle.dumps({'fine_label_names': ['a']})
  with refused(pickles.UntrustedPickleError, 'cifar-100-python/meta'):
    pickles.load(path, content, trusted=False)
  digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
  monkeypatch.setitem(pickles.PUBLISHED_MD5, str(path), digest)
  assert pickles.load(path, content, trusted=False) == {'fine_label_names': ['a']}


FIPS_MODE = """
openssl_conf = main
[main]
providers = providers
alg_section = algorithms
[providers]
default = provider
[provider]
activate = 1
[algorithms]
default_properties = fips=yes
"""
# Exit code 77: this Python's MD5 is not OpenSSL's.
READS_A_PUBLISHED_FILE = """
import hashlib, pathlib, pickle, sys
from moon_jax.data import pickles
content = pickle.dumps('content')
path = pathlib.Path('cifar-100-python/meta')
digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
pickles.PUBLISHED_MD5[str(path)] = digest
try:
  hashlib.md5(content)
except ValueError:
  print(pickles.load(path, content, trusted=False))
else:
  sys.exit(77)
"""


def test_a_machine_in_fips_mode_reads_published_files(tmp_path):
  settings = tmp_path / 'openssl.cnf'
  settings.write_text(FIPS_MODE)
  reading = subprocess.run(
    [sys.executable, '-c', READS_A_PUBLISHED_FILE],
    env=os.environ | {'OPENSSL_CONF': str(settings)},
    capture_output=True,
    text=True,
  )
  if reading.returncode == 77:
    pytest.skip('OpenSSL has no FIPS mode here')
  assert reading.stdout == 'content\n', reading.stderr


def test_texts_of_python_2_are_bytes():
  # CIFAR-10 as cPickle of Python 2 with numpy 1 wrote it: {'data': uint8 [1, 3]}.
  content = (
    b'\x80\x02}q\x01U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\n'
    b'ndarray\nq\x04K\x00\x85U\x01b\x87Rq\x05(K\x01K\x01K\x03\x86cnumpy\ndtype\nq\x06'
    b'U\x02u1K\x00K\x01\x87Rq\x07(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK'
    b'\x00tb\x89U\x03\x01\x02\xfftbs.'
  )
  batch = pickles.load(pathlib.Path('data_batch_1'), content, trusted=True)
  ((name, array),) = batch.items()
  assert (name, array.tolist()) == (b'data', [[1, 2, 255]])


def test_pfllib_saves_plain_arrays_as_the_docs_say(tmp_path, monkeypatch):
  options = layouts.pfllib(tmp_path, FEDERATION)
  trusted = load(options)
  blocks = re.findall(r'```python\n(.*?)```', FEDERATIONS_PAGE.read_text(), re.S)
  (snippet,) = (block for block in blocks if 'savez' in block)
  monkeypatch.chdir(tmp_path / 'set')
  exec(snippet, {})
  plain = load(options, trust_pickles=False)
  assert sources.digest(plain) == sources.digest(trusted)
  # PFLlib itself goes on to read the files.
  with np.load('train/0.npz', allow_pickle=True) as saved:
    assert saved['data'].item().keys() == {'x', 'y'}
