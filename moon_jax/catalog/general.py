"""The knobs of every run; the knobs of one algorithm or model stand in its entry."""

from collections.abc import Iterator, Mapping
from typing import Any

from moon_jax.catalog.entries import (
  COUNT,
  SEED,
  Bound,
  above,
  at_least,
  between,
  counted,
  exactly,
  knob,
  listed_words,
  number,
  one_of,
  switch,
  word,
)
from moon_jax.core.flags import flag

# What a knob needs: pairs (kind of part, trait); the chosen parts must have all.
_SEVERAL = (('algorithm', 'several_clients'),)
_SERVED = (('algorithm', 'served'),)
_WEIGHTED = (('algorithm', 'weighted'),)
_PEERS = (('algorithm', 'decentralized'),)
_CONTRASTIVE = (('algorithm', 'contrastive'),)
_NORMALIZED = (('model', 'normalized'),)
_CONVOLUTIONAL = (('model', 'convolutional'),)
_TFDS = (('data', 'tfds'),)
_FILES = (('data', 'files'),)
_PAIR = (('data', 'pair'),)
_FEATURES = (('data', 'features'),)
_LABELLED = (('data', 'labelled'),)
_TABLE = (('data', 'table'),)
_DRAWN = (('data', 'drawn'),)
_IDS = (('data', 'ids'),)
_ARRAYS = (('data', 'arrays'),)
_TEXTS = (('data', 'texts'),)
_TEXT_COLUMNS = (('data', 'text_columns'),)
_COLUMNS = (('data', 'number_columns'),)
_SPLIT_NAMES = (('data', 'huggingface'),)
_SOUNDS = (('data', 'audiofolder'),)
_NAMED = (('data', 'named'),)
_PICKLED = (('data', 'pickled'),)
_PICTURES = (('data', 'pictures'),)
_DEALT = (*_SEVERAL, ('partition', 'dealt'))
_BETA = (*_SEVERAL, ('partition', 'beta'))
_DIRICHLET = (*_SEVERAL, ('partition', 'dirichlet'))
_SHARDS = (*_SEVERAL, ('partition', 'shards'))
_NOISE = (*_SEVERAL, ('partition', 'noise'))
_JITTER = (('augmentation', 'jitter'),)
_CROPS = (('augmentation', 'crop_flip'),)
_SGD = (('optimizer', 'sgd'),)
_DECAYING = (('schedule', 'decaying'),)
_SERVER_SGD = (*_SERVED, ('server_optimizer', 'sgd'))
_CYCLIC = (*_SEVERAL, ('availability', 'cyclic'))
_TRACE = (*_SEVERAL, ('availability', 'trace'))
_ATTACK = (*_SERVED, ('attack', 'attacking'))
_SIGN_FLIP = (*_SERVED, ('attack', 'sign_flip'))
_GAUSSIAN = (*_SERVED, ('attack', 'gaussian'))
_IPM = (*_SERVED, ('attack', 'ipm'))
_RING = (*_PEERS, ('topology', 'ring'))
_RANDOM_GRAPH = (*_PEERS, ('topology', 'erdos_renyi'))

# Without attackers the attack's numbers change nothing.
_SOMEBODY_ATTACKS = ('attack.fraction', above(0))

_EVEN = Bound('even, at least 2', lambda value: value >= 2 and value % 2 == 0)
_NOT_NEGATIVE = at_least(0)
# The package takes space for all words before it counts any, and ends the process where
# there is none.
_LARGEST_VOCABULARY = 2**20
_BELOW_ONE = between(0, 1, '[)')
_UNIT = between(0, 1)
_POSITIVE_UNIT = between(0, 1, '(]')
_CLIENT_FRACTION = Bound(
  'a fraction of the clients in (0, 1], not a count', _POSITIVE_UNIT.holds
)
_EXAMPLE_SHARE = Bound('a share of the examples in [0, 1)', _BELOW_ONE.holds)


def _are_loggers(names):
  """Whether '' or 'wandb,mlflow' names loggers, each once."""
  if names == '':
    return True
  listed = names.split(',')
  loggers = {'tensorboard', 'wandb', 'mlflow'}
  return len(set(listed)) == len(listed) and loggers.issuperset(listed)


