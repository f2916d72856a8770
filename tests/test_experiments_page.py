"""docs/experiments.md says what its template and the kept runs do; bad input a line."""

import gzip
import json
import pathlib
import re

import numpy as np
import pytest

from moon_jax import config
from moon_jax.core.errors import ExitCode, UsageError
from papers import build, claims, differences, draw, kept_runs, partitions, tables
from papers.differences import Comparison
from papers.page import Paths, page
from tests.run_directories import edit_json, edit_lines, write_lines, write_run

ROOT = pathlib.Path(__file__).parents[1]
COMMITTED = Paths.below(ROOT)
NUM_ROUNDS = 100
FEDAVG = 'configs/moon_cvpr21.py:fedavg'
MOON = 'configs/moon_cvpr21.py:moon'


# --- what is committed ----------------------------------------------------------------


@pytest.mark.slow
def test_the_committed_page_is_what_the_command_writes():
  assert page(COMMITTED) == COMMITTED.page.read_text()


def test_every_variant_has_run_or_is_listed_as_not_run():
  appendix = COMMITTED.page.read_text().partition('\n### Not run\n')[2]
  diverged = kept_runs.read_all(COMMITTED.diverged, finished=False).values()
  diverged_choices = {run.config_choice for run in diverged}
  for file in tables.FILES:
    for name in config.variants(f'configs/{file}.py'):
      if f'configs/{file}.py:{name}' in diverged_choices:
        continue
      assert re.search(rf'`{re.escape(name)}[` ]', appendix), f'{file}: {name}'


def test_the_answer_is_short():
  """1,500 words before the appendix; an alternative text is not read."""
  answer = COMMITTED.page.read_text().partition('\n## Appendix\n')[0]
  visible = re.sub(r'!\[[^]]*\]\([^)]*\)', '', answer)
  assert 1000 < len(re.findall(r'[A-Za-z0-9][^ |\n]*', visible)) <= 1500


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
  write_template(paths, "{{ accuracies('moon_cvpr21', 'fedavg moon') }}")
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


def all_cells(text, setting):
  """The cells of each row whose first cell begins with a setting."""
  lines = [line for line in text.splitlines() if line.startswith(f'| {setting}')]
  return [[cell.strip() for cell in line.strip('|').split('|')] for line in lines]


def cells(text, setting):
  (row,) = all_cells(text, setting)
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
  counts = np.array([[8, 0], [4, 4]])
  np.savez(run / 'partition.npz', class_counts=counts)
  text = add(tmp_path, [run])
  numbers = ['66.3 +- 0.5 (table 1)', '66.4', '66.4', '0']
  assert cells(text, 'FedAvg')[1:] == numbers
  path = kept_runs.path_of(paths.runs, 'one')
  description = kept_runs.read_description(path)
  assert '/home/me' not in json.dumps(description)
  # 100 rounds of 2 + 0.5 + 0.2 s, 99 of 0.05 s, the first of 0.25 s; 2.5 s each.
  assert description['cost'] == {'seconds': 275, 'median': 2.5}
  (kept_counts,) = partitions.read(paths.partitions).values()
  np.testing.assert_array_equal(kept_counts, counts)
  # One client has one class, the other two that are equally frequent.
  assert partitions.effective_classes(kept_counts) == pytest.approx(1.5)


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


def test_a_deviation_over_clients_stands_beside_the_last_accuracy(paths, tmp_path):
  write_template(paths, "{{ accuracies('moon_cvpr21', 'solo') }}")
  flag = '--config=configs/moon_cvpr21.py:solo'
  runs = [
    write_run(tmp_path / f's{seed}', [last], flag, seed=seed, test_accuracy_std=0.04)
    for seed, last in enumerate((0.4, 0.42))
  ]
  assert cells(add(tmp_path, runs), 'SOLO')[3] == '41.0 +- 1.4 (clients +- 4.0)'


