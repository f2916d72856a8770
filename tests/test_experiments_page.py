"""docs/experiments.md says what its template and the kept runs do; bad input a line."""

import gzip
import json
import pathlib
import re

import numpy as np
import pytest
from PIL import Image

from moon_jax import config
from moon_jax.core.errors import ExitCode, UsageError
from papers import build, draw, kept_runs
from papers.page import Paths, page
from tests.run_directories import edit_json, edit_lines, write_lines, write_run

ROOT = pathlib.Path(__file__).parents[1]
COMMITTED = Paths.below(ROOT)
PAPERS = ('moon_cvpr21', 'moonflower', 'dco_moon', 'review', 'sa_moon')
NUM_ROUNDS = 100
FEDAVG = 'configs/moon_cvpr21.py:fedavg'
MOON = 'configs/moon_cvpr21.py:moon'


# --- what is committed ----------------------------------------------------------------


@pytest.mark.slow
def test_the_committed_page_is_what_the_command_writes():
  assert page(COMMITTED) == COMMITTED.page.read_text()


@pytest.mark.parametrize('paper', PAPERS)
def test_every_variant_of_a_paper_stands_in_a_table(paper):
  lines = COMMITTED.template.read_text().splitlines()
  tables = [line.split() for line in lines if line.startswith(f'@table {paper}: ')]
  variants = [variant for _, _, *variants in tables for variant in variants]
  assert sorted(variants) == sorted(config.variants(f'configs/{paper}.py'))


def test_the_kept_runs_hold_no_folder_of_the_machine_they_ran_on():
  paths = list((ROOT / 'papers').rglob(f'*{kept_runs.SUFFIX}'))
  assert len(paths) > 200
  for path in paths:
    description = json.dumps(kept_runs.read_description(path))
    assert 'workdir' not in description
    assert not re.search(r'"/(home|root|tmp|work)', description)


# --- one page -------------------------------------------------------------------------


@pytest.fixture
def paths(tmp_path):
  """The paths of a page with an empty table and no run."""
  paths = Paths.below(tmp_path)
  paths.template.parent.mkdir()
  paths.page.parent.mkdir()
  write_template(paths, '@table moon_cvpr21: fedavg moon')
  return paths


def write_template(paths, *lines):
  paths.template.write_text('\n'.join(lines) + '\n')


def finished_run(tmp_path, name, last, *flags, config_choice=FEDAVG, seed=0, **columns):
  """A run directory of a variant, whose last five tests are `last`, in [0, 1]."""
  return write_run(
    tmp_path / name,
    [0.1] * (NUM_ROUNDS - 5) + [last] * 5,
    f'--config={config_choice}',
    *flags,
    seed=seed,
    **columns,
  )


def runs_of_seeds(tmp_path, first, step, seeds, config_choice=FEDAVG):
  """A run for each seed; their last tests differ by `step`."""
  return [
    finished_run(
      tmp_path,
      f'{first}-s{seed}',
      first + step * seed,
      config_choice=config_choice,
      seed=seed,
    )
    for seed in seeds
  ]


def add(tmp_path, runs):
  """Adds runs, and returns the text of the new page."""
  assert build.main(['add', *map(str, runs)], tmp_path) == ExitCode.DONE
  return Paths.below(tmp_path).page.read_text()


def all_cells(text, variant):
  """The cells of each row of a variant."""
  lines = [line for line in text.splitlines() if line.startswith(f'| `{variant}`')]
  return [[cell.strip() for cell in line.strip('|').split('|')] for line in lines]


def cells(text, variant):
  (row,) = all_cells(text, variant)
  return row


def test_a_finished_run_fills_its_row(paths, tmp_path):
  run = finished_run(
    tmp_path,
    'one',
    0.664,
    '--config',
    FEDAVG,  # of two choices the last one counts
    '--config.data.dir',
    '/home/me',
    '--workdir=/home/me',
    config_choice=MOON,
  )
  # In all rounds but the first, the idle time includes a save.
  edit_lines(run / 'timings.jsonl', lambda line: line.update(save_seconds=0.2))
  text = add(tmp_path, [run])
  assert '|\n\n<details><summary>Not run: 1 of 2</summary>\n\n`moon`, report' in text
  # 66.4 - 66.3; one seed has no deviation to compare with the reported 0.5.
  numbers = ['66.4', '66.4', '66.4', '100', '0', 'nothing', '0.1 above']
  assert cells(text, 'fedavg')[2:] == numbers
  path = kept_runs.path_of(paths.runs, 'one')
  description = kept_runs.read_description(path)
  assert '/home/me' not in json.dumps(description)
  # 100 rounds of 2 + 0.5 + 0.2 s, 99 of 0.05 s, the first of 0.25 s; 2.5 s each.
  assert description['cost'] == {'seconds': 275, 'median': 2.5}


