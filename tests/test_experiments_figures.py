"""Every figure of docs/experiments.md, computed again from the records.

This file shares no code with papers/, nor does plan_by_enumeration.py: it unpacks the
records itself, and has the papers' figures and the statistics of its own. A figure of
the page that it does not compute must stand in SETTINGS, which has settings and words
of papers.
"""

import functools
import gzip
import json
import math
import pathlib
import re

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from moon_jax import config
from tests import plan_by_enumeration

ROOT = pathlib.Path(__file__).parents[1]
SEEDS = (0, 1, 2)
SKEWS = {
  'beta 0.05': 'curve_beta_0.05_',
  'beta 0.1': 'curve_beta_0.1_',
  'beta 0.3': 'curve_beta_0.3_',
  'beta 0.5': 'moon_cvpr21_',
  'beta 5': 'curve_beta_5_',
  'shards of 2': 'curve_shards_2_',
}
BETAS = {name: float(name[5:]) for name in SKEWS if name.startswith('beta')}
ALGORITHMS = {
  'moon': 'MOON, mu 5',
  'mu_1': 'MOON, mu 1',
  'fedprox': 'FedProx',
  'scaffold': 'SCAFFOLD',
}
TABLE_1 = {'moon': 69.1, 'fedavg': 66.3, 'fedprox': 66.9, 'scaffold': 66.6}
DEVIATIONS_OF_TABLE_1 = {'moon': 0.4, 'fedavg': 0.5, 'fedprox': 0.2, 'scaffold': 0.2}
PAIRS_OF_TABLE_1 = (
  ('moon', 'fedavg'),
  ('moon', 'fedprox'),
  ('moon', 'scaffold'),
  ('fedprox', 'fedavg'),
  ('scaffold', 'fedavg'),
)
# What a setting of the page that is no result says, with its numbers.
SETTINGS = pathlib.Path(__file__).with_name('experiments_settings.txt')


def read(folder):
  """Name -> (description, a table by round) of the records in a folder of papers/."""
  runs = {}
  for path in sorted((ROOT / 'papers' / folder).glob('*.jsonl.gz')):
    first, *lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    table = pd.DataFrame(map(json.loads, lines)).set_index('round')
    runs[path.name.removesuffix('.jsonl.gz')] = (json.loads(first), table)
  return runs


RUNS, DIVERGED, REPEATED, FROZEN = map(
  read, ('runs', 'runs/diverged', 'repeated', 'frozen')
)
FROZEN_DIVERGED = read('frozen/diverged')


def end(name, last, column='test_accuracy', scale=100, runs=RUNS):
  """The mean of a column over the five rounds to `last`."""
  numbers = runs[name][1][column].loc[last - 4 : last]
  assert len(numbers) == 5
  return math.fsum(scale * numbers) / 5


def late(name, column='test_accuracy'):
  return 100 * RUNS[name][1][column].dropna().astype(float).tail(5).mean()


def interval(numbers):
  """The ends of Student's 95 % interval of a mean."""
  return stats.t.interval(0.95, len(numbers) - 1, np.mean(numbers), stats.sem(numbers))


def sign(number, decimals=1):
  text = f'{number:+.{decimals}f}'
  return text if float(text) else text[1:]


def pairs(first, second, number):
  """The differences of two variants, over the seeds that both have."""
  seeds = [s for s in range(8) if {f'{first}_seed{s}', f'{second}_seed{s}'} <= {*RUNS}]
  return [number(f'{first}_seed{s}') - number(f'{second}_seed{s}') for s in seeds]


def differences(algorithm, skew, last):
  stem = SKEWS[skew]
  return pairs(f'{stem}{algorithm}', f'{stem}fedavg', lambda name: end(name, last))


def rounds_to(level, name, last=100):
  """The first round whose mean of five reaches a level."""
  for final in range(5, last + 1):
    if end(name, final) >= level:
      return final
  return None


def mean_and_deviation(numbers, decimals=1):
  mean = f'{np.mean(numbers):.{decimals}f}'
  if len(numbers) == 1:
    return mean
  return f'{mean} +- {np.std(numbers, ddof=1):.{decimals}f}'


# --- what the page must have ----------------------------------------------------------


def judged(
  words,
  paper,
  reported,
  numbers,
  decimals=1,
  can_refute=True,
  deviations=(),
  known_to=0.1,
):
  """A row of the table of claims; `deviations` are the paper's, each of three runs."""
  if not numbers:
    return f'| {words} | {paper} | not run | untested |'
  mean = sign(np.mean(numbers), decimals)
  if len(numbers) == 1:
    return f'| {words} | {paper} | {mean} (1 seed) | untested |'
  low, high = interval(numbers)
  is_far = reported < low - known_to or reported > high + known_to
  if is_far and is_far_by_welch(numbers, reported, deviations):
    verdict = 'refuted in this setting' if can_refute else 'not reproduced'
  elif low <= 0 <= high or reported == 0:
    verdict = 'undecided'
  else:
    verdict = 'reproduced'
  ends = f'{sign(low, decimals)} to {sign(high, decimals)}; {len(numbers)} seeds'
  return f'| {words} | {paper} | {mean} ({ends}) | {verdict} |'


