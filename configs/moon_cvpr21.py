"""The experiments of the MOON paper (Li, He, Song, CVPR 2021, arXiv:2103.16257).

  python launch.py --config=configs/moon_cvpr21.py:list
  python launch.py --config=configs/moon_cvpr21.py:fedavg

There are 10 clients with Dirichlet(0.5) shares, 100 rounds of 10 local epochs, and
batches of 64. The optimizer is SGD with learning rate 0.01, momentum 0.9 and weight
decay 1e-5; mu is 5. Images are cropped and flipped at random, and the last partial
batch of an epoch is dropped.

The partition is that of MOON's public code: a client that holds its fair share gets no
more examples (`partition.balance`). The code redraws until each client has 10 examples.
Here each has at least 64, because a client with less than a batch would drop all its
examples, which is refused. SCAFFOLD's models are weighted by numbers of examples, as in
MOON's code; SCAFFOLD's own paper weights them equally
(`--config.client_weight=uniform`). SOLO trains for 300 local epochs in one round, so
its momentum is never reset.

On CIFAR-100 and Tiny-ImageNet the network is ResNet-50, mu is 1, and FedProx's mu is
0.001. Tiny-ImageNet has 20 rounds, and is read from its folder `tiny-imagenet-200`
(`--config.data.path`). As in the code, crops of CIFAR-100 have a black border, and
images of Tiny-ImageNet are not augmented. Two details differ from the code: it also
rotates images of CIFAR-100 by up to 15 degrees, and it normalises Tiny-ImageNet with a
mean and a deviation of 0.5, while here the data's own are used. If there are 100
clients, a fifth of them trains in each of 250 rounds.

The experiments `l2` have the distance of the representations in place of the
contrastive term. The paper reports the best of six mu and does not say which one it is;
here mu is 0.1. The experiments `niid_bench_...` repeat NIID-Bench (Li et al. 2022): 50
rounds, partial batches are kept, and the network has no projection head.
"""

from typing import Any, NamedTuple

from moon_jax.config import Variant, choose, import_config

cifar10_moon = import_config('cifar10_moon.py', relative_to=__file__)


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
      'moon_cnn.head': 'none',
      'partition.min_size': 10,
    },
  )


class _Row(NamedTuple):
  """A row of several of the paper's tables.

  Attributes:
    title: the algorithm, for `--config=FILE:list`.
    changes: dotted knob -> value.
  """

  title: str
  changes: dict[str, Any]


# Rows that several tables have. Those on CIFAR-100 and Tiny-ImageNet take all of them;
# those on CIFAR-10, where mu differs, stand in VARIANTS and take only SOLO and l2.
_SHARED_ROWS = {
  'moon': _Row('MOON', {'algorithm': 'moon', 'moon.mu': 1.0}),
  'moon_mu_10': _Row('MOON, mu 10', {'algorithm': 'moon', 'moon.mu': 10.0}),
  'fedavg': _Row('FedAvg', {'algorithm': 'fedavg'}),
  'fedprox': _Row('FedProx', {'algorithm': 'fedprox', 'fedprox.mu': 0.001}),
  'scaffold': _Row('SCAFFOLD', {'algorithm': 'scaffold'}),
  'solo': _Row(
    'SOLO, 300 epochs',
    {'algorithm': 'solo', 'participation': 1.0, 'num_rounds': 1, 'local_epochs': 300},
  ),
  'l2': _Row('l2 in place of MOON', {'algorithm': 'moon_l2'}),
}
_SOLO, _L2 = _SHARED_ROWS['solo'], _SHARED_ROWS['l2']
_CIFAR100 = {
  'data.name': 'cifar100',
  'model': 'resnet50',
  'augmentation.padding': 'zero',
}
_TINY = {
  'data.source': 'imagefolder',
  'data.path': 'tiny-imagenet-200',
  'model': 'resnet50',
  'augmentation.name': 'none',
  'num_rounds': 20,
}


def _table(prefix: str, setting: str, changes: dict, reported: dict):
  """The experiments of one column of the paper's tables, by name.

  Args:
    prefix: what their names begin with.
    setting: the column's title.
    changes: dotted knob -> value, for the whole column.
    reported: name of a row -> the paper's figure.
  """
  variants = {}
  for name, figure in reported.items():
    row = _SHARED_ROWS[name]
    variants[f'{prefix}_{name}'] = Variant(
      f'{row.title}, {setting}', figure, changes | row.changes
    )
  return variants


