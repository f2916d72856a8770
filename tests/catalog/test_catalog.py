"""The catalog agrees with the code that it names, and imports none of it."""

import functools
import inspect
import subprocess
import sys

import jax
import numpy as np
import pytest

from moon_jax import catalog, config, models
from moon_jax.algorithms.prototypes import ClassSums
from moon_jax.catalog import entries
from moon_jax.core.types import Form, Layers, Server
from moon_jax.data import sources
from moon_jax.models import convolution

FLAT = config.flatten(config.validate(config.defaults()))
PARTS = [
  catalog.part(kind, name) for kind in catalog.KINDS for name in catalog.names(kind)
]
# Kind -> names of the arguments that its parts are called with, beside their knobs.
ARGUMENTS = {
  'algorithm': set(),
  'model': {'num_classes'},
  'data': set(),
  'partition': {'labels', 'num_clients', 'min_size', 'seed'},
  'augmentation': set(),
  'optimizer': {'learning_rate', 'weight_decay'},
  'schedule': {'t', 'num_rounds'},
  'server_optimizer': {'learning_rate'},
  'topology': {'num_clients', 'seed'},
  'availability': {'sizes'},
  'attack': {'knowledge'},
}
VARIABLES = {'params': {'encoder': {'kernel': 0.0}, 'classifier': {'kernel': 0.0}}}
CLASS_SUMS = ClassSums(
  vectors=np.zeros((10, 4), np.float32), counts=np.zeros(10, np.float32)
)
HEAD = frozenset({('params', 'classifier', 'kernel')})
LAYERS = Layers(HEAD | {('params', 'encoder', 'kernel')}, output=HEAD, batch_norm=HEAD)


def options(part):
  return catalog.options(part.kind, FLAT | {catalog.KINDS[part.kind]: part.name})


def of_kind(kind):
  return [part for part in PARTS if part.kind == kind]


def make_algorithm(part):
  layers = {'network_layers': LAYERS} if part.has('layered') else {}
  algorithm = part.function(**options(part), **layers)
  if algorithm.examine:
    init_server = functools.partial(algorithm.init_server, zeros=CLASS_SUMS)
    algorithm = algorithm._replace(init_server=init_server)
  return algorithm


def argument_names(part):
  """The names of the arguments that a part is called with."""
  names = ARGUMENTS[part.kind] | set(options(part))
  if part.has('convolutional'):
    names.add('convolution')
  if part.kind == 'attack':
    names.discard('fraction')  # the fraction of attackers
  if part.has('layered'):
    names.add('network_layers')
  if part.name == 'natural':
    names.add('clients')
  if part.has('deviations'):
    names.add('deviations')
  if part.name == 'tfds':
    names.add('prepare')  # no download by loading
    names.add('announce')  # compiles beside decoding
  if part.kind == 'data':
    for trait, record_name, record_type in sources.RECORDS:
      if part.has(trait):
        names.difference_update(record_type._fields)
        names.add(record_name)
  return names


@pytest.mark.parametrize('kind', catalog.KINDS)
def test_the_code_takes_exactly_what_it_is_called_with(kind):
  for part in of_kind(kind):
    if part.make is None:  # two attacks have no code for uploads
      continue
    called_with = argument_names(part)
    signature = inspect.signature(part.function)
    signature.bind(**dict.fromkeys(called_with))
    parameters = {
      name
      for name, parameter in signature.parameters.items()
      if parameter.kind is not parameter.VAR_KEYWORD
    }
    # Flax modules and the server's Adam have more arguments, which nobody sets.
    if kind not in ('model', 'server_optimizer'):
      assert parameters <= called_with, part.name


def test_every_kind_is_here():
  assert ARGUMENTS.keys() == catalog.KINDS.keys()
  assert all(part.title for part in of_kind('algorithm'))


