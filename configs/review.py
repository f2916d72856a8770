"""A review and reproduction of MOON: four algorithms on CIFAR-10, 20 clients.

  python launch.py --config=configs/review.py:list
  python launch.py --config=configs/review.py:scaffold

All clients, with Dirichlet(0.5) shares, take part in each of 40 rounds. The paper shows
figures (accuracy and training loss over the rounds). It finds that MOON, FedAvg and
FedProx are alike, that SCAFFOLD is the fastest early and ends highest, and that mu = 5
is worse than mu = 0.1. The paper does not state the other settings, so they are those
of the MOON paper: its network, its balanced partition (`partition.balance`), 10 local
epochs, batches of 64, learning rate 0.01, and mu = 0.01 for FedProx. Unlike there,
images are not augmented and partial batches are kept. SCAFFOLD's models are weighted by
numbers of examples; SCAFFOLD's own paper weights them equally
(`--config.client_weight=uniform`).
"""

from moon_jax.config import Variant, choose, defaults


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
  config = defaults()
  config.model = 'moon_cnn'
  config.data.source = 'tfds'
  config.data.name = 'cifar10'
  config.num_clients = 20
  config.num_rounds = 40
  return choose(config, VARIANTS, variant)
