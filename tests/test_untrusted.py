"""A stranger's files run no code, are not waited for, and write nowhere else."""

import contextlib
import hashlib
import json
import os
import pathlib
import shutil
import socket
import sys
import zipfile
import zlib
from unittest import mock

import numpy as np
import pytest

from moon_jax import __main__
from moon_jax import config as config_lib
from moon_jax.core import files, machine_memory, weights
from moon_jax.core.errors import ExitCode, RunError, UsageError
from moon_jax.data import sources
from moon_jax.data.data_errors import DataError
from moon_jax.planning import availability
from moon_jax.predict import command, inference
from moon_jax.report import features, runs
from moon_jax.report.__main__ import main as report
from moon_jax.runner import checkpoint_folder
from tests import processes
from tests.run_directories import FEDAVG, edit_json, write_run
from tests.watching import openings, within

PAYLOAD = """
import pathlib
pathlib.Path('pwned').write_text('code ran')
from tensorflow_datasets.core.features import image_feature
class X(image_feature.Image): pass
"""


class Pickled:
  """Runs code when it is unpickled."""

  def __reduce__(self):
    return pathlib.Path.touch, (pathlib.Path('pwned'),)


@pytest.fixture
def working_folder(tmp_path, monkeypatch):
  """A folder from which a program is run, so that its files can be imported."""
  monkeypatch.chdir(tmp_path)
  monkeypatch.syspath_prepend(str(tmp_path))
  (tmp_path / 'payload.py').write_text(PAYLOAD)
  yield tmp_path
  sys.modules.pop('payload', None)
  assert not (tmp_path / 'pwned').exists()


@pytest.fixture
def copy_of(two_rounds):
  """Makes a stranger's copy of a run, whose data are to be loaded from elsewhere."""

  def copy(folder, **data):
    shutil.copytree(two_rounds, folder)
    edit_json(folder / 'config.json', lambda s: s['config']['data'].update(data))
    return folder

  return copy


@pytest.fixture
def image(tmp_path):
  """The name of a file with an image to classify."""
  np.savez(tmp_path / 'in.npz', images=np.zeros((1, 8, 8), np.uint8))
  return f'{tmp_path}/in.npz'


def predict(workdir, images, *words):
  return command.main([f'--workdir={workdir}', f'--input={images}', *words])


def launch(workdir, *words):
  return __main__.launch([*FEDAVG, *words, f'--workdir={workdir}'])


# --- code in a data set ---------------------------------------------------------------

OWN = 'tensorflow_datasets.core.features.'
IMAGE = {'image': {'dtype': 'uint8', 'shape': {'dimensions': ['8', '8', '1']}}}
NESTED = {'type': f'{OWN}features_dict.FeaturesDict', 'content': {}}


def described(image):
  label = {'pythonClassName': f'{OWN}class_label_feature.ClassLabel'}
  label |= {'classLabel': {'numClasses': '10'}}
  return {
    'pythonClassName': f'{OWN}features_dict.FeaturesDict',
    'featuresDict': {'features': {'image': image, 'label': label}},
  }


# Every way in which TFDS reads the name of a class.
DESCRIPTIONS = {
  'named': described(IMAGE | {'pythonClassName': 'payload.X'}),
  'snake case': described(IMAGE | {'python_class_name': 'payload.X'}),
  'legacy': NESTED | {'content': {'image': {'type': 'payload.X', 'content': {}}}},
  'JSON in a word': described(
    {
      'pythonClassName': f'{OWN}features_dict.FeaturesDict',
      'jsonFeature': {'json': json.dumps({'a': {'type': 'payload.X', 'content': {}}})},
    }
  ),
}


def write_set(folder, description):
  path = folder / 'mine/1.0.0'
  path.mkdir(parents=True)
  (path / 'features.json').write_text(json.dumps(description))
  split = {'name': 'train', 'shardLengths': ['1'], 'numBytes': '1'}
  template = '{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}'
  split |= {'filepathTemplate': template}
  info = {'name': 'mine', 'version': '1.0.0', 'fileFormat': 'array_record'}
  info |= {'splits': [split, split | {'name': 'test'}]}
  (path / 'dataset_info.json').write_text(json.dumps(info))
  return path


