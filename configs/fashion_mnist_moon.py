"""MOON on Fashion-MNIST in the setting of the MOON paper: 10 clients, Dirichlet(0.5).

  python launch.py --config=configs/fashion_mnist_moon.py

The paper reports no result on this data set. The partition is balanced as in the
paper's public code (`partition.balance`). Unlike in the paper, images are not augmented
and partial batches are kept. Prepared data are read from --config.data.dir or
$TFDS_DATA_DIR, and downloaded if they are not there. For a quick trial, add
--config.num_rounds=2 --config.data.limit=1000.
"""

from moon_jax.config import defaults


def get_config():
  config = defaults()
  config.model = 'moon_cnn'
  config.data.source = 'tfds'
  config.data.name = 'fashion_mnist'
  return config
