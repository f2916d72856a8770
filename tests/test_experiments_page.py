"""docs/experiments.md says what its template and the kept runs do; bad input a line."""

import json
import pathlib
import re
import shutil

import numpy as np
import pytest
from PIL import Image

from docs import build, draw, records
from moon_jax import config
from moon_jax.core import files
from moon_jax.core.errors import ExitCode
from tests.run_directories import edit_lines, write_lines, write_run

DOCS = pathlib.Path(__file__).parents[1] / 'docs'
PAPERS = ('moon_cvpr21', 'moonflower', 'dco_moon', 'review', 'sa_moon')
NUM_ROUNDS = 100
FEDAVG, MOON = (f'configs/moon_cvpr21.py:{name}' for name in ('fedavg', 'moon'))


def test_the_committed_page_is_what_the_command_writes():
  assert build.page(DOCS) == (DOCS / 'experiments.md').read_text()


@pytest.mark.parametrize('paper', PAPERS)
def test_every_variant_of_a_paper_stands_in_a_table(paper):
  lines = (DOCS / 'experiments.in.md').read_text().splitlines()
  start = f'@table {paper}: '
  told = [name for line in lines if line.startswith(start) for name in line.split()[2:]]
  assert sorted(told) == sorted(config.variants(f'configs/{paper}.py'))


def test_the_kept_runs_hold_no_folder_of_the_machine_they_ran_on():
  for path in (DOCS / 'results').glob('*/config.json'):
    text = path.read_text()
    assert 'workdir' not in text
    assert not any(f'"/{root}' in text for root in ('home', 'root', 'tmp', 'work'))


@pytest.fixture
def docs(tmp_path):
  """A folder like docs/, with an empty table and no run."""
  folder = tmp_path / 'docs'
  (folder / 'results').mkdir(parents=True)
  write_template(folder, '@table moon_cvpr21: fedavg moon')
  return folder


def write_template(docs, *lines):
  (docs / 'experiments.in.md').write_text('\n'.join(lines) + '\n')


def finished(tmp_path, name, last, *flags, choice=FEDAVG, seed=0, **columns):
  """A run directory of a variant, whose last five tests are `last`, in [0, 1]."""
  accuracies = [0.1] * (NUM_ROUNDS - 5) + [last] * 5
  flags = (f'--config={choice}', *flags)
  return write_run(tmp_path / name, accuracies, *flags, seed=seed, **columns)


def of_seeds(tmp_path, first, step, seeds, **given):
  """A run for each seed; their last tests differ by `step`."""
  lasts = {s: first + step * s for s in seeds}
  return [finished(tmp_path, f'{first}-s{s}', lasts[s], seed=s, **given) for s in seeds]


@pytest.fixture
def watched(monkeypatch):
  """Makes a list of what a function of `draw` is given from then on."""

  def watch(name):
    drawn, given = getattr(draw, name), []

    def spy(*words, **named):
      given.append(words)
      drawn(*words, **named)

    monkeypatch.setattr(draw, name, spy)
    return given

  return watch


def add(docs, *paths):
  assert build.main(['add', *map(str, paths)], docs) == ExitCode.DONE
  return (docs / 'experiments.md').read_text()


def cells(text, start):
  (line,) = [line for line in text.splitlines() if line.startswith(f'| `{start}`')]
  return [cell.strip() for cell in line.strip('|').split('|')]


def test_a_finished_run_fills_its_row(docs, tmp_path):
  words = '--config', FEDAVG, '--config.data.dir', '/home/me', '--workdir=/home/me'
  run = finished(tmp_path, 'one', 0.664, *words, choice=MOON)  # the last one counts
  # In all rounds but the first, the idle time includes a save.
  edit_lines(run / 'timings.jsonl', lambda line: line.update(save_seconds=0.2))
  text = add(docs, run)
  assert '|\n\n<details><summary>Not run: 1 of 2</summary>\n\n`moon`, report' in text
  row = cells(text, 'fedavg')
  assert row[2:7] == ['66.4', '66.4', '66.4', '100', '0']
  assert row[7] == 'nothing'
  # 66.4 - 66.3; one seed has no deviation to compare with the reported 0.5.
  assert row[8] == '0.1 above'
  kept = json.loads((docs / 'results/one/config.json').read_text())
  assert '/home/me' not in json.dumps(kept)
  # 100 rounds of 2 + 0.5 + 0.2 s, 99 of 0.05 s, the first of 0.25 s; 2.5 s each.
  assert kept['cost'] == {'seconds': 275, 'median': 2.5}
  metrics = [path / 'metrics.jsonl' for path in (run, docs / 'results/one')]
  assert metrics[0].read_bytes() == metrics[1].read_bytes()