def test_a_figure_of_training_is_compared_with_training(paths, tmp_path):
  write_template(paths, "{{ accuracies('moonflower', 'mu_1') }}")
  config_choice = 'configs/moonflower.py:mu_1'
  run = finished_run(
    tmp_path, 'one', 0.3, config_choice=config_choice, train_accuracy=0.511
  )
  row = cells(add(tmp_path, [run]), 'MOON, mu 1')
  assert row[1:4] == ['figure only, of accuracy in training', '51.1', '51.1']


def test_seeds_are_averaged_and_what_differs_is_a_row_of_its_own(paths, tmp_path):
  runs = runs_of_seeds(tmp_path, 0.6194, 0.02, range(3))
  other = finished_run(tmp_path, 'other', 0.5, '--config.batch_size=32')
  rows = {row[0]: row for row in all_cells(add(tmp_path, [*runs, other]), 'FedAvg')}
  assert sorted(rows) == ['FedAvg', 'FedAvg, with `batch_size=32`']
  # The sample deviation of 61.94, 63.94, 65.94.
  assert rows['FedAvg'][2:] == ['63.9 +- 2.0', '63.9 +- 2.0', '0, 1, 2']


def test_a_claim_is_judged_by_the_interval_of_its_pairs(paths, tmp_path):
  write_template(paths, "{{ claims(('speed', 'a paper')) }}")
  fedavg = runs_of_seeds(tmp_path, 0.6, 0.02, (0, 1, 2))
  moon = runs_of_seeds(tmp_path, 0.61, 0.03, (0, 1, 5), config_choice=MOON)
  row, *_ = all_cells(add(tmp_path, [fedavg[0], moon[0]]), 'MOON - FedAvg')
  assert row[1:] == ['MOON, table 1: +2.8', '+1.0 (1 seed)', 'untested']
  # Runs with other settings are no pair of these.
  flag = '--config.batch_size=32'
  add(tmp_path, [finished_run(tmp_path, 'm9', 0.9, flag, config_choice=MOON)])
  add(tmp_path, [finished_run(tmp_path, 'f9', 0.7, flag)])
  text = add(tmp_path, [*fedavg[1:], *moon[1:]])
  # Seeds 0 and 1 have 1 and 2: deviation 0.707, / sqrt(2) 0.5, times 12.706.
  row, *_ = all_cells(text, 'MOON - FedAvg')
  assert row[2:] == ['+1.5 (-4.9 to +7.9; 2 seeds)', 'undecided']
  assert cells(text, 'speed')[1:] == ['a paper', 'not run', 'untested']


@pytest.mark.parametrize(
  ('reported', 'low', 'high', 'count', 'can_refute', 'verdict'),
  [
    (2.8, 1.0, 3.0, 3, True, 'reproduced'),
    (2.8, -1.0, 3.0, 3, True, 'undecided'),
    (2.8, -1.0, 2.75, 3, True, 'undecided'),  # within the rounding of 0.1
    (2.8, -1.0, 2.6, 3, True, 'refuted in this setting'),
    (-2.8, 1.0, 3.0, 3, True, 'refuted in this setting'),
    (2.8, -1.0, 2.6, 3, False, 'not reproduced'),
    (0.0, -1.0, 1.0, 3, False, 'undecided'),
    (0.0, -1.0, -0.05, 3, False, 'undecided'),  # alike is never shown
    (2.8, 1.0, 3.0, 1, True, 'untested'),
  ],
)
def test_a_verdict_follows_from_the_interval(
  reported, low, high, count, can_refute, verdict
):
  claim = claims.Claim('', '', '', '', reported, can_refute=can_refute)
  comparison = Comparison([0.0] * count, (low + high) / 2, low, high)
  assert claims.verdict(claim, comparison) == verdict


