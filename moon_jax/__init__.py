"""A vectorized simulator of model-contrastive federated learning.

  load_config, run, rounds, load     run experiments from Python, as from the shell
  sweep                              runs many of them, for one table
  register_algorithm, register_...   add parts of your own, with knobs
  Callback                           sees each round of a run, and may end the run
  Algorithm, Task, Batch, ...        are what an algorithm is made of and what it gets
  errors                             holds the exceptions that end a run

A module that needs JAX is imported when one of its names is first used.
"""

import importlib
from typing import Any

__version__ = '0.3.0'

# Module -> its public names.
_MODULES = {
  'algorithms.base': ('Algorithm', 'SecondTraining'),
  'api': ('load_config', 'rounds', 'run', 'sweep'),
  'catalog.entries': (
    'Bound',
    'Metric',
    'above',
    'at_least',
    'between',
    'knob',
    'one_of',
  ),
  'catalog.registering': (
    'register_algorithm',
    'register_augmentation',
    'register_callback',
    'register_data',
    'register_metric',
    'register_model',
    'register_optimizer',
    'register_partition',
    'register_schedule',
  ),
  'core.errors': ('errors',),
  'core.tree': ('tree',),
  'core.types': ('Batch', 'Outputs', 'Server', 'Task', 'Upload', 'Uploads'),
  'data.partition': ('Partition',),
  'metrics.classified': ('Classified',),
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