@pytest.mark.parametrize('kind', DESCRIPTIONS)
def test_a_data_set_imports_nothing(working_folder, kind):
  write_set(working_folder / 'data', DESCRIPTIONS[kind])
  with pytest.raises(DataError, match="names a class of 'payload', not one"):
    sources.load('tfds', limit=0, name='mine', dir='data')


@pytest.mark.parametrize('kind', ['named', 'snake case', 'JSON in a word'])
def test_the_features_in_the_info_of_a_data_set_import_nothing(working_folder, kind):
  image = IMAGE | {'pythonClassName': f'{OWN}image_feature.Image'}
  path = write_set(working_folder / 'data', described(image))
  features = DESCRIPTIONS[kind]
  edit_json(path / 'dataset_info.json', lambda info: info.update(features=features))
  with pytest.raises(DataError, match="names a class of 'payload', not one"):
    sources.load('tfds', limit=0, name='mine', dir='data')


# A name, and where TFDS looks for the set: also outside the folder with that name.
@pytest.mark.parametrize(
  ('name', 'place'),
  [
    ('mine:1.0.0', 'data/mine/1.0.0'),
    ('Mine:1.*.*', 'data/mine/1.0.0'),
    ('mine/small', 'data/mine/small/1.0.0'),
    ('mine/..:1.0.0', 'data/1.0.0'),
    ('mine/config=../other', 'data/other/1.0.0'),
  ],
)
@pytest.mark.parametrize('prepare', [True, False])
def test_no_name_of_a_data_set_imports_anything(working_folder, name, place, prepare):
  path = write_set(working_folder / 'data', DESCRIPTIONS['named'])
  (working_folder / 'moved').mkdir()
  path = path.rename(working_folder / 'moved/set')
  (working_folder / place).parent.mkdir(parents=True, exist_ok=True)
  path.rename(working_folder / place)
  with pytest.raises(DataError, match="names a class of 'payload', not one"):
    sources.load('tfds', limit=0, name=name, dir='data', prepare=prepare)


EVIL = {'source': 'tfds', 'name': 'mine', 'dir': 'data', 'limit': 0}


def test_programs_import_nothing_that_a_run_directory_brings(
  working_folder, copy_of, image
):
  write_set(working_folder / 'data', DESCRIPTIONS['named'])
  workdir = copy_of(working_folder / 'runs/evil', **EVIL)
  with pytest.raises(DataError, match='not one of TFDS'):
    inference.load(workdir).test_data()
  assert predict(workdir, image) == ExitCode.DONE
  flags = [f'--config.data.{name}={value}' for name, value in EVIL.items()]
  assert launch('other', *flags) == ExitCode.USAGE
  assert not (working_folder / 'other').exists()


@pytest.mark.slow
def test_a_report_runs_nothing_that_a_run_directory_brings(
  working_folder, copy_of, capsys
):
  write_set(working_folder / 'data', DESCRIPTIONS['named'])
  copy_of(working_folder / 'out/strange', **EVIL)
  pickled = copy_of(working_folder / 'out/pickled', source='npz', path='evil.npz')
  np.savez('evil.npz', train_x=np.array([Pickled()], object))
  for name in ('partition.npz', 'features.npz'):
    np.savez(pickled / name, class_counts=np.array([Pickled()], object))
  assert report(['out', '--out=report']) == ExitCode.DONE
  assert 'not one of TFDS' in capsys.readouterr().err
  assert (working_folder / 'report/index.html').exists()


@pytest.mark.parametrize('name', ['mnist', 'absent', 'huggingface:mnist'])
def test_what_a_run_directory_names_is_not_downloaded(
  working_folder, copy_of, monkeypatch, name
):
  import tensorflow_datasets as tfds

  monkeypatch.setattr(
    tfds.core.DatasetBuilder,
    'download_and_prepare',
    lambda *_, **__: pytest.fail('it downloads'),
  )
  model = inference.load(copy_of(working_folder / 'run', **EVIL | {'name': name}))
  with pytest.raises(DataError, match=r'nor prepared in .*/data'):
    model.test_data()
  assert not (working_folder / 'data').exists()


# --- pickles --------------------------------------------------------------------------


