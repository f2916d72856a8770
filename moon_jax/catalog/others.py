"""Models, data sources, partitions, augmentations, optimizers, schedules, topologies,
availabilities, attacks.

Traits that rules and reports ask about:
  files          data source that takes `data.path`
  pair           data source that also takes `data.test_path`
  ids            data source that takes `data.client`
  features       data source that takes `data.image`
  labelled       data source that takes `data.label`
  pictures       data source that takes `data.image_size`
  drawn          data source that takes `data.test_fraction` and `.test_seed`
  named          data source that takes `data.name`
  arrays         data source of arrays on any scale, which takes `data.range`
  texts          data source that takes `data.tokenizer`
  text_columns   data source that takes `data.text`
  number_columns data source that takes `data.features`
  pickled        data source that takes `data.trust_pickles`
  dealt          partition that deals the examples to `num_clients`
  normalized     model with batch normalisation, or with a `norm` that may be it
  of_pictures    model or augmentation that takes pictures; also of_tables,
                 of_signals, of_volumes, of_words
  deviations     augmentation whose `make` takes `deviations`, those of the numbers
  vocabulary     model whose `make` takes `vocabulary`, the number of words
  convolutional  model whose `make` takes `convolution`, the form of its convolutions
  beta           partition that takes `partition.beta`
  attacking      attack by the fraction `attack.fraction` of the clients
  sending        attack whose clients send another model than they trained
  colluding      attack whose model depends on the honest ones
  decaying       schedule that takes `optimizer.decay` and `.decay_every`
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from moon_jax.catalog.entries import (
  COUNT,
  Bound,
  Knob,
  Part,
  Rule,
  between,
  check_of,
  counted,
  exactly,
  knob,
  number,
  one_of,
  word,
)
from moon_jax.core.flags import flag
from moon_jax.core.shares import num_rows_of_grid

# Modules with the code of the parts.
_PARTITIONS = 'data.partition'
_AUGMENTATIONS = 'data.augment'
_OPTIMIZERS = 'round.optimizers'
_SCHEDULES = 'building.learning_rate'
_SERVER_OPTIMIZERS = 'algorithms.wrappers.server_optimizer'
_TOPOLOGIES = 'planning.topology'
_AVAILABILITIES = 'planning.availability'
_ATTACKS = 'algorithms.wrappers.attack'

# --- knobs ----------------------------------------------------------------------------

_HEADS = Bound('a divisor of 256', lambda value: value > 0 and 256 % value == 0)
_MLP_KNOBS = {
  'width': counted(128, 'number of units of each hidden layer'),
  'representation': counted(64, 'number of units of the representation'),
}
_TRANSFORMER_KNOBS = {
  'layers': knob(int, 6, 'number of layers of the encoder', between(1, 100)),
  'heads': knob(int, 8, 'number of attention heads in every layer', _HEADS),
  'feedforward': counted(2048, 'number of hidden units of each layer'),
  'dropout': number(0.1, 'rate of dropout, convolutions included', between(0, 1, '[)')),
}
_HEAD_SIZES = {
  'width': counted(128, "number of units of the head's hidden layer and before it"),
  'representation': counted(64, 'number of outputs of the projection head'),
}
_ODD = Bound('odd, at least 1', lambda value: value >= 1 and value % 2 == 1)
_CNN_1D_KNOBS = {
  'channels': counted(32, 'channels of the first convolution; the second: twice'),
  'kernel': knob(int, 5, 'number of steps that a convolution sees', _ODD),
  **_HEAD_SIZES,
}
_CNN_3D_KNOBS = {
  'channels': counted(16, 'channels of the first of three convolutions'),
  **_HEAD_SIZES,
}
_GRU_KNOBS = {
  'embedding': counted(32, 'numbers that stand for a word; signals have none'),
  **_HEAD_SIZES,
}
_WORDS_TRANSFORMER_KNOBS = {
  'layers': knob(int, 2, 'number of layers of the encoder', between(1, 100)),
  'heads': counted(4, 'number of attention heads, a divisor of width'),
  'width': counted(64, 'numbers that stand for a word'),
  'feedforward': counted(128, 'number of hidden units of each layer'),
  'dropout': number(0.1, 'rate of dropout', between(0, 1, '[)')),
  'representation': counted(64, 'number of outputs of the projection head'),
}
_HEAD = word('mlp', 'projection head; none: features are used', one_of('mlp', 'none'))
_WITH_HEAD = ('head', exactly('mlp'))
_CNN_KNOBS = {
  'head': _HEAD,
  'head_width': counted(
    84, "number of units of the head's hidden layer", used_if=_WITH_HEAD
  ),
  'representation': counted(
    256, 'number of outputs of the projection head', used_if=_WITH_HEAD
  ),
}
_NORMS = one_of('batch', 'group')
_NORM_KNOBS = {
  'norm': word(
    'none',
    'normalisation after each convolution',
    one_of('none', 'batch', 'group'),
  )
}
_DESIGN = word(
  'small',
  "layers for small images, or torchvision's, for ImageNet's",
  one_of('small', 'torchvision'),
)
_MOBILENET_KNOBS = {'design': _DESIGN}
_RESNET_KNOBS = _CNN_KNOBS | {
  'design': _DESIGN,
  'norm': word('batch', 'normalisation; group: in 2 groups of channels', _NORMS),
  'head_width': knob(
    int,
    'auto',
    "units of the head's hidden layer; auto: its input's",
    COUNT,
    auto=True,
    used_if=_WITH_HEAD,
  ),
}


# --- checks ---------------------------------------------------------------------------


def _check_statistics(group: str) -> Callable:
  """Complains if clients keep running statistics that the group's `norm` has not."""
  averaged = exactly('averaged')
  return check_of(
    [Rule('batch_norm', averaged, f'{group}.norm', norm) for norm in ('none', 'group')]
  )