def is_far_by_welch(numbers, reported, deviations):
  """Whether Welch's interval of the gap to the paper's difference excludes 0."""
  if not deviations:
    return True
  ours, paper = np.var(numbers, ddof=1) / len(numbers), sum(np.square(deviations)) / 3
  freedom = (ours + paper) ** 2 / (ours**2 / (len(numbers) - 1) + paper**2 / 2)
  half_width = stats.t.ppf(0.975, freedom) * math.sqrt(ours + paper)
  return abs(np.mean(numbers) - reported) > half_width


def claims():
  names = {'moon': 'MOON', 'fedavg': 'FedAvg'}
  names |= {'fedprox': 'FedProx', 'scaffold': 'SCAFFOLD'}
  for first, second in PAIRS_OF_TABLE_1:
    reported = TABLE_1[first] - TABLE_1[second]
    numbers = pairs(f'moon_cvpr21_{first}', f'moon_cvpr21_{second}', late)
    words = f'{names[first]} - {names[second]}'
    deviations = [DEVIATIONS_OF_TABLE_1[name] for name in (first, second)]
    paper = f'MOON, table 1: {reported:+.1f}'
    yield judged(words, paper, reported, numbers, deviations=deviations)
  l2 = pairs('moon_cvpr21_l2', 'moon_cvpr21_fedavg', late)
  paper = 'MOON, table 5: -0.5'
  yield judged('l2 term - FedAvg', paper, 65.8 - 66.3, l2, can_refute=False)
  above_l2 = pairs('moon_cvpr21_moon', 'moon_cvpr21_l2', late)
  paper = 'MOON, table 5: +3.3'
  yield judged('MOON - l2 term', paper, 69.1 - 65.8, above_l2, can_refute=False)
  early = pairs(
    'moon_cvpr21_moon',
    'moon_cvpr21_fedavg',
    lambda name: 100 * RUNS[name][1].test_accuracy.loc[2:5].mean(),
  )
  words = 'MOON - FedAvg, rounds 2 to 5'
  paper = 'MOON, figure 6: alike'
  yield judged(words, paper, 0, early, can_refute=False, known_to=1)

  def rounds(name):
    if 'fedavg' in name:
      return 100
    return rounds_to(end(f'moon_cvpr21_fedavg_seed{name[-1]}', 100), name)

  for other, reported in (('fedavg', -73), ('fedprox', -25), ('scaffold', -53)):
    numbers = pairs('moon_cvpr21_moon', f'moon_cvpr21_{other}', rounds)
    words = f'rounds, MOON - {names[other]}'
    yield judged(words, f'MOON, table 2: {reported}', reported, numbers, 0)
  review = pairs('review_moon', 'review_fedavg', late)
  words, paper = 'MOON - FedAvg, 20 clients', 'review, figure 1: alike'
  yield judged(words, paper, 0, review, can_refute=False, known_to=1)
  for setting, variant, table, reported, deviations in (
    ('beta 0.5', 'default', 1, 47.51 - 53.12, (1.29, 2.89)),
    ('beta 0.1', 'beta_0.1', 2, 38.68 - 41.35, (2.39, 0.81)),
    ('beta 5', 'beta_5', 2, 53.23 - 56.72, (0.78, 0.38)),
    ('5 of 100 clients', 'sparse_0.05', 3, 51.12 - 50.27, (3.73, 3.38)),
  ):
    numbers = pairs(f'moonflower_{variant}', f'moonflower_{variant}_fedavg', late)
    paper = f'MOONFlower, table {table}: {reported:+.2f}'
    words = f'MOON - FedAvg, {setting}'
    yield judged(
      words, paper, reported, numbers, can_refute=False, deviations=deviations
    )
  fashion = 'dco_moon_fashion_mnist_'
  for title, name, reported in (('FedAvg', 'fedavg', 5.6), ('MOON', 'moon', 2.3)):
    numbers = pairs(f'{fashion}dco_moon', f'{fashion}{name}', late)
    paper = f'DCO-MOON, table 2: {reported:+.1f}'
    words = f'DCO-MOON - {title}, Fashion-MNIST'
    yield judged(words, paper, reported, numbers, can_refute=False)
  words, paper = 'SA-MOON - MOON, T_0 = tau = 1', 'SA-MOON, table 2: +1.13'
  yield judged(words, paper, 1.13, [], can_refute=False)


