"""The report shows of trained models what the run itself measured."""

import csv
import json
import re
import shutil

import numpy as np
import pytest

from moon_jax.config import cli
from moon_jax.core import files
from moon_jax.core.errors import ExitCode
from moon_jax.predict.inference import load
from moon_jax.report import build, command, features, models, runs
from moon_jax.report.__main__ import main
from moon_jax.runner import start
from tests.processes import read_lines
from tests.report.reports import settings_of
from tests.run_directories import edit_json, words_of

TINY = words_of(num_rounds=2)


pytestmark = pytest.mark.usefixtures('quick_runs', 'empty_figures')


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """One run with a global model and one without, of two rounds."""
  runs_folder = tmp_path_factory.mktemp('models') / 'runs'
  for algorithm in ('fedavg', 'fedper'):
    workdir = runs_folder / algorithm
    words = (*TINY, f'--config.algorithm={algorithm}', f'--workdir={workdir}')
    start.run(cli.parse(words))
  return runs_folder


def test_the_report_looks_at_global_models(folder, tmp_path, capsys):
  # Paths are relative to the page, whatever the working directory.
  assert main([str(folder), f'--out={tmp_path}']) == ExitCode.DONE
  assert capsys.readouterr().err == ''
  names = {path.name for path in (tmp_path / 'figures').iterdir()}
  assert {'class_shares.png', 'tsne.png'} <= names
  assert len([name for name in names if name.startswith('confusion-')]) == 1
  with (tmp_path / 'tables/class_shares.csv').open(newline='') as file:
    (row,) = csv.DictReader(file)
  accuracies = expected_accuracies(folder / 'fedavg')
  assert row['expected_n'] == '10'
  assert float(row['expected_mean']) == pytest.approx(sum(accuracies) / 10)
  assert float(row['lowest']) == pytest.approx(min(accuracies))
  # A table and a figure are about class shares: each links to its own files.
  page = (tmp_path / 'index.html').read_text()
  links = re.findall(r'href="((?:figures|tables)/[^"]+)"', page)
  assert {'figures/class_shares.png', 'tables/class_shares.csv'} <= set(links)
  assert all((tmp_path / link).is_file() for link in links)
  # The accuracy of the clients' own models is in another table.
  with (tmp_path / 'tables/own_models.csv').open(newline='') as file:
    (row,) = csv.DictReader(file)
  (*_, metrics) = read_lines(folder / 'fedper/metrics.jsonl')
  std, worst = metrics['test_accuracy_std'], metrics['test_accuracy_worst']
  assert float(row['std_over_models_mean']) == pytest.approx(std)
  assert float(row['lowest_model_mean']) == pytest.approx(worst)


def test_the_accuracy_for_each_class_is_that_of_its_test_images(folder, tmp_path):
  named = shutil.copytree(folder / 'fedavg', tmp_path / 'runs/named')
  names = [f'the {digit}' for digit in range(10)]
  edit_json(
    named / 'config.json',
    lambda document: document['images'].update(class_names=names),
  )
  model = load(named)
  images, labels = model.test_data()
  is_right = model.predict(images).labels == labels
  (table,) = section(named, 'Trained models').tables
  assert [column.text(table.rows[3]) for column in table.columns] == [
    'the 3',
    str((labels == 3).sum()),
    f'{100 * is_right[labels == 3].mean():.2f}',
  ]
  assert table.columns[2].heading == 'FedAvg, seed=0, %'
  accuracies = [row[f'accuracy_{named}'] for row in table.rows]
  expected = [is_right[labels == digit].mean() for digit in range(10)]
  assert accuracies == pytest.approx(expected)
  assert len(set(accuracies)) > 1


def test_a_representation_that_cannot_be_embedded_ends_no_report(folder, monkeypatch):
  number = np.zeros((60, 1))
  monkeypatch.setattr(features, '_compute', lambda run: features.embed(number))
  monkeypatch.setattr(features, '_is_newest', lambda run, arrays: False)
  settings = settings_of(folder / 'fedavg')
  notes = []
  assert models.trained_models(settings, ('first',), notes.append) == []
  assert 'fedavg: no t-SNE, no confusion matrix: ' in notes[0]


def test_with_many_clients_some_are_drawn_and_all_are_counted(folder, tmp_path):
  run = shutil.copytree(folder / 'fedavg', tmp_path / 'runs/a')
  counts = np.random.default_rng(0).integers(0, 9, (3000, 10))
  np.savez(run / 'partition.npz', class_counts=counts)
  clients = section(run, 'Class shares')
  (chart,) = clients.charts
  (drawn,) = chart.groups.values()
  accuracies = 100 * np.array(expected_accuracies(run))
  assert len(drawn) == 200
  assert drawn[[0, -1]] == pytest.approx([accuracies.min(), accuracies.max()])
  assert np.median(drawn) == pytest.approx(np.median(accuracies), abs=0.1)
  (table,) = clients.tables
  (row,) = table.rows
  assert row['expected_n'] == 3000
  assert row['expected_mean'] == pytest.approx(accuracies.mean() / 100)