def range_of(text: str) -> tuple[float, float]:
  """The two numbers of a value of `data.range`.

  >>> range_of('0,16')
  (0.0, 16.0)

  Raises:
    ValueError: it is not LOW,HIGH with HIGH above LOW, or they are too large or too
      close for float arithmetic.
  """
  low, high = map(float, text.split(','))
  if not (max(-low, high) <= 1e30 and high - low >= 1e-30):  # nor are NaN
    raise ValueError(text)
  return low, high


def _is_range(text):
  try:
    return text == '' or bool(range_of(text))
  except ValueError:
    return False


def compiler_options(text: str) -> dict[str, str | bool]:
  """Name -> value of each option in a value of `execution.compiler_options`.

  A value may have commas: what has no equals sign continues the value before it.

  >>> compiler_options('xla_a=1,xla_b=FUSION,WHILE,xla_c=true')
  {'xla_a': '1', 'xla_b': 'FUSION,WHILE', 'xla_c': True}

  Raises:
    ValueError: it does not begin with NAME=, or names an option twice.
  """
  options = {}
  name = ''
  for piece in text.split(',') if text else []:
    if '=' in piece:
      name, _, value = piece.partition('=')
      if not name.isidentifier() or name in options:
        raise ValueError(text)
      options[name] = value
    elif name:
      options[name] += f',{piece}'
    else:
      raise ValueError(text)
  # XLA takes truth values only as such.
  booleans = {'true': True, 'false': False}
  return {name: booleans.get(value.lower(), value) for name, value in options.items()}


def _are_compiler_options(text):
  try:
    compiler_options(text)
  except ValueError:
    return False
  return True


_COMPILER_OPTIONS = Bound(
  "NAME=VALUE,..., each name once, or ''", _are_compiler_options
)
_RANGE = Bound("two numbers LOW,HIGH, the first smaller, or ''", _is_range)
_LOGGERS = Bound(
  'names of tensorboard, wandb and mlflow, each once, with commas between', _are_loggers
)
_AXES = one_of('D', 'T', 'TC', 'CT', 'HW', 'HWC', 'CHW', 'DHW', 'DHWC', 'CDHW')
_AXES_OR_NONE = Bound(
  f"'' or {_AXES.requirement}", lambda value: value == '' or _AXES.holds(value)
)
_TOKENIZERS = one_of('none', 'characters', 'wordpiece')
_STEREO = one_of('refused', 'mean', 'left', 'right')
_NORMALIZE = one_of('auto', 'none', 'per_channel', 'per_feature')
_SPLITS = one_of('none', 'validation', 'test')
_WEIGHTS = one_of('samples', 'uniform')
_STATISTICS = one_of('averaged', 'local')
_STRAGGLERS_SEND = one_of('nothing', 'partial')
_NONFINITE = one_of('stop', 'skip_client')
_PADDINGS = one_of('reflect', 'zero')
_DTYPES = one_of('float32', 'bfloat16')
_PRECISIONS = one_of('default', 'high', 'highest')
_CLIENT_STORES = one_of('auto', 'device', 'disk')
_CONVOLUTIONS = one_of('auto', 'library', 'banded', 'fused', 'direct', 'winograd')


# The numbers of every test, which `best_by` may name beside the metrics.
TEST_NUMBERS = ('accuracy', 'loss')

