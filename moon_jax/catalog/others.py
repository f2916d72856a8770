"""Models, data sources, partitions, augmentations, optimizers, schedules, topologies,
availabilities, attacks.

Traits that rules and reports ask about:
  files          data source that takes `data.path`
  pair           data source that also takes `data.test_path`
  ids            data source that takes `data.client`
  features       data source that takes `data.image` and `data.label`
  named          data source that takes `data.name`
  pickled        data source that takes `data.trust_pickles`
  dealt          partition that deals the examples to `num_clients`
  normalized     model with batch normalisation
  convolutional  model whose `make` takes `convolution`, the form of its convolutions
  beta           partition that takes `partition.beta`
  attacking      attack by the fraction `attack.fraction` of the clients
  sending        attack whose clients send another model than they trained
  colluding      attack whose model depends on the honest ones
  decaying       schedule that takes `optimizer.decay` and `.decay_every`
"""

import functools

from moon_jax.catalog.parts import (
  COUNT,
  Bound,
  Part,
  Rule,
  between,
  counted,
  exactly,
  knob,
  number,
  one_of,
  rules,
  word,
)

_NORMALIZED, _PAIR = ('convolutional', 'normalized'), ('files', 'pair', 'features')
_BETA = 'dealt', 'beta'
# Modules with the code of the parts.
_RULES, _LOCAL, _RATE = 'data.partition', 'round.optimizers', 'building.learning_rate'
_SERVER = 'algorithms.wrappers.server_optimizer'
_GRAPHS = 'algorithms.wrappers.topology'
_AVAILABILITY = 'planning.availability'
_HEADS = Bound('a divisor of 256', lambda value: value > 0 and 256 % value == 0)

_MLP_KNOBS = {
  'width': counted(128, 'number of units of each hidden layer'),
  'representation': counted(64, 'number of units of the representation'),
}
_TRANSFORMER_KNOBS = {
  'layers': counted(6, 'number of layers of the encoder'),
  'heads': knob(int, 8, 'number of attention heads in every layer', _HEADS),
  'feedforward': counted(2048, 'number of hidden units of each layer'),
  'dropout': number(0.1, 'rate of dropout, convolutions included', between(0, 1, '[)')),
}
_HEAD = word('mlp', 'projection head; none: features are used', one_of('mlp', 'none'))
_CNN_KNOBS = {
  'head': _HEAD,
  'head_width': counted(84, "number of units of the head's hidden layer"),
  'representation': counted(256, 'number of outputs of the projection head'),
}
_NORMS = one_of('batch', 'group')
_RESNET_KNOBS = _CNN_KNOBS | {
  'norm': word('batch', 'normalisation; group: in 2 groups of channels', _NORMS),
  'head_width': knob(
    int, 'auto', "units of the head's hidden layer; auto: its input's", COUNT, auto=True
  ),
}


def _headless(group, knobs):
  """The rule that a model without a head takes no widths of a head."""
  return [
    Rule(f'{group}.{name}', exactly(knobs[name].default), f'{group}.head', 'none')
    for name in ('head_width', 'representation')
  ]


_cnn = rules(*_headless('moon_cnn', _CNN_KNOBS))
# Group normalisation has no running statistics to keep.
_GROUPED = Rule('batch_norm', exactly('averaged'), 'resnet.norm', 'group')
_resnet = rules(*_headless('resnet', _RESNET_KNOBS), _GROUPED)


def _crowded(valid):
  """The complaint if a client of a ring has as many neighbours as there are clients."""
  degree, num_clients = valid['topology.degree'], valid['num_clients']
  if degree >= num_clients:
    yield (
      f'--config.topology.degree={degree} must be below '
      f'--config.num_clients={num_clients}.'
    )


def _part(kind, name, where, *traits, **more):
  return Part(kind, name, f'moon_jax.{where}', traits=frozenset(traits), **more)


def _plain(kind, module, *names):
  """Parts without knobs and traits, each made by the function with its name."""
  return (_part(kind, name, f'{module}:{name}') for name in names)


