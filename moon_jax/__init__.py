"""A vectorized simulator of model-contrastive federated learning.

  load_config, run, rounds, load     experiments from Python, as from the shell
  register_algorithm, register_...   parts of your own, with knobs
  Algorithm, Upload, ...             what an algorithm is made of

What needs JAX is imported when it is first used.
"""

import importlib
from typing import Any

__version__ = '0.2.0'

# Public name -> its module.
_PUBLIC = {
  'Algorithm': 'algorithms.base',
  'Bound': 'catalog',
  'Metric': 'catalog',
  'Outputs': 'types',
  'Partition': 'data.partition',
  'Server': 'types',
  'Upload': 'types',
  'above': 'catalog',
  'at_least': 'catalog',
  'between': 'catalog',
  'knob': 'catalog',
  'load': 'inference',
  'load_config': 'api',
  'one_of': 'catalog',
  'register_algorithm': 'catalog',
  'register_augmentation': 'catalog',
  'register_data': 'catalog',
  'register_model': 'catalog',
  'register_partition': 'catalog',
  'rounds': 'api',
  'run': 'api',
}
__all__ = ['__version__', *_PUBLIC]


def __getattr__(name: str) -> Any:
  if name not in _PUBLIC:
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  return getattr(importlib.import_module(f'{__name__}.{_PUBLIC[name]}'), name)


def __dir__() -> list[str]:
  return __all__