def accuracies():
  """Rows of the tables of the papers: setting, the paper's words, and stem of runs."""
  flower = {
    'default': ('the defaults', '53.12 +- 2.89', '47.51 +- 1.29', 'tables 1, 2'),
    'beta_0.1': ('beta 0.1', '41.35 +- 0.81', '38.68 +- 2.39', 'table 2'),
    'beta_5': ('beta 5', '56.72 +- 0.38', '53.23 +- 0.78', 'table 2'),
    'sparse_0.05': (
      '100 clients, 5% a round',
      '50.27 +- 3.38',
      '51.12 +- 3.73',
      'table 3',
    ),
  }
  again = "Flower's baseline"
  rows = [
    ('FedAvg', '66.3 +- 0.5 (table 1)', 'moon_cvpr21_fedavg'),
    (
      'FedProx, mu 0.01',
      f'66.9 +- 0.2 (table 1), {again} 68.52',
      'moon_cvpr21_fedprox',
    ),
    ('SCAFFOLD', '66.6 +- 0.2 (table 1)', 'moon_cvpr21_scaffold'),
    ('MOON, mu 5', f'69.1 +- 0.4 (table 1), {again} 70.71', 'moon_cvpr21_moon'),
    ('MOON, mu 1', '-', 'moon_cvpr21_mu_1'),
    ('SOLO, 300 epochs', '46.3 +- 5.1 over clients (table 1)', 'moon_cvpr21_solo'),
    ('l2 in place of MOON', '65.8, the best of six mu (table 5)', 'moon_cvpr21_l2'),
    *(
      (title, 'figure only', f'review_{name}')
      for title, name in (
        ('FedAvg', 'fedavg'),
        ('FedProx', 'fedprox'),
        ('SCAFFOLD', 'scaffold'),
        ('MOON, mu 0.1', 'moon'),
      )
    ),
    ('FedAvg, learning rate 0.01', '10.0 (text)', 'moonflower_rate_0.01_fedavg'),
    *(
      (f'{title}, Fashion-MNIST', words, f'dco_moon_fashion_mnist_{name}')
      for title, words, name in (
        ('FedAvg', '79.8 (table 2)', 'fedavg'),
        ('FedProx, mu 0.001', '81.9 (table 2)', 'fedprox'),
        ('MOON, mu 1', '83.1 (table 2)', 'moon'),
        ('DCO-MOON, mu 5', '85.4 (tables 1, 2)', 'dco_moon'),
        ('SOLO', '76.4 (table 2)', 'solo'),
      )
    ),
    (
      'DCO-MOON, mu 5, Fashion-MNIST, theta 0.03',
      '-',
      'dco_moon_fashion_mnist_theta_0.03',
    ),
    (
      'SA-MOON, T_0 1, with `model=moon_cnn`, `sa_moon.min_temperature=0.05`',
      '-',
      'sa_moon_initial_temperature_1_model=moon_cnn_sa_moon.min_temperature=0.05',
    ),
    (
      'MOON, tau 1, with `model=moon_cnn`',
      '-',
      'sa_moon_tau_1_model=moon_cnn',
    ),
  ]
  for variant, (setting, of_fedavg, of_moon, table) in flower.items():
    stem = f'moonflower_{variant}'
    rows.append((f'FedAvg, {setting}', f'{of_fedavg} ({table})', f'{stem}_fedavg'))
    rows.append((f'MOON, {setting}', f'{of_moon} ({table})', stem))
  for setting, paper, stem in rows:
    seeds = [seed for seed in range(8) if f'{stem}_seed{seed}' in RUNS]
    names = [f'{stem}_seed{seed}' for seed in seeds]
    final = mean_and_deviation(
      [100 * RUNS[name][1].test_accuracy.iloc[-1] for name in names]
    )
    table = RUNS[names[0]][1]
    if 'test_accuracy_std' in table:
      final += f' (clients +- {100 * table.test_accuracy_std.iloc[-1]:.1f})'
    means = mean_and_deviation([late(name) for name in names])
    if len(table.test_accuracy.dropna()) < 5:
      means = ''
    yield f'| {setting} | {paper} | {means} | {final} | {str(seeds)[1:-1]} |'


def pooled(groups):
  """The deviation within groups, and its degrees of freedom."""
  freedom = sum(len(group) - 1 for group in groups)
  squares = sum(np.sum((np.array(g) - np.mean(g)) ** 2) for g in groups)
  return math.sqrt(squares / freedom), freedom


def side(mean, width):
  if abs(mean) <= width or math.isnan(width):
    return 'undecided'
  return 'higher' if mean > 0 else 'lower'


def own_and_pooled(numbers, std, freedom):
  """Half the widths of both intervals."""
  own = math.nan
  if len(numbers) > 1:
    own = stats.t.ppf(0.975, len(numbers) - 1) * stats.sem(numbers)
  return own, stats.t.ppf(0.975, freedom) * std / math.sqrt(len(numbers))


def curve_rows(algorithm, last):
  groups = {skew: differences(algorithm, skew, last) for skew in SKEWS}
  std, freedom = pooled([*groups.values()])
  for skew, numbers in groups.items():
    stem = SKEWS[skew]
    names = [f'{stem}{{}}_seed{seed}' for seed in SEEDS]
    names = [name for name in names if name.format(algorithm) in RUNS]
    fedavg = [end(name.format('fedavg'), last) for name in names]
    ours = [end(name.format(algorithm), last) for name in names]
    rounds = [
      ' / '.join(
        str(rounds_to(level, name.format(one), last) or 'never')
        for one in ('fedavg', algorithm)
      )
      for level, name in zip(fedavg, names, strict=True)
    ]
    own, by_pooled = own_and_pooled(numbers, std, freedom)
    mean = np.mean(numbers)
    first, second = ('pooled', 'own') if freedom >= 12 else ('own', 'pooled')
    sides = {'own': side(mean, own), 'pooled': side(mean, by_pooled)}
    verdict = sides[first]
    if sides[second] != verdict:
      verdict += f' ({sides[second]} by the {second} deviation)'
    means = [f'{mean:+.2f} +- {own:.2f}', f'+- {by_pooled:.2f}', verdict]
    if lost := diverged(stem, algorithm):
      means = ['', '', lost]
    cells = [
      ', '.join(f'{number:.1f}' for number in fedavg),
      ', '.join(f'{number:.1f}' for number in ours),
      ', '.join(map(sign, numbers)),
      *means,
      ', '.join(rounds),
    ]
    yield f'| {skew} | {" | ".join(cells)} |'
  yield (
    f'Pooled standard deviation of a difference: {std:.2f} points ({freedom} degrees '
    'of freedom).'
  )


