"""A vectorized simulator of model-contrastive federated learning.

  load_config, run, rounds, load     experiments from Python, as from the shell
  sweep                              many of them, one table
  register_algorithm, register_...   parts of your own, with knobs
  Callback                           what happens beside the rounds of a run
  Algorithm, Upload, ...             what an algorithm is made of

What needs JAX is imported when it is first used.
"""

import importlib
from typing import Any

__version__ = '0.2.0'

# Module -> its public names.
_BOUNDS = ('Bound', 'above', 'at_least', 'between', 'one_of')
_KINDS = ('algorithm', 'augmentation', 'callback', 'data', 'model', 'partition')
_MODULES = {
  'algorithms.base': ('Algorithm',),
  'api': ('load_config', 'rounds', 'run', 'sweep'),
  'catalog.parts': ('Metric', 'knob', *_BOUNDS),
  'catalog.registering': tuple(f'register_{kind}' for kind in _KINDS),
  'data.partition': ('Partition',),
  'inference': ('load',),
  'runner.callbacks': ('Callback',),
  'types': ('Outputs', 'Server', 'Upload'),
}
_PUBLIC = {name: module for module, names in _MODULES.items() for name in names}
__all__ = ['__version__', *_PUBLIC]


def __getattr__(name: str) -> Any:
  if name not in _PUBLIC:
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  return getattr(importlib.import_module(f'{__name__}.{_PUBLIC[name]}'), name)


def __dir__() -> list[str]:
  return __all__
