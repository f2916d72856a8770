"""Models, data sources, partitions, augmentations, optimizers, schedules, topologies,
availabilities, attacks.

Traits that others ask about:
  files          of a data source: it takes `data.path`
  pair           of a data source: it takes `data.test_path`, too
  ids            of a data source: it takes `data.client`
  features       of a data source: it takes `data.image` and `data.label`
  named          of a data source: it takes `data.name`
  dealt          of a partition: it deals the examples to `num_clients`
  normalized     of a model: it has batch normalisation
  convolutional  of a model: it takes `convolution`, the form of its convolutions
  beta           of a partition: it takes `partition.beta`
  attacking      of an attack: some clients attack, `attack.fraction` of them
  sending        of an attack: another model is sent than was trained
  decaying       of a schedule: it takes `optimizer.decay` and `.decay_every`
"""

from moon_jax.catalog.parts import (
  COUNT,
  Bound,
  Part,
  between,
  counted,
  knob,
  number,
  one_of,
  word,
)

_CONVOLUTIONAL = frozenset({'convolutional'})
_NORMALIZED = frozenset({'convolutional', 'normalized'})
_IDS, _FILES = frozenset({'ids'}), frozenset({'files'})
_PAIR = frozenset({'files', 'pair', 'features'})
_NAMED = frozenset({'named'})
_DEALT, _BETA = frozenset({'dealt'}), frozenset({'dealt', 'beta'})
_DECAYING, _ATTACKING = frozenset({'decaying'}), frozenset({'attacking'})
# Where the code is.
_RULES, _LOCAL, _RATE = 'data.partition', 'train.optimizers', 'engine.learning_rate'
_SERVER = 'algorithms.wrappers.server_optimizer'
_GRAPHS = 'algorithms.wrappers.topology'
_FEDERATED, _CLIENTS = 'data.federated', 'train.clients'
_HEADS = Bound('a divisor of 256', lambda value: value > 0 and 256 % value == 0)

_MLP_KNOBS = {
  'width': counted(128, 'units of each hidden layer'),
  'representation': counted(64, 'units of the representation'),
}
_TRANSFORMER_KNOBS = {
  'layers': counted(6, 'of the encoder'),
  'heads': knob(int, 8, 'of attention, in every layer', _HEADS),
  'feedforward': counted(2048, 'hidden units of a layer'),
  'dropout': number(0.1, 'after convolutions, in the encoder', between(0, 1, '[)')),
}
_HEAD = word('mlp', 'projection head; none: features represent', one_of('mlp', 'none'))
_CNN_KNOBS = {
  'head': _HEAD,
  'head_width': counted(84, "units of the head's hidden layer"),
  'representation': counted(256, 'units of the representation, after a head'),
}
_NORMS = one_of('batch', 'group')
_RESNET_KNOBS = _CNN_KNOBS | {
  'norm': word('batch', 'normalisation; group: 2 groups of channels', _NORMS),
  'head_width': knob(
    int, 'auto', "units of the head's hidden layer; auto: as before", COUNT, auto=True
  ),
}


def _headless(group, knobs):
  """Without a head it has no widths."""

  def check(valid):
    if valid[f'{group}.head'] == 'none':
      for name in ('head_width', 'representation'):
        if (value := valid[f'{group}.{name}']) != knobs[name].default:
          yield f'--config.{group}.{name}={value} needs --config.{group}.head=mlp.'

  return check


_cnn_headless = _headless('moon_cnn', _CNN_KNOBS)
_resnet_headless = _headless('resnet', _RESNET_KNOBS)


def _resnet(valid):
  """Group normalisation has no running statistics to keep."""
  yield from _resnet_headless(valid)
  if valid['resnet.norm'] == 'group' and valid['batch_norm'] == 'local':
    yield '--config.batch_norm=local needs --config.resnet.norm=batch.'


def _crowded(valid):
  """A client of a ring has fewer neighbours than there are others."""
  degree, num_clients = valid['topology.degree'], valid['num_clients']
  if degree >= num_clients:
    yield (
      f'--config.topology.degree={degree} must be below '
      f'--config.num_clients={num_clients}.'
    )


def _part(kind, name, where, title, traits=frozenset(), **more):
  return Part(kind, name, f'moon_jax.{where}', title, traits, **more)


def _plain(kind, module, **titles):
  """Parts without knobs and traits, each made by the function of its name."""
  return (_part(kind, name, f'{module}:{name}', titles[name]) for name in titles)


def _moon_cnn(name):
  more = {'knobs': _CNN_KNOBS, 'group': 'moon_cnn', 'check': _cnn_headless}
  return _part('model', name, 'models.cnn:MoonCnn', 'CNN', _CONVOLUTIONAL, **more)


def _resnet_of(depth):
  more = {'knobs': _RESNET_KNOBS, 'group': 'resnet', 'check': _resnet}
  where, title = f'models.resnet:resnet{depth}', f'ResNet-{depth}'
  return _part('model', f'resnet{depth}', where, title, _NORMALIZED, **more)