def test_nothing_is_unpickled(working_folder, copy_of):
  workdir = copy_of(working_folder / 'run', source='npz', path='evil.npz', limit=0)
  evil = np.array([Pickled()], object)
  np.savez('evil.npz', train_x=evil, train_y=evil, test_x=evil, test_y=evil)
  np.savez('images.npz', images=evil)
  with pytest.raises(DataError, match='holds Python objects'):
    inference.load(workdir).test_data()
  assert predict('run', 'images.npz') == ExitCode.USAGE
  np.savez('run/partition.npz', class_counts=evil)
  np.savez('run/features.npz', **dict.fromkeys(features.Features._fields, evil))
  (run,) = runs.find([working_folder], print)
  assert run.class_counts() is None
  assert runs.read_arrays(workdir / 'features.npz', features.KINDS) is None
  with pytest.raises(RunError, match='holds Python objects'):
    inference.load(workdir)


def test_a_run_directory_cannot_trust_its_pickles(working_folder, copy_of, capsys):
  for split in ('train', 'test'):
    (working_folder / 'clients' / split).mkdir(parents=True)
    np.savez(
      working_folder / 'clients' / split / '0.npz', data=np.array([Pickled()], object)
    )
  data = {'source': 'pfllib', 'path': 'clients', 'trust_pickles': True}
  model = inference.load(copy_of(working_folder / 'run', **data))
  assert model.config.data.trust_pickles
  with pytest.raises(UsageError, match=r'test_data\(trust_pickles=True\) reads it'):
    model.test_data()
  # Nor does predict, which has no knob for it.
  assert predict('run', 'clients', '--source=pfllib') == ExitCode.USAGE
  (line,) = capsys.readouterr().err.splitlines()
  assert line.startswith("--input='clients': 'clients/t")
  assert 'predict reads no pickles; if you trust whoever made it, python -m' in line
  assert not (working_folder / 'pwned').exists()
  with pytest.raises(DataError, match='no file of PFLlib'):
    model.test_data(trust_pickles=True)
  (working_folder / 'pwned').unlink()


# --- arrays ---------------------------------------------------------------------------


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'classes': np.zeros(3, int)}, 'embedded is float32 of shape'),
    ({'confusion': np.ones((2, 3), int)}, 'confusion is int64 of shape'),
    ({'round': np.ones(1, int)}, 'round is int64'),
    ({'classes': np.zeros(4)}, 'classes is float64'),
    ({'classes': np.zeros(4, 'timedelta64[s]')}, 'classes is timedelta64'),
    ({'confusion': -np.ones((2, 2), int)}, 'confusion is int64 .*below 0'),
    ({'embedded': np.zeros((4, 3), np.float32)}, 'embedded is float32 of shape'),
  ],
)
def test_arrays_of_another_shape_are_refused(tmp_path, changes, message):
  arrays = {
    'round': np.asarray(1),
    'confusion': np.ones((2, 2), int),
    'classes': np.zeros(4, int),
    'embedded': np.zeros((4, 2), np.float32),
  }
  np.savez(tmp_path / 'a.npz', **arrays)
  assert set(files.arrays(tmp_path / 'a.npz', kinds=features.KINDS)) == set(arrays)
  np.savez(tmp_path / 'a.npz', **(arrays | changes))
  with pytest.raises(ValueError, match=message):
    files.arrays(tmp_path / 'a.npz', kinds=features.KINDS)


def test_members_that_are_no_arrays_and_labels_that_are_times(tmp_path):
  arrays = dict.fromkeys(('train_x', 'test_x'), np.zeros((4, 8, 8), np.uint8))
  arrays |= dict.fromkeys(('train_y', 'test_y'), np.arange(4) % 2)
  path = tmp_path / 'a.npz'
  np.savez(path, **(arrays | {'train_y': arrays['train_y'].astype('timedelta64[s]')}))
  with pytest.raises(DataError, match='train_y is timedelta64'):
    sources.load('npz', limit=0, path=str(path))
  arrays.pop('test_y')
  np.savez(path, **arrays)
  with zipfile.ZipFile(path, 'a') as archive:
    archive.writestr('test_y', 'no array')
  with pytest.raises(DataError, match='test_y is no array'):
    sources.load('npz', limit=0, path=str(path))