def test_a_deviation_over_clients_is_not_taken_for_one_over_trials(docs, tmp_path):
  write_template(docs, '@table moon_cvpr21: solo')
  choice = '--config=configs/moon_cvpr21.py:solo'
  for seed, accuracy in enumerate((0.4, 0.42)):
    place, more = tmp_path / f'seed{seed}', {'test_accuracy_std': 0.04}
    row = cells(
      add(docs, write_run(place, [accuracy], choice, seed=seed, **more)), 'solo'
    )
  assert row[2] == '41.0 +- 1.4 (clients +- 4.0)'
  assert row[8] == '5.3 below'


def test_a_figure_of_training_is_compared_with_training(docs, tmp_path):
  write_template(docs, '@table moonflower: mu_1')
  choice = 'configs/moonflower.py:mu_1'
  run = finished(tmp_path, 'one', 0.3, choice=choice, train_accuracy=0.511)
  row = cells(add(docs, run), 'mu_1')
  assert row[1:4] == ['figure only, of accuracy in training', '51.1', '51.1']
  assert row[8] == 'no number reported'


def test_seeds_are_averaged_and_what_differs_is_a_row_of_its_own(docs, tmp_path):
  runs = of_seeds(tmp_path, 0.6194, 0.02, range(3))
  other = finished(tmp_path, 'other', 0.5, '--config.batch_size=32')
  text = add(docs, *runs, other)
  lines = [line for line in text.splitlines() if line.startswith('| `fedavg`')]
  rows = [[cell.strip() for cell in line.strip('|').split('|')] for line in lines]
  assert sorted(row[7] for row in rows) == ['`batch_size=32`', 'nothing']
  (other,) = [row for row in rows if row[7] != 'nothing']
  assert other[8] == 'other settings'
  (three,) = [row for row in rows if row[7] == 'nothing']
  # The sample deviation of 61.94, 63.94, 65.94.
  assert three[2] == '63.9 +- 2.0'
  assert three[6] == '0, 1, 2'
  # 2.36 is below 2 * sqrt(2.0^2 / 3 + 0.5^2 / 3) = 2.38, and above 2 * 2.0 / sqrt(3).
  assert three[8] == '2.4 below, within two standard errors'
  runs = of_seeds(tmp_path, 0.695, 0.02, range(3), choice=MOON)
  # 71.5 - 69.1 = 2.4 is above 2 * sqrt(2.0^2 / 3 + 0.4^2 / 3) = 2.36.
  row = cells(add(docs, *runs), 'moon')
  assert row[8] == '2.4 above, outside two standard errors'


def test_one_run_counts_once(docs, tmp_path, capsys):
  first, again = (finished(tmp_path, name, 0.6) for name in ('first', 'again'))
  add(docs, first)
  assert build.main(['add', str(again)], docs) == ExitCode.USAGE
  assert 'again and first are one run: delete one, ' in capsys.readouterr().err


def test_a_run_with_another_algorithm_is_no_run_of_its_variant(docs, tmp_path, capsys):
  run = finished(tmp_path, 'other', 0.6, '--config.algorithm=solo', choice=MOON)
  assert build.main(['add', str(run)], docs) == ExitCode.USAGE
  told = 'other has algorithm=solo, so it is no run of configs/moon_cvpr21.py:moon.\n'
  assert capsys.readouterr().err == told


def test_differences_are_paired_by_seed(docs, tmp_path):
  write_template(docs, '@compare moon_cvpr21: moon fedavg')
  a = of_seeds(tmp_path, 0.6, 0.02, (0, 1, 2))
  b = of_seeds(tmp_path, 0.61, 0.03, (0, 1, 5), choice=MOON)
  one = add(docs, a[0], b[0])
  assert '+1.0 points (1 seed, too few to rank them); reported +2.8.' in one
  # Runs with other settings are no pair of these, but can be one of their own.
  words = '--config.batch_size=32'
  add(docs, finished(tmp_path, 'm9', 0.9, words, choice=MOON))
  text = add(docs, finished(tmp_path, 'f9', 0.7, words))
  assert '(batch_size=32), mean of 5 tests: +20.0 points (1 seed, too few' in text
  assert 'to rank them).' in text
  # Seeds 0 and 1 have 1 and 2, whose sample deviation is 0.7.
  assert '+1.5 points (2 seeds, +- 0.7' in add(docs, *a[1:], *b[1:])