def _check_channels(group: str) -> Callable:
  """As `_check_statistics`, and complains if two groups cannot share the channels."""
  check_statistics = _check_statistics(group)

  def check(values):
    yield from check_statistics(values)
    channels = values[f'{group}.channels']
    if values[f'{group}.norm'] == 'group' and channels % 2:
      yield (
        f'{flag(f"{group}.channels", channels)} must be even with '
        f'{flag(f"{group}.norm", "group")}, which has two groups.'
      )

  return check


def _check_transformer(values: Mapping[str, Any]) -> Iterator[str]:
  """The complaint if the attention heads cannot share the width."""
  heads, width = values['transformer.heads'], values['transformer.width']
  if width % heads:
    yield (
      f'{flag("transformer.heads", heads)} must be a divisor of '
      f'{flag("transformer.width", width)}.'
    )


# Attackers replace the model that they send.
_SENDING_MODELS = Bound(
  'another than fednova and fedexp', lambda name: name not in ('fednova', 'fedexp')
)
_check_attack = check_of([Rule('algorithm', _SENDING_MODELS, 'attack.name')])


def _check_ring(values: Mapping[str, Any]) -> Iterator[str]:
  """The complaint if a client of a ring has as many neighbours as there are clients."""
  degree, num_clients = values['topology.degree'], values['num_clients']
  if degree >= num_clients:
    yield (
      f'{flag("topology.degree", degree)} must be below '
      f'{flag("num_clients", num_clients)}.'
    )


