"""The rules of a configuration, and that the page of knobs states all of them."""

import json
import math
import re
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from moon_jax import catalog, config
from moon_jax.core.flags import flag


def settings(**changes):
  """The settings of configs/base.py; `moon__mu=2.0` changes moon.mu."""
  flat = config.flatten(config.defaults().to_dict())
  return flat | {name.replace('__', '.'): value for name, value in changes.items()}


def options(built, algorithm):
  """The options that this algorithm would be built with."""
  return catalog.options('algorithm', config.flatten(built) | {'algorithm': algorithm})


def problems(values):
  with pytest.raises(config.ConfigError) as caught:
    config.validate(values)
  assert str(caught.value) == '\n'.join(caught.value.problems)
  return list(caught.value.problems)


# --- valid values ---------------------------------------------------------------------


def test_valid_values_keep_their_place_and_type():
  # In configs/base.py optimizer.momentum is 0.9, moon.mu 5.0 and fedprox.mu 0.01.
  built = config.validate(settings(moon__mu=2, seed=2**31 - 1, participation=1))
  assert (built.moon.mu, built.moon.tau, built.moon.num_previous) == (2.0, 0.5, 1)
  assert type(built.moon.mu) is float
  assert (built.fedprox.mu, built.optimizer.momentum) == (0.01, 0.9)
  assert built.seed == 2147483647
  dco = {'mu': 1.0, 'tau': 0.5, 'theta': 0.1, 'normalise': False, 'initial': 'plain'}
  assert options(built, 'dco_moon') == dco
  # The decentralised algorithms have the knobs of those with a server.
  assert options(built, 'decentralized_moon') == options(built, 'moon') != {}
  assert options(built, 'fedavg') == options(built, 'decentralized_fedavg') == {}


def test_a_config_saved_as_json_is_the_same_experiment():
  built = config.validate(config.defaults().to_dict())
  as_saved = json.loads(json.dumps(config.ordered(built)))
  assert config.validate(as_saved) == built
  assert config.changes(as_saved, built) == []


# --- knobs without an effect ----------------------------------------------------------

TEXTS = {'data.source': 'table', 'data.path': 'a', 'data.tokenizer': 'wordpiece'}
NO_TEXTS = {'data.tokenizer': 'none'}

# A knob that is used only with some values of another one -> a setting in which it is
# used, and one in which it is not.
OFF = {
  'data.test_seed': (
    {'data.source': 'imagefolder', 'data.path': 'a', 'data.test_fraction': 0.2},
    {'data.test_fraction': 0.0},
  ),
  'data.text': (TEXTS, NO_TEXTS),
  'data.text_length': (TEXTS, NO_TEXTS),
  'data.vocabulary_size': (TEXTS, NO_TEXTS),
  'optimizer.nesterov': ({}, {'optimizer.momentum': 0.0}),
  'stragglers.send': ({'stragglers.fraction': 0.3}, {'stragglers.fraction': 0.0}),
  'attack.scale': ({'attack.name': 'sign_flip'}, {'attack.fraction': 0.0}),
  'attack.sigma': ({'attack.name': 'gaussian'}, {'attack.fraction': 0.0}),
  'attack.epsilon': ({'attack.name': 'ipm'}, {'attack.fraction': 0.0}),
  'fedsam.adaptive': ({'algorithm': 'fedsam'}, {'fedsam.rho': 0.0}),
  'fedsam.xi': (
    {'algorithm': 'fedsam', 'fedsam.adaptive': True},
    {'fedsam.adaptive': False},
  ),
  'mofedsam.adaptive': ({'algorithm': 'mofedsam'}, {'mofedsam.rho': 0.0}),
  'mofedsam.xi': (
    {'algorithm': 'mofedsam', 'mofedsam.adaptive': True},
    {'mofedsam.adaptive': False},
  ),
  'sa_moon.acceptance': ({'algorithm': 'sa_moon'}, {'sa_moon.sigma': 0.0}),
  'fedlc.least_count': ({'algorithm': 'fedlc'}, {'fedlc.tau': 0.0}),
  'per_fedavg.delta': (
    {'algorithm': 'per_fedavg', 'per_fedavg.hessian': 'difference'},
    {'per_fedavg.hessian': 'none'},
  ),
  'moon_cnn.head_width': ({'model': 'moon_cnn'}, {'moon_cnn.head': 'none'}),
  'moon_cnn.representation': ({'model': 'moon_cnn'}, {'moon_cnn.head': 'none'}),
  'resnet.head_width': ({'model': 'resnet18'}, {'resnet.head': 'none'}),
  'resnet.representation': ({'model': 'resnet18'}, {'resnet.head': 'none'}),
}