def test_a_picture_is_of_the_runs_there_are(docs, tmp_path):
  lines = '@figure both', '@drift moved', '@costs'
  write_template(docs, *(f'{line} moon_cvpr21: fedavg' for line in lines))
  assert '![both' not in build.page(docs)
  text = add(docs, finished(tmp_path, 'one', 0.6))
  assert '(results/both.png)' in text
  # A run has two columns of the drift here, and three of the others.
  widths = []
  for name in ('both', 'moved'):
    with Image.open(docs / f'results/{name}.png') as image:
      widths.append(image.width)
  assert widths[1] * 3 == widths[0] * 2
  assert build.page(docs) == text
  digest = draw.digest_of(docs / 'results/both.png')
  other = finished(tmp_path, 'other', 0.5, '--config.batch_size=32')
  text = add(docs, finished(tmp_path, 'two', 0.61, seed=1), other)
  assert draw.digest_of(docs / 'results/both.png') != digest
  assert 'both: FedAvg, seeds 0, 1; FedAvg, batch_size=32, seed 0]' in text
  runs = {'x': [[{'round': 1} | VALUES]]}
  draw.side_by_side(docs / 'results/both.png', runs, 'y', draw.PROGRESS)
  assert_refused(docs, 'both.png does not show these runs')
  (docs / 'results/both.png').write_bytes(b'no picture')
  assert_refused(docs, 'both.png does not show these runs')


VALUES = {'test_accuracy': 0.5, 'train_loss': 1.0, 'supervised_loss': 1.0}


def test_a_sweep_is_of_the_last_accuracies(docs, tmp_path, watched):
  write_template(docs, '@sweep mu moon.mu moonflower: mu_0.1 mu_1 default')
  assert build.page(docs) == '\n'
  low, high = (f'configs/moonflower.py:{name}' for name in ('mu_0.1', 'mu_1'))
  given = watched('over_knob')
  one = finished(tmp_path, 'a', 0.5, choice=low, train_accuracy=0.6)
  assert add(docs, one) == '\n'  # one point is no sweep
  # A run of other length is no point.
  words = f'--config={low}', '--config.num_rounds=5'
  short = write_run(tmp_path / 'short', [0.9] * 5, *words)
  text = add(docs, short, *of_seeds(tmp_path, 0.4, 0.02, (0, 1), choice=high))
  assert text == '![mu: accuracy over moon.mu](results/mu.png)\n'
  assert build.page(docs) == text
  ((_, points),) = given
  assert list(points) == ['test accuracy', 'train accuracy']
  # The sample deviation of 40 and 42.
  wanted = [(0.1, 50, 0), (1, 41, 2**0.5)]
  np.testing.assert_allclose(points['test accuracy'], wanted, rtol=1e-6)
  np.testing.assert_allclose(points['train accuracy'], [(0.1, 60, 0)], rtol=1e-6)


def test_a_t_sne_is_kept_of_the_model_after_the_last_round(docs, tmp_path):
  write_template(docs, '@tsne moon_cvpr21: fedavg')
  run, rng = finished(tmp_path, 'one', 0.6), np.random.default_rng(0)
  arrays = {
    'round': np.asarray(NUM_ROUNDS - 1),
    'confusion': np.eye(3, dtype=int),
    'classes': rng.integers(0, 3, 30),
    'embedded': rng.normal(size=(30, 2)),
  }
  np.savez(run / 'features.npz', **arrays)
  assert add(docs, run) == '\n'
  np.savez(run / 'features.npz', **arrays | {'round': np.asarray(NUM_ROUNDS)})
  assert add(docs, run) == '![t-SNE of FedAvg, seed 0](results/one/tsne.png)\n'
  (run / 'features.npz').unlink()
  assert add(docs, run) == '\n'


def test_a_run_that_no_line_names_is_not_left_out_in_silence(docs, tmp_path):
  add(docs, finished(tmp_path, 'one', 0.6))
  write_template(docs, '@table moon_cvpr21: moon', '{{late one}}')
  assert_refused(docs, r'results/one is in no row of experiments\.in\.md: name')


def test_the_costs_name_the_devices_of_every_start(docs, tmp_path):
  run = finished(tmp_path, 'one', 0.6)
  about = json.loads((run / 'config.json').read_text())
  about |= {'devices': ['cpu: cpu'], 'machine': {'processor': 'Zen', 'cores': 2}}
  about['earlier'] = [{'devices': ['gpu: NVIDIA H200'] * 2, 'git_commit': 'abc'}]
  (run / 'config.json').write_text(json.dumps(about))
  write_template(docs, '@costs moon_cvpr21: fedavg')
  assert '| NVIDIA H200 and Zen, 2 core(s) |' in add(docs, run)
  kept = json.loads((docs / 'results/one/config.json').read_text())
  assert kept['earlier'] == about['earlier']