def _check_cyclic(values: Mapping[str, Any]) -> Iterator[str]:
  """The complaint if neighbours on a ring or grid are never present together.

  Clients of one group have numbers that differ by a multiple of the number of groups.
  """
  topology, num_clients = values['topology.name'], values['num_clients']
  groups = values['availability.groups']
  if topology == 'ring':
    steps = range(1, values['topology.degree'] // 2 + 1)
    differences = {*steps, *(num_clients - step for step in steps)}
  elif topology == 'grid':
    num_rows = num_rows_of_grid(num_clients)
    differences = {1, num_clients // num_rows if num_rows > 1 else 1}
  else:
    return
  if all(difference % groups for difference in differences):
    yield (
      f'{flag("availability.groups", groups)} never has two neighbours of '
      f'{flag("topology.name", topology)} in one round, so no client would receive a '
      'model: change one of them.'
    )


# --- entries --------------------------------------------------------------------------


def _part(
  kind: str,
  name: str,
  code: str,
  traits: Iterable[str] = (),
  *,
  knobs: Mapping[str, Knob] | None = None,
  group: str = '',
  check: Callable[[Mapping[str, Any]], Iterable[str]] | None = None,
) -> Part:
  """The entry of a part whose code is 'module:function' in moon_jax."""
  return Part(
    kind=kind,
    name=name,
    make=f'moon_jax.{code}',
    traits=frozenset(traits),
    knobs=knobs or {},
    group=group,
    check=check,
  )


def _plain_parts(kind: str, module: str, names: Iterable[str]) -> list[Part]:
  """Parts without knobs and traits, each made by the function with its name."""
  return [_part(kind, name, f'{module}:{name}') for name in names]


def _data(name: str, traits: Iterable[str] = ()) -> Part:
  """A data source whose module has its name."""
  return _part('data', name, f'data.{name}:load_{name}', traits)


def _federated_data(name: str, traits: Iterable[str]) -> Part:
  """A source of users' data whose module has its name."""
  return _part('data', name, f'data.federated.{name}:load_{name}', traits)


def _moon_cnn(name: str) -> Part:
  return _part(
    'model',
    name,
    'models.cnn:MoonCnn',
    {'of_pictures', 'convolutional', 'normalized'},
    knobs=_CNN_KNOBS | _NORM_KNOBS,
    group='moon_cnn',
    check=_check_statistics('moon_cnn'),
  )


def _resnet(depth: int) -> Part:
  return _part(
    'model',
    f'resnet{depth}',
    f'models.resnet:resnet{depth}',
    {'of_pictures', 'convolutional', 'normalized'},
    knobs=_RESNET_KNOBS,
    group='resnet',
    check=_check_statistics('resnet'),
  )


def _attack(name: str, *, colludes: bool = False) -> Part:
  """An attack whose clients send another model than they trained."""
  traits = {'attacking', 'sending'} | ({'colluding'} if colludes else set())
  return _part('attack', name, f'{_ATTACKS}:{name}', traits, check=_check_attack)


OTHERS = (
  _part(
    'model',
    'mlp',
    'models.mlp:Mlp',
    {'of_pictures', 'of_tables', 'of_signals', 'of_volumes'},
    knobs=_MLP_KNOBS,
  ),
  _moon_cnn('moon_cnn'),
  _moon_cnn('tutorial_cnn'),  # explained in cnn.py
  _part(
    'model',
    'dco_cnn',
    'models.cnn:DcoCnn',
    {'of_pictures', 'convolutional', 'normalized'},
    knobs=_NORM_KNOBS,
    check=_check_statistics('dco_cnn'),
  ),
  _part(
    'model',
    'cnn_transformer',
    'models.cnn_transformer:CnnTransformer',
    {'of_pictures', 'convolutional', 'normalized'},
    knobs=_TRANSFORMER_KNOBS,
  ),
  _resnet(18),
  _resnet(50),
  _part(
    'model',
    'mobilenet_v2',
    'models.mobilenet:MobileNetV2',
    {'of_pictures', 'convolutional', 'normalized'},
    knobs=_MOBILENET_KNOBS,
  ),
  _part(
    'model',
    'cnn_1d',
    'models.cnn_1d:Cnn1d',
    {'of_signals', 'normalized'},
    knobs=_CNN_1D_KNOBS | _NORM_KNOBS,
    check=_check_channels('cnn_1d'),
  ),
  _part(
    'model',
    'cnn_3d',
    'models.cnn_3d:Cnn3d',
    {'of_volumes', 'normalized'},
    knobs=_CNN_3D_KNOBS | _NORM_KNOBS,
    check=_check_channels('cnn_3d'),
  ),
  _part(
    'model',
    'gru',
    'models.sequences:Gru',
    {'of_signals', 'of_words', 'vocabulary'},
    knobs=_GRU_KNOBS,
  ),
  _part(
    'model',
    'transformer',
    'models.sequences:Transformer',
    {'of_words', 'vocabulary'},
    knobs=_WORDS_TRANSFORMER_KNOBS,
    check=_check_transformer,
  ),
  _data('digits'),
  _data('tfds', {'ids', 'named', 'arrays', 'texts', 'text_columns', 'number_columns'}),
  _data('npz', {'files', 'arrays', 'texts'}),
  _data('imagefolder', {'files', 'pictures', 'drawn', 'arrays'}),
  _data(
    'table', {'files', 'ids', 'labelled', 'drawn', 'arrays', 'texts', 'text_columns'}
  ),
  _data('audiofolder', {'files', 'drawn', 'arrays'}),
  _data('torchvision', {'files', 'named', 'pickled'}),
  _part(
    'data',
    'folder',
    'data.federated.npz_folder:load_npz_folder',
    {'files', 'arrays'},
  ),
  _part('data', 'records', 'data.federated.user_records:load_records', {'files'}),
  _federated_data('hdf5', {'files', 'pair', 'features', 'labelled', 'arrays'}),
  _federated_data('sqlite', {'files', 'pair', 'features', 'labelled', 'arrays'}),
  _federated_data(
    'huggingface',
    {
      'files',
      'ids',
      'features',
      'labelled',
      'pictures',
      'drawn',
      'arrays',
      'texts',
      'text_columns',
      'number_columns',
    },
  ),
  _federated_data('leaf', {'files', 'arrays', 'texts'}),
  _federated_data('pfllib', {'files', 'pickled', 'arrays'}),
  _part('partition', 'iid', f'{_PARTITIONS}.quantity_skew:iid', {'dealt'}),
  _part(
    'partition', 'dirichlet', f'{_PARTITIONS}.label_skew:dirichlet', {'dealt', 'beta'}
  ),
  _part('partition', 'shards', f'{_PARTITIONS}.label_skew:shards', {'dealt'}),
  _part(
    'partition', 'quantity', f'{_PARTITIONS}.quantity_skew:quantity', {'dealt', 'beta'}
  ),
  _part('partition', 'noise', f'{_PARTITIONS}.feature_skew:noise', {'dealt'}),
  _part('partition', 'natural', f'{_PARTITIONS}.natural:natural'),
  _part('augmentation', 'none', f'{_AUGMENTATIONS}:none'),
  _part('augmentation', 'flip', f'{_AUGMENTATIONS}:flip', {'of_pictures'}),
  _part('augmentation', 'crop_flip', f'{_AUGMENTATIONS}:crop_flip', {'of_pictures'}),
  _part('augmentation', 'time_flip', f'{_AUGMENTATIONS}:time_flip', {'of_signals'}),
  _part(
    'augmentation',
    'jitter',
    f'{_AUGMENTATIONS}:jitter',
    {'of_signals', 'of_tables', 'of_volumes', 'deviations'},
  ),
  *_plain_parts('optimizer', _OPTIMIZERS, ('sgd', 'adam', 'adamw')),
  *_plain_parts('schedule', _SCHEDULES, ('constant', 'cosine')),
  _part('schedule', 'exponential', f'{_SCHEDULES}:exponential', {'decaying'}),
  _part('schedule', 'step', f'{_SCHEDULES}:step', {'decaying'}),
  *_plain_parts('server_optimizer', _SERVER_OPTIMIZERS, ('sgd', 'adam', 'yogi')),
  _part('topology', 'ring', f'{_TOPOLOGIES}:ring', check=_check_ring),
  *_plain_parts('topology', _TOPOLOGIES, ('grid', 'complete', 'erdos_renyi')),
  _part('availability', 'uniform', f'{_AVAILABILITIES}:uniform'),
  _part('availability', 'cyclic', f'{_AVAILABILITIES}:cyclic', check=_check_cyclic),
  *_plain_parts('availability', _AVAILABILITIES, ('by_data', 'trace')),
  Part('attack', 'none', None),
  Part('attack', 'label_flip', None, traits=frozenset({'attacking'})),
  _attack('sign_flip'),
  _attack('gaussian'),
  _attack('alie', colludes=True),
  _attack('ipm', colludes=True),
)