def test_a_kept_run_has_the_records_byte_by_byte_and_always_the_same_bytes(
  paths, tmp_path
):
  run = finished_run(tmp_path, 'one', 2 / 3, drift=1e-300, test_loss=0.1 + 0.2)
  add(tmp_path, [run])
  path = kept_runs.path_of(paths.runs, 'one')
  packed = path.read_bytes()
  metrics = (run / 'metrics.jsonl').read_bytes()
  assert gzip.decompress(packed).partition(b'\n')[2] == metrics
  assert kept_runs.read(path).rounds == [json.loads(s) for s in metrics.splitlines()]
  path.unlink()
  add(tmp_path, [run])
  assert path.read_bytes() == packed


def test_a_deviation_over_clients_is_not_taken_for_one_over_trials(paths, tmp_path):
  write_template(paths, '@table moon_cvpr21: solo')
  flag = '--config=configs/moon_cvpr21.py:solo'
  runs = [
    write_run(tmp_path / f's{seed}', [last], flag, seed=seed, test_accuracy_std=0.04)
    for seed, last in enumerate((0.4, 0.42))
  ]
  row = cells(add(tmp_path, runs), 'solo')
  assert row[2] == '41.0 +- 1.4 (clients +- 4.0)'
  assert row[8] == '5.3 below'


def test_a_figure_of_training_is_compared_with_training(paths, tmp_path):
  write_template(paths, '@table moonflower: mu_1')
  config_choice = 'configs/moonflower.py:mu_1'
  run = finished_run(
    tmp_path, 'one', 0.3, config_choice=config_choice, train_accuracy=0.511
  )
  row = cells(add(tmp_path, [run]), 'mu_1')
  assert row[1:4] == ['figure only, of accuracy in training', '51.1', '51.1']
  assert row[8] == 'no number reported'


def test_seeds_are_averaged_and_what_differs_is_a_row_of_its_own(paths, tmp_path):
  runs = runs_of_seeds(tmp_path, 0.6194, 0.02, range(3))
  other = finished_run(tmp_path, 'other', 0.5, '--config.batch_size=32')
  rows = {row[7]: row for row in all_cells(add(tmp_path, [*runs, other]), 'fedavg')}
  assert sorted(rows) == ['`batch_size=32`', 'nothing']
  assert rows['`batch_size=32`'][8] == 'other settings'
  # The sample deviation of 61.94, 63.94, 65.94.
  assert rows['nothing'][2] == '63.9 +- 2.0'
  assert rows['nothing'][6] == '0, 1, 2'
  # 2.36 is below 2 * sqrt(2.0^2 / 3 + 0.5^2 / 3) = 2.38, and above 2 * 2.0 / sqrt(3).
  assert rows['nothing'][8] == '2.4 below, within two standard errors'
  runs = runs_of_seeds(tmp_path, 0.695, 0.02, range(3), config_choice=MOON)
  # 71.5 - 69.1 = 2.4 is above 2 * sqrt(2.0^2 / 3 + 0.4^2 / 3) = 2.36.
  row = cells(add(tmp_path, runs), 'moon')
  assert row[8] == '2.4 above, outside two standard errors'


