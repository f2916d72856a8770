"""A vectorized simulator of model-contrastive federated learning.

  load_config, run, rounds, load     experiments from Python, as from the shell
  sweep                              many of them, one table
  register_algorithm, register_...   parts of your own, with knobs
  Callback                           what happens beside the rounds of a run
  Algorithm, Task, Batch, ...        what an algorithm is made of, and is given
  errors                             what ends a run

What needs JAX is imported when it is first used.
"""

import importlib
from typing import Any

__version__ = '0.2.0'

# Module -> its public names.
_BOUNDS = ('Bound', 'above', 'at_least', 'between', 'one_of')
_KINDS = ('algorithm', 'augmentation', 'callback', 'data', 'model', 'partition')
_MODULES = {
  'algorithms.base': ('Algorithm', 'Second'),
  'api': ('load_config', 'rounds', 'run', 'sweep'),
  'catalog.parts': ('Metric', 'knob', *_BOUNDS),
  'catalog.registering': tuple(f'register_{kind}' for kind in _KINDS),
  'core.errors': ('errors',),
  'core.tree': ('tree',),
  'core.types': ('Batch', 'Outputs', 'Server', 'Task', 'Upload', 'Uploads'),
  'data.partition': ('Partition',),
  'predict.inference': ('load',),
  'runner.callbacks': ('Callback',),
}
_PUBLIC = {name: module for module, names in _MODULES.items() for name in names}
__all__ = ['__version__', *_PUBLIC]


def __getattr__(name: str) -> Any:
  if name not in _PUBLIC:
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  module = importlib.import_module(f'{__name__}.{_PUBLIC[name]}')
  return module if module.__name__.endswith(f'.{name}') else getattr(module, name)


def __dir__() -> list[str]:
  return __all__