def diverged(stem, algorithm):
  lost = sum(name.startswith(f'{stem}{algorithm}_seed') for name in DIVERGED)
  return f'{lost} of 3 diverged' if lost else ''


def mean_rows(last):
  for algorithm, title in ALGORITHMS.items():
    groups = {skew: differences(algorithm, skew, last) for skew in SKEWS}
    std, freedom = pooled([*groups.values()])
    cells = []
    for skew, numbers in groups.items():
      mean = sign(np.mean(numbers))
      is_outside = [
        abs(np.mean(numbers)) > width for width in own_and_pooled(numbers, std, freedom)
      ]
      bold = f'**{mean}**' if all(is_outside) else mean
      cells.append(diverged(SKEWS[skew], algorithm) or bold)
    yield f'| {title} | {" | ".join(cells)} |'


def class_counts():
  lines = (ROOT / 'papers/partitions.jsonl').read_text().splitlines()
  return {
    name: np.array(line['class_counts'])
    for line in map(json.loads, lines)
    for name in line['runs']
  }


def effective_classes(counts):
  return np.mean([math.exp(stats.entropy(client)) for client in counts])


def skew_rows():
  counts_of_runs = class_counts()
  for skew, stem in SKEWS.items():
    for seed in SEEDS:
      counts = counts_of_runs[f'{stem}moon_seed{seed}']
      fedavg, moon = (end(f'{stem}{a}_seed{seed}', 100) for a in ('fedavg', 'moon'))
      sizes = [sum(client) for client in counts.tolist()]
      yield (
        f'| {skew}, seed {seed} | {effective_classes(counts):.2f} | {min(sizes)} to '
        f'{max(sizes)} | {fedavg:.1f} | {moon:.1f} | {sign(moon - fedavg)} |'
      )


def tables_of_the_appendix():
  for words, stem, seeds in (
    ('each seed its own partition', 'moon_cvpr21_', SEEDS),
    ('the partition of seed 0', 'curve_same_partition_', (1, 2, 3)),
  ):
    fedavg, moon = (
      np.array([end(f'{stem}{name}_seed{seed}', 100) for seed in seeds])
      for name in ('fedavg', 'moon')
    )
    cells = [mean_and_deviation(n, 2) for n in (fedavg, moon, moon - fedavg)]
    yield f'| {words} | {str(seeds)[1:-1]} | {" | ".join(cells)} |'
  for name in REPEATED:
    for words, runs in ((f'`{name}`', RUNS), ('repeated', REPEATED)):
      ends = [f'{end(name, last, runs=runs):.1f}' for last in (50, 100)]
      yield f'| {words} | {" | ".join(ends)} | '
      yield f' | {commits_of(runs[name][0])} |'
  for words, column in (
    ('supervised loss, nats', 'supervised_loss'),
    ('training loss, nats', 'train_loss'),
    ("a client's drift", 'drift'),
    ('contrastive loss, nats', 'contrastive_loss'),
    ('cosine to the received model', 'positive_cosine'),
    ('cosine to the own previous model', 'negative_cosine'),
  ):
    cells = []
    for beta in ('0.05', '5'):
      for name in ('fedavg', 'moon'):
        stem = f'curve_beta_{beta}_{name}_seed'
        has_column = column in RUNS[f'{stem}0'][1] and not (
          name == 'fedavg' and column.endswith(('cosine', 'contrastive_loss'))
        )
        means = [
          f'{end(f"{stem}{s}", 100, column, 1):#.3g}' for s in SEEDS if has_column
        ]
        cells.append(f' {", ".join(means)} ' if means else ' ')
    yield f'| {words} |{"|".join(cells)}|'
  order = ('fedavg', *ALGORITHMS)
  for words, stem in (
    ('none', 'moon_cvpr21_'),
    ('no projection head', 'ablation_no_head_'),
    ('partition not balanced', 'ablation_no_balance_'),
    ('equal weights of clients', 'ablation_equal_weights_'),
    ('partial batches kept', 'ablation_all_batches_'),
  ):
    fedavg = end(f'{stem}fedavg_seed0', 50)
    cells = [f'{fedavg:.1f}']
    for name in order[1:]:
      run = f'{stem}{name}_seed0'
      ours = end(run, 50) if run in RUNS else None
      cells.append('not run' if ours is None else f'{ours:.1f} ({ours - fedavg:+.1f})')
    yield f'| {words} | {" | ".join(cells)} |'
  for attack in ('none', 'alie', 'ipm'):
    for fraction in ('',) if attack == 'none' else ('0.1', '0.2', '0.3', '0.4'):
      infix = f'{attack}_{fraction}_' if fraction else ''
      cells = [
        f'{late(f"attacks_{infix}{rule}_seed0"):.1f}'
        for rule in ('mean', 'median', 'trimmed', 'krum')
      ]
      title = f'{attack.upper()}, {float(fraction):.0%}' if fraction else 'none'
      yield f'| {title} | {" | ".join(cells)} |'
  here = [sign(np.mean(differences('moon', skew, 100))) for skew in SKEWS]
  yield f"| here | MOON's | 5 | {' | '.join(here)} |"


