"""A file of weights is the model that was trained, here and in PyTorch and NumPy."""

import json
import shutil

import numpy as np
import pytest

import moon_jax
from examples import numpy_model
from moon_jax import export
from moon_jax.core import weights
from moon_jax.core.errors import ExitCode, NoCheckpointError, UsageError
from tests.processes import launched
from tests.refusals import refused
from tests.run_directories import FEDAVG, edit_lines

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
]


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


@pytest.mark.usefixtures('quick_runs')
def test_the_model_of_a_client_has_no_accuracy_over_all_clients(tmp_path):
  words = (*FEDAVG[:-1], '--config.algorithm=solo', '--workdir=run')
  assert launched(tmp_path, words).returncode == 0
  of_client = moon_jax.load(tmp_path / 'run', client=3)
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
    ('run --output=x.pt', "--output='x.pt' must end in .safetensors or .npz"),
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


# --- in PyTorch -----------------------------------------------------------------------


def test_the_same_logits_in_pytorch(tmp_path):
  pytest.importorskip('torch', reason='no torch')
  from examples import pytorch_model

  rng = np.random.default_rng(0)
  images = rng.integers(0, 256, (60, 28, 28, 1), np.uint8)
  labels = np.arange(60, dtype=np.int32) % 10
  np.savez(
    tmp_path / 'my.npz', train_x=images, train_y=labels, test_x=images, test_y=labels
  )
  run = launched(
    tmp_path,
    [
      '--workdir=run',
      '--config.data.source=npz',
      '--config.data.path=my.npz',
      '--config.model=moon_cnn',
      '--config.optimizer.learning_rate=0.1',
      '--config.num_clients=2',
      '--config.partition.name=iid',
      '--config.num_rounds=1',
      '--config.local_epochs=1',
    ],
  )
  assert run.returncode == 0
  trained = moon_jax.load(tmp_path / 'run')
  trained.save(tmp_path / 'x.npz')
  torch_logits = pytorch_model.logits(pytorch_model.load(tmp_path / 'x.npz'), images)
  logits = trained.predict(images).logits
  assert np.ptp(logits) > 0.1
  np.testing.assert_allclose(torch_logits, logits, atol=1e-5)


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
