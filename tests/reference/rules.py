"""Server rules in place of the mean, on models as plain vectors of float64.

Median and trimmed mean: Yin et al. 2018 (arXiv:1803.01498). Krum and multi-Krum:
Blanchard et al. 2017 (arXiv:1703.02757).
"""

import numpy as np

from tests.reference.networks import as_tree, vector


def median(vectors):
  """[n, P] -> [P]."""
  return np.median(vectors, axis=0)


def trimmed_mean(vectors, trim):
  """[n, P] -> [P]: each coordinate's mean but for floor(trim n) at either end."""
  cut = int(trim * len(vectors))
  columns = [np.sort(column) for column in np.transpose(vectors)]
  columns = [column[cut : len(column) - cut] for column in columns]
  return np.array([sum(column) / len(column) for column in columns])


def krum(vectors, num_byzantine, num_selected, compared):
  """[n, P] -> [P]: the mean of the best; only the first `compared` numbers decide."""
  scores = []
  for i, mine in enumerate(vectors):
    distances = sorted(
      float(np.sum((mine[:compared] - other[:compared]) ** 2))
      for j, other in enumerate(vectors)
      if j != i
    )
    scores.append(sum(distances[: max(len(vectors) - num_byzantine - 2, 1)]))
  best = sorted(range(len(vectors)), key=lambda i: (scores[i], i))[:num_selected]
  return np.mean([vectors[i] for i in best], axis=0)


def combined(models, options):
  """The Model that options.algorithm, one of RULES, makes of a list of Models."""
  vectors = np.array([vector(model) for model in models])
  of_krum = options.num_byzantine, options.num_selected, len(vector(models[0].params))
  rule = {
    'median': lambda: median(vectors),
    'trimmed_mean': lambda: trimmed_mean(vectors, options.trim),
    'krum': lambda: krum(vectors, *of_krum),
  }
  return as_tree(rule[options.algorithm](), models[0])


RULES = ('median', 'trimmed_mean', 'krum')
