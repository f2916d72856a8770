"""Which knobs go together, and which may change when a run is resumed?"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from moon_jax.config.messages import problem
from moon_jax.config.schema import (
  ALGORITHMS,
  DECENTRALIZED,
  MODELS,
  NORMALISED,
  SERVED,
  Config,
  flatten,
)

_SEVERAL_CLIENTS = tuple(name for name in ALGORITHMS if name != 'centralized')

# A knob or group -> the knob that decides whether it is used, and for which values.
_USED_WHEN = {
  'num_clients': ('algorithm', _SEVERAL_CLIENTS),
  'participation': ('algorithm', _SEVERAL_CLIENTS),
  'partition': ('algorithm', _SEVERAL_CLIENTS),
  'client_weight': ('algorithm', SERVED),
  'batch_norm': ('model', NORMALISED),
  'server_optimizer': ('algorithm', SERVED),
  'server_optimizer.momentum': ('server_optimizer.name', ('sgd',)),
  'topology': ('algorithm', DECENTRALIZED),
  'topology.degree': ('topology.name', ('ring',)),
  'topology.edge_probability': ('topology.name', ('erdos_renyi',)),
  'optimizer.momentum': ('optimizer.name', ('sgd',)),
  'optimizer.nesterov': ('optimizer.name', ('sgd',)),
  'optimizer.decay': ('optimizer.schedule', ('exponential', 'step')),
  'optimizer.decay_every': ('optimizer.schedule', ('exponential', 'step')),
  'moon': ('algorithm', ('moon', 'decentralized_moon')),
  'sa_moon': ('algorithm', ('sa_moon',)),
  'dco_moon': ('algorithm', ('dco_moon',)),
  'fedprox': ('algorithm', ('fedprox',)),
  'mlp': ('model', ('mlp',)),
  'cnn_transformer': ('model', ('cnn_transformer',)),
  'partition.beta': ('partition.name', ('dirichlet', 'quantity')),
  'partition.classes_per_client': ('partition.name', ('shards',)),
  'partition.noise_sigma': ('partition.name', ('noise',)),
  'augmentation.padding': ('augmentation.name', ('crop_flip',)),
  'execution.convolution': ('model', tuple(name for name in MODELS if name != 'mlp')),
  'execution.cache_mib': (
    'algorithm',
    ('moon', 'sa_moon', 'dco_moon', 'decentralized_moon'),
  ),
  'data.name': ('data.source', ('tfds',)),
  'data.dir': ('data.source', ('tfds',)),
  'data.path': ('data.source', ('npz',)),
}

# A knob that may be empty in general -> the knob and value with which it may not.
_NEEDED_WHEN = {
  'data.name': ('data.source', 'tfds'),
  'data.path': ('data.source', 'npz'),
}

# Knobs that may differ when a run is resumed. Those of the execution change results by
# float32 rounding only, on_nonfinite nothing before the first NaN or Inf. What data.dir
# holds is compared itself.
MAY_CHANGE = (
  'num_rounds',
  'eval_every_rounds',
  'checkpoint_every_rounds',
  'on_nonfinite',
  'data.dir',
  'execution.devices',
  'execution.lanes',
  'execution.convolution',
  'execution.cache_mib',
  'execution.deterministic',
  'execution.compile_cache',
  'execution.profile',
)


def conflicts(valid: Mapping[str, Any], given: Iterable[str]) -> list[str]:
  """Problems between knobs that are each valid alone."""
  problems = []
  for name in given:
    for part, (decider, chosen) in _USED_WHEN.items():
      if _is_part(name, part) and valid.get(decider, chosen[0]) not in chosen:
        problems.append(
          f'--config.{name} is not used with --config.{decider}={valid[decider]}; '
          f'it belongs to {" or ".join(chosen)}.'
        )
  for name, (decider, chosen) in _NEEDED_WHEN.items():
    if valid.get(decider) == chosen and valid.get(name) == '':
      problems.append(f'--config.{name} is needed with --config.{decider}={chosen}.')
  return problems + _algorithm_conflicts(valid) + _topology_conflicts(valid)


def _algorithm_conflicts(valid: Mapping[str, Any]) -> list[str]:
  """What the chosen algorithm cannot do."""
  problems, algorithm = [], valid.get('algorithm')
  plain = valid.get('optimizer.name') == 'sgd' and not valid.get('optimizer.nesterov')
  if algorithm == 'scaffold' and 'optimizer.name' in valid and not plain:
    problems.append(
      '--config.algorithm=scaffold needs --config.optimizer.name=sgd without nesterov: '
      'it divides by how far SGD comes in so many steps.'
    )
  if algorithm == 'dco_moon' and valid.get('dco_moon.normalise'):
    mu = valid.get('dco_moon.mu')
    if mu == 0:
      wanted = 'above 0 with --config.dco_moon.normalise=true, which divides by it'
      problems.append(problem('dco_moon.mu', mu, wanted))
  start, low = (
    valid.get(f'sa_moon.{name}') for name in ('initial_temperature', 'min_temperature')
  )
  if algorithm == 'sa_moon' and None not in (start, low) and low > start:
    wanted = f'at most --config.sa_moon.initial_temperature={start}'
    problems.append(problem('sa_moon.min_temperature', low, wanted))
  return problems


def _topology_conflicts(valid: Mapping[str, Any]) -> list[str]:
  """A ring whose clients have more neighbours than there are others."""
  degree, num_clients = valid.get('topology.degree'), valid.get('num_clients')
  if 'topology.degree' not in used(valid) or None in (degree, num_clients):
    return []
  if degree < num_clients:
    return []
  wanted = f'below --config.num_clients={num_clients}'
  return [problem('topology.degree', degree, wanted)]


def used(flat: Mapping[str, Any]) -> dict[str, Any]:
  """The knobs that the chosen algorithm, model, data and partition use."""

  def is_used(name):
    return all(
      flat.get(decider) in chosen
      for part, (decider, chosen) in _USED_WHEN.items()
      if _is_part(name, part)
    )

  return {name: value for name, value in flat.items() if is_used(name)}


def _is_part(name: str, group: str) -> bool:
  return name == group or name.startswith(group + '.')


def identity(flat: Mapping[str, Any]) -> dict[str, Any]:
  """The knobs in use of which another value makes another experiment."""
  chosen = used(flat)
  return {name: value for name, value in chosen.items() if _is_fixed(name, chosen)}


def changes(saved: Mapping[str, Any], given: Config) -> list[str]:
  """'key: saved -> given' for every difference that makes it another experiment.

  A knob that only one of them uses is left out: the knob that decides so differs too.
  """
  before, after = flatten(saved), flatten(dataclasses.asdict(given))
  old, new = used(before), used(after)
  problems = []
  for name in filter(lambda name: _is_fixed(name, new), sorted(old | new)):
    if name not in before:
      problems.append(f'{name}: not saved -> {new[name]!r}')
    elif name not in after:
      problems.append(f'{name}: {old[name]!r} -> no longer a knob')
    elif name in old and name in new and old[name] != new[name]:
      problems.append(f'{name}: {old[name]!r} -> {new[name]!r}')
  return problems


def _is_fixed(name: str, flat: Mapping[str, Any]) -> bool:
  """Whether another value of the knob makes another experiment."""
  # The cosine ends with the last round, so its earlier values depend on which that is.
  stretches = flat.get('optimizer.schedule') == 'cosine'
  return name not in MAY_CHANGE or (name == 'num_rounds' and stretches)
