"""A world small enough to simulate in a second: random images, few unequal clients."""

import dataclasses
import functools

import flax.linen as nn
import jax
import numpy as np

from moon_jax import catalog, models
from moon_jax import config as config_lib
from moon_jax.building import experiment, programs, round_scalars, scheduling
from moon_jax.building.algorithm import AlgorithmOptions, make_algorithm
from moon_jax.building.training_data import TrainingData
from moon_jax.core.types import Form, Scale
from moon_jax.data import device_split, partition
from moon_jax.models import layers
from moon_jax.planning import topology
from moon_jax.planning.availability import EVERYONE
from moon_jax.planning.batches import LocalWork
from moon_jax.planning.client_facts import facts_of_clients
from moon_jax.planning.lanes import LaneLayout
from moon_jax.planning.participation import Participation
from moon_jax.planning.planner import Averaging, ClientData, make_planner
from moon_jax.platform import devices
from moon_jax.platform.client_memory import ClientMemory
from moon_jax.round.examination import with_empty_sums
from moon_jax.round.traffic import Traffic

BATCH_SIZE = 16
LOCAL_EPOCHS = 2
# One example; one full batch; two batches and 9 examples; one batch and one example.
SIZES = (1, BATCH_SIZE, 2 * BATCH_SIZE + 9, BATCH_SIZE + 1)
NUM_CLIENTS = len(SIZES)
OPTIONS = {
  'fedavg': {},
  'fedprox': {'mu': 0.5},
  'scaffold': {},
  'fedsam': {'rho': 0.2, 'adaptive': False, 'xi': 0.2},
  'mofedsam': {'rho': 0.2, 'adaptive': True, 'xi': 0.05, 'beta': 0.4},
  'moon': {'mu': 2.0, 'tau': 0.5},
  'sa_moon': {
    'mu': 2.0,
    'initial_temperature': 0.5,
    'min_temperature': 0.05,
    'sigma': 0.2,
    'scope': 'client',
  },
  'dco_moon': {'mu': 0.7, 'tau': 0.5, 'theta': 0.0625, 'normalise': False},
  'moon_l2': {'mu': 0.5},
  'fedntd': {'beta': 2.0, 'tau': 3.0},
  'feddecorr': {'beta': 0.1},
  'fedlc': {'tau': 2.0, 'least_count': 0.0},
  'fedrs': {'alpha': 0.25},
  'feddyn': {'alpha': 0.5, 'by_size': True},
  'fednova': {'mu': 0.4},
  'fedproc': {'tau': 0.5, 'rise': 6.0},
  'fedproto': {'lam': 2.0},
  'fedexp': {'eps': 0.002, 'eps_decay': 0.5},
  'decentralized_fedavg': {},
  'decentralized_moon': {'mu': 2.0, 'tau': 0.5},
  'solo': {},
  'centralized': {},
}
# FedAvg with robust aggregation.
ROBUST = {
  'median': {},
  'trimmed_mean': {'trim': 0.34},
  'krum': {'num_byzantine': 0, 'num_selected': 2},
}
# Algorithms with personal models: tests/algorithms/test_personal.py tests them.
PERSONAL = {
  'fedper': {'layers': ''},
  'fedbabu': {},
  'fedbn': {},
  'ditto': {'lam': 0.7},
  # tests/algorithms/test_personalised.py tests these.
  'fedrep': {'head_epochs': 3},
  'apfl': {'alpha': 0.4},
  'pfedme': {'lam': 2.0, 'inner_learning_rate': 0.1},
  'per_fedavg': {'alpha': 0.2},
  'fedala': {'eta': 20.0, 'start_epochs': 13},
}
ALGORITHM_OPTIONS = OPTIONS | ROBUST | PERSONAL
# The reference's name -> our name, and options that are no numbers.
LOCAL_OPTIMIZERS = {
  'sgd': ('sgd', {}),
  'nesterov': ('sgd', {'nesterov': True}),
  'adam': ('adam', {}),
  'adamw': ('adamw', {}),
}
# The values are so large that leaving one out shows in every parameter.
OPTIMIZER = {'learning_rate': 0.05, 'momentum': 0.9, 'weight_decay': 1e-2}
IMAGE_SHAPES = {'moon_cnn': (28, 28, 1)} | dict.fromkeys(
  ('mlp', 'mlp_bn', 'mlp_dropout'), (8, 8, 1)
)
MODEL_OPTIONS = {
  'mlp': {'width': 16, 'representation': 8},
  'moon_cnn': {},
}
NUM_CLASSES = 4
NUM_WORDS = 7