def assert_refused(docs, words):
  with pytest.raises(Exception, match=words) as caught:
    build.page(docs)
  assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
  ('line', 'words'),
  [
    ('@table moon_cvpr21: fedavgg', r"no variant 'fedavgg'\. Did you mean 'fedavg'"),
    ('@table nothing: fedavg', r'nothing\.py'),
    ('@graph moon_cvpr21: fedavg', r"there is no '@graph'"),
    ('@table', '@table has another form'),
    ('@curve moon', '@curve has another form'),
    ('@sweep a moon.nu moonflower: mu_1', r"no knob 'moon.nu'\. Did you mean"),
    ('{{late cifar10_moon_seed7}}', r'there is no \{\{late cifar10_moon_seed7\}\}'),
  ],
)
def test_a_line_that_names_what_is_not_there_fails(docs, line, words, capsys):
  write_template(docs, line)
  assert_refused(docs, words)
  assert build.main([], docs) == ExitCode.USAGE
  assert len(capsys.readouterr().err.splitlines()) == 1
  assert not (docs / 'experiments.md').exists()


def alter(path):
  lines = [line for line in path.read_text().splitlines() if line]
  path.write_text('\n'.join(lines).replace('0.6', '0.7') + '\n')


def signed(run, name, old, new):
  """Changes a file's words and writes down its new digest."""
  path, sums = run / name, run.parent / 'one.sha256'
  before = files.sha256(path)
  path.write_text(path.read_text().replace(old, new))
  sums.write_text(sums.read_text().replace(before, files.sha256(path)))


@pytest.mark.parametrize(
  ('change', 'words'),
  [
    (lambda run: alter(run / 'metrics.jsonl'), r'metrics\.jsonl has changed'),
    (lambda run: (run / 'config.json').write_bytes(b''), r'config\.json has changed'),
    (lambda run: (run / 'metrics.jsonl').unlink(), r'metrics\.jsonl is missing'),
    (lambda run: shutil.rmtree(run), r'config\.json is missing'),
    (lambda run: shutil.copytree(run, run.with_name('two')), r'two\.sha256 is missing'),
    (lambda run: (run / 'x').write_text('y'), r'one/x is not in one\.sha256'),
    (lambda run: (run.parent / 'one.sha256').write_text('x\n'), 'lines of a digest, '),
    (lambda run: signed(run, 'metrics.jsonl', '100,', '101,'), 'rounds 1 to'),
    (lambda run: signed(run, 'config.json', '"command"', '"x"'), "lacks 'command'"),
    (lambda run: signed(run, 'config.json', 'launch.py', "'"), 'is damaged: No clos'),
  ],
)
def test_a_missing_or_altered_run_fails_the_build(
  docs, tmp_path, change, words, capsys
):
  before = add(docs, finished(tmp_path, 'one', 0.6))
  change(docs / 'results/one')
  assert build.main([], docs) == ExitCode.USAGE
  (line,) = capsys.readouterr().err.splitlines()
  assert re.search(words, line)
  assert (docs / 'experiments.md').read_text() == before


def test_without_a_template_there_is_no_page(docs, capsys):
  (docs / 'experiments.in.md').unlink()
  assert build.main([], docs) == ExitCode.USAGE
  assert capsys.readouterr().err.splitlines()[0].endswith('in.md is missing.')


def test_what_is_no_finished_run_is_not_kept(docs, tmp_path, capsys):
  half = finished(tmp_path, 'half', 0.6)
  lines = (half / 'metrics.jsonl').read_text().splitlines()[:40]
  write_lines(half / 'metrics.jsonl', map(json.loads, lines))
  without = write_run(tmp_path / 'going', [0.5], f'--config={FEDAVG}', finished=False)
  kept = finished(tmp_path, 'one', 0.6)
  add(docs, kept)
  before = sorted(path.read_bytes() for path in (docs / 'results').rglob('*.*'))
  edit_lines(kept / 'metrics.jsonl', lambda line: line.update(drift=0.75))
  for path, words in (
    (half, 'is not finished: 40 of 100 rounds'),
    (without, 'is not finished: 1 of 100 rounds, no summary.json'),
    (tmp_path, 'is no run directory'),
    (kept, 'holds another run'),
  ):
    assert build.main(['add', str(path)], docs) == ExitCode.USAGE
    assert words in capsys.readouterr().err
  assert sorted(p.read_bytes() for p in (docs / 'results').rglob('*.*')) == before
  assert build.main(['keep'], docs) == ExitCode.USAGE


def test_a_kept_run_that_was_interrupted_while_added_can_be_added_again(docs, tmp_path):
  run = finished(tmp_path, 'one', 0.6)
  text = add(docs, run)
  (docs / 'results/one.sha256').unlink()
  assert add(docs, run) == text
  assert np.isclose(records.read(docs / 'results')['one'].accuracy().iloc[-1], 60)
