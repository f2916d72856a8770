"""A file of a model is the model that was trained, here and in other programs."""

import functools
import json
import os
import shutil
import subprocess
import sys
import zlib

import numpy as np
import pytest
from PIL import Image

import moon_jax
from examples import numpy_model
from moon_jax import catalog, export
from moon_jax.core import imports, weights
from moon_jax.core.errors import ExitCode, NoCheckpointError, UsageError
from moon_jax.data import pictures
from tests.data.test_cases import DEEP_RGB
from tests.processes import check_success, launched
from tests.refusals import refused
from tests.run_directories import FEDAVG, edit_lines
from tests.selection import few

FORMATS = ('x.npz', 'x.safetensors')


@pytest.fixture(scope='module')
def trained(two_rounds):
  return moon_jax.load(two_rounds)


@pytest.fixture(params=FORMATS)
def exported(request, trained, tmp_path):
  trained.save(tmp_path / request.param)
  return tmp_path / request.param


def test_a_model_is_loaded_back(exported, trained, two_rounds):
  reloaded = moon_jax.load(exported)
  images, labels = reloaded.test_data()
  predictions = reloaded.predict(images)
  np.testing.assert_array_equal(predictions.logits, trained.predict(images).logits)
  lines = (two_rounds / 'metrics.jsonl').read_text().splitlines()
  accuracy = json.loads(lines[-1])['test_accuracy']
  assert np.mean(predictions.labels == labels) == accuracy
  assert (reloaded.round, reloaded.client, reloaded.class_counts) == (2, None, None)
  assert reloaded.about == trained.about
  assert reloaded.about['test_accuracy'] == accuracy
  assert reloaded.config == trained.config


def test_the_accuracy_is_that_of_the_round(two_rounds, tmp_path):
  run = shutil.copytree(two_rounds, tmp_path / 'run')
  accuracies = {1: 0.25, 2: 0.75}
  edit_lines(
    run / 'metrics.jsonl',
    lambda line: line.update(test_accuracy=accuracies[line['round']]),
  )
  assert moon_jax.load(run).about['test_accuracy'] == 0.75


def test_an_older_checkpoint_is_told_in_one_line(two_rounds, tmp_path):
  run = shutil.copytree(two_rounds, tmp_path / 'run')
  (run / 'checkpoints/2/manifest.json').write_text('{')
  process = launched(tmp_path, ['run', '--output=x.npz'], program=export.main)
  assert process.stderr == (
    'checkpoint 2 is damaged (manifest.json has changed); round 1 is loaded\n'
  )
  assert 'after round 1 of run' in process.stdout


def test_names_and_texts_are_as_documented(exported):
  arrays, texts = weights.read(exported)
  layers = ('classifier', 'encoder', 'head_hidden', 'head_output')
  assert list(arrays) == [
    f'params/{layer}/{leaf}' for layer in layers for leaf in ('bias', 'kernel')
  ]
  assert arrays['params/encoder/kernel'].shape == (64, 128)
  assert arrays['params/classifier/kernel'].shape == (64, 10)
  names = {'moon_jax', 'config', 'images', 'data_digest', 'num_classes', 'round'}
  assert set(texts) == names | {'test_accuracy'}
  assert json.loads(texts['config'])['algorithm'] == 'fedavg'
  assert json.loads(texts['images'])['shape'] == [8, 8, 1]


def test_a_function_of_numpy_arrays(exported, trained):
  images, _ = trained.test_data()
  logits = numpy_model.function_of(exported)(images)
  np.testing.assert_allclose(logits, trained.predict(images).logits, atol=1e-5)


def changed(path, change):
  arrays, texts = weights.read(path)
  change(arrays, texts)
  weights.write(path, arrays, texts)
  return path


OF_ANOTHER_KIND = [
  (lambda a, t: t.clear(), 'does not say which run its weights'),
  (lambda a, t: t.update(round='"2"'), 'does not say'),
  (lambda a, t: t.update(num_classes='{'), 'does not say'),
  (lambda a, t: a.popitem(), r'kernel is missing, must be float32 \[128, 64\]'),
  (lambda a, t: a.update(b=np.zeros(1)), r'its b is float64 \[1\], must be left out'),
  (
    lambda a, t: a.update({'params/encoder/bias': np.zeros(64)}),
    r'its params/encoder/bias is float64 \[64\], must be float32 \[128\]',
  ),
]
NO_MEANS = '{"shape": [8, 8, 1], "mean": [], "std": []}'
DAMAGED = [
  (
    lambda a, t: t.update(config='{"model": "none"}'),
    r"--config\.model='none' must be",
  ),
  (lambda a, t: t.update(images=NO_MEANS), 'mean and std must be of each channel'),
  (lambda a, t: add_image_fact(t, class_names=['a', 'b']), '2 names for 10 classes'),
]