def test_every_knob_that_another_switches_off_is_here():
  knobs = catalog.every_knob()
  assert OFF.keys() == {name for name, knob in knobs.items() if knob.used_if}


@pytest.mark.parametrize('name', OFF)
def test_a_knob_that_another_switches_off_is_refused_if_given(name):
  on, off = OFF[name]
  value = catalog.every_knob()[name].default
  used = config.validate(settings() | on, set_by_user=[name])
  assert name in config.used_knobs(config.flatten(used))
  with pytest.raises(config.ConfigError) as caught:
    config.validate(settings() | on | off, set_by_user=[name])
  (switch,) = off
  (line,) = caught.value.problems
  assert line.startswith(f'{flag(name)} is not used with {flag(switch, off[switch])};')
  # A config file may set it: it changes nothing, and is no difference between runs.
  unused = config.validate(settings() | on | off | {name: value})
  assert name not in config.identity(config.flatten(unused))


# --- invalid values -------------------------------------------------------------------


@pytest.mark.parametrize(
  ('name', 'value', 'requirement'),
  [
    ('seed', True, 'a whole number'),
    ('seed', None, 'a whole number'),
    ('seed', 1.0, 'a whole number'),
    ('num_clients', [3], 'a whole number'),
    ('moon.mu', '1', 'a number'),
    ('data.path', 3, 'a word'),
    ('execution.lanes', '4', "'auto' or a whole number"),
    ('server_optimizer.learning_rate', 'fast', "'auto' or a number"),
    ('optimizer.learning_rate', 'auto', 'a number'),
  ],
)
def test_a_value_of_another_type_is_refused(name, value, requirement):
  values = settings() | {name: value}
  assert problems(values) == [f'{flag(name, value)} must be {requirement}.']


NOT_SGD = "--config.optimizer.name='adam' must be sgd with --config.algorithm="
NESTEROV = '--config.optimizer.nesterov=true must be false with --config.algorithm='


# Values that one algorithm alone refuses, the start of its message, and valid values.
@pytest.mark.parametrize(
  ('algorithm', 'values', 'message', 'valid_values'),
  [
    ('scaffold', {'optimizer.name': 'adam'}, f"{NOT_SGD}'scaffold'.", {}),
    ('scaffold', {'optimizer.nesterov': True}, f"{NESTEROV}'scaffold'.", {}),
    ('fednova', {'optimizer.name': 'adam'}, f"{NOT_SGD}'fednova'.", {}),
    (
      'fednova',
      {'fednova.tau_eff': 'steps'},
      "--config.fednova.mu=0.0 must be above 0 with --config.fednova.tau_eff='steps'.",
      {'fednova.tau_eff': 'steps', 'fednova.mu': 0.1},
    ),
    (
      'fednova',
      {'attack.name': 'alie'},
      "--config.algorithm='fednova' must be another than fednova and fedexp with",
      {'attack.name': 'label_flip'},
    ),
    (
      'per_fedavg',
      {
        'data.local_test': 0.2,
        'per_fedavg.hessian': 'difference',
        'execution.dtype': 'bfloat16',
      },
      "--config.execution.dtype='bfloat16' must be float32 with "
      "--config.per_fedavg.hessian='difference'.",
      {'data.local_test': 0.2, 'execution.dtype': 'bfloat16'},
    ),
    (
      'decentralized_fedavg',
      {'availability.name': 'cyclic'},
      '--config.availability.groups=2 never has two neighbours of --config.topology.',
      {'availability.name': 'cyclic', 'topology.degree': 4},
    ),
    (
      'decentralized_fedavg',
      # Two rows of five: clients 0 and 1, or 0 and 5, are neighbours.
      {'availability.name': 'cyclic', 'topology.name': 'grid'},
      '--config.availability.groups=2 never has two neighbours of --config.topology.',
      {
        'availability.name': 'cyclic',
        'topology.name': 'grid',
        'availability.groups': 5,
      },
    ),
    (
      'decentralized_fedavg',
      {'availability.name': 'cyclic', 'availability.groups': 4},
      '--config.availability.groups=4 never has two neighbours of --config.topology.',
      # Clients 0 and 9 are neighbours.
      {'availability.name': 'cyclic', 'availability.groups': 3},
    ),
  ],
)
def test_a_rule_holds_for_its_part_alone(algorithm, values, message, valid_values):
  config.validate(settings() | values | {'algorithm': 'fedavg'})
  config.validate(settings() | valid_values | {'algorithm': algorithm})
  (problem,) = problems(settings() | values | {'algorithm': algorithm})
  assert problem.startswith(message)