def test_differences_are_paired_by_seed(paths, tmp_path):
  write_template(paths, '@compare moon_cvpr21: moon fedavg')
  fedavg = runs_of_seeds(tmp_path, 0.6, 0.02, (0, 1, 2))
  moon = runs_of_seeds(tmp_path, 0.61, 0.03, (0, 1, 5), config_choice=MOON)
  one_pair = add(tmp_path, [fedavg[0], moon[0]])
  assert '+1.0 points (1 seed, too few to rank them); reported +2.8.' in one_pair
  # Runs with other settings are no pair of these, but can be one of their own.
  flag = '--config.batch_size=32'
  add(tmp_path, [finished_run(tmp_path, 'm9', 0.9, flag, config_choice=MOON)])
  text = add(tmp_path, [finished_run(tmp_path, 'f9', 0.7, flag)])
  assert '(batch_size=32), mean of 5 tests: +20.0 points (1 seed, too few' in text
  assert 'to rank them).' in text
  # Seeds 0 and 1 have 1 and 2, whose sample deviation is 0.7.
  text = add(tmp_path, [*fedavg[1:], *moon[1:]])
  assert '+1.5 points (2 seeds, +- 0.7' in text


def test_seen_and_unseen_users_are_apart_and_compared_with_fedavg_by_seed(
  paths, tmp_path
):
  write_template(paths, '@unseen moon_cvpr21: fedavg moon scaffold')
  accuracies = {
    # Seed -> of users who train, and of users who do not.
    FEDAVG: {0: (0.5, 0.25), 1: (0.52, 0.25), 2: (0.54, 0.28)},
    MOON: {0: (0.51, 0.2), 2: (0.53, 0.25)},
  }
  runs = [
    finished_run(
      tmp_path,
      f'{choice.rpartition(":")[2]}-s{seed}',
      0.9,
      config_choice=choice,
      seed=seed,
      user_accuracy_seen_mean=seen,
      user_accuracy_unseen_mean=unseen,
    )
    for choice, of_seeds in accuracies.items()
    for seed, (seen, unseen) in of_seeds.items()
  ]
  lines = add(tmp_path, runs).splitlines()
  rows = [[cell.strip() for cell in line.strip('|').split('|')] for line in lines]
  fedavg, moon, scaffold = rows[2:5]
  assert fedavg[1:] == ['52.0 +- 2.0', '', '26.0 +- 1.7', '', '0, 1, 2']
  # Of seeds 0 and 2: +1 and -1 points; -5 and -3, whose t is -4 with 1 degree of
  # freedom: p = 1 - 2 atan(4) / pi = 0.156.
  assert moon[1:3] == ['52.0 +- 1.4', '+0.0 +- 1.4 (p = 1)']
  assert moon[3:] == ['22.5 +- 3.5', '-4.0 +- 1.4 (p = 0.16)', '0, 2']
  assert scaffold[1:] == ['', '', '', '', 'not run']


def test_the_costs_name_the_devices_of_every_start(paths, tmp_path):
  earlier = [{'devices': ['gpu: NVIDIA H200'] * 2, 'git_commit': 'abc'}]
  starts = {
    'devices': ['cpu: cpu'],
    'machine': {'processor': 'Zen', 'cores': 2},
    'earlier': earlier,
  }
  run = finished_run(tmp_path, 'one', 0.6)
  edit_json(run / 'config.json', lambda description: description.update(starts))
  write_template(paths, '@costs moon_cvpr21: fedavg')
  assert '| NVIDIA H200 and Zen, 2 core(s) |' in add(tmp_path, [run])
  description = kept_runs.read_description(kept_runs.path_of(paths.runs, 'one'))
  assert description['earlier'] == earlier


# --- pictures -------------------------------------------------------------------------


def test_a_picture_is_of_the_runs_there_are(paths, tmp_path):
  directives = ('@figure both', '@drift moved', '@costs')
  write_template(paths, *(f'{words} moon_cvpr21: fedavg' for words in directives))
  assert '![both' not in page(paths)
  text = add(tmp_path, [finished_run(tmp_path, 'one', 0.6)])
  assert '(images/experiments/both.png)' in text
  progress, drift = (paths.pictures / f'{name}.png' for name in ('both', 'moved'))
  # A run has two columns of the drift here, and three of the others.
  with Image.open(progress) as three_panels, Image.open(drift) as two_panels:
    assert two_panels.width * 3 == three_panels.width * 2
  assert page(paths) == text
  digest = draw.digest_of(progress)
  other = finished_run(tmp_path, 'other', 0.5, '--config.batch_size=32')
  text = add(tmp_path, [finished_run(tmp_path, 'two', 0.61, seed=1), other])
  assert draw.digest_of(progress) != digest
  assert 'both: FedAvg, seeds 0, 1; FedAvg, batch_size=32, seed 0]' in text
  other_runs = {'other': [[{'round': 1, 'test_accuracy': 0.5}]]}
  draw.side_by_side(progress, other_runs, 'other', panels=draw.PROGRESS)
  assert_refused(paths, 'both.png does not show these runs')
  progress.write_bytes(b'no picture')
  assert_refused(paths, 'both.png does not show these runs')