def rivals(page):
  """The rows of the rivals: the page's titles in its order, with figures of here."""
  names = (
    'fedavg fedprox scaffold moon moon_l2 fedntd feddecorr feddecorr_equation fedlc '
    'fedrs fedsam mofedsam feddyn fednova fedexp fedproc fedproto fedper fedbabu ditto '
  )
  names = [*names.split(), 'solo']
  section = page.partition('### What MOON is compared with')[2].partition('\n### ')[0]
  rows = [line for line in section.splitlines() if line.startswith('| ')][2:]
  for name, row in zip(names, rows, strict=True):
    runs = [
      f'rivals_{name}_seed{s}' for s in (0, 1) if f'rivals_{name}_seed{s}' in RUNS
    ]
    cells = []
    for column in ('test', 'local', 'tuned', 'personal'):
      column = 'test_accuracy' if column == 'test' else f'{column}_accuracy_mean'
      has_column = column in RUNS[runs[0]][1]
      numbers = [late(run, column) for run in runs] if has_column else []
      cells.append(mean_and_deviation(numbers) if numbers else '')
    title = row.split(' | ')[0]
    seeds = ', '.join(run[-1] for run in runs)
    yield f'{title} | {" | ".join(cells)} | {seeds} |'


def costs(page, heading, records):
  """The rows of the costs of a section, each from the records of its runs."""
  section = page.partition(f'### {heading}\n')[2].partition('\n### ')[0]
  left = set(records)
  for file, table in re.findall(
    r'<summary>(\w+): .*?</summary>(.*?)</det', section, re.S
  ):
    seconds = 0
    num_runs = 0
    for row in re.findall(r'^\| `.*$', table, re.M):
      words, seeds = re.match(r'\| `([^`]*)` \| ([\d, ]+) \|', row).groups()
      variant, *changes = words.split(' ')
      runs = [
        name
        for name in left
        if f'configs/{file}.py:{variant} ' in f'{records[name][0]["command"]} '
        and records[name][0]['config']['seed'] in map(int, seeds.split(','))
        and sorted(changes) == sorted(changes_of(records[name][0]['command']))
      ]
      runs.sort(key=lambda name: records[name][0]['config']['seed'])
      assert len(runs) == len(seeds.split(',')), words
      left -= {*runs}
      num_runs += len(runs)
      spent = [records[name][0].get('cost', {}) for name in runs]
      seconds += sum(cost.get('seconds', 0) for cost in spent)
      median = f'{np.median([c["median"] for c in spent if "median" in c]):.1f}'
      minutes = f'{sum(cost.get("seconds", 0) for cost in spent) / 60:.0f}'
      commits = ', '.join(dict.fromkeys(commits_of(records[name][0]) for name in runs))
      machine = row.split(' | ')[4]
      cells = [f'`{words}`', seeds, median, minutes, machine, f'{commits} |']
      yield '| ' + ' | '.join(cells)
    yield f'{file}: {num_runs} runs, {seconds / 3600:.1f} hours'
  assert not left


def changes_of(command):
  """The knobs that a command sets, but for the seed."""
  flags = re.findall(r'--config\.([\w.]+)=(\S+)', command)
  return [
    f'{k}={float(v):g}' if v == '1e30' else f'{k}={v}' for k, v in flags if k != 'seed'
  ]


def starts_of(description):
  """The starts of a run whose commit is known."""
  commits = description.get('earlier_commits', [])
  earlier = [{'git_commit': commit} for commit in commits]
  starts = [*description.get('earlier', earlier), description]
  return [start for start in starts if start['git_commit']]


def commits_of(description):
  commits = [start['git_commit'][:7] for start in starts_of(description)]
  return ' then '.join(dict.fromkeys(commits))


def not_run(page):
  """How many variants of each file have no run of their full length."""
  section = page.partition('### Not run')[2].partition('\n###')[0]
  for file in re.findall(r'^- `(\w+)`, ', section, re.M):
    variants = config.variants(f'configs/{file}.py')
    have_run = {
      description['command'].partition(f'configs/{file}.py:')[2].split(' ')[0]
      for description, _ in [*RUNS.values(), *DIVERGED.values()]
      if not changes_of(description['command'])
    }
    left = [f'`{name}`' for name in variants if name not in have_run]
    yield f'- `{file}`, {len(left)} of {len(variants)}: {", ".join(left)}.'


def listed(numbers, decimals=1):
  *first, last = [f'{number:.{decimals}f}' for number in numbers]
  return f'{", ".join(first)} and {last}'


