"""MOON on CIFAR-10 as in its paper: 10 clients, Dirichlet(0.5), 100 rounds.

  python launch.py --config=configs/cifar10_moon.py

Li et al. 2021 (arXiv:2103.16257), table 1, report 69.1 +- 0.4 % test accuracy. With
random crops and flips, as there; they make the frozen networks see every batch, so
--config.augmentation.name=none is faster. The partition is balanced as in its public
code (`partition.balance`). Unlike there partial batches are kept:
--config.drop_last=true is the paper's, as in configs/moon_cvpr21.py. A GPU is
advised. Prepared data is read from --config.data.dir or $TFDS_DATA_DIR, else
downloaded. Smoke test: add --config.num_rounds=2 --config.data.limit=1000.
"""

from configs import base


def get_config():
  config = base.get_config()
  config.model = 'moon_cnn'
  config.data.source = 'tfds'
  config.data.name = 'cifar10'
  config.augmentation.name = 'crop_flip'
  return config