@dataclasses.dataclass(frozen=True)
class Kind:
  """A kind of examples that are no pictures, and a network for them.

  Attributes:
    shape: of an example.
    model: name of the network.
    options: its knobs.
    content: as in `Form`.
  """

  shape: tuple[int, ...]
  model: str
  options: dict
  content: str = 'numbers'


_SMALL = {'width': 6, 'representation': 5}
_CNN_1D = _SMALL | {'channels': 3, 'kernel': 3}
# Names that stand where a test says which model it trains.
KINDS = {
  'table': Kind((6,), 'mlp', _SMALL),
  'signal': Kind((5, 2), 'cnn_1d', _CNN_1D),
  'signal_bn': Kind((5, 2), 'cnn_1d', _CNN_1D | {'norm': 'batch'}),
  'volume': Kind((8, 8, 8, 1), 'cnn_3d', _SMALL | {'channels': 2}),
  'words': Kind((4,), 'gru', _SMALL | {'embedding': 3}, 'words'),
  'words_transformer': Kind(
    (4,),
    'transformer',
    {
      'layers': 1,
      'heads': 2,
      'width': 4,
      'feedforward': 5,
      'dropout': 0.2,
      'representation': 5,
    },
    'words',
  ),
}


def owned(sizes=SIZES):
  """The rows of each client: consecutive, all in use."""
  ends = np.cumsum(sizes)
  return [np.arange(end - size, end) for size, end in zip(sizes, ends, strict=True)]


@functools.cache
def data(model='mlp'):
  """A training split: (DeviceSplit, normalised images [M, H, W, C], labels [M])."""
  if model in KINDS:
    return _data_of_kind(KINDS[model])
  rng = np.random.default_rng(0)
  images = rng.integers(0, 256, (sum(SIZES), *IMAGE_SHAPES[model]), np.uint8)
  labels = rng.integers(0, NUM_CLASSES, sum(SIZES)).astype(np.int32)
  mean, std = np.array([0.4], np.float32), np.array([0.3], np.float32)
  return (
    jax.device_put(device_split.DeviceSplit(images, labels, mean, std)),
    ((images / 255 - mean) / std).astype(np.float32),
    labels,
  )


def _data_of_kind(kind):
  """What `data` returns, of float32 numbers, or of words with -1 for no word."""
  rng = np.random.default_rng(0)
  labels = rng.integers(0, NUM_CLASSES, sum(SIZES)).astype(np.int32)
  shape = sum(SIZES), *kind.shape
  if kind.content == 'words':
    examples = rng.integers(-1, NUM_WORDS, shape).astype(np.int32)
    mean, std = np.zeros(1, np.float32), np.ones(1, np.float32)
    normalised = examples
  else:
    examples = rng.normal(3, 2, shape).astype(np.float32)
    mean = rng.normal(3, 0.1, kind.shape[-1]).astype(np.float32)
    std = rng.uniform(1, 3, kind.shape[-1]).astype(np.float32)
    normalised = (examples - mean) / std
  split = device_split.DeviceSplit(examples, labels, mean, std, content=kind.content)
  return jax.device_put(split), normalised, labels


@functools.cache
def train_split(model='mlp'):
  """The split and its owners; every client's rows in reverse, to tell them apart."""
  rows = np.concatenate([mine[::-1] for mine in owned()]).astype(np.int32)
  offsets = np.concatenate([[0], np.cumsum(SIZES)]).astype(np.int32)
  position_of_row = np.argsort(rows).astype(np.int32)
  split = device_split.TrainSplit(
    examples=data(model)[0],
    rows_by_owner=rows,
    offsets=offsets,
    position_of_row=position_of_row,
    holds_cohort_only=False,
  )
  return jax.device_put(split)