def test_a_verdict_counts_the_deviations_that_a_paper_gives():
  # MOONFlower: 47.51 +- 1.29 and 53.12 +- 2.89, so -5.61 with an error of 1.83.
  flower = claims.Claim('', '', 'moonflower:default', 'moonflower:default_fedavg')
  # The gaps are 5.5 and 10.6; 4.3 errors are 7.9, for two degrees of freedom.
  for ours, verdict in ((-0.1, 'undecided'), (5.0, 'refuted in this setting')):
    comparison = differences.compare([ours - 0.1, ours + 0.1])
    assert comparison.low > flower.reported_difference() + 1
    assert claims.verdict(flower, comparison) == verdict
  # Without deviations the paper's value counts as exact.
  exact = flower._replace(reported=flower.reported_difference())
  comparison = differences.compare([-0.2, 0.0])
  assert claims.verdict(exact, comparison) == 'refuted in this setting'


def test_a_value_from_a_figure_is_known_to_a_point():
  comparison = differences.compare([-1.4, -1.6])  # -1.5, from -2.8 to -0.2
  claim = claims.Claim('', '', '', '', reported=0.5, can_refute=False)
  assert claims.verdict(claim, comparison) == 'not reproduced'
  of_figure = claim._replace(tolerance=1.0)
  assert claims.verdict(of_figure, comparison) == 'reproduced'


def test_seen_and_unseen_users_are_apart_and_compared_with_fedavg_by_seed(
  paths, tmp_path
):
  write_template(paths, "{{ unseen('moon_cvpr21', 'fedavg moon scaffold') }}")
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
  # Of seeds 0 and 2: +1 and -1 points; -5 and -3. Both deviate by sqrt(2), so half an
  # interval is t(0.975, 1) = 12.7.
  assert moon[1:3] == ['52.0 +- 1.4', '0.0 (-12.7 to +12.7)']
  assert moon[3:] == ['22.5 +- 3.5', '-4.0 (-16.7 to +8.7)', '0, 2']
  assert scaffold[1:] == ['', '', '', '', 'not run']


@pytest.fixture
def one_file(monkeypatch):
  """The tables of all files have the variants of one file, which are read sooner."""
  monkeypatch.setattr(tables, 'FILES', ['moon_cvpr21'])


@pytest.mark.usefixtures('one_file')
def test_the_costs_name_the_devices_of_every_start(paths, tmp_path):
  earlier = [{'devices': ['gpu: NVIDIA H200'] * 2, 'git_commit': 'abc'}]
  starts = {
    'devices': ['cpu: cpu'],
    'machine': {'processor': 'Zen', 'cores': 2},
    'earlier': earlier,
  }
  run = finished_run(tmp_path, 'one', 0.6)
  edit_json(run / 'config.json', lambda description: description.update(starts))
  write_template(paths, '{{ costs() }}')
  assert '| NVIDIA H200 and Zen, 2 core(s) |' in add(tmp_path, [run])
  description = kept_runs.read_description(kept_runs.path_of(paths.runs, 'one'))
  assert description['earlier'] == earlier


def test_old_records_have_the_commits_alone_of_earlier_starts(paths, tmp_path):
  path = kept_runs.keep_run(finished_run(tmp_path, 'one', 0.6), paths.runs)
  change = replaced(b'"earlier": []', b'"earlier_commits": ["first"]')
  path.write_bytes(change(path.read_bytes()))
  commits = [start['git_commit'] for start in kept_runs.read(path).starts()]
  assert commits == ['first', 'a' * 40]


# --- pictures -------------------------------------------------------------------------


def test_a_picture_is_of_the_runs_there_are(paths, tmp_path):
  write_template(
    paths, "{{ figure('both', 'moon_cvpr21', 'fedavg', alt='A line near 60 %.') }}"
  )
  assert '![' not in page(paths)
  text = add(tmp_path, [finished_run(tmp_path, 'one', 0.6)])
  assert text == '![A line near 60 %.](images/experiments/both.png)\n'
  picture = paths.pictures / 'both.png'
  assert page(paths) == text
  digest = draw.digest_of(picture)
  # A run of other length is no curve of its variant.
  short = write_run(
    tmp_path / 'short', [0.9] * 5, f'--config={FEDAVG}', '--config.num_rounds=5'
  )
  add(tmp_path, [short])
  assert draw.digest_of(picture) == digest
  add(tmp_path, [finished_run(tmp_path, 'two', 0.61, seed=1)])
  assert draw.digest_of(picture) != digest
  curves = [draw.Curves('other', 'fedavg', [[{'round': 1, 'test_accuracy': 0.5}]])]
  draw.side_by_side(picture, curves, 'other')
  assert_refused(paths, 'both.png does not show these runs')
  picture.write_bytes(b'no picture')
  assert_refused(paths, 'both.png does not show these runs')


