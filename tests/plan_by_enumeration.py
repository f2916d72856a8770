"""The tables of the next plan of docs/experiments.md, without any code of papers/.

They were written while runs of the plan were missing, so that no result chose them.
"""

import itertools
import math

import numpy as np
from scipy import stats

SEEDS = range(4, 12)
# Skew -> what the names of its runs begin with.
SKEWS = {
  'beta 0.05': 'curve_beta_0.05_',
  'beta 0.3': 'curve_beta_0.3_',
  'beta 0.5': 'moon_cvpr21_',
}
TITLES = {
  'moon': 'MOON',
  'fedprox': 'FedProx',
  'scaffold': 'SCAFFOLD',
  'fedavg': 'FedAvg',
}


def sign(number):
  """'+0.9', and '0.0' without a sign."""
  text = f'{number:+.1f}'
  return text if float(text) else text[1:]


def signed_rank_p(differences):
  """Wilcoxon's two-sided p-value: the share of signs of the ranks as extreme as those.

  A difference of 0 is left out, and equal ones share their mean rank.
  """
  numbers = [round(difference, 6) for difference in differences if round(difference, 6)]
  in_order = sorted(map(abs, numbers))
  ranks = [
    np.mean([place for place, size in enumerate(in_order, 1) if size == abs(number)])
    for number in numbers
  ]
  measured = sum_of_positive(ranks, [number > 0 for number in numbers])
  sums = [
    sum_of_positive(ranks, signs)
    for signs in itertools.product((False, True), repeat=len(ranks))
  ]
  as_low = np.mean([one <= measured + 1e-9 for one in sums])
  as_high = np.mean([one >= measured - 1e-9 for one in sums])
  return min(1.0, 2 * min(as_low, as_high))


def sum_of_positive(ranks, are_positive):
  return sum(
    r for r, is_positive in zip(ranks, are_positive, strict=True) if is_positive
  )


def holm(p_values):
  """Holm's correction: each p times the number of those that are no smaller."""
  adjusted = []
  for p in p_values:
    smaller = [other for other in p_values if other <= p]
    steps = [
      (len(p_values) - rank) * other for rank, other in enumerate(sorted(smaller))
    ]
    adjusted.append(min(1.0, max(steps)))
  return adjusted


def planned_rows(ends, lost):
  """The rows of MOON - FedAvg.

  Args:
    ends: name of a finished run -> its endpoint in per cent.
    lost: names of the runs that diverged.
  """
  of_skews = {}
  for skew, stem in SKEWS.items():
    of_skews[skew] = []
    for seed in SEEDS:
      moon, fedavg = (f'{stem}{name}_seed{seed}' for name in ('moon', 'fedavg'))
      if {moon, fedavg} <= lost:
        of_skews[skew].append(None)
      elif moon in lost:
        of_skews[skew].append(-math.inf)
      elif fedavg in lost:
        of_skews[skew].append(math.inf)
      else:
        of_skews[skew].append(ends[moon] - ends[fedavg])
  known = [[n for n in numbers if n is not None] for numbers in of_skews.values()]
  p_values = [signed_rank_p(numbers) for numbers in known]
  words = {
    None: 'both diverged',
    -math.inf: 'MOON diverged',
    math.inf: 'FedAvg diverged',
  }
  for (skew, numbers), p, adjusted in zip(
    of_skews.items(), p_values, holm(p_values), strict=True
  ):
    by_seed = ', '.join(words.get(n) or sign(n) for n in numbers)
    mean = '' if {*words} & {*numbers} else mean_and_interval(numbers)
    median = middle_of([n for n in numbers if n is not None])
    verdict = 'undecided'
    if adjusted < 0.05:
      wins = sum(n > 0 for n in numbers if n is not None)
      losses = sum(n < 0 for n in numbers if n is not None)
      verdict = 'higher' if wins > losses else 'lower'
    cells = [skew, by_seed, median, mean, f'{p:.3f}', f'{adjusted:.3f}', verdict]
    yield f'| {" | ".join(cells)} |'


def mean_and_interval(numbers):
  width = stats.t.ppf(0.975, len(numbers) - 1) * stats.sem(numbers)
  middle = np.mean(numbers)
  return f'{sign(middle)} ({sign(middle - width)} to {sign(middle + width)})'


def middle_of(numbers):
  """The median; '' if a run that diverged is in the middle."""
  if not numbers:
    return ''
  with np.errstate(invalid='ignore'):  # the mean of both infinities
    median = np.median(numbers)
  return sign(median) if np.isfinite(median) else ''


def described_rows(ends, lost):
  """The rows of the other differences at beta 0.5, and those of crossed seeds."""
  for first, second in (
    ('moon', 'fedprox'),
    ('moon', 'scaffold'),
    ('fedprox', 'fedavg'),
    ('scaffold', 'fedavg'),
  ):
    cells = []
    numbers = []
    for seed in SEEDS:
      names = [f'moon_cvpr21_{name}_seed{seed}' for name in (first, second)]
      if lost & {*names}:
        cells.append('diverged')
      elif {*names} <= {*ends}:
        numbers.append(ends[names[0]] - ends[names[1]])
        cells.append(sign(numbers[-1]))
      else:
        cells.append('not run')
    mean = mean_and_interval(numbers) if len(numbers) == len(SEEDS) else ''
    yield f'| {TITLES[first]} - {TITLES[second]} | {", ".join(cells)} | {mean} |'
  for seed in (4, 5):
    for partition_seed in (4, 5):
      other = '' if seed == partition_seed else f'partition.seed={partition_seed}_'
      names = [f'moon_cvpr21_{name}_{other}seed{seed}' for name in ('fedavg', 'moon')]
      cells = []
      for name in names:
        without_end = 'diverged' if name in lost else 'not run'
        cells.append(f'{ends[name]:.1f}' if name in ends else without_end)
      difference = ''
      if {*names} <= {*ends}:
        difference = sign(ends[names[1]] - ends[names[0]])
      yield f'| {seed} | {partition_seed} | {" | ".join([*cells, difference])} |'