@functools.cache
def network(model='mlp', convolution='auto_on_cpu'):
  """The network for the world's images, with a form for its convolutions, if any."""
  if model in KINDS:
    kind = KINDS[model]
    form = Form(content=kind.content, vocabulary=NUM_WORDS)
    return models.make(
      kind.model,
      image_shape=kind.shape,
      num_classes=NUM_CLASSES,
      form=form,
      **kind.options,
    )
  shape = IMAGE_SHAPES[model]
  if model == 'mlp_bn':
    return models.of_module(MlpBn(NUM_CLASSES), shape)
  if model == 'mlp_dropout':
    return models.of_module(MlpDropout(NUM_CLASSES), shape)
  options = MODEL_OPTIONS[model] | {'convolution': convolution}
  return models.make(model, image_shape=shape, num_classes=NUM_CLASSES, **options)


class MlpBn(nn.Module):
  """The reference's mlp_bn: the mlp with batch normalisation, `norm`."""

  num_classes: int

  @nn.compact
  def __call__(self, images, mask=None):
    x = layers.dense(images.reshape(len(images), -1), 16, 'encoder')
    x = layers.BatchNorm(-1, name='norm')(x[:, None, None], mask)[:, 0, 0]
    x = nn.relu(x)
    return layers.head_and_classifier(x, 16, 8, self.num_classes)


class MlpDropout(nn.Module):
  """A network that draws random numbers while it trains."""

  num_classes: int

  @nn.compact
  def __call__(self, images, mask=None):
    x = nn.Dropout(0.5)(images.reshape(len(images), -1), deterministic=mask is None)
    return layers.head_and_classifier(x, 16, 8, self.num_classes)


@functools.cache
def variables(model='mlp'):
  """The network's initial variables."""
  return network(model).init(0)


ATTACKS = {
  'sign_flip': {'scale': 1.5},
  'gaussian': {'sigma': 0.1},
  'ipm': {'epsilon': 0.5},
  'alie': {},
}


def config_of(
  algorithm='fedavg',
  *,
  seed=0,
  num_clients=NUM_CLIENTS,
  represent_once=True,
  augmentation='none',
  local_optimizer='sgd',
  optimizer=None,
  server_optimizer='sgd',
  server_learning_rate=1.0,
  server_momentum=0.0,
  batch_norm='averaged',
  attack='none',
  **options,
):
  """The configuration of a run in this world.

  `optimizer` changes some of OPTIMIZER, `options` some of the algorithm's options.
  """
  optimizer_name, optimizer_flags = LOCAL_OPTIMIZERS[local_optimizer]
  knobs = {
    'algorithm': algorithm,
    # A network with batch normalisation, so that `batch_norm` is used.
    'model': 'resnet18',
    'seed': seed,
    'num_clients': num_clients,
    'local_epochs': LOCAL_EPOCHS,
    'batch_norm': batch_norm,
    'augmentation.name': augmentation,
    'optimizer.name': optimizer_name,
    'server_optimizer.name': server_optimizer,
    'server_optimizer.learning_rate': server_learning_rate,
    'server_optimizer.momentum': server_momentum,
    'attack.name': attack,
    'execution.cache_mib': 64 if represent_once else 0,
  }
  # Some algorithms share the knobs of another one.
  algorithm_group = catalog.part('algorithm', algorithm).group or algorithm
  groups = {
    algorithm_group: ALGORITHM_OPTIONS[algorithm] | options,
    'optimizer': OPTIMIZER | (optimizer or {}) | optimizer_flags,
    'attack': ATTACKS.get(attack, {}),
  }
  for group, options_of_group in groups.items():
    for name, option in options_of_group.items():
      knobs[f'{group}.{name}'] = option
  return config_lib.changed(config_lib.defaults(), knobs)


@functools.cache
def make(algorithm, model='mlp', **options):
  """The algorithm as a run with `config_of(algorithm, **options)` makes it."""
  options = AlgorithmOptions(config_of(algorithm, **options))
  return make_algorithm(options, network(model))


def algorithm_of(name, **options):
  """The algorithm of the catalog with these options."""
  return catalog.part('algorithm', name).function(**options)


@dataclasses.dataclass(frozen=True)
class RoundOptions:
  """What the compiled round of an algorithm depends on.

  Attributes:
    model: name of the network.
    represent_once: whether frozen networks may see all examples once a round.
    num_devices: number of devices.
    augmentation: name of the augmentation.
    local_optimizer: name of the local optimizer, as the reference has it.
    segment_steps: steps of a segment; 0 for segments of any length.
    num_clients: N.
  """

  model: str = 'mlp'
  represent_once: bool = True
  num_devices: int = 1
  augmentation: str = 'none'
  local_optimizer: str = 'sgd'
  segment_steps: int = 0
  num_clients: int = NUM_CLIENTS