# A knob that may change keeps a resumed run the same experiment.
KNOBS = {
  'algorithm': word('moon', 'algorithm by which the clients train'),
  'model': word('mlp', 'network'),
  'seed': knob(int, 0, 'seed of the random draws', SEED),
  'initial_weights': word(
    '', "file of the first weights, .safetensors or .npz; '' draws them"
  ),
  'frozen_layers': word(
    '', "layers that do not train, with commas, or body; '' is none"
  ),
  'num_clients': counted(
    10, 'number of clients; with natural the data decide', needs=_DEALT
  ),
  'participation': number(
    1.0,
    'fraction of clients in each round (0.25 of 10 is 3)',
    _CLIENT_FRACTION,
    needs=_SEVERAL,
  ),
  'num_rounds': counted(100, 'number of communication rounds', may_change=True),
  'local_epochs': counted(10, 'passes of a client over its own data in each round'),
  'local_epochs_min': knob(
    int,
    0,
    'lowest number of epochs that a client draws; 0: no draw',
    _NOT_NEGATIVE,
    needs=_SEVERAL,
  ),
  'fine_tune_epochs': knob(
    int,
    0,
    "epochs of each client's fine-tuning before its own test; 0 is none",
    _NOT_NEGATIVE,
    needs=_SERVED,
  ),
  'batch_size': counted(64, 'number of examples in a local step'),
  'drop_last': switch(False, 'whether a partial last batch is left out, not masked'),
  'client_weight': word(
    'samples', 'weights of clients: examples, or equal', _WEIGHTS, needs=_WEIGHTED
  ),
  'batch_norm': word(
    'averaged',
    'running statistics; local: clients keep them',
    _STATISTICS,
    needs=_NORMALIZED,
  ),
  'eval_every_rounds': counted(1, 'number of rounds between tests', may_change=True),
  'metrics': word(
    '', "further metrics of each test, with commas between; '' is none", may_change=True
  ),
  'best_by': word(
    'accuracy',
    'what chooses the best round: accuracy, loss, or one of metrics',
    may_change=True,
  ),
  'keep_best': word(
    'none',
    'split by which a best round is chosen whose models are kept',
    _SPLITS,
    may_change=True,
  ),
  'checkpoint_every_rounds': knob(
    int,
    'auto',
    'number of rounds between saves; auto: 10, or five seconds of short rounds',
    COUNT,
    auto=True,
    may_change=True,
  ),
  'on_nonfinite': word(
    'stop', 'reaction to NaN and infinity', _NONFINITE, may_change=True
  ),
  'logger': word(
    'tensorboard',
    "loggers: tensorboard, wandb, mlflow; '' is none",
    _LOGGERS,
    may_change=True,
  ),
  'data.source': word('digits', 'source of the images'),
  'data.name': word(
    '', 'name of a data set in TFDS or torchvision', needs=_NAMED, required=True
  ),
  # The content of the folder is compared itself.
  'data.dir': word(
    '',
    "folder of TFDS; '' is $TFDS_DATA_DIR or the default",
    needs=_TFDS,
    may_change=True,
  ),
  'data.path': word('', 'file or folder of the data', needs=_FILES, required=True),
  'data.test_path': word('', 'file of the test examples', needs=_PAIR, required=True),
  # The content of the files is compared itself.
  'data.trust_pickles': switch(
    False, 'whether pickled files may run their code', needs=_PICKLED, may_change=True
  ),
  'data.client': word('', "feature or column of the user; '' is none", needs=_IDS),
  'data.image': word(
    '', "name of the images; '' is pixels, image, ...", needs=_FEATURES
  ),
  'data.label': word('', "name of the labels; '' is label, ...", needs=_LABELLED),
  # The pixels that come of it are compared themselves.
  'data.range': word(
    '',
    "numbers of black and white; '' is 0,255 for integers, 0,1 for floats",
    _RANGE,
    needs=_ARRAYS,
    may_change=True,
  ),
  'data.axes': word(
    '',
    "axes of an example: D table, TC signals, T words, HWC, DHWC, ...; '': its shape's",
    _AXES_OR_NONE,
    needs=_ARRAYS,
  ),
  'data.normalize': word(
    'auto',
    'what numbers are normalised by; auto: pictures become grey levels',
    _NORMALIZE,
    needs=_ARRAYS,
  ),
  'data.tokenizer': word(
    'none', 'what divides texts into words; none: no texts', _TOKENIZERS, needs=_TEXTS
  ),
  'data.vocabulary_size': knob(
    int,
    2000,
    'most words and pieces of words of the vocabulary',
    between(3, _LARGEST_VOCABULARY),
    needs=_TEXTS,
    used_if=('data.tokenizer', exactly('wordpiece')),
  ),
  'data.text_length': knob(
    int,
    'auto',
    'words kept of each text; auto: all, at most 512',
    COUNT,
    needs=_TEXTS,
    auto=True,
    used_if=('data.tokenizer', one_of('characters', 'wordpiece')),
  ),
  'data.text': word(
    '',
    "column of the texts; '' is text, sentence, ...",
    needs=_TEXT_COLUMNS,
    used_if=('data.tokenizer', one_of('characters', 'wordpiece')),
  ),
  'data.seconds': number(
    'auto',
    'length of each sound, in seconds; auto: that of the longest in training',
    above(0),
    needs=_SOUNDS,
    auto=True,
  ),
  'data.mel_bands': counted(40, 'bands of a spectrogram', needs=_SOUNDS),
  'data.stereo': word(
    'refused', 'what is taken of two channels', _STEREO, needs=_SOUNDS
  ),
  'data.features': word(
    '',
    "columns of numbers, with commas between, or *; '' is the column of images",
    needs=_COLUMNS,
  ),
  'data.train_split': word(
    '', "name of the training split; '' finds it", needs=_SPLIT_NAMES
  ),
  'data.test_split': word(
    '', "name of the test split; '' finds it", needs=_SPLIT_NAMES
  ),
  'data.categories': word(
    '', 'columns of words or codes, with commas between', needs=_TABLE
  ),
  'data.test_fraction': number(
    0.0,
    'fraction of each class, or user, drawn for the test; 0: none',
    _BELOW_ONE,
    needs=_DRAWN,
  ),
  'data.test_seed': knob(
    int,
    0,
    'seed of the draw of test examples',
    SEED,
    needs=_DRAWN,
    used_if=('data.test_fraction', above(0)),
  ),
  'data.image_size': knob(
    int,
    0,
    'side of resized images in pixels; 0 resizes nothing',
    _NOT_NEGATIVE,
    needs=_PICTURES,
  ),
  'data.limit': knob(
    int, 0, 'upper limit of examples per split; 0 takes all', _NOT_NEGATIVE
  ),
  'data.validation': number(
    0.0, 'fraction of each class kept to choose the best round', _BELOW_ONE
  ),
  'data.local_test': number(
    0.0,
    "fraction of each client's examples kept for its own test",
    _EXAMPLE_SHARE,
    needs=_SEVERAL,
  ),
  'partition.name': word(
    'dirichlet', 'rule that deals out the examples', needs=_SEVERAL
  ),
  'partition.beta': number(
    0.5, 'concentration of the Dirichlet shares; small is skewed', above(0), needs=_BETA
  ),
  'partition.balance': switch(
    True,
    'whether a client with a fair share of examples gets no more',
    needs=_DIRICHLET,
  ),
  'partition.classes_per_client': counted(
    2, 'number of classes of a client', needs=_SHARDS
  ),
  'partition.noise_sigma': number(
    0.1,
    "deviation of the last client's noise, of pixels in [0, 1]",
    _UNIT,
    needs=_NOISE,
  ),
  'partition.min_size': counted(
    10, 'lowest number of examples; natural leaves out smaller users', needs=_SEVERAL
  ),
  # 'auto' stays, so that runs with different seeds have the same value.
  'partition.seed': knob(
    int,
    'auto',
    "seed of the partition and of held-out examples; auto: the run's seed",
    SEED,
    auto=True,
  ),
  'augmentation.name': word('none', 'augmentation of training images'),
  'augmentation.padding': word(
    'reflect', 'pixels beyond the border; zero: the number 0', _PADDINGS, needs=_CROPS
  ),
  'augmentation.jitter_sigma': number(
    0.05,
    'deviation of the noise; 1 is what the numbers are divided by',
    _NOT_NEGATIVE,
    needs=_JITTER,
  ),
  'optimizer.name': word('sgd', 'optimizer of local training, new in each round'),
  'optimizer.learning_rate': number(0.01, 'learning rate in the first round', above(0)),
  'optimizer.body_learning_rate': number(
    'auto',
    "first learning rate of the layers before the head; auto: the head's",
    between(0, 1e6, '(]'),
    auto=True,
  ),
  'optimizer.momentum': number(0.9, 'momentum of sgd', _BELOW_ONE, needs=_SGD),
  'optimizer.nesterov': switch(
    False,
    "whether sgd's momentum is Nesterov's",
    needs=_SGD,
    used_if=('optimizer.momentum', above(0)),
  ),
  'optimizer.weight_decay': number(
    1e-5, 'weight decay; decoupled with adamw', _NOT_NEGATIVE
  ),
  'optimizer.clip_norm': number(
    0.0, "largest norm of a client's gradient in a step; 0: no limit", _NOT_NEGATIVE
  ),
  'optimizer.schedule': word('constant', 'schedule of the learning rate over rounds'),
  'optimizer.decay': number(
    0.1,
    'factor of the learning rate after decay_every rounds',
    _POSITIVE_UNIT,
    needs=_DECAYING,
  ),
  'optimizer.decay_every': counted(
    50, 'number of rounds for one decay', needs=_DECAYING
  ),
  'server_optimizer.name': word('sgd', "optimizer of the server's step", needs=_SERVED),
  'server_optimizer.learning_rate': number(
    'auto',
    "server's learning rate; auto: 1 (sgd) or 0.01",
    above(0),
    needs=_SERVED,
    auto=True,
  ),
  'server_optimizer.momentum': number(
    0.0,
    "momentum of the server's sgd; above 0 is FedAvgM",
    _BELOW_ONE,
    needs=_SERVER_SGD,
  ),
  'availability.name': word('uniform', 'availability of the clients', needs=_SEVERAL),
  'availability.groups': counted(
    2, 'number of groups, which take turns', needs=_CYCLIC
  ),
  'availability.path': word(
    '', 'file of the rounds in which clients are present', needs=_TRACE, required=True
  ),
  'stragglers.fraction': number(
    0.0,
    "fraction of a round's clients that miss the deadline",
    _BELOW_ONE,
    needs=_SERVED,
  ),
  'stragglers.send': word(
    'nothing',
    'what stragglers send; partial: unfinished models',
    _STRAGGLERS_SEND,
    needs=_SERVED,
    used_if=('stragglers.fraction', above(0)),
  ),
  'attack.name': word('none', 'attack of some of the clients', needs=_SERVED),
  'attack.fraction': number(
    0.1, 'fraction of all clients that attack', _BELOW_ONE, needs=_ATTACK
  ),
  'attack.scale': number(
    1.0,
    'factor of the reversed update',
    above(0),
    needs=_SIGN_FLIP,
    used_if=_SOMEBODY_ATTACKS,
  ),
  'attack.sigma': number(
    1.0,
    'standard deviation of the noise sent',
    above(0),
    needs=_GAUSSIAN,
    used_if=_SOMEBODY_ATTACKS,
  ),
  'attack.epsilon': number(
    0.5,
    'factor of the reversed mean update',
    above(0),
    needs=_IPM,
    used_if=_SOMEBODY_ATTACKS,
  ),
  'topology.name': word('ring', 'graph of neighbours', needs=_PEERS),
  'topology.degree': knob(
    int, 2, 'number of neighbours of each client', _EVEN, needs=_RING
  ),
  'topology.edge_probability': number(
    0.5, 'probability of a link', _POSITIVE_UNIT, needs=_RANDOM_GRAPH
  ),
}

