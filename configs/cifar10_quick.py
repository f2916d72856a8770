"""draft"""

from moon_jax.config import defaults


def get_config():
  config = defaults()
  config.algorithm = 'fedavg'
  config.model = 'moon_cnn'
  config.num_rounds = 60
  config.local_epochs = 2
  config.eval_every_rounds = 5
  config.data.source = 'tfds'
  config.data.name = 'cifar10'
  config.augmentation.name = 'crop_flip'
  return config
