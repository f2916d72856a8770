"""MOONFlower: MOON against FedAvg under heterogeneity and sparse sampling, CIFAR-10.

  python launch.py --config=configs/moonflower.py:list
  python launch.py --config=configs/moonflower.py:sparse_0.05

The network is the CNN of the PyTorch tutorial with a projection head. There are 10
clients with Dirichlet(0.5) shares and 100 rounds of 10 local epochs; mu is 5, and the
learning rate is 0.001. The experiments `sparse_...` have 100 clients, 250 rounds and
learning rate 0.01. Reported values are the mean +- standard deviation of 3 runs. The
paper shows the sweep of mu only in a figure, whose caption speaks of training accuracy
(`train_accuracy` of metrics.jsonl). The paper does not state momentum, weight decay and
batch size, so they are those of the MOON paper. Unlike there, images are not augmented
and partial batches are kept.

The paper describes a plain Dirichlet partition, so `partition.balance` is off. Without
the cap of MOON's code, the largest of 10 clients at beta = 0.1 holds 11,300 of 50,000
examples on average (8,700 to 14,600 in eight of ten draws); with the cap it holds 8,300
(7,200 to 9,500). The paper's public code does not shuffle batches, and its indices are
ordered by class; here batches are shuffled.
"""

from moon_jax.config import Variant, choose, defaults


def _pair(name: str, setting: str, reported: tuple[str, str], changes: dict):
  """Returns FedAvg and MOON in one setting, with (FedAvg's, MOON's) `reported`."""
  fedavg, moon = reported
  return {
    name: Variant(f'MOON, {setting}', moon, {'algorithm': 'moon', **changes}),
    f'{name}_fedavg': Variant(
      f'FedAvg, {setting}', fedavg, {'algorithm': 'fedavg', **changes}
    ),
  }


def _beta(beta: float, fedavg: str, moon: str):
  reported = (f'{fedavg} (table 2)', f'{moon} (table 2)')
  changes = {'partition.beta': beta}
  return _pair(f'beta_{beta:g}', f'beta {beta:g}', reported, changes)


def _sparse(fraction: float, fedavg: str, moon: str):
  reported = (f'{fedavg} (table 3)', f'{moon} (table 3)')
  setting = f'100 clients, {fraction:.0%} a round'
  changes = {
    'participation': fraction,
    'num_clients': 100,
    'num_rounds': 250,
    'optimizer.learning_rate': 0.01,
  }
  return _pair(f'sparse_{fraction:g}', setting, reported, changes)


def _mu(mu: float) -> Variant:
  changes = {'algorithm': 'moon', 'moon.mu': mu}
  return Variant(f'MOON, mu {mu:g}', 'figure only, of accuracy in training', changes)


def _rate(rate: float) -> Variant:
  changes = {'algorithm': 'fedavg', 'optimizer.learning_rate': rate}
  return Variant(f'FedAvg, learning rate {rate:g}', '', changes)


_LONG = {'local_epochs': 20, 'num_rounds': 50}
_NO_BETTER = 'text only: no better'
_STAYED = '10.0 (text)'

VARIANTS = {
  **_pair(
    'default',
    'the defaults',
    ('53.12 +- 2.89 (tables 1, 2)', '47.51 +- 1.29 (tables 1, 2)'),
    {},
  ),
  **_beta(0.1, '41.35 +- 0.81', '38.68 +- 2.39'),
  **_beta(5.0, '56.72 +- 0.38', '53.23 +- 0.78'),
  **_sparse(0.05, '50.27 +- 3.38', '51.12 +- 3.73'),
  **_sparse(0.1, '55.99 +- 1.63', '53.98 +- 2.48'),
  **_sparse(0.2, '56.50 +- 1.67', '56.33 +- 1.14'),
  **{f'mu_{mu:g}': _mu(mu) for mu in (0.1, 1.0, 3.0, 7.0)},
  # The learning rates that the paper tried; 0.001 is the default.
  **_pair(
    'rate_0.01',
    'learning rate 0.01',
    (_STAYED, _STAYED),
    {'optimizer.learning_rate': 0.01},
  ),
  **{f'rate_{rate:g}_fedavg': _rate(rate) for rate in (0.005, 0.0005, 0.0001)},
  **_pair('epochs_20', '20 local epochs, 50 rounds', (_NO_BETTER,) * 2, _LONG),
}


def get_config(variant='default'):
  config = defaults()
  config.model = 'tutorial_cnn'
  config.data.source = 'tfds'
  config.data.name = 'cifar10'
  config.optimizer.learning_rate = 0.001
  config.partition.balance = False
  return choose(config, VARIANTS, variant)