def test_a_sweep_is_of_the_last_accuracies(paths, tmp_path, monkeypatch):
  drawn_points = []
  over_knob = draw.over_knob

  def record_points(path, points, digest, *, knob):
    drawn_points.append(points)
    over_knob(path, points, digest, knob=knob)

  monkeypatch.setattr(draw, 'over_knob', record_points)
  write_template(paths, '@sweep mu moon.mu moonflower: mu_0.1 mu_1 default')
  assert page(paths) == '\n'
  mu_of_a_tenth, mu_of_one = (
    f'configs/moonflower.py:{name}' for name in ('mu_0.1', 'mu_1')
  )
  one_point = finished_run(
    tmp_path, 'a', 0.5, config_choice=mu_of_a_tenth, train_accuracy=0.6
  )
  assert add(tmp_path, [one_point]) == '\n'  # one point is no sweep
  # A run of other length is no point.
  flags = f'--config={mu_of_a_tenth}', '--config.num_rounds=5'
  short = write_run(tmp_path / 'short', [0.9] * 5, *flags)
  seeds = runs_of_seeds(tmp_path, 0.4, 0.02, (0, 1), config_choice=mu_of_one)
  text = add(tmp_path, [short, *seeds])
  assert text == '![mu: accuracy over moon.mu](images/experiments/mu.png)\n'
  assert page(paths) == text
  (points,) = drawn_points
  assert list(points) == ['test accuracy', 'train accuracy']
  # The sample deviation of 40 and 42.
  expected = [(0.1, 50, 0), (1, 41, 2**0.5)]
  np.testing.assert_allclose(points['test accuracy'], expected, rtol=1e-6)
  np.testing.assert_allclose(points['train accuracy'], [(0.1, 60, 0)], rtol=1e-6)


def test_a_t_sne_is_kept_of_the_model_after_the_last_round(paths, tmp_path):
  write_template(paths, '@tsne moon_cvpr21: fedavg')
  run = finished_run(tmp_path, 'one', 0.6)

  def write_features(round_number):
    rng = np.random.default_rng(0)
    np.savez(
      run / 'features.npz',
      round=np.asarray(round_number),
      confusion=np.eye(3, dtype=int),
      classes=rng.integers(0, 3, 30),
      embedded=rng.normal(size=(30, 2)),
    )

  write_features(NUM_ROUNDS - 1)
  assert add(tmp_path, [run]) == '\n'
  write_features(NUM_ROUNDS)
  picture = '![t-SNE of FedAvg, seed 0](images/experiments/one_tsne.png)\n'
  assert add(tmp_path, [run]) == picture
  (run / 'features.npz').unlink()
  assert add(tmp_path, [run]) == '\n'


# --- what is refused ------------------------------------------------------------------


def assert_refused(paths, pattern):
  with pytest.raises(UsageError, match=pattern) as caught:
    page(paths)
  assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
  ('line', 'pattern'),
  [
    ('@table moon_cvpr21: fedavgg', r"no variant 'fedavgg'\. Did you mean 'fedavg'"),
    ('@table nothing: fedavg', r'nothing\.py'),
    ('@graph moon_cvpr21: fedavg', r"there is no '@graph'"),
    ('@table', r"'@table' must be @table FILE: VARIANT"),
    ('@curve moon', r'must be @curve ALGORITHM ROUND\.'),
    ('@curve moon last', r'must be @curve ALGORITHM ROUND\.'),
    ('@means 50 100', r'must be @means ROUND\.'),
    ('@sweep moon.mu moonflower: mu_1', r'must be @sweep NAME KNOB FILE: VARIANT'),
    ('@sweep a moon.nu moonflower: mu_1', r"no knob 'moon.nu'\. Did you mean"),
    ('{{late cifar10_moon_seed7}}', r'no kept run has \{\{late cifar10_moon_seed7\}\}'),
  ],
)
def test_a_line_that_names_what_is_not_there_fails(paths, line, pattern):
  write_template(paths, line)
  with pytest.raises(Exception, match=pattern) as caught:
    page(paths)
  assert len(str(caught.value).splitlines()) == 1


