"""A loaded model is the one that was trained and tested, or the reason is one line."""

import csv
import dataclasses
import itertools
import json
import pathlib
import re
import shutil

import jax
import numpy as np
import pytest
from PIL import Image
from sklearn import datasets

import moon_jax
from moon_jax import config as config_lib
from moon_jax.building.algorithm import evaluates_client_models
from moon_jax.config import cli
from moon_jax.core.errors import ExitCode, NoCheckpointError, UsageError
from moon_jax.metrics.classified import Classified
from moon_jax.platform import devices
from moon_jax.predict import command as predict_lib
from moon_jax.predict import inference, prediction_files
from moon_jax.round.examination import with_empty_sums
from moon_jax.runner import checkpoint, start
from tests import world
from tests.data.federations import save_arrays
from tests.processes import contents
from tests.refusals import refused
from tests.run_directories import edit_json
from tests.selection import few

pytestmark = pytest.mark.usefixtures('quick_runs')
# The runs learn something: at chance accuracy wrong weights would not show.
FLAGS = (
  '--config.num_rounds=4',
  '--config.data.limit=700',
  '--config.execution.devices=1',
)
LEARNED = 0.4
WITH_CLIENT_MODELS = (
  'solo',
  'centralized',
  'fedproto',
  'decentralized_fedavg',
  'decentralized_moon',
)
# None, a tree of weights, a tree in a tree, one that neighbours share, and a model.
KINDS_OF_MEMORY = ('fedavg', 'scaffold', 'sa_moon', 'decentralized_moon', 'solo')


def run_in(folder, *flags):
  """A finished run's directory."""
  request = cli.parse([*FLAGS, *flags, f'--workdir={folder / "run"}'])
  assert start.run(request) == ExitCode.DONE
  return folder / 'run'


@pytest.fixture(scope='module')
def workdir(tmp_path_factory):
  return run_in(tmp_path_factory.mktemp('moon'))


@pytest.fixture(scope='module')
def loaded(workdir):
  return moon_jax.load(workdir)


def last_line(workdir):
  return json.loads((workdir / 'metrics.jsonl').read_text().splitlines()[-1])


def test_predicts_the_accuracy_that_the_run_recorded(workdir, loaded):
  images, labels = loaded.test_data()
  predictions = loaded.predict(images)
  accuracy = np.mean(predictions.labels == labels)
  assert accuracy == last_line(workdir)['test_accuracy'] > LEARNED
  assert loaded.round == 4
  assert loaded.config.algorithm == 'moon'
  assert loaded.class_counts.sum() == 700
  assert predictions.logits.shape == (len(images), 10)
  assert predictions.representations.shape == (len(images), 64)
  np.testing.assert_array_equal(predictions.labels, predictions.logits.argmax(1))
  # The logits are computed from the representation.
  classifier = jax.device_get(loaded.variables['params']['classifier'])
  logits = predictions.representations @ classifier['kernel'] + classifier['bias']
  np.testing.assert_allclose(predictions.logits, logits, atol=1e-4)


def test_an_image_alone_or_without_a_channel_is_the_same_image(loaded):
  images, _ = loaded.test_data()
  predictions = loaded.predict(images)
  # More than one batch: 597 = 500 + 97.
  of_two_batches = loaded.predict(np.concatenate([images, images[:240]])[..., 0])
  of_one_image = loaded.predict(images[7:8])
  for expected, repeated, single in zip(
    predictions, of_two_batches, of_one_image, strict=True
  ):
    np.testing.assert_array_equal(repeated[: len(images)], expected)
    np.testing.assert_array_equal(repeated[len(images) :], expected[:240])
    np.testing.assert_array_equal(single, expected[7:8])


def test_loading_writes_nothing_and_needs_no_data(tmp_path, workdir):
  copy, absent = tmp_path / 'run', {'source': 'npz', 'path': 'absent.npz'}
  shutil.copytree(workdir, copy)
  changed_config(copy, lambda config: config['data'].update(absent))
  before = contents(copy)
  assert moon_jax.load(copy).predict(np.zeros((1, 8, 8), np.uint8)).labels.shape == (1,)
  assert contents(copy) == before


def test_a_run_may_follow_in_the_same_process(workdir, monkeypatch):
  class ClaimedError(Exception):
    """Ends the loading where JAX would begin to compute."""

  def claim(requested, warn_if_late):
    assert (requested, warn_if_late) == ('auto', False)
    raise ClaimedError

  monkeypatch.setattr(devices, 'claim', claim)
  monkeypatch.setattr(devices, 'find', lambda: pytest.fail('found before claimed'))
  with pytest.raises(ClaimedError):
    moon_jax.load(workdir)