@pytest.mark.parametrize(('name', 'rate'), [('sgd', 1), ('adam', 0.01), ('yogi', 0.01)])
def test_the_servers_rate_follows_its_optimizer_unless_given(name, rate):
  chosen = config.defaults()
  chosen.server_optimizer.name = name
  automatic = config.validate(chosen.to_dict())
  assert automatic.server_optimizer.learning_rate == rate
  # A config file may set a number; setting the automatic number changes nothing.
  for number in (rate, 0.5):
    chosen.server_optimizer.learning_rate = number
    explicit = config.validate(chosen.to_dict())
    assert explicit.server_optimizer.learning_rate == number
    assert (explicit == automatic) == (number == rate)


class Interval(NamedTuple):
  """Numbers from low to high; the ends belong to it or not."""

  low: float
  has_low: bool
  high: float
  has_high: bool


def shown_bounds():
  """Knob -> the interval that `--help` shows for it."""
  intervals = {}
  for name, knob in catalog.every_knob().items():
    requirement = knob.bound.requirement if knob.bound else ''
    interval = re.search(r'in ([\[(])([\d.]+), ([\d.]+)([\])])', requirement)
    at_least = re.search(r'at least (\d)', requirement)
    if interval:
      opening, low, high, closing = interval.groups()
      has_low, has_high = opening == '[', closing == ']'
      intervals[name] = Interval(float(low), has_low, float(high), has_high)
    elif 'above 0' in requirement:
      intervals[name] = Interval(0, False, math.inf, False)
    elif at_least:
      intervals[name] = Interval(int(at_least[1]), True, math.inf, False)
  return intervals


# For these knobs, rules other than bounds decide whether a number is valid.
OTHER_RULES = {
  'topology.degree',
  'cnn_transformer.heads',
  'cnn_1d.kernel',
  'dco_moon.normalise',
  'execution.devices',
  'execution.lanes',
}


def numeric_knobs():
  return {
    name: knob.kind
    for name, knob in catalog.every_knob().items()
    if knob.kind in (int, float) and name not in OTHER_RULES
  }


def inside_and_outside(interval, kind):
  """Values at the ends of an interval and beyond: those in it, those not in it."""
  low, has_low, high, has_high = interval
  if kind is int:
    low, high = int(low), int(min(high, 2**31 - 1))  # every number fits 32 bits
    return [low, low + 1, high], [low - 1, -(2**40), high + 1, 2**70]
  smallest, largest = 2.0**-126, 2.0**127
  inside = [low + smallest]
  outside = [low - 1e-9, smallest / 2, 2 * largest, -largest, math.nan]
  ends = {low: has_low}
  if high == math.inf:
    inside.append(largest)
  else:
    inside.append(high * (1 - 1e-9))
    outside.append(high + 1e-9)
    ends[high] = has_high
  inside += [end for end, belongs in ends.items() if belongs]
  outside += [end for end, belongs in ends.items() if not belongs]
  return inside, outside


def is_valid(name, value):
  try:
    return config.convert(name, value) == value
  except config.ConfigError:
    return False


def test_every_number_has_its_bound_in_the_help():
  assert set(numeric_knobs()) == set(shown_bounds()) - OTHER_RULES