@pytest.mark.parametrize(
  ('name', 'value'), [('std', 0), ('std', 1e-300), ('std', -0.5), ('mean', 1e300)]
)
def test_statistics_that_make_no_predictions(copy_of, tmp_path, image, name, value):
  path = copy_of(tmp_path / 'run') / 'config.json'
  edit_json(path, lambda saved: saved['images'].update({name: [value]}))
  assert predict(tmp_path / 'run', image) == ExitCode.NO_CHECKPOINT
  assert not (tmp_path / 'in_predictions.npz').exists()


# --- what is no regular file ----------------------------------------------------------


RECORDS = ('config.json', 'metrics.jsonl', 'timings.jsonl', 'summary.json')
RECORDS += ('partition.npz',)
PIPES = ('checkpoints/2/manifest.json', 'checkpoints/2/default/_METADATA')
FOLDERS = ('checkpoints', 'checkpoints/2', 'checkpoints/2/default', 'tensorboard', '.')
# Not all runs have these.
OPTIONAL = ('.lock', 'features.npz', 'summary.json.partial')
OPTIONAL += ('clients.csv.gz', 'loggers.json')
OPTIONAL += ('checkpoints/clients.bin', 'checkpoints/2/clients.npz')


@pytest.mark.parametrize('name', RECORDS + PIPES + FOLDERS + OPTIONAL)
def test_nobody_waits_for_a_pipe(copy_of, tmp_path, name, image):
  workdir = copy_of(tmp_path / 'run')
  if name in FOLDERS:
    shutil.rmtree(workdir / name)
  else:
    (workdir / name).unlink(missing_ok=name in OPTIONAL)
  os.mkfifo(workdir / name)
  with within(60):
    codes = [report(['compare', str(workdir)])]
    codes += [predict(workdir, image), launch(workdir)]
  assert set(codes) <= {0, ExitCode.FAILED, ExitCode.USAGE, ExitCode.NO_CHECKPOINT}
  is_needed = name in RECORDS and name != 'partition.npz'
  assert any(codes) or not is_needed


def no_files(folder):
  """Paths of things that are no files, and one of nothing."""
  os.mkfifo(folder / 'pipe')
  (folder / 'folder').mkdir()
  with socket.socket(socket.AF_UNIX) as listener, contextlib.chdir(folder):
    listener.bind('socket')  # the whole path may be too long
  (folder / 'link').symlink_to(folder / 'pipe')
  (folder / 'circle').symlink_to(folder / 'circle')
  (folder / 'zeros').symlink_to('/dev/zero')
  return [*sorted(folder.iterdir()), folder / 'nothing']


READERS = {
  'a trace of clients': lambda path: availability.trace(np.ones(3), path=str(path)),
  'weights': lambda path: weights.read(path),
  'a config file': lambda path: config_lib.load(str(path)),
  'a config file of another': lambda path: config_lib.import_config(str(path)),
}


@pytest.mark.parametrize('reader', READERS)
@pytest.mark.parametrize('ending', ['', '.npz', '.safetensors', '.py'])
def test_no_program_waits_for_what_is_no_file(tmp_path, reader, ending):
  for path in no_files(tmp_path):
    named = path
    if ending:
      named = path.with_name(f'{path.name}{ending}')
      named.symlink_to(path)
    with within(10), pytest.raises(RunError) as caught:
      READERS[reader](named)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize('ending', ['', '.npz', '.png'])
def test_predict_waits_for_nothing_that_is_no_file(
  two_rounds, tmp_path, capsys, ending
):
  for path in no_files(tmp_path):
    if ending:
      named = path.with_name(f'{path.name}{ending}')
      named.symlink_to(path)
      path = named
    with within(10):
      assert predict(two_rounds, path, f'--output={tmp_path}/out.npz') == ExitCode.USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith('--input=')


def test_a_text_without_end_is_not_read(tmp_path, monkeypatch):
  """Also a file of holes, which takes no space on the disk."""
  monkeypatch.setattr(files, 'MOST_TEXT_BYTES', 10)
  (tmp_path / 'a').write_text('0123456789')
  assert files.text(tmp_path / 'a') == '0123456789'
  (tmp_path / 'a').write_text('0123456789.')
  os.truncate(tmp_path / 'a', 2**40)
  with pytest.raises(OSError, match='It is larger than 10 bytes'):
    files.text(tmp_path / 'a')


def npz_of_zeros(path):
  np.savez_compressed(path, images=np.zeros((1000, 8, 8), np.uint8))
  return lambda: files.arrays(path, ['images'])