def add_image_fact(texts, **facts):
  texts.update(images=json.dumps(json.loads(texts['images']) | facts))


@pytest.mark.parametrize(
  ('error', 'change', 'words'),
  [(UsageError, change, words) for change, words in OF_ANOTHER_KIND]
  + [(NoCheckpointError, change, words) for change, words in DAMAGED],
)
def test_a_file_of_another_kind_is_one_line(error, change, words, trained, tmp_path):
  trained.save(tmp_path / 'x.npz')
  with refused(error, words):
    moon_jax.load(changed(tmp_path / 'x.npz', change))


def test_a_file_holds_one_model(trained, tmp_path):
  trained.save(tmp_path / 'x.npz')
  with pytest.raises(UsageError, match='client=1 must be left out'):
    moon_jax.load(tmp_path / 'x.npz', client=1)


@pytest.mark.parametrize(
  ('texts_of_client', 'right', 'wrong'),
  [
    ({}, [], [0, '0', 'None', '']),
    ({'client': '1'}, [1, '1'], [0, '0', 'None', '']),
    ({'client': '1', 'client_name': '"rural"'}, [1, '1', 'rural'], [0, 'city']),
    # Of users called 1, 2 and 3, this is number 1, whom the data call 2.
    ({'client': '1', 'client_name': '"2"'}, [1, '2'], [2, '1']),
  ],
)
def test_a_file_of_a_client_is_asked_for_by_its_number_or_name(
  texts_of_client, right, wrong, trained, tmp_path
):
  trained.save(tmp_path / 'x.npz')
  path = changed(tmp_path / 'x.npz', lambda a, t: t.update(texts_of_client))
  for client in right:
    assert moon_jax.load(path, client=client).client == 1
  for client in wrong:
    with refused(UsageError, 'must be left out'):
      moon_jax.load(path, client=client)


@pytest.fixture(scope='module')
def with_client_models(tmp_path_factory, quick_runs):
  """Trains a personalised algorithm, once: its name -> the run directory."""

  @functools.cache
  def run_of(algorithm):
    folder = tmp_path_factory.mktemp(algorithm)
    words = [*FEDAVG[:-1], f'--config.algorithm={algorithm}', '--workdir=run']
    words += ['--config.data.local_test=0.25'] if algorithm == 'ditto' else []
    check_success(launched(folder, words))
    return folder / 'run'

  return run_of


@pytest.mark.slow
def test_the_model_of_a_client_has_no_accuracy_over_all_clients(
  with_client_models, tmp_path
):
  of_client = moon_jax.load(with_client_models('fedper'), client=3)
  assert 'test_accuracy' not in of_client.about
  of_client.save(tmp_path / 'x.npz')
  reloaded = moon_jax.load(tmp_path / 'x.npz', client=3)
  assert reloaded.client == 3
  images = np.arange(640).reshape(10, 8, 8) % 17
  logits = reloaded.predict(images).logits
  np.testing.assert_array_equal(logits, of_client.predict(images).logits)


# --- python -m moon_jax.export --------------------------------------------------------


def test_from_the_shell(two_rounds, trained, tmp_path, capsys):
  target = tmp_path / 'model.npz'
  assert export.main([str(two_rounds), f'--output={target}']) == ExitCode.DONE
  num_weights = sum(array.size for array in weights.read_weights(target).values())
  assert capsys.readouterr().out == (
    f'{target}: {num_weights:,} weights of the global model after round 2 of '
    f'{two_rounds}, test accuracy {trained.about["test_accuracy"]:.4f}\n'
  )


@pytest.mark.parametrize(
  ('words', 'message'),
  [
    ('run', 'must be RUN --output=FILE'),
    ('--output=x.npz', 'must be RUN --output=FILE'),
    ('run run --output=x.npz', 'must be RUN --output=FILE'),
    (
      'run --output=x.pt',
      "--output='x.pt' must end in .safetensors, .npz, .py or .onnx",
    ),
    ('run --output=no/x.npz', "there is no folder 'no'"),
    ('none --output=x.npz', "'none' is not a run directory"),
    ('run --output=x.npz --client=1', 'client=1 must be left out'),
    ('run --outptu=x.npz', "Unknown command line flag 'outptu'"),
  ],
)
def test_bad_command_lines(words, message, two_rounds, tmp_path, capsys, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'run').symlink_to(two_rounds)
  assert export.main(words.split()) == ExitCode.USAGE
  errors = capsys.readouterr().err
  assert message in errors
  assert errors.count('\n') == 1
  assert [path.name for path in tmp_path.iterdir()] == ['run']