DAMAGED_THREE = (
  r'^checkpoint 3 is damaged \(manifest\.json has changed\); round 2 is loaded$'
)


@pytest.mark.parametrize(
  ('algorithm', 'batch_norm'),
  few(
    [*itertools.product(KINDS_OF_MEMORY, ['averaged']), ('scaffold', 'local')],
    itertools.product(KINDS_OF_MEMORY, ['local']),
  ),
)
def test_what_is_loaded_is_what_is_tested(algorithm, batch_norm, tmp_path):
  first = world.first_state(algorithm, 'mlp_bn', batch_norm=batch_norm)
  rng = np.random.default_rng(0)
  state = jax.tree.map(
    lambda leaf: rng.normal(size=leaf.shape).astype(leaf.dtype), first
  )._replace(round=np.int32(2))
  with checkpoint.Checkpoints(tmp_path, print) as checkpoints:
    checkpoints.save(state)
    checkpoints.save(state._replace(round=np.int32(3)))
  # The newest checkpoint is damaged: the one before is loaded, and no file is moved.
  (tmp_path / '3/manifest.json').write_text('{')
  for client in (0, 2):
    shapes = jax.eval_shape(lambda: state)
    with pytest.warns(UserWarning, match=DAMAGED_THREE):
      loaded = checkpoint.newest(tmp_path, shapes, client, first_memory=None)
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(loaded))
    memory = jax.tree.map(lambda leaf, c=client: leaf[c : c + 1], state.clients)
    assert world.largest_difference(loaded, state._replace(clients=memory)) == 0
  assert sorted(path.name for path in tmp_path.iterdir()) == ['2', '3']


@pytest.mark.parametrize('batch_norm', ['averaged', 'local'])
@pytest.mark.parametrize('algorithm', world.OPTIONS)
def test_who_has_a_model_of_its_own(algorithm, batch_norm):
  network = world.network('mlp_bn')
  record = world.make(algorithm, 'mlp_bn', batch_norm=batch_norm)
  has_client_models = evaluates_client_models(
    with_empty_sums(record, network), network.shapes
  )
  expected = batch_norm == 'local' or algorithm in WITH_CLIENT_MODELS
  assert has_client_models == expected


def test_a_client_without_a_model_of_its_own(workdir):
  # The only client needs no number.
  assert inference.client_number(workdir, None, 1, names=None) is None
  with pytest.raises(UsageError, match=r'client=1 must be 0 to 0'):
    inference.client_number(workdir, 1, 1, names=None)
  with pytest.raises(UsageError, match='client=0 must be left out: the model is glob'):
    moon_jax.load(workdir, client=0)


@pytest.mark.parametrize(
  ('images', 'words'),
  [
    (np.full((2, 8, 8), -0.5), 'float64, from -0.5 to -0.5; this model was trained on'),
    *(
      (np.zeros(shape, np.uint8), f'shape {shape}; this network needs [M, 8, 8]')
      for shape in ((2, 8, 9), (2, 8, 8, 3), (8, 8), (0, 8, 8))
    ),
  ],
)
def test_images_that_do_not_fit(loaded, images, words):
  with refused(UsageError, re.escape(words)):
    loaded.predict(images)


def test_numbers_of_the_source_are_predicted(loaded):
  """Scikit-learn's own digits are 0 to 16; the model saw them as 256 grey levels."""
  digits = datasets.load_digits()
  images, _ = loaded.test_data()
  assert (images.min(), images.max()) == (0, 16)
  logits = loaded.predict(digits.images).logits
  assert np.mean(logits.argmax(1) == digits.target) > LEARNED
  of_integers = loaded.predict(digits.images.astype(np.uint8)).logits
  np.testing.assert_array_equal(of_integers, logits)
  # A number of another scale is refused, in the file of weights too.
  with refused(UsageError, r'from 0.0 to 240.0; .* numbers in \[0, 16\]. Convert them'):
    loaded.predict(digits.images * 15)
  with pytest.warns(
    UserWarning, match=r'from 0.0 to 1.0, .* numbers in \[0, 16\]: are'
  ):
    loaded.predict(digits.images / 16)
  with refused(UsageError, r'grey_levels\(images\) makes them'):
    loaded.forward(loaded.variables, images)
  levels = loaded.grey_levels(digits.images)
  outputs = loaded.forward(loaded.variables, levels)
  np.testing.assert_allclose(outputs.logits, logits, atol=1e-5)