def sentences():
  """The sentences of the page that have results."""
  moon = pairs('moon_cvpr21_moon', 'moon_cvpr21_fedavg', late)
  low, high = interval(moon)
  at_100 = {skew: differences('moon', skew, 100) for skew in SKEWS}
  means = {skew: np.mean(numbers) for skew, numbers in at_100.items()}
  x = np.log10(np.repeat([*BETAS.values()], 3))
  line = stats.linregress(x, np.concatenate([at_100[skew] for skew in BETAS]))
  width = stats.t.ppf(0.975, 13) * line.stderr
  by_seed = [
    stats.linregress(
      np.log10([*BETAS.values()]), [at_100[skew][seed] for skew in BETAS]
    ).slope
    for seed in SEEDS
  ]
  groups = stats.f_oneway(*(at_100[skew] for skew in BETAS))
  ends = f'95 % interval {sign(low)} to {sign(high)}'
  yield f'MOON minus FedAvg, in points, is {sign(np.mean(moon))} ({ends})'
  milder = [means[skew] for skew in ('beta 0.1', 'beta 0.3', 'beta 0.5', 'beta 5')]
  yield (
    f'shown (planned, p = {line.pvalue:.2f}): on average, MOON is '
    f'{-means["beta 0.05"]:.1f} points below FedAvg at beta 0.05, '
    f'{min(milder):.1f} to {max(milder):.1f} points above it at betas from 0.1 to 5, '
    f'and {means["shards of 2"]:.1f} points above it where a client has two shards'
  )
  std, freedom = pooled([*at_100.values()])
  widths = {skew: own_and_pooled(at_100[skew], std, freedom) for skew in SKEWS}
  by_own = {skew: side(means[skew], own) for skew, (own, _) in widths.items()}
  by_pooled = {skew: side(means[skew], width) for skew, (_, width) in widths.items()}
  assert [skew for skew in SKEWS if by_own[skew] != 'undecided'] == ['shards of 2']
  decided = {skew: name for skew, name in by_pooled.items() if name != 'undecided'}
  assert decided == {
    'beta 0.05': 'lower',
    'beta 0.3': 'higher',
    'shards of 2': 'higher',
  }
  low, high = (means['beta 0.5'] + s * widths['beta 0.5'][1] for s in (-1, 1))
  assert high < 2.8
  assert f'{interval(at_100["beta 0.5"])[1]:.2f}' == '2.80'
  yield (
    f'excludes +2.8 at 0.5 ({sign(low)} to {sign(high)}); the own interval ends at it'
  )
  deviations = [np.std(numbers, ddof=1) for numbers in at_100.values()]
  yield f'(here by {min(deviations):.1f} to {max(deviations):.1f} points)'
  p_values = [
    stats.ttest_1samp(
      pairs(f'moon_cvpr21_{first}', f'moon_cvpr21_{second}', late),
      TABLE_1[first] - TABLE_1[second],
    ).pvalue
    for first, second in PAIRS_OF_TABLE_1
  ]
  corrected = dict(
    zip(PAIRS_OF_TABLE_1, plan_by_enumeration.holm(p_values), strict=True)
  )
  assert min(corrected['moon', 'fedprox'], corrected['moon', 'scaffold']) > 0.05
  yield (
    f'p = {corrected["moon", "fedprox"]:.2f} (FedProx) and '
    f'{corrected["moon", "scaffold"]:.2f} (SCAFFOLD)'
  )
  half_width = interval(at_100['beta 0.5'])[1] - means['beta 0.5']
  yield f'is known to +- {half_width:.1f} points'
  yield f'by seed (n = 3) it is {stats.ttest_1samp(by_seed, 0).pvalue:.2f} (post hoc)'
  yield f'(post hoc: F(4, 10) = {groups.statistic:.1f}, p = {groups.pvalue:.3f}, with'
  counts = class_counts()
  stems = [f'moon_cvpr21_fedavg_seed{seed}' for seed in SEEDS]
  yield (
    f'a client has {listed([effective_classes(counts[n]) for n in stems], 2)} effective'
  )
  yield f'FedAvg ends at {listed([end(name, 100) for name in stems])} %'
  at_the_end, at_half = (
    [
      abs(end(name, last) - end(name, last, runs=REPEATED))
      for name in ('moon_cvpr21_fedavg_seed0', 'curve_beta_5_fedavg_seed1')
    ]
    for last in (100, 50)
  )
  yield (
    f'ended {at_the_end[0]:.1f} (beta 0.5) and {at_the_end[1]:.1f} points (beta 5) '
    f'away ({at_half[0]:.1f} and {at_half[1]:.1f} at round 50)'
  )
  starts = [start for first, _ in RUNS.values() for start in starts_of(first)]
  yield f'come from {len({start["git_commit"][:7] for start in starts})} commits'
  for stem in ('moon_cvpr21', 'review'):
    for other in ('fedavg', 'fedprox', 'moon'):
      assert min(pairs(f'{stem}_scaffold', f'{stem}_{other}', late)) > 0
  early = {
    name: RUNS[f'review_{name}_seed0'][1].test_accuracy.loc[2:8]
    for name in ('scaffold', 'fedavg', 'fedprox', 'moon')
  }
  highest = pd.DataFrame(early).idxmax(axis=1)
  assert [*highest.index[highest == 'scaffold']] == [2, 3, 4]
  yield 'One seed agrees, but for rounds 5 to 8.'
  rounds = {
    name: listed(
      [
        rounds_to(
          end(f'moon_cvpr21_fedavg_seed{s}', 100), f'moon_cvpr21_{name}_seed{s}'
        )
        for s in SEEDS
      ],
      0,
    )
    for name in ('scaffold', 'moon', 'fedprox')
  }
  yield (
    f'in {rounds["scaffold"]} rounds (seeds 0, 1, 2; the paper has 80), MOON in '
    f'{rounds["moon"]} (27), and FedProx in {rounds["fedprox"]} (52)'
  )
  falls = []
  for name in RUNS:
    if re.fullmatch(r'moonflower_(default|beta_5)(_fedavg)?_seed\d', name):
      smooth = RUNS[name][1].test_accuracy.rolling(5).mean()
      falls.append(100 * (smooth.max() - smooth.iloc[-1]))
  yield f'falls after its highest, by {max(falls):.1f} points in the worst run'
  alike = [
    late(f'dco_moon_fashion_mnist_{n}_seed0')
    for n in ('fedavg', 'fedprox', 'moon', 'dco_moon')
  ]
  yield f'first four are within {max(alike) - min(alike):.1f} points'
  assert min(alike) - 85.4 > 5  # "far above the paper"
  strayed = RUNS['dco_moon_fashion_mnist_dco_moon_seed0'][1].p_t
  assert strayed.tail(50).max() == 0
  assert RUNS['dco_moon_fashion_mnist_theta_0.03_seed0'][1].p_t.tail(50).min() > 0
  lost = [run[1] for name, run in DIVERGED.items() if name.startswith('sa_moon')]
  ends = [run.index[-1] for run in lost]
  medians = [run.temperature_median.min() for run in lost]
  above = [median for median in medians if median > 0.0011]
  assert all(run.temperature_min.min() < 0.002 for run in lost)
  configs = [run[0]['config'] for name, run in DIVERGED.items() if 'sa_moon' in name]
  settings = [
    (c['sa_moon']['initial_temperature'], c['sa_moon']['acceptance'], c['seed'])
    for c in configs
  ]
  assert sorted(settings) == [
    (0.5, 'steps', 0),
    (1.0, 'steps', 0),
    (1.0, 'steps', 1),
    (1.0, 'temperatures', 0),
    (1.5, 'steps', 0),
    (2.0, 'steps', 0),
  ]
  yield f'**All {len(lost)} of SA-MOON diverged**'
  yield f', in rounds {min(ends)} to {max(ends)}; some'
  yield (
    f'came down to the floor in {len(lost) - len(above)}, and to '
    f'{min(above):.4f} to {max(above):.4f} in the others'
  )
  yield (
    f'rises by {line.slope:.2f} points for ten times the beta, 95 % from '
    f'{sign(line.slope - width, 2)} to {sign(line.slope + width, 2)}, p = '
    f'{line.pvalue:.2f} (planned)'
  )
  yield f'By seed the slopes are {listed(by_seed, 2)}'
  planned = [
    f'{stem}_{name}_seed{seed}'
    for stem in ('moon_cvpr21', 'curve_beta_0.05', 'curve_beta_0.3')
    for name in ('moon', 'fedavg')
    for seed in range(4, 12)
  ]
  left = len({*planned} - FROZEN.keys() - FROZEN_DIVERGED.keys())
  if FROZEN_DIVERGED:
    yield 'Diverged: ' + ', '.join(
      f'`{name}` in round {table.index[-1]}'
      for name, (_, table) in FROZEN_DIVERGED.items()
    )
  if left:
    yield f'Runs of the plan that are left: {left} of {len(planned)}.'
    yield f'{left} of {len(planned)} runs remain to be made.'
  else:
    ends = {name: end(name, 100, runs=FROZEN) for name in FROZEN}
    yield from plan_by_enumeration.planned_rows(ends, {*FROZEN_DIVERGED})
    yield from plan_by_enumeration.described_rows(ends, {*FROZEN_DIVERGED})
    yield '| beta 0.5 | by seed | mean, 95 % |'
  best = 100 * RUNS['moon_cvpr21_niid_bench_fedavg_seed0'][1].test_accuracy.max()
  yield f"has a best round of {best:.1f}, beside NIID-Bench's 68.2"
  fingerprint = json.loads((ROOT / 'papers/numerics.json').read_text())['fingerprint']
  yield f'fingerprint `{fingerprint}`'


