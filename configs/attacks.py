"""Attacks against robust aggregation: Fashion-MNIST, 20 clients, a small perceptron.

  python launch.py --config=configs/attacks.py:list
  python launch.py --config=configs/attacks.py:alie_0.2_krum

10 to 40 % of all clients attack by ALIE or IPM. The server aggregates by the mean, the
median, the trimmed mean or Krum; the trimmed mean and Krum are set for the true number
of attackers. No paper has this setting: 10,000 training images are dealt out by
Dirichlet(0.5), and all clients train in each of 20 rounds, for 2 local epochs.
"""

from moon_jax.config import Variant, choose, defaults

CLIENTS, FRACTIONS = 20, (0.1, 0.2, 0.3, 0.4)
RULES = {
  'mean': lambda fraction: {'algorithm': 'fedavg', 'client_weight': 'uniform'},
  'median': lambda fraction: {'algorithm': 'median'},
  'trimmed': lambda fraction: {
    'algorithm': 'trimmed_mean',
    'trimmed_mean.trim': fraction,
  },
  'krum': lambda fraction: {
    'algorithm': 'krum',
    'krum.num_byzantine': round(CLIENTS * fraction),
  },
}
NAMES = {'mean': 'mean', 'median': 'median', 'trimmed': 'trimmed mean', 'krum': 'Krum'}


def _under(attack, fraction, rule):
  knobs = {'attack.name': attack, 'attack.fraction': fraction}
  setting = f'{attack.upper()} by {fraction:.0%}, {NAMES[rule]}'
  return Variant(setting, '', RULES[rule](fraction) | knobs)


VARIANTS = {
  **{rule: Variant(f'honest, {NAMES[rule]}', '', RULES[rule](0.0)) for rule in RULES},
  **{
    f'{attack}_{fraction}_{rule}': _under(attack, fraction, rule)
    for attack in ('alie', 'ipm')
    for fraction in FRACTIONS
    for rule in RULES
  },
}


def get_config(variant='mean'):
  config = defaults()
  config.model = 'mlp'
  config.data.source = 'tfds'
  config.data.name = 'fashion_mnist'
  config.data.limit = 10_000
  config.num_clients = CLIENTS
  config.num_rounds = 20
  config.local_epochs = 2
  return choose(config, VARIANTS, variant)