# --- in PyTorch and ONNX Runtime ------------------------------------------------------

IMAGES = np.arange(640).reshape(10, 8, 8, 1) % 17


def logits_of_onnx(path, images):
  """The logits of an .onnx file for images [M, H, W, C]."""
  runtime = pytest.importorskip('onnxruntime', reason='no onnxruntime')
  session = runtime.InferenceSession(path, providers=['CPUExecutionProvider'])
  in_channels_first = images.transpose(0, 3, 1, 2).astype(np.float32)
  (logits,) = session.run(['logits'], {'images': in_channels_first})
  return logits


def logits_of_torch(path, images):
  """The logits of a Python file for images [M, H, W, C], in a process of its own."""
  pytest.importorskip('torch', reason='no torch')
  np.save(path.with_name('images.npy'), images.transpose(0, 3, 1, 2))
  code = (
    f'import sys, numpy, torch, {path.stem}\n'
    f'network = {path.stem}.load()\n'
    "images = torch.from_numpy(numpy.load('images.npy'))\n"
    "numpy.save('logits.npy', network(images).detach().numpy())\n"
    "assert not any(name.startswith(('moon_jax', 'jax')) for name in sys.modules)"
  )
  # Isolated from this project: the file needs nothing of it.
  words = [sys.executable, '-c', f'import sys; sys.path = ["."] + sys.path\n{code}']
  subprocess.run(
    words, cwd=path.parent, check=True, env=os.environ | {'PYTHONPATH': ''}
  )
  return np.load(path.with_name('logits.npy'))


def check_in_other_programs(model, folder):
  expected = model.predict(IMAGES).logits
  assert np.ptp(expected) > 0.1
  model.save(folder / 'model.onnx')
  logits = logits_of_onnx(folder / 'model.onnx', IMAGES)
  np.testing.assert_allclose(logits, expected, atol=1e-5)
  model.save(folder / 'model.py')
  assert (folder / 'model_weights.safetensors').exists()
  compile((folder / 'model.py').read_text(), 'model.py', 'exec')
  logits = logits_of_torch(folder / 'model.py', IMAGES)
  np.testing.assert_allclose(logits, expected, atol=1e-5)


def test_the_same_logits_in_other_programs(trained, tmp_path):
  check_in_other_programs(trained, tmp_path)


@pytest.mark.parametrize('algorithm', few(['fedper'], ['ditto']))
def test_the_models_of_clients_in_other_programs(
  algorithm, with_client_models, tmp_path
):
  run = with_client_models(algorithm)
  model, other = (moon_jax.load(run, client=client) for client in (3, 2))
  assert np.any(model.predict(IMAGES).logits != other.predict(IMAGES).logits)
  check_in_other_programs(model, tmp_path)
  assert 'client 3 in 2 rounds' in (tmp_path / 'model.py').read_text()


def test_a_file_for_pytorch_from_the_shell(two_rounds, tmp_path, capsys):
  target = tmp_path / 'model.py'
  assert export.main([str(two_rounds), f'--output={target}']) == ExitCode.DONE
  line = capsys.readouterr().out
  assert line.startswith(f'{target} and model_weights.safetensors: ')
  assert sorted(path.name for path in tmp_path.iterdir()) == [
    'model.py',
    'model_weights.safetensors',
  ]


def test_a_model_that_was_saved_is_not_replaced_by_weights_for_pytorch(
  trained, tmp_path, capsys
):
  saved = tmp_path / 'model_weights.safetensors'
  trained.save(saved)
  content = saved.read_bytes()
  code = export.main([str(saved), f'--output={tmp_path / "model.py"}'])
  assert code == ExitCode.USAGE
  assert 'which the weights would replace, holds a model' in capsys.readouterr().err
  assert saved.read_bytes() == content
  assert [*tmp_path.iterdir()] == [saved]


def test_a_file_for_pytorch_reads_the_formats_of_training_alone(trained, tmp_path):
  trained.save(tmp_path / 'model.py')
  text = (tmp_path / 'model.py').read_text()
  assert f'Image.open(path, formats={pictures.FORMATS})' in text
  trained.save(tmp_path / 'model.py')  # over its own weights


