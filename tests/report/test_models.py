"""The report shows of trained models what the run itself measured."""

import csv
import json
import re
import shutil

import numpy as np
import pytest

from moon_jax.config import cli
from moon_jax.core.errors import ExitCode
from moon_jax.predict.inference import load
from moon_jax.report import build, command, features, groups, models, runs
from moon_jax.report.__main__ import main
from moon_jax.runner import loop
from tests.processes import read_lines
from tests.run_directories import edit_json, words_of

TINY = words_of(num_rounds=2)


pytestmark = pytest.mark.usefixtures('quick_runs', 'empty_figures')


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """One run with a global model and one without, of two rounds."""
  made = tmp_path_factory.mktemp('models') / 'runs'
  for algorithm in ('fedavg', 'fedper'):
    words = (*TINY, f'--config.algorithm={algorithm}', f'--workdir={made / algorithm}')
    loop.run(cli.parse(words))
  return made


def test_the_report_looks_at_global_models(folder, tmp_path, capsys):
  # Paths are relative to the page, whatever the working directory.
  assert main([str(folder), f'--out={tmp_path}']) == ExitCode.DONE
  assert capsys.readouterr().err == ''
  names = {path.name for path in (tmp_path / 'figures').iterdir()}
  assert {'clients.png', 'tsne.png', 'tsne.pdf'} <= names
  assert len([name for name in names if name.startswith('confusion-')]) == 2
  with (tmp_path / 'tables/client_accuracy.csv').open(newline='') as file:
    (row,) = csv.DictReader(file)
  each = accuracy_for_clients(folder / 'fedavg')
  assert row['accuracy_n'] == '10'
  assert float(row['accuracy_mean']) == pytest.approx(sum(each) / 10)
  assert float(row['worst_client']) == pytest.approx(min(each))
  # Two tables and a figure are about clients: each links to its own files.
  page = (tmp_path / 'index.html').read_text()
  links = re.findall(r'href="((?:figures|tables)/[^"]+)"', page)
  assert {'figures/clients.png', 'tables/clients.csv'} <= set(links)
  assert all((tmp_path / link).is_file() for link in links)
  # The accuracy of the clients' own models is in another table.
  with (tmp_path / 'tables/clients.csv').open(newline='') as file:
    (row,) = csv.DictReader(file)
  (*_, last) = read_lines(folder / 'fedper/metrics.jsonl')
  for name, column in (('std_over_clients', 'std'), ('worst_client', 'worst')):
    assert float(row[f'{name}_mean']) == pytest.approx(last[f'test_accuracy_{column}'])


def test_the_accuracy_for_each_class_is_that_of_its_test_images(folder, tmp_path):
  shutil.copytree(folder / 'fedavg', named := tmp_path / 'runs/named')
  names = [f'the {digit}' for digit in range(10)]
  edit_json(named / 'config.json', lambda s: s['images'].update(class_names=names))
  model = load(named)
  images, labels = model.test_data()
  right = model.predict(images).labels == labels
  parts = build.collect(command.parse([str(named), f'--out={tmp_path / "out"}']))
  (section,) = (part for part in parts.sections if part.title == 'Trained models')
  (table,) = section.tables
  assert [column.text(table.rows[3]) for column in table.columns] == [
    'the 3',
    str((labels == 3).sum()),
    f'{100 * right[labels == 3].mean():.2f}',
  ]
  assert table.columns[2].heading == 'FedAvg, seed=0, %'
  each = [row[f'accuracy_{named}'] for row in table.rows]
  wanted = [right[labels == digit].mean() for digit in range(10)]
  assert each == pytest.approx(wanted)
  assert len(set(each)) > 1


def test_a_representation_that_cannot_be_embedded_ends_no_report(folder, monkeypatch):
  number = np.zeros((60, 1))
  monkeypatch.setattr(features, '_compute', lambda run: features.embed(number))
  monkeypatch.setattr(features, '_is_newest', lambda *given: False)
  said, choice = [], groups.Choice(None, ('seed',), {})
  found = groups.settings(runs.find([folder / 'fedavg'], print), choice)
  assert models.trained_models(found, ('first',), said.append) == []
  assert 'fedavg: no t-SNE, no confusion matrix: ' in said[0]