EXECUTION = {
  'execution.devices': knob(
    int, 'auto', 'number of devices of each process', COUNT, auto=True, may_change=True
  ),
  'execution.lanes': knob(
    int,
    'auto',
    'number of clients trained side by side',
    COUNT,
    auto=True,
    may_change=True,
  ),
  'execution.convolution': word(
    'auto',
    'form of the convolutions; all agree up to rounding',
    _CONVOLUTIONS,
    needs=_CONVOLUTIONAL,
    may_change=True,
  ),
  'execution.cache_mib': knob(
    int,
    2048,
    'MiB for frozen representations; 0 is none',
    _NOT_NEGATIVE,
    needs=_CONTRASTIVE,
    may_change=True,
  ),
  'execution.client_store': word(
    'auto',
    "place of clients' memories between rounds; auto is the device up to "
    '256 MiB in all, or if a round has a quarter of all clients',
    _CLIENT_STORES,
    may_change=True,
  ),
  'execution.dtype': word('float32', 'number type in which networks compute', _DTYPES),
  'execution.matmul_precision': word('default', 'precision of matmuls', _PRECISIONS),
  'execution.deterministic': switch(
    False, 'whether a GPU gives the same bits in every run (slower)', may_change=True
  ),
  'execution.compiler_options': word(
    '',
    "options of XLA's compiler, for GPUs; '' is none",
    _COMPILER_OPTIONS,
    may_change=True,
  ),
  'execution.compile_cache': word(
    'auto', "private folder of programs; auto: the user's; off: none", may_change=True
  ),
  'execution.profile': switch(
    False, 'whether a profile of the second round is recorded', may_change=True
  ),
}


def check(values: Mapping[str, Any]) -> Iterator[str]:
  """The complaints about valid values of these knobs that do not go together.

  Args:
    values: dotted name -> value, of the knobs that are used and valid.
  """
  if {'metrics', 'best_by'} <= values.keys():
    best_by, metrics = values['best_by'], values['metrics']
    if best_by not in (*TEST_NUMBERS, *listed_words(metrics)):
      names = ','.join(filter(None, (metrics, best_by)))
      yield (
        f'{flag("best_by", best_by)} needs that metric: add {flag("metrics", names)}.'
      )