def test_a_run_of_an_older_version_has_the_scales_of_dtypes(workdir, tmp_path):
  copy = shutil.copytree(workdir, tmp_path / 'run')
  edit_json(copy / 'config.json', lambda saved: saved['images'].pop('scale'))
  older = moon_jax.load(copy)
  levels, _ = older.test_data()
  assert levels.dtype == np.uint8
  logits = older.predict(levels).logits
  newer = moon_jax.load(workdir)
  np.testing.assert_array_equal(newer.predict(newer.test_data()[0]).logits, logits)
  for alike in (levels.astype(np.int64), levels / 255):
    np.testing.assert_array_equal(older.predict(alike).logits, logits)
  with refused(UsageError, r'from 0.0 to 16.0; .* floats in \[0, 1\]. Convert them'):
    older.predict(datasets.load_digits().images)


@pytest.mark.parametrize(
  'changes', [{'low': 16.0}, {'low': -1e200}, {'dtype': 'U9'}, {'dtype': 'float128'}]
)
def test_a_scale_that_is_none_is_one_line(changes, workdir, tmp_path):
  path = shutil.copytree(workdir, tmp_path / 'run') / 'config.json'
  edit_json(path, lambda saved: saved['images']['scale'].update(changes))
  with refused(NoCheckpointError, r'config.json is damaged: .* is no scale'):
    moon_jax.load(path.parent)


def test_channels_may_come_first(loaded):
  images = np.random.default_rng(0).integers(0, 17, (3, 8, 8), np.uint8)
  plain, turned = loaded.predict(images), loaded.predict(images[:, None])
  np.testing.assert_array_equal(turned.logits, plain.logits)


def test_other_data_than_the_runs(loaded):
  config = config_lib.changed(loaded.config, {'data.limit': 100})
  with pytest.raises(UsageError, match='The data is not that'):
    dataclasses.replace(loaded, config=config).test_data()


def test_what_is_no_run_directory(tmp_path):
  for folder in (tmp_path, tmp_path / 'absent'):
    with pytest.raises(UsageError, match=r'is not a run directory: it has no config'):
      moon_jax.load(folder)
  (tmp_path / 'config.json').write_text('{"config": {}}')
  with pytest.raises(NoCheckpointError, match=r"lacks \['data_digest', 'images'\]"):
    moon_jax.load(tmp_path)


def changed_config(workdir, change):
  edit_json(workdir / 'config.json', lambda saved: change(saved['config']))


def truncated(checkpoint):
  for path in filter(pathlib.Path.is_file, checkpoint.rglob('*')):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


NONE_LEFT = 'checkpoints holds no undamaged checkpoint'
# A change of a run directory -> the message.
DAMAGE = [
  (
    lambda run: changed_config(run, lambda config: config['mlp'].update(width=65)),
    'Checkpoint 4 holds another state; differing: ',
  ),
  (lambda run: (run / 'partition.npz').write_bytes(b'PK'), r'partition\.npz cannot be'),
  (lambda run: shutil.rmtree(run / 'checkpoints'), NONE_LEFT),
  (lambda run: [*map(shutil.rmtree, (run / 'checkpoints').iterdir())], NONE_LEFT),
  (lambda run: truncated(run / 'checkpoints/4'), NONE_LEFT),
]


@pytest.mark.parametrize(('damage', 'words'), DAMAGE)
def test_a_damaged_run_directory_is_one_line(damage, words, tmp_path, workdir):
  damage(shutil.copytree(workdir, tmp_path / 'run'))
  error = UsageError if 'partition' in words else NoCheckpointError
  with refused(error, words):
    moon_jax.load(tmp_path / 'run')


# --- python -m moon_jax.predict -------------------------------------------------------


def predict(capsys, words):
  """The exit code and the lines that are printed."""
  code = predict_lib.main([str(word) for word in words])
  printed = capsys.readouterr()
  return code, printed.out + printed.err