def test_every_knob_is_decided_by_what_exists():
  for name, knob in catalog.every_knob().items():
    for kind, trait in knob.needs:
      users = [part.name for part in of_kind(kind) if part.has(trait)]
      assert users, f'{name} is used by nobody: no {kind} has {trait}'


# --- traits ---------------------------------------------------------------------------


@pytest.mark.parametrize('part', of_kind('algorithm'), ids=lambda part: part.name)
def test_traits_of_an_algorithm_are_those_of_its_functions(part):
  algorithm = make_algorithm(part)
  # An algorithm that shares models, or broadcasts none, has no server.
  marked = jax.tree.map(lambda leaf: 'weights', VARIABLES)
  sent = algorithm.broadcast(Server(marked, algorithm.init_server(VARIABLES)))
  sends_weights = any(isinstance(leaf, str) for leaf in jax.tree.leaves(sent))
  has_server = algorithm.share is None and sends_weights
  assert part.has('served') == has_server
  assert part.has('decentralized') == (algorithm.share is not None)
  assert part.has('several_clients') == (part.name != 'centralized')
  received = algorithm.broadcast(Server(VARIABLES, algorithm.init_server(VARIABLES)))
  frozen = algorithm.frozen(received, algorithm.init_client(VARIABLES))
  assert part.has('contrastive') == bool(frozen)


@pytest.mark.parametrize('part', of_kind('model'), ids=lambda part: part.name)
def test_traits_of_a_model_are_those_of_its_network(part):
  parameters = inspect.signature(part.function).parameters
  assert part.has('convolutional') == ('convolution' in parameters)
  chosen = options(part)
  if 'norm' in part.knobs:
    chosen['norm'] = 'batch'
  shapes = {
    'of_pictures': (32, 32, 3),
    'of_signals': (32, 3),
    'of_volumes': (8, 8, 8, 1),
    'of_words': (8,),
  }
  trait = next(trait for trait in shapes if part.has(trait))
  form = Form()
  if trait == 'of_words':
    form = Form(kind='words', content='words', vocabulary=5)
  network = models.make(
    part.name, image_shape=shapes[trait], num_classes=10, form=form, **chosen
  )
  assert part.has('normalized') == ('batch_stats' in network.shapes)


def test_the_forms_of_convolutions_are_those_that_there_are():
  words = catalog.every_knob()['execution.convolution'].bound.words
  assert set(words) == {'auto', *convolution.FORMS}


# --- messages and cost ----------------------------------------------------------------


def test_a_knob_may_have_the_name_of_an_argument_of_build():
  part = catalog.part('model', 'mlp')._replace(make=lambda x, *, returns: x + returns)
  assert part.build(int, 1, returns=2) == 3


def test_messages_of_rules_keep_the_case_of_words():
  check = entries.check_of(
    [
      entries.Rule('data.path', entries.exactly('/Data/A.npz'), 'model', 'MyNet'),
      entries.Rule('switch', entries.exactly(False), 'data.path'),
    ]
  )
  assert list(check({'data.path': 'B.npz', 'model': 'MyNet', 'switch': True})) == [
    "--config.data.path='B.npz' must be /Data/A.npz with --config.model='MyNet'.",
    "--config.switch=true must be false with --config.data.path='B.npz'.",
  ]


def test_neither_the_catalog_nor_the_command_line_loads_jax():
  code = (
    'import sys, moon_jax; from moon_jax import catalog, config\n'
    'from moon_jax.config import cli\n'
    'moon_jax.register_algorithm, moon_jax.knob, moon_jax.at_least\n'
    'catalog.options("model", config.flatten(config.defaults()))\n'
    'heavy = {"jax", "flax", "optax", "numpy", "orbax"} & set(sys.modules)\n'
    'assert not heavy, heavy\n'
    'cli.parse([])\n'
    'assert not {"jax", "flax", "optax", "orbax"} & set(sys.modules)\n'
  )
  subprocess.run([sys.executable, '-c', code], check=True)
