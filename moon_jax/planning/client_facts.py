"""What clients know about their data. Plain NumPy."""

import numpy as np


def facts_of_clients(
  fact_names: frozenset[str],
  class_counts: np.ndarray,
  label_flippers: np.ndarray,
  epoch_steps: np.ndarray | None = None,
) -> dict[str, np.ndarray]:
  """What clients know about their data, name -> [N, ...]; see `Algorithm.needs`.

  Args:
    fact_names: the names of these facts.
    class_counts: [N, Y] training examples of each client and class, with true labels.
    label_flippers: ids of clients that flip labels: they count the flipped labels.
    epoch_steps: [N] steps of a pass, if it is one of the facts.
  """
  counts_in_training = class_counts.copy()
  counts_in_training[label_flippers] = class_counts[label_flippers, ::-1]
  sizes = class_counts.sum(axis=1)
  facts = {
    'class_counts': counts_in_training,
    'relative_size': sizes / sizes.mean(),
    'epoch_steps': epoch_steps,
  }
  return {name: facts[name] for name in sorted(fact_names)}