@pytest.mark.parametrize('name', ['images', 'test_x'])
def test_predictions_of_a_file(name, tmp_path, workdir, loaded, capsys):
  images = loaded.test_data()[0][:20, ..., 0]
  file = tmp_path / 'my.npz'
  save_arrays(file, {'train_x': np.zeros(3), name: images})
  code, line = predict(capsys, [f'--workdir={workdir}', f'--input={file}'])
  target = tmp_path / 'my_predictions.npz'
  assert (code, line) == (
    ExitCode.DONE,
    f'{target}: 20 images, by the global model after round 4 of {workdir}\n',
  )
  with np.load(target) as saved:
    assert set(saved) == {'labels', 'logits', 'representations'}
    for name, expected in loaded.predict(images)._asdict().items():
      np.testing.assert_array_equal(saved[name], expected)
  assert {path.name for path in tmp_path.iterdir()} == {'my.npz', target.name}


def test_labels_may_be_the_bytes_of_their_names(tmp_path, workdir, loaded, capsys):
  images, labels = loaded.test_data()
  names = np.array([str(label) for label in labels[:20]])
  rows = []
  for given_labels in (labels[:20], names, names.astype('S')):
    arrays = {'images': images[:20, ..., 0], 'labels': given_labels}
    save_arrays(tmp_path / 'in.npz', arrays)
    words = f'--workdir={workdir}', f'--input={tmp_path / "in.npz"}'
    target = tmp_path / 'out.csv'
    assert predict(capsys, (*words, f'--output={target}'))[0] == ExitCode.DONE
    rows.append(rows_of(target))
  assert rows[0] == rows[1] == rows[2]


IMAGES = np.zeros((2, 8, 8), np.uint8)
INPUTS = {
  'in.npz': {'images': IMAGES},
  'key.npz': {'pictures': IMAGES},
  'shape.npz': {'images': IMAGES[0]},
}


@pytest.mark.parametrize(
  ('words', 'message'),
  [
    ('--input=in.npz', '--workdir is missing'),
    ('--workdir=run', '--input is missing'),
    ('--workdir=run --input=in.npz x', "'x' is a stray word"),
    ('--inptu=in.npz', "Unknown command line flag 'inptu'"),
    ('--workdir=run --input=absent.npz', 'No such file'),
    ('--workdir=run --input=text.npz', "--input='text.npz' must be an .npz file"),
    (
      '--workdir=run --input=text.txt',
      'must be a folder of pictures or of WAV files, a picture',
    ),
    ('--workdir=run --input=in.npz --split=test', '--split needs --source=NAME'),
    ('--workdir=run --input=x --source=tfds --split=a', 'must be test, train or'),
    ('--workdir=run --input=x --source=tdfs', "There is no data 'tdfs'. Did you mean"),
    ('--workdir=run --input=key.npz', 'must be an .npz file with images or test_x'),
    ('--workdir=run --input=shape.npz', "--input='shape.npz': "),
    ('--workdir=. --input=in.npz', 'not a run directory'),
    ('--workdir=run --input=in.npz --config=no.py', "--config='no.py' is not a file"),
    ('--workdir=run --input=in.npz --output=a/b.npz', "no folder 'a'"),
    (f'--workdir=run --input=in.npz --output={"p" * 296}.npz', 'File name too long'),
    ('--workdir=run --input=in.npz --output=b.txt', 'must end in .csv or .npz'),
    ('--workdir=run --input=empty', "--input='empty' has no pictures"),
    ('--workdir=run --input=in.npz --output=./in.npz', 'is the --input'),
    ('--workdir=run --input=in.npz --client=-1', 'client=-1 must be left out'),
    ('--workdir=empty --input=in.npz', 'no undamaged'),
  ],
)
def test_bad_command_lines(words, message, tmp_path, workdir, capsys, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'run').symlink_to(workdir)
  is_empty = '--workdir=empty' in words
  if is_empty:
    shutil.copytree(workdir, 'empty')
    shutil.rmtree('empty/checkpoints')
  for name, arrays in INPUTS.items():
    save_arrays(name, arrays)
  (tmp_path / 'text.npz').write_text('text')
  (tmp_path / 'text.txt').write_text('text')
  (tmp_path / 'empty').mkdir(exist_ok=True)
  before = contents(tmp_path)
  code, line = predict(capsys, words.split())
  assert code == (ExitCode.NO_CHECKPOINT if is_empty else ExitCode.USAGE)
  assert message in line
  assert line.count('\n') == 1
  assert contents(tmp_path) == before


# --- pictures, and splits of data sets ------------------------------------------------


