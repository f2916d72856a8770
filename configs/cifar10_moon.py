"""MOON on CIFAR-10 as in its paper: 10 clients, Dirichlet(0.5), 100 rounds.

  python launch.py --config=configs/cifar10_moon.py

Li et al. 2021 (arXiv:2103.16257) report 69.1 +- 0.4 % test accuracy in table 1. Images
are cropped and flipped at random, as in the paper, so the frozen networks run on every
batch; --config.augmentation.name=none is faster. The partition is balanced as in the
paper's public code (`partition.balance`). Unlike in the paper, partial batches are
kept; --config.drop_last=true drops them, as configs/moon_cvpr21.py does. A GPU is
advised. Prepared data are read from --config.data.dir or $TFDS_DATA_DIR, and downloaded
if they are not there. For a quick trial, add
--config.num_rounds=2 --config.data.limit=1000.
"""

from moon_jax.config import defaults


def get_config():
  config = defaults()
  config.model = 'moon_cnn'
  config.data.source = 'tfds'
  config.data.name = 'cifar10'
  config.augmentation.name = 'crop_flip'
  return config
