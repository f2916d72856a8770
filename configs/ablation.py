"""Four algorithms, MOON with two mu, with one change to the MOON paper's setting.

  python launch.py --config=configs/ablation.py:list
  python launch.py --config=configs/ablation.py:no_head_moon

The question is whether a choice of the setting changes how these algorithms compare.
The setting is that of configs/moon_cvpr21.py, for 50 rounds. The changes are: the
network has no projection head; the partition is not balanced; all clients have the same
weight; the last partial batch of an epoch is kept.
"""

from moon_jax.config import choose, import_config

moon_cvpr21 = import_config('moon_cvpr21.py', relative_to=__file__)

_CHANGES = {
  'no_head': ('no head', {'moon_cnn.head': 'none'}),
  'no_balance': ('no balance', {'partition.balance': False}),
  'equal_weights': ('equal weights', {'client_weight': 'uniform'}),
  'all_batches': ('partial batches kept', {'drop_last': False}),
}
_ALGORITHMS = ('fedavg', 'fedprox', 'scaffold', 'moon', 'mu_1')

VARIANTS = {
  f'{change}_{algorithm}': moon_cvpr21.changed(algorithm, title, changes)
  for change, (title, changes) in _CHANGES.items()
  for algorithm in _ALGORITHMS
}


def get_config(variant='no_head_moon'):
  config = moon_cvpr21.get_config()
  config.num_rounds = 50
  return choose(config, VARIANTS, variant)