def test_the_bound_of_the_help_is_the_one_that_holds():
  faults = []
  for name, kind in numeric_knobs().items():
    inside, outside = inside_and_outside(shown_bounds()[name], kind)
    refused = [value for value in inside if not is_valid(name, value)]
    accepted = [value for value in outside if is_valid(name, value)]
    if refused or accepted:
      faults.append(f'{name} refuses {refused} and accepts {accepted}')
  assert not faults


# Values that a config file may assign by mistake.
ANYTHING = st.recursive(
  st.none()
  | st.booleans()
  | st.integers()
  | st.builds(pow, st.just(10), st.just(400))
  | st.floats()
  | st.text(max_size=200)
  | st.binary(),
  lambda inside: st.lists(inside) | st.dictionaries(st.text(), inside),
  max_leaves=5,
)


@given(
  changed=st.dictionaries(st.sampled_from(list(catalog.every_knob())), ANYTHING),
  unknown_knobs=st.dictionaries(st.text(), ANYTHING),
)
@hypothesis_settings(max_examples=40, deadline=None)
def test_any_values_make_a_config_or_lines(changed, unknown_knobs):
  values = settings() | changed | unknown_knobs
  lines = ()
  try:
    built = config.validate(values)
  except config.ConfigError as error:
    lines = error.problems
  if lines:
    assert all(line.startswith('--config.') for line in lines)
    assert all(len(line.splitlines()) == 1 for line in lines)
  else:
    rate = 'server_optimizer.learning_rate'
    expected = settings() | config.flatten(values)
    if expected[rate] == 'auto':
      expected[rate] = built.server_optimizer.learning_rate
    assert config.flatten(built) == expected


# --- resuming -------------------------------------------------------------------------


def as_saved():
  """The defaults as config.json has them."""
  return config.ordered(config.validate(settings()))


def test_changes_name_what_makes_another_experiment():
  saved = as_saved()
  saved['moon']['mu'] = 1.0
  saved['old'] = 'gone'
  current = config.validate(settings(num_clients=7))
  assert config.changes(saved, current) == [
    'moon.mu: 1.0 -> 5.0',
    'num_clients: 10 -> 7',
    "old: 'gone' -> no longer a knob",
  ]


def test_a_knob_that_came_later_was_as_its_default():
  saved = as_saved()
  del saved['partition']['balance'], saved['moon']['num_previous']
  assert config.changes(saved, config.validate(settings())) == []
  changed = {'partition.balance': False, 'moon.num_previous': 2}
  assert config.changes(saved, config.validate(settings(**changed))) == [
    'moon.num_previous: 1 -> 2',
    'partition.balance: True -> False',
  ]


def test_changes_leave_out_what_follows_from_another():
  current = config.validate(settings(algorithm='decentralized_fedavg', batch_size=8))
  assert config.changes(as_saved(), current) == [
    "algorithm: 'moon' -> 'decentralized_fedavg'",
    'batch_size: 64 -> 8',
  ]


# Knobs that a resumed run may change: its results differ by float32 rounding at most,
# or it only goes on where it would have ended.
MAY_CHANGE = {
  'num_rounds',
  'eval_every_rounds',
  'metrics',
  'best_by',
  'keep_best',
  'checkpoint_every_rounds',
  'data.dir',
  'data.range',
  'data.trust_pickles',
  'on_nonfinite',
  'logger',
  'execution.devices',
  'execution.lanes',
  'execution.convolution',
  'execution.cache_mib',
  'execution.client_store',
  'execution.deterministic',
  'execution.compiler_options',
  'execution.compile_cache',
  'execution.profile',
}


def test_what_a_resumed_run_may_change():
  knobs = catalog.every_knob()
  assert {name for name, knob in knobs.items() if knob.may_change} == MAY_CHANGE


def test_the_cosine_depends_on_the_number_of_rounds():
  saved = as_saved()
  saved['optimizer']['schedule'] = 'cosine'
  longer = settings(optimizer__schedule='cosine', num_rounds=200)
  assert config.changes(saved, config.validate(longer)) == ['num_rounds: 100 -> 200']
  for schedule in ('constant', 'exponential', 'step'):
    saved['optimizer']['schedule'] = schedule
    longer['optimizer.schedule'] = schedule
    assert config.changes(saved, config.validate(longer)) == []
