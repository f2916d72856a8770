"""DCO-MOON: loss weights that follow the measured deviation; three data sets.

  python launch.py --config=configs/dco_moon.py:list
  python launch.py --config=configs/dco_moon.py:fashion_mnist_dco_moon

Its CNN, which represents an image by its logits, Dirichlet clients, 100 rounds;
FedProx with mu = 0.001, MOON with mu = 1. Table 2's DCO-MOON is table 1's with mu = 5.
What the paper does not state is as in the MOON paper: 10 clients, Dirichlet(0.5), 10
local epochs, batches of 64, learning rate 0.01, tau = 0.5. For theta = 0.1 see
docs/algorithms.md; the 28x28 images have the same layers. DCO-MOON multiplies each
step by mu, up to 2 mu: at a rate of 0.01 mu = 5 diverges in its first round, so its own
rate is 0.001.
"""

from configs import base
from moon_jax.config.variants import Variant, choose

_DATA = {'mnist': 'MNIST', 'fashion_mnist': 'Fashion-MNIST', 'cifar10': 'CIFAR-10'}

_BASELINES = {
  'fedavg': ('FedAvg', {}, ('97.9', '79.8', '65.2')),
  'fedprox': ('FedProx, mu 0.001', {'fedprox.mu': 0.001}, ('97.7', '81.9', '65.9')),
  'moon': ('MOON, mu 1', {'moon.mu': 1.0}, ('98.1', '83.1', '67.8')),
  'solo': ('SOLO', {}, ('89.8', '76.4', '45.7')),
  # Not in the paper.
  'scaffold': ('SCAFFOLD', {}, ()),
  'sa_moon': ('SA-MOON, mu 1', {'sa_moon.mu': 1.0}, ()),
}

_DCO_MOON = {
  0.1: ('96.9', '81.7', '65.7'),
  1.0: ('97.4', '84.2', '68.3'),
  5.0: ('98.3', '85.4', '69.5'),
  10.0: ('98.0', '84.8', '68.6'),
}


def _baseline(name: str, data: str, column: int) -> Variant:
  setting, changes, reported = _BASELINES[name]
  return Variant(
    f'{setting}, {_DATA[data]}',
    f'{reported[column]} (table 2)' if reported else '',
    {'algorithm': name, 'data.name': data, **changes},
  )


def _dco_moon(mu: float, data: str, column: int) -> Variant:
  tables = 'tables 1, 2' if mu == 5 else 'table 1'
  return Variant(
    f'DCO-MOON, mu {mu:g}, {_DATA[data]}',
    f'{_DCO_MOON[mu][column]} ({tables})',
    {
      'algorithm': 'dco_moon',
      'data.name': data,
      'dco_moon.mu': mu,
      'optimizer.learning_rate': 0.001,
    },
  )


def _variants() -> dict[str, Variant]:
  table = {}
  for column, data in enumerate(_DATA):
    table[f'{data}_dco_moon'] = _dco_moon(5.0, data, column)
    for name in _BASELINES:
      table[f'{data}_{name}'] = _baseline(name, data, column)
    for mu in (0.1, 1.0, 10.0):
      table[f'{data}_mu_{mu:g}'] = _dco_moon(mu, data, column)
  return table


VARIANTS = _variants()


def get_config(variant='cifar10_dco_moon'):
  config = base.get_config()
  config.model = 'dco_cnn'
  config.data.source = 'tfds'
  return choose(config, VARIANTS, variant)