@pytest.fixture(scope='module')
def pictures(tmp_path_factory, workdir, loaded):
  """A folder of the first test images as CLASS/*.png, twice as large."""
  folder = tmp_path_factory.mktemp('pictures')
  images, labels = loaded.test_data()
  for row in range(30):
    level = np.rint(images[row, ..., 0] * (255 / 16)).astype(np.uint8)
    path = folder / str(labels[row]) / f'{row}.png'
    path.parent.mkdir(exist_ok=True)
    Image.fromarray(level).save(path)
  return folder


def _enlarge(folder):
  picture = sorted(folder.glob('*/*.png'))[-1]
  Image.open(picture).resize((16, 16)).save(picture)


def rows_of(path):
  with path.open(newline='') as file:
    return list(csv.DictReader(file))


def test_a_folder_of_pictures_by_class(pictures, workdir, loaded, tmp_path, capsys):
  target = tmp_path / 'out.csv'
  words = f'--workdir={workdir}', f'--input={pictures}', f'--output={target}'
  code, text = predict(capsys, words)
  assert code == ExitCode.DONE
  images, labels = loaded.test_data()
  expected = loaded.predict(images[:30])
  rows = rows_of(target)
  assert [row['name'] for row in rows] == sorted(
    f'{labels[row]}/{row}.png' for row in range(30)
  )
  for row in rows:
    number = int(row['name'].split('/')[1].removesuffix('.png'))
    logits = expected.logits[number].astype(float)
    probabilities = np.exp(logits) / np.exp(logits).sum()
    written = [float(row[f'probability of {label}']) for label in range(10)]
    np.testing.assert_allclose(written, probabilities, rtol=1e-4)
    assert row['label'] == str(labels[number])
    assert row['predicted'] == str(expected.labels[number])
  accuracy = np.mean(expected.labels == labels[:30])
  assert f'accuracy {accuracy:.4f}, balanced_accuracy ' in text
  confusion = rows_of(tmp_path / 'out_confusion.csv')
  counts = [
    [int(row[f'predicted {label}']) for label in range(10)] for row in confusion
  ]
  assert np.trace(counts) == round(accuracy * 30)
  np.testing.assert_array_equal(
    np.sum(counts, axis=1), np.bincount(labels[:30], minlength=10)
  )


def test_folders_behind_links_are_classified_too(pictures, workdir, tmp_path, capsys):
  linked = tmp_path / 'linked'
  linked.mkdir()
  for folder in sorted(pictures.iterdir()):
    (linked / folder.name).symlink_to(folder)
  (linked / 'circle').symlink_to(linked)
  rows = []
  for number, folder in enumerate((pictures, linked)):
    target = tmp_path / f'{number}.csv'
    words = f'--workdir={workdir}', f'--input={folder}', f'--output={target}'
    assert predict(capsys, words)[0] == ExitCode.DONE
    rows.append(rows_of(target))
  assert rows[0] == rows[1]


def test_a_name_that_is_no_text_is_written_with_its_bytes(tmp_path):
  classified = Classified(labels=[0], logits=[[1.0, 1.0]])
  path = tmp_path / 'x.csv'
  prediction_files.write_predictions(
    path, ['b\udcff.png'], classified, ['M\udce4dchen', 'b'], has_labels=False
  )
  _, row = path.read_text().splitlines()
  assert row == r'b\udcff.png,M\udce4dchen,0.5,0.5'


def test_two_folders_that_differ_behind_a_dot_have_files_of_their_own(
  tmp_path, monkeypatch
):
  monkeypatch.chdir(tmp_path)
  for year in ('2023', '2024'):
    folder = tmp_path / f'patients.{year}'
    folder.mkdir()
    values = predict_lib.parse(['--workdir=run', f'--input={folder}'])
    target = predict_lib._target(values, folder)
    assert target == tmp_path / f'patients.{year}_predictions.csv'


@pytest.mark.parametrize(('word', 'folder'), [('.', 'scans'), ('..', 'scans/3')])
def test_the_folder_of_the_shell_has_its_name_in_the_output(
  word, folder, tmp_path, monkeypatch
):
  (tmp_path / folder).mkdir(parents=True)
  monkeypatch.chdir(tmp_path / folder)
  values = predict_lib.parse(['--workdir=run', f'--input={word}'])
  target = predict_lib._target(values, pathlib.Path(word))
  assert target == tmp_path / 'scans_predictions.csv'