def _of_models(valid):
  """Attackers replace the model that they send."""
  if valid['algorithm'] == 'fednova':
    yield (
      f'--config.attack.name={valid["attack.name"]} changes the model that a client '
      'sends, and those of --config.algorithm=fednova send how they moved: of the '
      'attacks only label_flip is for it.'
    )


def _attack(name, title):
  where, traits = f'algorithms.wrappers.attack:{name}', _ATTACKING | {'sending'}
  return _part('attack', name, where, title, traits, check=_of_models)


OTHERS = (
  _part('model', 'mlp', 'models.mlp:Mlp', 'MLP', knobs=_MLP_KNOBS),
  _moon_cnn('moon_cnn'),
  _moon_cnn('tutorial_cnn'),  # cnn.py: why
  _part('model', 'dco_cnn', 'models.cnn:DcoCnn', 'CNN', _CONVOLUTIONAL),
  _part(
    'model',
    'cnn_transformer',
    'models.cnn_transformer:CnnTransformer',
    'CNN-Transformer',
    _NORMALIZED,
    knobs=_TRANSFORMER_KNOBS,
  ),
  _resnet_of(18),
  _resnet_of(50),
  _part(
    'model', 'mobilenet_v2', 'models.mobilenet:MobileNetV2', 'MobileNetV2', _NORMALIZED
  ),
  _part('data', 'digits', 'data.sources:load_digits', 'digits'),
  _part('data', 'tfds', 'data.tfds:load_tfds', 'TensorFlow Datasets', _IDS | _NAMED),
  _part('data', 'npz', 'data.npz:load_npz', '.npz file', _FILES),
  _part(
    'data',
    'imagefolder',
    'data.imagefolder:load_imagefolder',
    'folders of images',
    _FILES,
  ),
  _part(
    'data',
    'torchvision',
    'data.torchvision:load_torchvision',
    'torchvision',
    _FILES | _NAMED,
  ),
  _part('data', 'folder', f'{_FEDERATED}.folder:load_folder', '.npz files', _FILES),
  _part('data', 'records', f'{_FEDERATED}.records:load_records', 'records', _FILES),
  _part('data', 'hdf5', f'{_FEDERATED}.hdf5:load_hdf5', 'HDF5', _PAIR),
  _part('data', 'sqlite', f'{_FEDERATED}.sqlite:load_sqlite', 'SQLite', _PAIR),
  _part(
    'data',
    'huggingface',
    f'{_FEDERATED}.huggingface:load_huggingface',
    'Hugging Face',
    _IDS | _FILES | {'features'},
  ),
  _part('data', 'leaf', f'{_FEDERATED}.leaf:load_leaf', 'LEAF', _FILES),
  _part('data', 'pfllib', f'{_FEDERATED}.pfllib:load_pfllib', 'PFLlib', _FILES),
  _part('partition', 'iid', f'{_RULES}.quantity_skew:iid', 'IID', _DEALT),
  _part('partition', 'dirichlet', f'{_RULES}.label_skew:dirichlet', 'Dirichlet', _BETA),
  _part('partition', 'shards', f'{_RULES}.label_skew:shards', 'shards', _DEALT),
  _part('partition', 'quantity', f'{_RULES}.quantity_skew:quantity', 'quantity', _BETA),
  _part('partition', 'noise', f'{_RULES}.feature_skew:noise', 'noise', _DEALT),
  _part('partition', 'natural', f'{_RULES}.natural:natural', 'by user'),
  *_plain('augmentation', 'data.augment', none='none', flip='flips'),
  *_plain('augmentation', 'data.augment', crop_flip='crops and flips'),
  *_plain('optimizer', _LOCAL, sgd='SGD', adam='Adam', adamw='AdamW'),
  *_plain('schedule', _RATE, constant='constant', cosine='cosine'),
  _part('schedule', 'exponential', f'{_RATE}:exponential', 'exponential', _DECAYING),
  _part('schedule', 'step', f'{_RATE}:step', 'step', _DECAYING),
  *_plain('server_optimizer', _SERVER, sgd='FedAvgM', adam='FedAdam', yogi='FedYogi'),
  _part('topology', 'ring', f'{_GRAPHS}:ring', 'ring', check=_crowded),
  *_plain('topology', _GRAPHS, grid='grid', complete='complete graph'),
  *_plain('topology', _GRAPHS, erdos_renyi='Erdos-Renyi graph'),
  *_plain('availability', _CLIENTS, uniform='all alike', cyclic='one group at a time'),
  *_plain('availability', _CLIENTS, by_data='by examples', trace='by a file'),
  Part('attack', 'none', None, 'none'),
  Part('attack', 'label_flip', None, 'label flipping', _ATTACKING),
  _attack('sign_flip', 'sign flipping'),
  _attack('gaussian', 'Gaussian noise'),
  _attack('alie', 'ALIE'),
  _attack('ipm', 'IPM'),
)
