"""A review and reproduction of MOON: four algorithms on CIFAR-10, 20 clients.

  python launch.py --config=configs/review.py:list
  python launch.py --config=configs/review.py:scaffold

All clients take part in each of 40 rounds, Dirichlet(0.5). The paper shows figures
(accuracy and training loss against rounds). It finds MOON, FedAvg and FedProx alike,
SCAFFOLD fastest early and highest, and mu = 5 worse than 0.1. Settings that the paper
does not state are those of the MOON paper: its network, its balanced partition
(`partition.balance`), 10 local epochs, batches of 64, learning rate 0.01; FedProx has
mu = 0.01. But images are not augmented and partial batches are kept. SCAFFOLD's models
are averaged by samples; SCAFFOLD's own paper averages uniformly
(`--config.client_weight=uniform`).
"""

from configs import base
from moon_jax.config import Variant, choose


def _moon(mu: float, reported: str) -> Variant:
  changes = {'algorithm': 'moon', 'moon.mu': mu}
  return Variant(f'MOON, mu {mu:g}', reported, changes)


VARIANTS = {
  'moon': _moon(0.1, 'figure only'),
  'fedavg': Variant('FedAvg', 'figure only', {'algorithm': 'fedavg'}),
  'fedprox': Variant('FedProx', 'figure only', {'algorithm': 'fedprox'}),
  'scaffold': Variant('SCAFFOLD', 'figure only', {'algorithm': 'scaffold'}),
  **{f'mu_{mu:g}': _moon(mu, 'text only') for mu in (0.01, 1.0, 5.0)},
}


def get_config(variant='moon'):
  config = base.get_config()
  config.model = 'moon_cnn'
  config.data.source = 'tfds'
  config.data.name = 'cifar10'
  config.num_clients = 20
  config.num_rounds = 40
  return choose(config, VARIANTS, variant)
