"""Where MOON's contrastive term helps and where it hurts: over the clients' skew.

  python launch.py --config=configs/curve.py:list
  python launch.py --config=configs/curve.py:beta_0.05_moon

MOON's own setting on CIFAR-10 (configs/moon_cvpr21.py, which is the column beta 0.5)
with other partitions: Dirichlet with beta 0.05, 0.1, 0.3 and 5, and shards of two
classes. The same seed gives the same partition, first weights and batches to every
algorithm, so their runs are pairs. In `same_partition_...` all seeds of a run share the
partition of seed 0. docs/experiments.md says how the runs are read.
"""

from configs import moon_cvpr21
from moon_jax.config import Variant, choose

_COLUMNS = {
  **{
    f'beta_{beta:g}': (f'beta {beta:g}', {'partition.beta': beta})
    for beta in (0.05, 0.1, 0.3, 5.0)
  },
  'shards_2': ('shards of 2 classes', {'partition.name': 'shards'}),
}
_ALGORITHMS = ('fedavg', 'moon', 'mu_1', 'scaffold', 'fedprox')


def _variant(algorithm: str, told: str, changes: dict) -> Variant:
  base = moon_cvpr21.VARIANTS[algorithm]
  return Variant(f'{base.setting}, {told}', '', base.changes | changes)


VARIANTS = {
  f'{column}_{algorithm}': _variant(algorithm, told, changes)
  for column, (told, changes) in _COLUMNS.items()
  for algorithm in _ALGORITHMS
} | {
  f'same_partition_{algorithm}': _variant(
    algorithm, 'the partition of seed 0', {'partition.seed': 0}
  )
  for algorithm in ('fedavg', 'moon')
}


def get_config(variant='beta_0.05_moon'):
  return choose(moon_cvpr21.get_config(), VARIANTS, variant)