def test_a_picture_is_read_as_in_training(two_rounds, tmp_path):
  """The file's own reader of pictures, on the scale of the digits, 0 to 16."""
  model = moon_jax.load(two_rounds)
  model.save(tmp_path / 'model.py')
  levels = np.random.default_rng(0).integers(0, 256, (8, 8), np.uint8)
  Image.fromarray(levels).save(tmp_path / 'picture.png')
  expected = model.predict(levels[None] * (16 / 255)).logits[0]
  words = [sys.executable, '-I', '-S', 'model.py', 'picture.png']  # without packages
  process = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
  needs = 'model.py needs: pip install torch safetensors pillow\n'
  assert (process.returncode, process.stderr) == (2, needs)
  pytest.importorskip('torch', reason='no torch')
  words = [sys.executable, 'model.py', 'picture.png']
  process = subprocess.run(
    words, cwd=tmp_path, check=True, capture_output=True, text=True
  )
  probabilities = np.exp(expected) / np.exp(expected).sum()
  label = int(expected.argmax())
  assert process.stdout == (
    f'picture.png: {label}, probability {probabilities[label]:.4f}\n'
  )
  (tmp_path / 'text.png').write_text('no picture')
  # Pillow would start Ghostscript for it.
  (tmp_path / 'scan.png').write_text('%!PS-Adobe-3.0 EPSF-3.0\n')
  checksum = zlib.crc32(DEEP_RGB[12:29]).to_bytes(4, 'big')
  (tmp_path / 'deep.png').write_bytes(DEEP_RGB[:29] + checksum + DEEP_RGB[33:])
  noise = np.random.default_rng(0).integers(0, 256, (300, 300), np.uint8)
  Image.fromarray(noise).save(tmp_path / 'broken.png')
  content = bytearray((tmp_path / 'broken.png').read_bytes())
  content[content.rfind(b'IDAT')] = 0  # Pillow calls this a SyntaxError
  (tmp_path / 'broken.png').write_bytes(content)
  for arguments, line in (
    ([], 'usage: python model.py PICTURE ...'),
    (['absent.png'], 'absent.png: No such file or directory'),
    (['.'], '. is a folder: python -m moon_jax.predict reads folders'),
    (['text.png'], "text.png: cannot identify image file 'text.png'"),
    (['scan.png'], "scan.png: cannot identify image file 'scan.png'"),
    (['deep.png'], 'deep.png: deep.png must have 8 bits in each channel.'),
    (['broken.png'], r"broken.png: broken PNG file (chunk b'\x00DAT')"),
  ):
    process = subprocess.run(
      [sys.executable, 'model.py', *arguments],
      cwd=tmp_path,
      capture_output=True,
      text=True,
    )
    assert (process.returncode, process.stderr) == (2, f'{line}\n')
  (tmp_path / 'model_weights.safetensors').unlink()
  process = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
  (line,) = process.stderr.splitlines()
  assert line.startswith(f'{tmp_path / "model_weights.safetensors"}: No such file')
  assert process.returncode == 2


def test_a_network_of_a_users_own_is_refused(trained, tmp_path, monkeypatch):
  part = catalog.part('model', 'mlp')
  own = part._replace(registered={'name': 'mlp', 'digest': '0'})
  monkeypatch.setattr(catalog, 'part', lambda kind, name: own)
  for name in ('x.py', 'x.onnx'):
    with refused(UsageError, r'is a network of your own, .* ends in \.safetensors'):
      trained.save(tmp_path / name)
  assert not list(tmp_path.iterdir())


def test_without_onnx_is_one_line(trained, tmp_path):
  with imports.without('onnx'), pytest.MonkeyPatch.context() as patch:
    for name in [name for name in sys.modules if name.partition('.')[0] == 'onnx']:
      patch.delitem(sys.modules, name)
    with refused(UsageError, r"pip install 'moon_jax\[onnx\]'"):
      trained.save(tmp_path / 'x.onnx')


# --- in Flower ------------------------------------------------------------------------


def test_a_client_of_flower(trained, two_rounds):
  pytest.importorskip('flwr', reason='no flwr')
  from examples import flower_client

  images, labels = trained.test_data()
  client = flower_client.Client(two_rounds, images, labels, rate=0.1)
  start = client.get_parameters({})
  loss, count, metrics = client.evaluate(start, {})
  assert count == len(labels)
  assert metrics['accuracy'] == pytest.approx(trained.about['test_accuracy'])
  arrays, count, _ = client.fit(start, {})
  assert [a.shape for a in arrays] == [a.shape for a in start]
  assert client.evaluate(arrays, {})[0] < loss
  assert client.to_client() is not None