def test_an_algorithm_has_a_colour_of_its_own_in_every_picture():
  colors = [style.color for style in draw.STYLES.values()]
  assert len(set(colors)) == len(colors)
  compared = ('fedavg', 'moon', 'mu_1', 'fedprox', 'scaffold', 'solo', 'dco_moon')
  lines = [str(draw.STYLES[name].line) for name in compared]
  assert len(set(lines)) == len(lines)


# --- what is refused ------------------------------------------------------------------


def assert_refused(paths, pattern):
  with pytest.raises(UsageError, match=pattern) as caught:
    page(paths)
  assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
  ('line', 'pattern'),
  [
    (
      "{{ accuracies('moon_cvpr21', 'fedavgg') }}",
      r"no variant 'fedavgg'\. Did you mean 'fedavg'",
    ),
    ("{{ accuracies('nothing', 'fedavg') }}", r'nothing\.py'),
    ('{{ graph() }}', r"'graph' is undefined"),
    ("{{ late('moon_seed7') }}", r"no kept run 'moon_seed7'"),
    ('{{ late( }}', r'experiments\.in\.md: '),
  ],
)
def test_a_line_that_names_what_is_not_there_fails(paths, line, pattern):
  write_template(paths, line)
  with pytest.raises(Exception, match=pattern) as caught:
    page(paths)
  assert len(str(caught.value).splitlines()) == 1


def test_a_failed_build_prints_a_line_and_writes_no_page(paths, tmp_path, capsys):
  write_template(paths, '{{ graph() }}')
  assert build.main([], tmp_path) == ExitCode.USAGE
  paths.template.unlink()
  assert build.main([], tmp_path) == ExitCode.USAGE
  assert build.main(['keep'], tmp_path) == ExitCode.USAGE
  graph, template, usage = capsys.readouterr().err.splitlines()
  assert "'graph' is undefined" in graph
  assert template.endswith('in.md is missing.')
  assert usage.startswith('python -m papers.build')
  assert not paths.page.exists()


@pytest.mark.usefixtures('one_file')
def test_every_kept_run_stands_in_the_costs(paths, tmp_path):
  write_template(paths, '{{ costs() }}')
  flag = '--config.batch_size=32'
  text = add(tmp_path, [finished_run(tmp_path, 'one', 0.6, flag, seed=3)])
  assert '| `fedavg batch_size=32` | 3 |' in text


def test_one_run_counts_once(paths, tmp_path):
  add(tmp_path, [finished_run(tmp_path, 'first', 0.6)])
  kept_runs.keep_run(finished_run(tmp_path, 'again', 0.6), paths.runs)
  assert_refused(paths, 'again and first are one run: delete one')


def test_runs_of_the_next_plan_are_kept_apart_and_those_that_diverged(paths, tmp_path):
  write_template(paths, '{{ frozen | length }} and {{ frozen_diverged | length }}')
  finished = finished_run(tmp_path, 'one', 0.6)
  lost = write_run(
    tmp_path / 'two',
    [0.5, 0.1],
    f'--config={FEDAVG}',
    seed=1,
    finished=False,
    train_loss=None,
  )
  words = ['add-frozen', str(finished), str(lost)]
  assert build.main(words, tmp_path) == ExitCode.DONE
  assert paths.page.read_text() == '1 and 1\n'
  assert [*partitions.read(paths.partitions)] == ['one', 'two']
  (path,) = paths.frozen_diverged.iterdir()
  assert path == paths.frozen / 'diverged/two.jsonl.gz'
  assert not paths.runs.exists()


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