VARIANTS = {
  # CIFAR-10, of the MOON paper.
  'moon': _moon(5.0, "69.1 +- 0.4 (table 1), Flower's baseline 70.71"),
  'fedavg': Variant('FedAvg', '66.3 +- 0.5 (table 1)', {'algorithm': 'fedavg'}),
  'fedprox': Variant(
    'FedProx, mu 0.01',
    "66.9 +- 0.2 (table 1), Flower's baseline 68.52",
    {'algorithm': 'fedprox'},
  ),
  'scaffold': Variant('SCAFFOLD', '66.6 +- 0.2 (table 1)', {'algorithm': 'scaffold'}),
  'solo': Variant(_SOLO.title, '46.3 +- 5.1 over clients (table 1)', _SOLO.changes),
  **{f'mu_{mu:g}': _moon(mu, '') for mu in (0.1, 1.0, 10.0)},
  # CIFAR-10, of NIID-Bench.
  'niid_bench_fedavg': _bench('fedavg', 'FedAvg', '68.2 +- 0.7'),
  'niid_bench_fedprox': _bench('fedprox', 'FedProx', '67.9 +- 0.7'),
  'niid_bench_scaffold': _bench('scaffold', 'SCAFFOLD', '69.8 +- 0.7'),
  # CIFAR-10, of the MOON paper again.
  'l2': Variant(_L2.title, '65.8, the best of six mu (table 5)', _L2.changes),
  # CIFAR-100 and Tiny-ImageNet, of the MOON paper.
  **_table(
    'cifar100',
    'CIFAR-100, ResNet-50',
    _CIFAR100,
    {
      'moon': '67.5 +- 0.4 (table 1)',
      'fedavg': '64.5 +- 0.4 (table 1)',
      'fedprox': '64.6 +- 0.2 (table 1)',
      'scaffold': '52.5 +- 0.3 (table 1)',
      'solo': '22.3 +- 1.0 over clients (table 1)',
      'l2': '66.9, the best of six mu (table 5)',
    },
  ),
  **_table(
    'cifar100_beta_0.1',
    'CIFAR-100, beta 0.1',
    _CIFAR100 | {'partition.beta': 0.1},
    {
      'moon': '64.0 (table 4)',
      'fedavg': '62.5 (table 4)',
      'fedprox': '62.9 (table 4)',
      'scaffold': '47.3 (table 4)',
      'solo': '15.9 +- 1.5 over clients (table 4)',
    },
  ),
  **_table(
    'cifar100_beta_5',
    'CIFAR-100, beta 5',
    _CIFAR100 | {'partition.beta': 5.0},
    {
      'moon': '68.0 (table 4)',
      'fedavg': '65.7 (table 4)',
      'fedprox': '64.9 (table 4)',
      'scaffold': '55.0 (table 4)',
      'solo': '26.6 +- 1.4 over clients (table 4)',
    },
  ),
  **_table(
    'cifar100_50_clients',
    'CIFAR-100, 50 clients',
    _CIFAR100 | {'num_clients': 50},
    {
      'moon': '54.7 (table 3), 58.8 after 200 rounds',
      'moon_mu_10': '58.2 (table 3), 63.2 after 200 rounds',
      'fedavg': '51.9 (table 3), 56.4 after 200 rounds',
      'fedprox': '52.7 (table 3), 56.6 after 200 rounds',
      'scaffold': '35.8 (table 3), 44.9 after 200 rounds',
      'solo': '10.0 +- 0.9 over clients (table 3)',
    },
  ),
  **_table(
    'cifar100_100_clients',
    'CIFAR-100, 100 clients',
    _CIFAR100 | {'num_clients': 100, 'participation': 0.2, 'num_rounds': 250},
    {
      'moon': '54.5 (table 3), 58.2 after 500 rounds',
      'moon_mu_10': '56.9 (table 3), 61.8 after 500 rounds',
      'fedavg': '51.0 (table 3), 55.0 after 500 rounds',
      'fedprox': '51.3 (table 3), 54.6 after 500 rounds',
      'scaffold': '37.4 (table 3), 44.5 after 500 rounds',
      'solo': '7.3 +- 0.6 over clients (table 3)',
    },
  ),
  **_table(
    'tiny',
    'Tiny-ImageNet, ResNet-50',
    _TINY,
    {
      'moon': '25.1 +- 0.1 (table 1)',
      'fedavg': '23.0 +- 0.1 (table 1)',
      'fedprox': '23.2 +- 0.2 (table 1)',
      'scaffold': '16.0 +- 0.2 (table 1)',
      'solo': '8.6 +- 0.4 over clients (table 1)',
      'l2': '24.0, the best of six mu (table 5)',
    },
  ),
}


def changed(algorithm: str, title: str, changes: dict) -> Variant:
  """A variant of table 1 with changes, whose name is `title`; no value is reported."""
  base = VARIANTS[algorithm]
  return Variant(f'{base.setting}, {title}', '', base.changes | changes)


def get_config(variant='moon'):
  config = cifar10_moon.get_config()
  config.drop_last = True
  config.partition.min_size = 64
  return choose(config, VARIANTS, variant)
