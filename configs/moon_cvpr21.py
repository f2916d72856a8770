"""MOON's own paper (Li, He, Song, CVPR 2021, arXiv:2103.16257) and two echoes of it.

  python launch.py --config=configs/moon_cvpr21.py:list
  python launch.py --config=configs/moon_cvpr21.py:fedavg

10 clients, Dirichlet(0.5), 100 rounds of 10 local epochs, batches of 64, SGD with
learning rate 0.01, momentum 0.9, weight decay 1e-5; random crops and flips, the last
partial batch is dropped; mu = 5. The partition is that of MOON's public code: a client
that holds its fair share gets no more (`partition.balance`). The code redraws until
each client has 10 examples; here it is 64, because a client with less than a batch
would drop all its examples, which is refused. SCAFFOLD's models are averaged by
samples, as in MOON's code; SCAFFOLD's own paper averages uniformly
(`--config.client_weight=uniform`). SOLO trains for 300 local epochs in one round, so
its momentum is never reset. CIFAR-100 is trained with ResNet-50, mu = 1.
NIID-Bench (Li et al. 2022) has 50 rounds and keeps partial batches. Its network has no
head like MOON's; here it has one.
"""

from configs import base
from moon_jax.config import Variant, choose


def _moon(mu: float, reported: str) -> Variant:
  changes = {'algorithm': 'moon', 'moon.mu': mu}
  return Variant(f'MOON, mu {mu:g}', reported, changes)


def _bench(algorithm: str, name: str, reported: str) -> Variant:
  return Variant(
    f'{name}, NIID-Bench: 50 rounds',
    f'{reported} (NIID-Bench)',
    {
      'algorithm': algorithm,
      'num_rounds': 50,
      'drop_last': False,
      'partition.min_size': 10,
    },
  )


_CIFAR100 = {'data.name': 'cifar100', 'model': 'resnet50'}


VARIANTS = {
  'moon': _moon(5.0, '69.1 +- 0.4 (table 1); a re-implementation 70.71'),
  'fedavg': Variant('FedAvg', '66.3 +- 0.5 (table 1)', {'algorithm': 'fedavg'}),
  'fedprox': Variant(
    'FedProx, mu 0.01',
    '66.9 +- 0.2 (table 1); a re-implementation 68.52',
    {'algorithm': 'fedprox'},
  ),
  'scaffold': Variant('SCAFFOLD', '66.6 +- 0.2 (table 1)', {'algorithm': 'scaffold'}),
  'solo': Variant(
    'SOLO, 300 epochs',
    '46.3 +- 5.1 over clients (table 1)',
    {'algorithm': 'solo', 'num_rounds': 1, 'local_epochs': 300},
  ),
  **{f'mu_{mu:g}': _moon(mu, '') for mu in (0.1, 1.0, 10.0)},
  'niid_bench_fedavg': _bench('fedavg', 'FedAvg', '68.2'),
  'niid_bench_fedprox': _bench('fedprox', 'FedProx', '67.9'),
  'niid_bench_scaffold': _bench('scaffold', 'SCAFFOLD', '69.8'),
  'cifar100_moon': Variant(
    'MOON, CIFAR-100, ResNet-50',
    '67.5 +- 0.4 (table 1)',
    {'algorithm': 'moon', 'moon.mu': 1.0, **_CIFAR100},
  ),
  'cifar100_fedavg': Variant(
    'FedAvg, CIFAR-100, ResNet-50',
    '64.5 +- 0.4 (table 1)',
    {'algorithm': 'fedavg', **_CIFAR100},
  ),
}


def get_config(variant='moon'):
  config = base.get_config()
  config.model = 'moon_cnn'
  config.data.source = 'tfds'
  config.data.name = 'cifar10'
  config.augmentation.name = 'crop_flip'
  config.drop_last = True
  config.partition.min_size = 64
  return choose(config, VARIANTS, variant)
