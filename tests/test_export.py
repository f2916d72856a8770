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
  again = moon_jax.load(exported)
  images, labels = again.test_data()
  np.testing.assert_array_equal(*(m.predict(images).logits for m in (again, trained)))
  lines = (two_rounds / 'metrics.jsonl').read_text().splitlines()
  accuracy = json.loads(lines[-1])['test_accuracy']
  assert np.mean(again.predict(images).labels == labels) == accuracy
  assert (again.round, again.client, again.class_counts) == (2, None, None)
  assert again.about == trained.about
  assert again.about['test_accuracy'] == accuracy
  assert again.config == trained.config


def test_the_accuracy_is_that_of_the_round(two_rounds, tmp_path):
  run = shutil.copytree(two_rounds, tmp_path / 'run')
  accuracies = {1: 0.25, 2: 0.75}
  edit_lines(
    run / 'metrics.jsonl',
    lambda line: line.update(test_accuracy=accuracies[line['round']]),
  )
  assert moon_jax.load(run).about['test_accuracy'] == 0.75


def test_names_and_texts_are_as_documented(exported):
  arrays, about = weights.read(exported)
  layers = ('classifier', 'encoder', 'head_hidden', 'head_output')
  assert list(arrays) == [
    f'params/{layer}/{what}' for layer in layers for what in ('bias', 'kernel')
  ]
  assert arrays['params/encoder/kernel'].shape == (64, 128)
  assert arrays['params/classifier/kernel'].shape == (64, 10)
  known = {'moon_jax', 'config', 'images', 'data_digest', 'num_classes', 'round'}
  assert set(about) == known | {'test_accuracy'}
  assert json.loads(about['config'])['algorithm'] == 'fedavg'
  assert json.loads(about['images'])['shape'] == [8, 8, 1]


def test_a_function_of_numpy_arrays(exported, trained):
  images, _ = trained.test_data()
  logits = numpy_model.function_of(exported)(images)
  np.testing.assert_allclose(logits, trained.predict(images).logits, atol=1e-5)


def changed(path, change):
  arrays, about = weights.read(path)
  change(arrays, about)
  weights.write(path, arrays, about)
  return path


OTHER = [
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
  ('kind', 'change', 'words'),
  [(UsageError, *one) for one in OTHER]
  + [(NoCheckpointError, *one) for one in DAMAGED],
)
def test_a_file_of_another_kind_is_one_line(kind, change, words, trained, tmp_path):
  trained.save(tmp_path / 'x.npz')
  with refused(kind, words):
    moon_jax.load(changed(tmp_path / 'x.npz', change))


def test_a_file_holds_one_model(trained, tmp_path):
  trained.save(tmp_path / 'x.npz')
  with pytest.raises(UsageError, match='client=1 must be left out'):
    moon_jax.load(tmp_path / 'x.npz', client=1)


@pytest.mark.usefixtures('quick_runs')
def test_the_model_of_a_client_has_no_accuracy_over_all_clients(tmp_path):
  words = (*FEDAVG[:-1], '--config.algorithm=solo', '--workdir=run')
  assert launched(tmp_path, *words).returncode == 0
  mine = moon_jax.load(tmp_path / 'run', client=3)
  assert 'test_accuracy' not in mine.about
  mine.save(tmp_path / 'x.npz')
  again = moon_jax.load(tmp_path / 'x.npz', client=3)
  assert again.client == 3
  images = np.arange(640, dtype=np.uint8).reshape(10, 8, 8)
  np.testing.assert_array_equal(*(m.predict(images).logits for m in (again, mine)))


# --- python -m moon_jax.export --------------------------------------------------------


def test_from_the_shell(two_rounds, trained, tmp_path, capsys):
  target = tmp_path / 'model.npz'
  assert export.main([str(two_rounds), f'--output={target}']) == ExitCode.DONE
  told = f'{target}: 13,130 weights of the global model after round 2 of {two_rounds}, '
  accuracy = trained.about['test_accuracy']
  count = sum(array.size for array in weights.read_weights(target).values())
  told = told.replace('13,130', f'{count:,}')
  assert capsys.readouterr().out == f'{told}test accuracy {accuracy:.4f}\n'


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
  told = capsys.readouterr().err
  assert message in told
  assert told.count('\n') == 1
  assert [path.name for path in tmp_path.iterdir()] == ['run']


# --- in PyTorch -----------------------------------------------------------------------


def test_the_same_logits_in_pytorch(tmp_path):
  pytest.importorskip('torch', reason='no torch')
  from examples import pytorch_model

  rng = np.random.default_rng(0)
  images = rng.integers(0, 256, (60, 28, 28, 1), np.uint8)
  labels = np.arange(60, dtype=np.int32) % 10
  arrays = {'train_x': images, 'train_y': labels, 'test_x': images, 'test_y': labels}
  np.savez(tmp_path / 'my.npz', **arrays)
  words = ('--config.data.source=npz', '--config.data.path=my.npz', '--workdir=run')
  words += ('--config.model=moon_cnn', '--config.optimizer.learning_rate=0.1')
  words += ('--config.num_clients=2', '--config.partition.name=iid')
  words += ('--config.num_rounds=1', '--config.local_epochs=1')
  assert launched(tmp_path, *words).returncode == 0
  trained = moon_jax.load(tmp_path / 'run')
  trained.save(tmp_path / 'x.npz')
  mine = pytorch_model.load(tmp_path / 'x.npz')
  logits = pytorch_model.logits(mine, images)
  wanted = trained.predict(images).logits
  assert np.ptp(wanted) > 0.1
  np.testing.assert_allclose(logits, wanted, atol=1e-5)


# --- in Flower ------------------------------------------------------------------------


def test_a_client_of_flower(trained, two_rounds):
  pytest.importorskip('flwr', reason='no flwr')
  from examples import flower_client

  images, labels = trained.test_data()
  client = flower_client.Client(two_rounds, images, labels, rate=0.1)
  start = client.get_parameters({})
  loss, count, told = client.evaluate(start, {})
  assert count == len(labels)
  assert told['accuracy'] == pytest.approx(trained.about['test_accuracy'])
  arrays, count, _ = client.fit(start, {})
  assert [a.shape for a in arrays] == [a.shape for a in start]
  assert client.evaluate(arrays, {})[0] < loss
  assert client.to_client() is not None