def compiled_round(algorithm, round_options=RoundOptions(), **options):
  """The jitted round; numbers are traced, so one serves every test of an algorithm.

  Args:
    algorithm: its name.
    round_options: further options of the round.
    **options: as in `make`, but for numbers that are traced.
  """
  return _compiled_round(algorithm, round_options, tuple(sorted(options.items())))


@functools.cache
def _compiled_round(algorithm, round_options, options):
  return round_of(make(algorithm, round_options.model, **dict(options)), round_options)


def round_of(algorithm, round_options=RoundOptions()):
  """The jitted round of an Algorithm, as a run compiles it."""
  model_network = network(round_options.model)
  built = experiment.Experiment(
    config=config_of(
      num_clients=round_options.num_clients,
      represent_once=round_options.represent_once,
      augmentation=round_options.augmentation,
      local_optimizer=round_options.local_optimizer,
    ),
    data=TrainingData(
      partition=None,
      class_counts=None,
      train=train_split(round_options.model),
      stream=None,
      user_ids=None,
      num_users_left_out=0,
      class_names=(),
      scale=Scale(),
      digest='',
    ),
    tests=None,
    network=model_network,
    algorithm=with_empty_sums(algorithm, model_network),
    has_client_models=False,
    traffic=Traffic(bytes_received=0, bytes_sent=0),
    # A lane for each client, so that a table of representations has room for all.
    planner=planner(
      NUM_CLIENTS, NUM_CLIENTS, segment_steps=round_options.segment_steps
    ),
    placement=experiment.Placement(
      mesh=devices.mesh(round_options.num_devices), client_memory=ClientMemory(True, 0)
    ),
  )
  return jax.jit(functools.partial(programs.run_round, built))


def scalars(algorithm, seed=0, optimizer=None, local_optimizer='sgd'):
  """The numbers of a round; `optimizer` changes some of OPTIMIZER."""
  config = config_of(seed=seed, optimizer=optimizer, local_optimizer=local_optimizer)
  return round_scalars.scalars_of_round(config, algorithm, 0)


def ring(num_clients):
  """[K] clients -> [K, K] mixing weights on a ring; each client has two neighbours."""
  graph = topology.ring(num_clients=num_clients, degree=2)
  return functools.partial(topology.among, topology.metropolis_hastings(graph))


def planner(
  num_lanes=2,
  cohort_size=3,
  sizes=SIZES,
  *,
  seed=0,
  num_devices=1,
  segment_steps=0,
  process_lanes=None,
  min_steps=0,
  local_epochs=LOCAL_EPOCHS,
  local_epochs_min=0,
  drop_last=False,
  available=EVERYONE,
  num_stragglers=0,
  stragglers_send_partial_work=False,
  attackers=None,
  uniform_weights=False,
  has_server=False,
  algorithm=None,
  client_facts=None,
):
  """Plans of `cohort_size` of the clients in each round.

  Unless `has_server`, neighbours form a ring. An `algorithm` decides whether there is a
  second local training.
  """
  offsets = np.concatenate([[0], np.cumsum(sizes)])
  split = partition.Partition(np.arange(offsets[-1]), offsets)
  work = LocalWork(
    local_epochs=local_epochs,
    local_epochs_min=local_epochs_min,
    batch_size=BATCH_SIZE,
    drop_last=drop_last,
    batches_per_step=algorithm.num_batches if algorithm else 1,
  )
  has_ring = len(sizes) > 2 and not has_server
  second_training = algorithm.second_training if algorithm else None
  second_work = scheduling.second_work(
    second_training, work, batch_size=BATCH_SIZE, sizes=split.sizes
  )
  if algorithm and 'epoch_steps' in algorithm.needs:
    client_facts = {'epoch_steps': second_work.epoch_steps(sizes)}
  return make_planner(
    seed=seed,
    participation=Participation(
      num_clients=len(sizes),
      cohort_size=cohort_size,
      available=available,
      num_stragglers=num_stragglers,
      stragglers_send_partial_work=stragglers_send_partial_work,
      attackers=attackers,
    ),
    data=ClientData(sizes=split.sizes, rows_of=split.rows),
    work=work,
    second_work=second_work,
    layout=LaneLayout(
      num_lanes=num_lanes, num_devices=num_devices, segment_steps=segment_steps
    ),
    process_lanes=process_lanes,
    min_steps=min_steps,
    averaging=Averaging(
      uniform_weights=uniform_weights, mixing=ring(len(sizes)) if has_ring else None
    ),
    client_facts=client_facts,
  )