SETS = {
  'watch': 'watch',
  'audio_prompts': 'speech',
  'randhie': 'table',
  'sotu': 'speeches',
  'shakespeare_roles': 'plays',
}
ON_ARRAYS = {
  'fedavg': 'FedAvg',
  'fedprox': 'FedProx, mu 0.01',
  'scaffold': 'SCAFFOLD',
  'moon': 'MOON, mu 1',
  'centralized': 'centralized, same users',
}


def outside_pictures():
  """The rows of seen and unseen users, and the sentences around them."""
  for data, title in SETS.items():
    for algorithm, words in ON_ARRAYS.items():
      stem = f'arrays_{data}_{algorithm}'
      seeds = [s for s in SEEDS if f'{stem}_seed{s}' in RUNS]
      cells = [f'{title}, {words}']
      for kind in ('seen', 'unseen'):
        column = f'user_accuracy_{kind}_mean'

        def mean_of_users(name, column=column):
          return late(name, column)

        of_seeds = [mean_of_users(f'{stem}_seed{s}') for s in seeds]
        cells.append(mean_and_deviation(of_seeds) if seeds else '')
        less = pairs(stem, f'arrays_{data}_fedavg', mean_of_users)
        cells.append(less_fedavg(less) if algorithm != 'fedavg' and less else '')
      lost = [s for s in SEEDS if f'{stem}_seed{s}' in DIVERGED]
      without_runs = f'{str(lost)[1:-1]}: diverged' if lost else 'not run'
      cells.append(', '.join(map(str, seeds)) or without_runs)
      yield f'| {" | ".join(cells)} |'
  watch, speech, table, speeches, plays = (
    f'{late(f"arrays_{data}_centralized_all_seed0"):.1f}' for data in SETS
  )
  yield (
    f'a network reaches {watch} % on watch, {speech} on speech, {table} on the table, '
    f'{speeches} on speeches, and {plays} on plays'
  )
  ends = {
    run[1].index[-1]
    for name, run in DIVERGED.items()
    if name.startswith('arrays_audio_prompts_scaffold')
  }
  yield f'in round {min(ends)} or {max(ends)}'