def test_a_picture_has_no_label(pictures, workdir, tmp_path, capsys):
  picture = sorted(pictures.glob('*/*.png'))[0]
  target = tmp_path / 'out.csv'
  words = f'--workdir={workdir}', f'--input={picture}', f'--output={target}'
  assert predict(capsys, words)[0] == ExitCode.DONE
  (row,) = rows_of(target)
  assert row['name'] == picture.name
  assert 'label' not in row
  assert not (tmp_path / 'out_confusion.csv').exists()


def test_a_split_of_a_source(workdir, loaded, tmp_path, capsys):
  """Its grey levels, 0 to 255, are those of the run's numbers, 0 to 16."""
  images, labels = loaded.test_data()
  levels = np.rint(images * (255 / 16)).astype(np.uint8)
  np.savez(
    tmp_path / 'my.npz', train_x=levels, train_y=labels, test_x=levels, test_y=labels
  )
  target = tmp_path / 'out.csv'
  words = [f'--workdir={workdir}', f'--input={tmp_path / "my.npz"}', '--source=npz']
  words.append(f'--output={target}')
  code, text = predict(capsys, [*words, '--split=train'])
  assert code == ExitCode.DONE, text
  expected = loaded.predict(images).labels
  assert [row['predicted'] for row in rows_of(target)] == list(map(str, expected))
  assert f'accuracy {np.mean(expected == labels):.4f}' in text
  code, text = predict(capsys, [*words, '--split=validation'])
  assert (code, 'has no such examples' in text) == (ExitCode.USAGE, True)


OWN_SOURCE = """
import moon_jax
from moon_jax.config import defaults as get_config

moon_jax.register_data('own_source', lambda: None)
"""


@pytest.mark.usefixtures('own_parts')
@pytest.mark.parametrize('source', ['digits', 'own_source', 'tablle'])
def test_a_source_of_which_the_input_is_nothing_is_one_line(
  source, workdir, tmp_path, capsys
):
  (tmp_path / 'own.py').write_text(OWN_SOURCE)
  words = [f'--workdir={workdir}', '--input=nonsense', f'--source={source}']
  code, text = predict(capsys, [*words, f'--config={tmp_path / "own.py"}'])
  assert code == ExitCode.USAGE
  problem = f"--source='{source}' has neither data.name nor data.path, so --input "
  if source == 'tablle':
    problem = "There is no data 'tablle'. Did you mean 'table'?"
  assert text.startswith(problem)
  assert text.count('\n') == 1


def test_folders_with_numbers_for_names_are_these_classes(
  pictures, workdir, tmp_path, capsys
):
  for split in ('train', 'test'):
    for label in '37':
      shutil.copytree(pictures / label, tmp_path / 'set' / split / label)
  target = tmp_path / 'out.csv'
  words = [f'--workdir={workdir}', f'--input={tmp_path}/set', f'--output={target}']
  code, text = predict(capsys, [*words, '--source=imagefolder'])
  assert code == ExitCode.DONE, text
  labels = [row['label'] for row in rows_of(target)]
  assert labels == ['3'] * labels.count('3') + ['7'] * labels.count('7')
  assert set(labels) == {'3', '7'}


@pytest.mark.parametrize(
  ('change', 'message'),
  [
    (lambda folder: (folder / '3').rename(folder / 'three'), 'know the classes three'),
    (_enlarge, '16x16 pixels; this model takes 8x8'),
    (
      lambda folder: (folder / '3/x.png').write_text('text'),
      "picture '3/x.png' cannot",
    ),
    (
      lambda folder: shutil.copy(next(folder.glob('3/*.png')), folder / 'stray.png'),
      'has folders of classes, and files outside of them',
    ),
    (
      lambda folder: shutil.move(folder / '3', folder / 'x/images'),
      'does not know the classes x; it has',
    ),
  ],
)
def test_wrong_pictures_are_one_line(
  change, message, pictures, workdir, tmp_path, capsys
):
  folder = shutil.copytree(pictures, tmp_path / 'pictures')
  change(folder)
  words = f'--workdir={workdir}', f'--input={folder}', f'--output={tmp_path / "x.csv"}'
  code, text = predict(capsys, words)
  assert code == ExitCode.USAGE
  assert message in text
  assert text.count('\n') == 1
  assert not (tmp_path / 'x.csv').exists()


def test_help_of_predict(capsys):
  assert predict_lib.main(['--help']) == ExitCode.DONE
  printed = capsys.readouterr()
  assert printed.err == ''
  for flag in ('--workdir=', '--input=', '--output=', '--client='):
    assert flag in printed.out