def weights_of_zeros(path):
  weights.write(path, {'params/a': np.zeros(16_000, np.float32)}, {})
  return lambda: weights.read(path)


def compressed_zeros(path):
  data = zlib.compress(bytes(64_000))
  return lambda: files.unpacked(data, zlib.MAX_WBITS)


def holes(path):
  path.touch()
  os.truncate(path, 64_000)
  return lambda: files.contents(path)


@pytest.mark.parametrize(
  ('make', 'ending'),
  [
    (npz_of_zeros, '.npz'),
    (weights_of_zeros, '.npz'),
    (weights_of_zeros, '.safetensors'),
    (compressed_zeros, ''),
    (holes, '.csv.gz'),
  ],
)
def test_what_the_memory_cannot_hold_is_not_unpacked(
  make, ending, tmp_path, monkeypatch
):
  """A small file may be compressed from any number of bytes."""
  read = make(tmp_path / f'a{ending}')
  read()
  monkeypatch.setattr(machine_memory, 'total_bytes', lambda: 63_999)
  with pytest.raises(Exception, match=r'Its content takes|has more than 63,999 bytes'):
    read()


def test_the_name_of_an_array_commands_no_terminal_and_adds_no_line(tmp_path):
  name = 'params/a\nb\x1b[31m'
  with pytest.raises(
    UsageError, match=r'its params/a\\nb\\x1b\[31m is float32'
  ) as caught:
    weights.require_type(tmp_path / 'a', name, {name: np.zeros(1, np.float32)}, {})
  assert len(str(caught.value).splitlines()) == 1


def test_pipes_and_devices_in_place_of_arrays(tmp_path):
  os.mkfifo(tmp_path / 'a.npz')
  with within(30):
    for name in (str(tmp_path / 'a.npz'), '/dev/zero'):
      with pytest.raises(DataError, match='no regular file'):
        sources.load('npz', limit=0, path=name)
    for name in (tmp_path / 'a.npz', '/dev/zero'):
      with pytest.raises(OSError, match='no regular file'):
        files.opened(name)


@pytest.mark.slow
def test_folders_that_are_nested_deeply(copy_of, tmp_path, capsys):
  """Deeper than Python calls functions: 1100 folders, each in the other."""
  deep = tmp_path / 'deep'
  deep.mkdir()
  with contextlib.chdir(deep):
    for _ in range(1100):
      os.mkdir('d')
      os.chdir('d')
    (pathlib.Path('last.png')).touch()
  workdir = copy_of(tmp_path / 'run')
  images = ['--config.data.source=imagefolder', f'--config.data.path={deep}']
  assert __main__.launch([*images, f'--workdir={tmp_path}/new']) == ExitCode.USAGE
  assert predict(workdir, deep) == ExitCode.USAGE
  assert 'Recursion' not in capsys.readouterr().err
  deep.rename(workdir / 'checkpoints/2/deep')
  assert launch(workdir, '--config.num_rounds=3') == ExitCode.DONE
  # pytest removes folders by recursion.
  (moved,) = tmp_path.glob('run/checkpoints/*/deep')
  while not (moved / 'd/last.png').exists() and (moved / 'd/d').exists():
    (moved / 'd/d').rename(tmp_path / 'rest')
    (moved / 'd').rmdir()
    (tmp_path / 'rest').rename(moved / 'd')


# --- links ----------------------------------------------------------------------------


def test_nothing_is_written_through_a_link(copy_of, tmp_path, image):
  workdir, outside = copy_of(tmp_path / 'run'), tmp_path / 'precious'
  outside.write_text('precious')
  for name in (*RECORDS, 'features.npz'):
    (workdir / f'{name}.partial').symlink_to(outside)
  (workdir / 'partial-features.npz').symlink_to(outside)
  for name in ('curves.png', 'partition.png'):
    (workdir / name).unlink()
    (workdir / name).symlink_to(outside)
  (tmp_path / 'in_predictions.npz.partial').symlink_to(outside)
  assert predict(workdir, image) == ExitCode.DONE
  no_features = features.Features(*[np.zeros(1)] * 4)
  with mock.patch.object(features, '_compute', return_value=no_features):
    (run,) = runs.find([workdir], print)
    features.features_of(run, print)
  assert launch(workdir, '--config.num_rounds=3') == ExitCode.DONE
  assert outside.read_text() == 'precious'
  assert not list(tmp_path.rglob('*.partial'))