def section(run, title):
  """The section of a title in a report over one run."""
  content = build.collect(command.parse([str(run)]))
  by_title = {part.title: part for part in content.sections}
  return by_title[title]


def expected_accuracies(workdir):
  """Computed by loops from the files of a run directory."""
  with np.load(workdir / features.CACHE) as arrays:
    confusion = arrays['confusion'].tolist()
  with np.load(workdir / 'partition.npz') as arrays:
    owned = arrays['class_counts'].tolist()
  class_accuracies = [row[label] / sum(row) for label, row in enumerate(confusion)]
  return [
    sum(n * accuracy for n, accuracy in zip(counts, class_accuracies, strict=True))
    / sum(counts)
    for counts in owned
  ]


def test_the_confusion_matrix_has_the_accuracy_of_the_last_test(folder):
  (run,) = runs.find([folder / 'fedavg'], print)
  confusion, classes = examined(run).confusion, examined(run).classes
  summary = json.loads((folder / 'fedavg/summary.json').read_text())
  assert confusion.sum() == 300
  # The rows are the true classes.
  np.testing.assert_array_equal(confusion.sum(1), np.bincount(classes))
  accuracy = np.trace(confusion) / 300
  assert accuracy == pytest.approx(summary['test_accuracy'], abs=1e-6)
  assert examined(run).round == 2
  assert examined(run).embedded.shape == (300, 2)
  assert len(classes) == 300


def test_what_was_computed_is_kept_until_the_run_goes_on(folder, monkeypatch):
  (run,) = runs.find([folder / 'fedavg'], print)
  computed = examined(run)
  cache = folder / 'fedavg' / features.CACHE
  monkeypatch.setattr(features, '_compute', lambda run: pytest.fail('computed again'))
  for array, cached_array in zip(computed, examined(run), strict=True):
    np.testing.assert_array_equal(array, cached_array)
  # Features of an older checkpoint, and damaged ones, are computed anew.
  with monkeypatch.context() as patch:
    patch.setattr(features, '_compute', lambda run: computed)
    older = computed._replace(round=np.asarray(1))
    files.write_arrays(cache, older._asdict())
    assert examined(run).round == 2
    cache.write_bytes(cache.read_bytes()[:-100])
    assert examined(run).round == 2


def examined(run):
  return features.features_of(run, print)


def test_features_that_cannot_be_kept_are_used_all_the_same(folder, monkeypatch):
  (run,) = runs.find([folder / 'fedavg'], print)
  computed = examined(run)
  notes = []
  # A folder has the name of the file, so the file cannot be written.
  (folder / 'fedavg' / features.CACHE).unlink()
  (folder / 'fedavg' / features.CACHE).mkdir()
  monkeypatch.setattr(features, '_compute', lambda run: computed)
  assert features.features_of(run, notes.append) is computed
  (folder / 'fedavg' / features.CACHE).rmdir()
  assert notes == [
    f'{folder}/fedavg/features.npz cannot be written (Is a directory): computed each '
    'time'
  ]


def test_a_run_without_a_checkpoint_is_told(folder, tmp_path, capsys):
  run = shutil.copytree(folder / 'fedavg', tmp_path / 'fedavg')
  shutil.rmtree(run / 'checkpoints')
  (run / features.CACHE).unlink(missing_ok=True)
  assert section(run, 'Results').tables
  stderr = capsys.readouterr().err
  assert f'{run}: no t-SNE, no confusion matrix: ' in stderr


def test_the_accuracy_expected_for_a_client_follows_its_classes():
  # Class 0 is right in 3 of 4 images, class 1 in 2 of 4; nothing tests class 2.
  confusion = np.array([[3, 1, 0], [2, 2, 0], [0, 0, 0]])
  counts = np.array([[10, 0, 0], [1, 3, 0], [2, 2, 6], [0, 0, 5]])
  # Client 3 owns nothing that is tested, and is left out.
  expected = [0.75, (0.75 + 3 * 0.5) / 4, (2 * 0.75 + 2 * 0.5) / 4]
  has_tested_class, accuracies = features.expected_accuracy(confusion, counts)
  np.testing.assert_allclose(accuracies, expected)
  assert has_tested_class.tolist() == [True, True, True, False]