def less_fedavg(differences):
  words = sign(np.mean(differences))
  if len(differences) > 1:
    low, high = interval(differences)
    words += f' ({sign(low)} to {sign(high)})'
  return words


# --- the tests ------------------------------------------------------------------------


def flat(text):
  return ' '.join(text.split())


PAGE = (ROOT / 'docs/experiments.md').read_text()
EXPECTED = {
  'claims': lambda: claims(),
  'accuracies': lambda: accuracies(),
  **{
    f'{name}, round {last}': lambda name=name, last=last: curve_rows(name, last)
    for name in ALGORITHMS
    for last in (50, 100)
  },
  'means': lambda: [*mean_rows(100), *mean_rows(50)],
  'skew': lambda: skew_rows(),
  'appendix': lambda: tables_of_the_appendix(),
  'rivals': lambda: rivals(PAGE),
  'outside pictures': lambda: outside_pictures(),
  'costs': lambda: costs(PAGE, 'Costs and commits', RUNS),
  'costs of the next plan': lambda: costs(
    PAGE, 'The plan of the curve, and the next one', FROZEN
  ),
  'sentences': lambda: sentences(),
  'not run': lambda: not_run(PAGE),
}


@functools.cache
def expected_words(part):
  """What the page must have, with its spaces as on one line."""
  return [flat(words) for words in EXPECTED[part]()]


@pytest.mark.parametrize('part', EXPECTED)
def test_the_figures_are_those_of_the_records(part):
  page = flat(PAGE)
  assert expected_words(part)
  for words in expected_words(part):
    assert words in page, words


def test_no_other_figure_stands_on_the_page():
  """What is left without the figures above has only numbers of settings.

  A new number of a setting, or of a paper, goes into SETTINGS with its words; a result
  is computed above.
  """
  page = flat(re.sub(r'!\[[^]]*\]\([^)]*\)', '', PAGE))
  expected = [words for part in EXPECTED for words in expected_words(part)]
  settings = [flat(line) for line in SETTINGS.read_text().splitlines()]
  for words in sorted({*expected, *settings} - {''}, key=len, reverse=True):
    page = page.replace(words, ' # ')
  unexplained_numbers = re.findall(r'.{40}(?<![\w.])\d[\d.]*.{20}', page)
  assert not unexplained_numbers, '\n'.join(unexplained_numbers)


def test_what_the_page_calls_not_run_has_no_run():
  """Sentences of the template, which no number of the records would change."""
  not_run = (
    r'moon_cvpr21_(cifar100|tiny)',
    r'moon_cvpr21_mu_(0\.1|10)_',
    r'moon_cvpr21_.*_local_epochs=',
    r'dco_moon_cifar10_(?!dco_moon_optimizer.learning_rate=0.01_num_rounds=3)',
    r'sa_moon_initial_temperature_1_seed',
  )
  for pattern in not_run:
    assert not [name for name in RUNS if re.match(pattern, name)], pattern
  # 'One seed agrees', '(one seed)', 'one seed each'.
  of_one_seed = r'(review|dco_moon|sa_moon|moonflower_rate_0\.01|attacks)_.*_seed[1-9]'
  assert not [name for name in RUNS if re.match(of_one_seed, name)]


def test_every_p_is_planned_or_post_hoc():
  for match in re.finditer(r'\bp = [\d.]+', flat(PAGE)):
    context = flat(PAGE)[match.start() - 60 : match.end() + 20]
    assert 'planned' in context or 'post hoc' in context, context