@pytest.mark.parametrize(
  'name',
  ['.lock', 'checkpoints', 'checkpoints/1', 'checkpoints/0.partial', 'tensorboard'],
)
@pytest.mark.parametrize('is_there', [True, False])
def test_a_run_behind_a_link_is_refused(copy_of, tmp_path, name, is_there, capsys):
  workdir, outside = copy_of(tmp_path / 'run'), tmp_path / 'precious'
  path = workdir / name
  if name == '.lock':
    outside.write_text('precious')
    path.unlink()
  elif path.exists():
    path.rename(outside)
  else:
    (outside / '3.partial').mkdir(parents=True)
  if not is_there:  # the program would make it again
    outside.rename(tmp_path / 'gone')
  path.symlink_to(outside)
  before = processes.contents(tmp_path)
  assert launch(workdir, '--config.num_rounds=3') == ExitCode.USAGE
  assert capsys.readouterr().err == (
    f'{path} is a link; a run writes in its own directory only.\n'
  )
  assert processes.contents(tmp_path) == before
  assert outside.exists() == is_there


# --- names ----------------------------------------------------------------------------


@pytest.mark.parametrize(
  'name',
  [
    *('../out/secret', '/out/secret', 'in/../../out/secret', 'in/..', '..', '', '.'),
    *('~/../out', './../out/secret'),
  ],
)
def test_no_name_leads_out_of_its_folder(tmp_path, name):
  folder = tmp_path / 'up/../set'
  if name.startswith('/'):
    name = f'{tmp_path}{name}'
  with pytest.raises(OSError, match='Data may name files of their own folder only'):
    files.named(folder, name)
  assert files.named(folder, './in//a') == folder / 'in/a'
  assert files.named(folder, folder / 'in/a') == folder / 'in/a'


def test_a_checkpoint_names_no_file_outside(tmp_path):
  outside = tmp_path / 'out'
  outside.mkdir()
  (outside / 'secret').write_text('secret')
  folder = tmp_path / 'checkpoints/1'
  folder.mkdir(parents=True)
  (folder / 'state').write_text('state')
  checkpoint_folder.write_manifest(folder, 1)
  assert not checkpoint_folder.find_damage(folder, 1)
  with openings(outside) as opened:
    for name in ('../../out/secret', str(outside / 'secret')):

      def add(manifest, name=name):
        manifest['files'][name] = {'bytes': 6, 'sha256': hashlib.sha256().hexdigest()}

      edit_json(folder / 'manifest.json', add)
      assert checkpoint_folder.find_damage(folder, 1)
    assert opened() == []


# --- terminals and spreadsheets -------------------------------------------------------


def spoilt(folder, text):
  path = write_run(folder, [0.5, 0.6], '--config.algorithm=fedavg')

  def spoil(saved):
    saved |= {'command': text, 'git_commit': text, 'devices': [text]}
    saved['config']['data']['path'] = text

  edit_json(path / 'config.json', spoil)
  return path


@pytest.mark.parametrize('start', '=+-@')
def test_no_cell_is_a_formula(working_folder, start):
  text = f'{start}HYPERLINK("http://example.org")'
  spoilt(pathlib.Path(start + 'runs'), text)
  (run,) = runs.find([pathlib.Path(start + 'runs')], print)
  assert run.name == f"'{start}runs"
  assert run.provenance['command'] == run.knobs['data.path'] == f"'{text}"
  assert run.provenance['devices'] == [f"'{text}"]


def test_no_word_of_a_file_commands_a_terminal(tmp_path, capsys):
  evil = '\x1b]0;evil\x07\x1b[2J\x9b31m'
  path = spoilt(tmp_path / f'a{evil}', evil)
  (path / 'metrics.jsonl').write_text(f'{evil}\n')
  spoilt(tmp_path / f'b{evil}', evil)
  assert report(['compare', str(tmp_path)]) == ExitCode.DONE
  out, err = capsys.readouterr()
  assert 'skipped' in err
  for text in (out, err):
    assert not {'\x1b', '\x07', '\x9b'} & set(text)