def test_with_many_clients_some_are_drawn_and_all_are_counted(folder, tmp_path):
  copied = shutil.copytree(folder / 'fedavg', tmp_path / 'runs/a')
  counts = np.random.default_rng(0).integers(0, 9, (3000, 10))
  np.savez(copied / 'partition.npz', class_counts=counts)
  words = [str(tmp_path / 'runs'), f'--out={tmp_path / "out"}']
  parts = build.collect(command.parse(words)).sections
  (section,) = (part for part in parts if part.title == 'Clients')
  (drawn,) = section.charts
  (values,) = drawn.groups.values()
  each = 100 * np.array(accuracy_for_clients(copied))
  assert len(values) == 200
  assert (values[0], values[-1]) == pytest.approx((each.min(), each.max()))
  assert np.median(values) == pytest.approx(np.median(each), abs=0.1)
  ((row,),) = (table.rows for table in section.tables)
  assert row['accuracy_n'] == 3000
  assert row['accuracy_mean'] == pytest.approx(each.mean() / 100)


def accuracy_for_clients(workdir):
  """Computed by loops from the files of a run directory."""
  with np.load(workdir / features.CACHE) as arrays:
    confusion = arrays['confusion'].tolist()
  with np.load(workdir / 'partition.npz') as arrays:
    owned = arrays['class_counts'].tolist()
  right = [row[label] / sum(row) for label, row in enumerate(confusion)]
  return [
    sum(count * share for count, share in zip(counts, right, strict=True)) / sum(counts)
    for counts in owned
  ]


def test_the_confusion_matrix_has_the_accuracy_of_the_last_test(folder):
  (run,) = runs.find([folder / 'fedavg'], print)
  found = features.features_of(run, print)
  summary = json.loads((folder / 'fedavg/summary.json').read_text())
  assert found.confusion.sum() == 300
  # The rows are the true classes.
  np.testing.assert_array_equal(found.confusion.sum(1), np.bincount(found.classes))
  accuracy = np.trace(found.confusion) / 300
  assert accuracy == pytest.approx(summary['test_accuracy'], abs=1e-6)
  assert found.round == 2
  assert found.embedded.shape == (300, 2)
  assert len(found.classes) == 300


def test_what_was_computed_is_kept_until_the_run_goes_on(folder, monkeypatch):
  (run,) = runs.find([folder / 'fedavg'], print)
  first = features.features_of(run, print)
  kept = folder / 'fedavg' / features.CACHE
  monkeypatch.setattr(features, '_compute', lambda run: pytest.fail('computed again'))
  again = features.features_of(run, print)
  for a, b in zip(first, again, strict=True):
    np.testing.assert_array_equal(a, b)
  # Features of an older checkpoint, and damaged ones, are computed anew.
  with monkeypatch.context() as patch:
    patch.setattr(features, '_compute', lambda run: first)
    np.savez(kept, **first._replace(round=np.asarray(1))._asdict())
    assert features.features_of(run, print).round == 2
    np.savez(kept, **first._asdict())
    kept.write_bytes(kept.read_bytes()[:-100])
    assert features.features_of(run, print).round == 2


def test_features_that_cannot_be_kept_are_used_all_the_same(folder, monkeypatch):
  (run,) = runs.find([folder / 'fedavg'], print)
  first, said = features.features_of(run, print), []
  # A folder has the name of the file, so the file cannot be written.
  (folder / 'fedavg' / features.CACHE).unlink()
  (folder / 'fedavg' / features.CACHE).mkdir()
  monkeypatch.setattr(features, '_compute', lambda run: first)
  assert features.features_of(run, said.append) is first
  (folder / 'fedavg' / features.CACHE).rmdir()
  assert said == [
    f'{folder}/fedavg/features.npz cannot be written (Is a directory): computed each '
    'time'
  ]


def test_a_run_without_a_checkpoint_is_told(folder, tmp_path, capsys):
  copied = shutil.copytree(folder / 'fedavg', tmp_path / 'runs/fedavg')
  shutil.rmtree(copied / 'checkpoints')
  (copied / features.CACHE).unlink(missing_ok=True)
  report = build.collect(command.parse([str(tmp_path / 'runs')]))
  assert 'Results' in [section.title for section in report.sections]
  said = capsys.readouterr().err
  assert f'{tmp_path}/runs/fedavg: no t-SNE, no confusion matrix: ' in said


def test_the_accuracy_for_a_client_follows_its_classes():
  # Class 0 is right in 3 of 4 images, class 1 in 2 of 4; nothing tests class 2.
  confusion = np.array([[3, 1, 0], [2, 2, 0], [0, 0, 0]])
  counts = np.array([[10, 0, 0], [1, 3, 0], [2, 2, 6], [0, 0, 5]])
  # Client 3 owns nothing that is tested, and is left out.
  expected = [0.75, (0.75 + 3 * 0.5) / 4, (2 * 0.75 + 2 * 0.5) / 4]
  np.testing.assert_allclose(features.client_accuracy(confusion, counts), expected)
