"""What attackers send, on models as plain vectors of float64.

IPM: Xie et al. 2019 (arXiv:1903.03936). ALIE: Baruch et al. 2019 (arXiv:1902.06156),
whose attackers know all honest models here.
"""

import statistics

import numpy as np

from tests.reference.networks import as_tree, vector


def sign_flip(trained, received, honest, num_attackers, scale):
  """received - scale (trained - received)."""
  return received - scale * (trained - received)


def ipm(trained, received, honest, num_attackers, epsilon):
  """received - epsilon (mean of the honest - received)."""
  return received - epsilon * (np.mean(honest, axis=0) - received)


def alie(trained, received, honest, num_attackers):
  """mean - z deviation, z where the attackers and few honest ones have a majority."""
  total = len(honest) + num_attackers
  supporters = max(total // 2 + 1 - num_attackers, 1)
  share = (len(honest) - supporters) / len(honest)
  z = max(statistics.NormalDist().inv_cdf(share), 0.0) if share > 0 else 0.0
  return np.mean(honest, axis=0) - z * np.std(honest, axis=0)


def sent(params, received, attackers, attack, **numbers):
  """The uploads that the server gets, after the attack.

  Args:
    params: list of trees, one for each client of the cohort.
    received: the tree that the server sent.
    attackers: their places in the list.
    attack: a function above.
    **numbers: of the attack.
  """
  honest = [vector(tree) for i, tree in enumerate(params) if i not in attackers]
  sent_trees = list(params)
  for i in attackers:
    malicious = attack(
      vector(params[i]), vector(received), honest, len(attackers), **numbers
    )
    sent_trees[i] = as_tree(malicious, params[i])
  return sent_trees
