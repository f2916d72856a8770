"""MOON, FedAvg, SCAFFOLD and FedProx under several degrees of label skew, on CIFAR-10.

  python launch.py --config=configs/curve.py:list
  python launch.py --config=configs/curve.py:beta_0.05_moon

The question is at which skew MOON's contrastive term helps and at which it hurts. The
setting is MOON's own (configs/moon_cvpr21.py, which has beta = 0.5), with other
partitions: Dirichlet with beta = 0.05, 0.1, 0.3 and 5, and shards of two classes. Runs
with the same seed share the partition, the first weights and the batches, so two
algorithms are compared in pairs of runs. In the experiments `same_partition_...`, runs
with different seeds share one partition, that of seed 0. docs/experiments.md explains
how the pairs are evaluated.
"""

from moon_jax.config import choose, import_config

moon_cvpr21 = import_config('moon_cvpr21.py', relative_to=__file__)

_COLUMNS = {
  **{
    f'beta_{beta:g}': (f'beta {beta:g}', {'partition.beta': beta})
    for beta in (0.05, 0.1, 0.3, 5.0)
  },
  'shards_2': ('shards of 2 classes', {'partition.name': 'shards'}),
}
_ALGORITHMS = ('fedavg', 'moon', 'mu_1', 'scaffold', 'fedprox')

VARIANTS = {
  f'{column}_{algorithm}': moon_cvpr21.changed(algorithm, title, changes)
  for column, (title, changes) in _COLUMNS.items()
  for algorithm in _ALGORITHMS
} | {
  f'same_partition_{algorithm}': moon_cvpr21.changed(
    algorithm, 'the partition of seed 0', {'partition.seed': 0}
  )
  for algorithm in ('fedavg', 'moon')
}


def get_config(variant='beta_0.05_moon'):
  return choose(moon_cvpr21.get_config(), VARIANTS, variant)