def test_a_failed_build_prints_a_line_and_writes_no_page(paths, tmp_path, capsys):
  write_template(paths, '@graph')
  assert build.main([], tmp_path) == ExitCode.USAGE
  paths.template.unlink()
  assert build.main([], tmp_path) == ExitCode.USAGE
  assert build.main(['keep'], tmp_path) == ExitCode.USAGE
  graph, template, usage = capsys.readouterr().err.splitlines()
  assert '@graph' in graph
  assert template.endswith('in.md is missing.')
  assert usage.startswith('python -m papers.build')
  assert not paths.page.exists()


def test_a_run_that_no_line_names_is_not_left_out_in_silence(paths, tmp_path):
  add(tmp_path, [finished_run(tmp_path, 'one', 0.6)])
  write_template(paths, '@table moon_cvpr21: moon', '{{late one}}')
  assert_refused(paths, r'one\.jsonl\.gz is in no row of experiments\.in\.md: name')


def test_one_run_counts_once(paths, tmp_path):
  add(tmp_path, [finished_run(tmp_path, 'first', 0.6)])
  kept_runs.keep_run(finished_run(tmp_path, 'again', 0.6), paths.runs)
  assert_refused(paths, 'again and first are one run: delete one')


def test_a_run_with_another_algorithm_is_no_run_of_its_variant(paths, tmp_path):
  flag = '--config.algorithm=solo'
  run = finished_run(tmp_path, 'other', 0.6, flag, config_choice=MOON)
  kept_runs.keep_run(run, paths.runs)
  message = 'other has algorithm=solo, so it is no run of configs/moon_cvpr21.py:moon.'
  assert_refused(paths, re.escape(message))


def replaced(old, new):
  """A change of a kept run: other words in its text."""

  def change(packed):
    return gzip.compress(gzip.decompress(packed).replace(old, new))

  return change


@pytest.mark.parametrize(
  ('change', 'pattern'),
  [
    (lambda packed: b'', 'is damaged: each line'),
    (lambda packed: packed[:-100], 'is damaged: '),
    (lambda packed: packed[:-8] + bytes(8), 'is damaged: CRC'),
    (gzip.decompress, 'is damaged: Not a gzipped file'),
    (replaced(b'{"round": 7,', b'"round": 7,'), 'is damaged: '),
    (replaced(b'{"round": 100,', b'{"round": 101,'), 'must have the rounds 1 to'),
    (replaced(b'"command"', b'"x"'), "lacks 'command'"),
    (replaced(b'launch.py', b"'"), 'is damaged: No clos'),
  ],
)
def test_a_damaged_run_fails_the_build(paths, tmp_path, change, pattern):
  add(tmp_path, [finished_run(tmp_path, 'one', 0.6)])
  path = kept_runs.path_of(paths.runs, 'one')
  path.write_bytes(change(path.read_bytes()))
  assert_refused(paths, rf'one\.jsonl\.gz {pattern}')


def test_what_is_no_finished_run_is_not_kept(paths, tmp_path):
  half = finished_run(tmp_path, 'half', 0.6)
  lines = (half / 'metrics.jsonl').read_text().splitlines()[:40]
  write_lines(half / 'metrics.jsonl', map(json.loads, lines))
  going = write_run(tmp_path / 'going', [0.5], f'--config={FEDAVG}', finished=False)
  kept_run = finished_run(tmp_path, 'one', 0.6)
  path = kept_runs.keep_run(kept_run, paths.runs)
  packed = path.read_bytes()
  edit_lines(kept_run / 'metrics.jsonl', lambda line: line.update(drift=0.75))
  for run, pattern in (
    (half, 'is not finished: 40 of 100 rounds'),
    (going, 'is not finished: 1 of 100 rounds, no summary.json'),
    (tmp_path, 'is no run directory'),
    (kept_run, 'holds another run'),
  ):
    with pytest.raises(UsageError, match=pattern):
      kept_runs.keep_run(run, paths.runs)
  assert list(paths.runs.iterdir()) == [path]
  assert path.read_bytes() == packed
