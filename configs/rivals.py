"""MOON beside other algorithms: Fashion-MNIST, 20 clients, the MOON CNN.

  python launch.py --config=configs/rivals.py:list
  python launch.py --config=configs/rivals.py:fedntd

Each algorithm has the hyperparameters of its paper or of public code, or, where these
have none, our choice (docs/algorithms.md); none was tuned for this setting. The runs
show that all algorithms work; they do not rank them. No paper has this setting:
Dirichlet(0.1) shares, and half of the clients in each of 20 rounds of 2 local epochs. A
fifth of each client's examples is held out, to test that client.
"""

from moon_jax.config import Variant, choose, defaults

TITLES = {
  'fedavg': 'FedAvg',
  'fedprox': 'FedProx',
  'scaffold': 'SCAFFOLD',
  'moon': 'MOON, mu 1',
  'moon_l2': 'MOON with l2',
  'fedntd': 'FedNTD',
  'feddecorr': "FedDecorr, its code's scale",
  'feddecorr_equation': "FedDecorr, its paper's scale",
  'fedlc': 'FedLC',
  'fedrs': 'FedRS',
  'fedsam': 'FedSAM',
  'mofedsam': 'MoFedSAM',
  'feddyn': 'FedDyn',
  'fednova': 'FedNova',
  'fedexp': 'FedExP',
  'fedproc': 'FedProc',
  'fedproto': 'FedProto',
  'fedper': 'FedPer',
  'fedbabu': 'FedBABU, fine-tuned',
  'ditto': 'Ditto',
  'solo': 'SOLO',
}
_MORE = {
  'feddecorr_equation': {'algorithm': 'feddecorr', 'feddecorr.scale': 'equation'},
  'moon': {'moon.mu': 1.0},
  'fedproc': {'fedproc.rise': 20.0},  # the weight reaches 1 at the end, as in its paper
  'fedbabu': {'fine_tune_epochs': 5},
}

VARIANTS = {
  name: Variant(title, '', {'algorithm': name} | _MORE.get(name, {}))
  for name, title in TITLES.items()
}


def get_config(variant='fedavg'):
  config = defaults()
  config.model = 'moon_cnn'
  config.data.source = 'tfds'
  config.data.name = 'fashion_mnist'
  config.data.local_test = 0.2
  config.num_clients = 20
  config.participation = 0.5
  config.num_rounds = 20
  config.local_epochs = 2
  config.partition.beta = 0.1
  config.partition.min_size = 30
  return choose(config, VARIANTS, variant)