def _data(name, *traits, folder='data'):
  return _part('data', name, f'{folder}.{name}:load_{name}', *traits)


_federated = functools.partial(_data, folder='data.federated')


def _moon_cnn(name):
  more = {'knobs': _CNN_KNOBS, 'group': 'moon_cnn', 'check': _cnn}
  return _part('model', name, 'models.cnn:MoonCnn', 'convolutional', **more)


def _resnet_of(depth):
  more = {'knobs': _RESNET_KNOBS, 'group': 'resnet', 'check': _resnet}
  name = f'resnet{depth}'
  return _part('model', name, f'models.resnet:{name}', *_NORMALIZED, **more)


# Attackers replace the model that they send.
_SENDING = Bound(
  'another than fednova and fedexp', lambda name: name not in ('fednova', 'fedexp')
)
_of_models = rules(Rule('algorithm', _SENDING, 'attack.name'))


def _attack(name, *more):
  where, traits = f'algorithms.wrappers.attack:{name}', ('attacking', 'sending', *more)
  return _part('attack', name, where, *traits, check=_of_models)


OTHERS = (
  _part('model', 'mlp', 'models.mlp:Mlp', knobs=_MLP_KNOBS),
  _moon_cnn('moon_cnn'),
  _moon_cnn('tutorial_cnn'),  # explained in cnn.py
  _part('model', 'dco_cnn', 'models.cnn:DcoCnn', 'convolutional'),
  _part(
    'model',
    'cnn_transformer',
    'models.cnn_transformer:CnnTransformer',
    *_NORMALIZED,
    knobs=_TRANSFORMER_KNOBS,
  ),
  _resnet_of(18),
  _resnet_of(50),
  _part('model', 'mobilenet_v2', 'models.mobilenet:MobileNetV2', *_NORMALIZED),
  _data('digits'),
  _data('tfds', 'ids', 'named'),
  _data('npz', 'files'),
  _data('imagefolder', 'files'),
  _data('torchvision', 'files', 'named', 'pickled'),
  _federated('folder', 'files'),
  _federated('records', 'files'),
  _federated('hdf5', *_PAIR),
  _federated('sqlite', *_PAIR),
  _federated('huggingface', 'files', 'ids', 'features'),
  _federated('leaf', 'files'),
  _federated('pfllib', 'files', 'pickled'),
  _part('partition', 'iid', f'{_RULES}.quantity_skew:iid', 'dealt'),
  _part('partition', 'dirichlet', f'{_RULES}.label_skew:dirichlet', *_BETA),
  _part('partition', 'shards', f'{_RULES}.label_skew:shards', 'dealt'),
  _part('partition', 'quantity', f'{_RULES}.quantity_skew:quantity', *_BETA),
  _part('partition', 'noise', f'{_RULES}.feature_skew:noise', 'dealt'),
  _part('partition', 'natural', f'{_RULES}.natural:natural'),
  *_plain('augmentation', 'data.augment', 'none', 'flip', 'crop_flip'),
  *_plain('optimizer', _LOCAL, 'sgd', 'adam', 'adamw'),
  *_plain('schedule', _RATE, 'constant', 'cosine'),
  _part('schedule', 'exponential', f'{_RATE}:exponential', 'decaying'),
  _part('schedule', 'step', f'{_RATE}:step', 'decaying'),
  *_plain('server_optimizer', _SERVER, 'sgd', 'adam', 'yogi'),
  _part('topology', 'ring', f'{_GRAPHS}:ring', check=_crowded),
  *_plain('topology', _GRAPHS, 'grid', 'complete', 'erdos_renyi'),
  *_plain('availability', _AVAILABILITY, 'uniform', 'cyclic', 'by_data', 'trace'),
  Part('attack', 'none', None),
  Part('attack', 'label_flip', None, traits=frozenset({'attacking'})),
  *map(_attack, ('sign_flip', 'gaussian')),
  _attack('alie', 'colluding'),
  _attack('ipm', 'colluding'),
)