def batches_of(plans, index, training=None):
  """Client -> the rows of each of its batches in a round; only clients with batches.

  The batches are those of `plans.training`, or of another training.
  """
  training = training or plans.training
  draw = plans.draw(index)
  batches = training.batches(
    index,
    draw.clients,
    draw.interrupted,
    in_second_round=plans.in_second_round(index),
  )
  rows_of_client = {}
  for client, (rows, num_real) in zip(draw.clients.tolist(), batches, strict=True):
    if training.data.sizes[client]:
      pairs = zip(rows, num_real, strict=True)
      rows_of_client[client] = [batch[:real] for batch, real in pairs]
  return rows_of_client


def first_state(algorithm, model='mlp', **options):
  """The state before the first round."""
  return state_of(make(algorithm, model, **options), model)


def state_of(chosen, model='mlp', num_clients=NUM_CLIENTS, num_devices=1):
  """The state of an Algorithm before the first round, on the devices of a round."""
  chosen = with_empty_sums(chosen, network(model))
  state = experiment.make_initial_state(chosen, variables(model), num_clients)
  if num_devices == 1:
    return state
  return devices.replicate(state, devices.mesh(num_devices))


def run(
  algorithm,
  num_rounds,
  *,
  model='mlp',
  plans=None,
  represent_once=True,
  augmentation='none',
  seed=0,
  optimizer=None,
  local_optimizer='sgd',
  data_of=lambda index, split: split,
  **options,
):
  """Runs rounds and returns the state and the metrics after each of them, in numpy.

  `data_of` makes the training split of a round from the world's.
  """
  plans, chosen = plans or planner(), make(algorithm, model, **options)
  num_clients, layout = plans.participation.num_clients, plans.training.layout
  if chosen.needs:
    labels = np.asarray(data_of(0, train_split(model)).examples.labels)
    rows_of_client = plans.training.data.rows_of(np.arange(num_clients))
    class_counts = [
      np.bincount(labels[rows], minlength=NUM_CLASSES) for rows in rows_of_client
    ]
    no_flippers = np.zeros(0, int)
    facts = facts_of_clients(chosen.needs, np.array(class_counts), no_flippers)
    plans = dataclasses.replace(plans, client_facts=facts)
  state = state_of(chosen, model, num_clients, layout.num_devices)
  numbers = scalars(chosen, seed, optimizer, local_optimizer)
  # Only the first state depends on `initial`.
  traced_names = {*chosen.hyperparameters, 'initial'}
  fixed = {name: options[name] for name in options.keys() - traced_names}
  # A server optimizer needs numbers when it is built, but their values are traced.
  for name in ('server_learning_rate', 'server_momentum'):
    if name in options:
      fixed[name] = 1.0
  round_options = RoundOptions(
    model=model,
    represent_once=represent_once,
    num_devices=layout.num_devices,
    augmentation=augmentation,
    local_optimizer=local_optimizer,
    segment_steps=layout.segment_steps,
    num_clients=num_clients,
  )
  history = []
  for index in range(num_rounds):
    plan = plans.plan(index)
    run_round = compiled_round(algorithm, round_options, **fixed)
    split = data_of(index, train_split(model))
    state, metrics = run_round(state, plan.for_device(), numbers, split)
    history.append((state, metrics))
  return jax.device_get(history)


def of_client(stacked, client):
  """A client's part of what is stacked over the clients, in NumPy."""
  return jax.tree.map(lambda leaf: np.asarray(leaf)[client], stacked)


def largest_difference(a, b):
  """The largest absolute difference of two trees with the same leaves; NaN of a NaN."""
  pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
  wide = ((np.asarray(x, np.float64), np.asarray(y, np.float64)) for x, y in pairs)
  # np.max keeps a NaN, which `max` may pass over.
  return float(np.max([np.max(np.abs(x - y)) for x, y in wide]))
