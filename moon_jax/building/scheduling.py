"""Decides where and when each client trains, as a configuration asks for it."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jax.sharding import Mesh

from moon_jax import catalog
from moon_jax.algorithms.base import Algorithm, SecondTraining
from moon_jax.building import streaming
from moon_jax.catalog.part_errors import explaining_errors_of
from moon_jax.config import Config, flatten, used_value
from moon_jax.core import machine_memory, shares
from moon_jax.core.errors import KnobError, UsageError
from moon_jax.core.flags import flag
from moon_jax.core.types import Dataset
from moon_jax.data import partition
from moon_jax.models import Network
from moon_jax.planning import attackers
from moon_jax.planning.availability import Available, require_enough
from moon_jax.planning.batches import LocalWork
from moon_jax.planning.client_facts import facts_of_clients
from moon_jax.planning.lanes import LaneLayout, round_up
from moon_jax.planning.participation import Participation
from moon_jax.planning.planner import Averaging, ClientData, Planner, make_planner
from moon_jax.platform import client_memory, devices, gpu, hosts
from moon_jax.platform.client_memory import ClientMemory

# The knobs that are a number of passes over a client's data in a round.
_EPOCHS = (
  'local_epochs',
  'fine_tune_epochs',
  'ditto.epochs',
  'fedrep.head_epochs',
  'fedala.start_epochs',
)


class TrainingSetupOptions:
  """What a configuration says about who trains, where, when and for how long.

  Attributes:
    seed: the run's seed.
    num_rounds: number of rounds.
    num_clients: N.
    participation: fraction of the clients that are drawn in a round.
    availability: decides which clients can be drawn; a part of the catalog.
    availability_options: its knobs.
    straggler_fraction: fraction of the drawn clients that are stragglers.
    stragglers_send_partial_work: whether stragglers send what they have.
    attack: name of the attack in the catalog.
    attack_fraction: fraction of the clients that attack; None without an attack.
    local_epochs: passes of a client over its data in a round.
    epochs_by_knob: every knob in use that is a number of passes, and its value.
    local_epochs_min: fewest passes, if they are drawn; 0: no draw.
    batch_size: examples of a batch.
    drop_last: whether a batch that is not full is left out.
    uniform_weights: whether all clients weigh alike in the average.
    topology: the graph of neighbours; a part of the catalog.
    topology_options: its knobs.
    algorithm: the algorithm; a part of the catalog.
    lanes: number of lanes, or 'auto'.
    devices: number of devices, or 'auto'.
    client_store: where the clients' memories are: 'device', 'disk' or 'auto'.
  """

  def __init__(self, config: Config):
    flat = flatten(config)
    has_attackers = catalog.is_used('attack.fraction', flat)
    availability = used_value(config, 'availability.name')
    self.seed = config.seed
    self.num_rounds = config.num_rounds
    self.num_clients = config.num_clients
    self.participation = config.participation
    self.availability = catalog.part('availability', availability)
    # Of the part that is used: an algorithm without a server uses the default's.
    self.availability_options = catalog.options(
      'availability', flat | {'availability.name': availability}
    )
    self.straggler_fraction = used_value(config, 'stragglers.fraction')
    send = used_value(config, 'stragglers.send')
    self.stragglers_send_partial_work = send == 'partial'
    self.attack = config.attack.name
    self.attack_fraction = config.attack.fraction if has_attackers else None
    self.local_epochs = config.local_epochs
    self.epochs_by_knob = {
      knob: flat[knob]
      for knob in _EPOCHS
      if catalog.is_used(knob, flat) and flat[knob] != 'auto'
    }
    self.local_epochs_min = used_value(config, 'local_epochs_min')
    self.batch_size = config.batch_size
    self.drop_last = config.drop_last
    self.uniform_weights = used_value(config, 'client_weight') == 'uniform'
    self.topology = catalog.chosen('topology', flat)
    self.topology_options = catalog.options('topology', flat)
    self.algorithm = catalog.part('algorithm', config.algorithm)
    self.lanes = config.execution.lanes
    self.devices = config.execution.devices
    self.client_store = config.execution.client_store


class TrainingSetup(NamedTuple):
  """What decides where and when each client trains.

  Attributes:
    mesh: the devices, which share the lanes.
    planner: makes the plan of any round.
    stream: reads each cohort's examples; None if all examples are on the devices.
    client_memory: size and place of the clients' memories between rounds.
    label_flippers: [F] ids of the clients that train on flipped labels.
  """

  mesh: Mesh
  planner: Planner
  stream: streaming.Stream | None
  client_memory: ClientMemory
  label_flippers: np.ndarray


def make_training_setup(
  options: TrainingSetupOptions,
  *,
  data: Dataset,
  training_partition: partition.Partition,
  class_counts: np.ndarray,
  network: Network,
  algorithm: Algorithm,
  backend: str,
  min_steps: int,
  test_bytes: int,
  bytes_per_upload: int,
  client_name: Callable[[int], str] = str,
) -> TrainingSetup:
  """Makes the planner of a run, and what it depends on.

  Args:
    options: what the configuration says.
    data: the data set.
    training_partition: the owner of each example on which a client trains.
    class_counts: [N, Y] training examples of each client and class.
    network: the network.
    algorithm: the algorithm.
    backend: kind of device, as JAX names it.
    min_steps: lower bound of the steps that a round has room for.
    test_bytes: bytes of the examples that test models, on each device.
    bytes_per_upload: bytes of what a client sends, if the round keeps all of it; 0 if
      it keeps only the mean.
    client_name: client -> its name, for messages.
  """
  sizes = training_partition.sizes
  work = local_work(options, sizes, algorithm.num_batches, client_name)
  later_work = second_work(
    algorithm.second_training, work, batch_size=options.batch_size, sizes=sizes
  )
  participation = who_takes_part(options, sizes)
  cohort_size = participation.cohort_size
  layout = requested_layout(options, cohort_size, backend)
  memory_place = client_memory.choose(
    algorithm,
    network.shapes,
    requested=options.client_store,
    num_clients=options.num_clients,
    cohort_size=cohort_size,
  )
  label_flippers = _label_flippers(options, participation, data)
  examples = _locate_examples(data, training_partition, cohort_size)
  with explaining_errors_of(options.algorithm):
    client_facts = facts_of_clients(
      algorithm.needs,
      class_counts,
      label_flippers,
      epoch_steps=(later_work or work).epoch_steps(sizes),
    )

  planner = make_planner(
    seed=options.seed,
    participation=participation,
    data=ClientData(sizes=sizes, rows_of=examples.rows_of),
    work=work,
    second_work=later_work,
    layout=layout,
    min_steps=min_steps,
    averaging=averaging(options, algorithm),
    client_facts=client_facts,
  )
  if backend != 'cpu':
    layout = _layout_of_accelerator(
      planner,
      options,
      image_shape=data.train_images.shape[1:],
      data_bytes=examples.device_images.nbytes + test_bytes,
      memory_place=memory_place,
      bytes_per_upload=bytes_per_upload,
      network=network,
      algorithm=algorithm,
      batch_size=work.batch_size,
      cohort_size=cohort_size,
    )
  mesh = devices.mesh(layout.num_devices)
  process_lanes = devices.lanes_of_process(mesh, layout.num_lanes)
  return TrainingSetup(
    mesh=mesh,
    planner=planner.with_layout(layout, process_lanes),
    stream=examples.stream,
    client_memory=memory_place,
    label_flippers=label_flippers,
  )


class _LocatedExamples(NamedTuple):
  """Where the clients' training examples are while the run trains.

  Attributes:
    stream: reads each cohort's examples; None if all examples are on the devices.
    rows_of: client ids [K] -> for each one, its rows of the split on the devices.
    device_images: the images that a device holds, or a stand-in of their shape.
  """

  stream: streaming.Stream | None
  rows_of: Callable[[np.ndarray], list[np.ndarray]]
  device_images: np.ndarray


def _locate_examples(
  data: Dataset, training_partition: partition.Partition, cohort_size: int
) -> _LocatedExamples:
  """The examples are on disk if the data set stays there, else on the devices."""
  if data.stored:
    stream = streaming.Stream(data, cohort_size)
    return _LocatedExamples(
      stream=stream, rows_of=stream.rows, device_images=stream.device_images
    )
  return _LocatedExamples(
    stream=None, rows_of=training_partition.rows, device_images=data.train_images
  )


def _label_flippers(
  options: TrainingSetupOptions, participation: Participation, data: Dataset
) -> np.ndarray:
  """[F] ids of the clients that train on flipped labels.

  Raises:
    KnobError: there are some, and the labels stay on disk.
  """
  has_attackers = participation.attackers is not None
  if data.stored and has_attackers and options.attack == 'label_flip':
    raise KnobError('attack.name', 'label_flip', 'needs data in memory.')
  return attackers.label_flippers(options.attack, participation.attackers)


def _layout_of_accelerator(
  planner: Planner,
  options: TrainingSetupOptions,
  *,
  image_shape: tuple[int, ...],
  data_bytes: int,
  memory_place: ClientMemory,
  bytes_per_upload: int,
  network: Network,
  algorithm: Algorithm,
  batch_size: int,
  cohort_size: int,
) -> LaneLayout:
  """The lanes and segments that suit an accelerator and fit in its memory.

  Args:
    planner: plans the run in the lanes that are asked for.
    options: what the configuration says.
    image_shape: (H, W, C).
    data_bytes: bytes of the examples that a device holds.
    memory_place: where the clients' memories are.
    bytes_per_upload: see `make_training_setup`.
    network: the network.
    algorithm: the algorithm.
    batch_size: B.
    cohort_size: K.

  Raises:
    UsageError: not even one lane fits.
  """

  def training_memory_of(batch_size):
    return gpu.training_memory(network, algorithm, image_shape, batch_size)

  def free_bytes_with(on_device):
    return gpu.free_bytes(
      data_bytes,
      memory_place._replace(on_device=on_device),
      bytes_per_upload=bytes_per_upload,
      num_clients=options.num_clients,
      cohort_size=cohort_size,
      num_devices=planner.training.layout.num_devices,
    )

  gpu.require_room_for_one_lane(
    training_memory_of, batch_size, free_bytes_with, memory_place, bytes_per_upload
  )
  return gpu.choose_layout(
    planner,
    may_change_lanes=options.lanes == 'auto',
    params=network.shapes['params'],
    training_memory=training_memory_of(batch_size),
    free_bytes=free_bytes_with(memory_place.on_device),
  )


def lane_layout(
  requested_lanes: int | str, *, cohort_size: int, backend: str, num_devices: int
) -> LaneLayout:
  """The lanes that are asked for, on as many devices as they keep busy.

  Args:
    requested_lanes: 'auto' or a count.
    cohort_size: K; there are at most K lanes, unless the last device is filled up.
    backend: kind of device, as JAX names it. One client keeps a CPU device busy; an
      accelerator needs all of them.
    num_devices: number of devices that there are.
  """
  if requested_lanes == 'auto':
    requested_lanes = num_devices if backend == 'cpu' else cohort_size
  num_lanes = min(requested_lanes, cohort_size)
  num_devices = min(num_devices, num_lanes)
  return LaneLayout(
    num_lanes=round_up(num_lanes, multiple_of=num_devices), num_devices=num_devices
  )


def requested_layout(
  options: TrainingSetupOptions, cohort_size: int, backend: str
) -> LaneLayout:
  """The lanes that are asked for; see `lane_layout`.

  Raises:
    UsageError: a process would have no lane.
  """
  layout = lane_layout(
    options.lanes,
    cohort_size=cohort_size,
    backend=backend,
    num_devices=devices.available(options.devices),
  )
  if layout.num_devices < hosts.count():
    raise UsageError(
      f'{hosts.count()} processes need a lane each, and the run has '
      f'{layout.num_lanes}: start fewer, or raise {flag("execution.lanes")} (at most '
      f'{cohort_size}, clients of a round).'
    )
  return layout


def max_steps(options: TrainingSetupOptions, sizes: np.ndarray, backend: str) -> int:
  """The largest number of steps that a lane of a run may need.

  Args:
    options: what the configuration says.
    sizes: [N] training examples of each client.
    backend: kind of device, as JAX names it.
  """
  work = local_work(options, sizes)
  cohort_size = who_takes_part(options, sizes).cohort_size
  layout = requested_layout(options, cohort_size, backend)
  return layout.max_steps(layout.whole_segments(work.max_steps(sizes)), cohort_size)


def local_work(
  options: TrainingSetupOptions,
  sizes: np.ndarray,
  batches_per_step: int = 1,
  client_name: Callable[[int], str] = str,
) -> LocalWork:
  """How long each client trains in a round.

  Args:
    options: what the configuration says.
    sizes: [N] examples of each client.
    batches_per_step: batches of a local step.
    client_name: client -> its name, for messages.
  """
  smallest = int(np.argmin(sizes))
  if options.drop_last and sizes[smallest] < options.batch_size * batches_per_step:
    batches = 'a batch' if batches_per_step == 1 else f'{batches_per_step} batches'
    batches_of_size = f'{batches} of {flag("batch_size", options.batch_size)}'
    raise UsageError(
      f'Client {client_name(smallest)} owns {sizes[smallest]} examples, less than '
      f'{batches_of_size}: with {flag("drop_last", True)} it would not train at all. '
      f'Lower batch_size, or raise {flag("partition.min_size")}.'
    )
  if options.local_epochs_min > options.local_epochs:
    raise KnobError(
      'local_epochs_min',
      options.local_epochs_min,
      f'must be at most {flag("local_epochs", options.local_epochs)}.',
    )
  for knob, epochs in options.epochs_by_knob.items():
    num_bytes = epochs * int(sizes.max()) * np.dtype(np.int32).itemsize
    machine_memory.require_room(knob, epochs, num_bytes, "the plan of a client's round")
  return LocalWork(
    local_epochs=options.local_epochs,
    local_epochs_min=options.local_epochs_min,
    batch_size=_useful_batch_size(options.batch_size, sizes, batches_per_step),
    drop_last=options.drop_last,
    batches_per_step=batches_per_step,
  )


def _useful_batch_size(
  batch_size: int, sizes: np.ndarray, batches_per_step: int
) -> int:
  """The configured size, or the most that any client fills: more only adds filler."""
  return min(batch_size, -(-int(sizes.max()) // batches_per_step))


def second_work(
  second: SecondTraining | None,
  first: LocalWork,
  *,
  batch_size: int,
  sizes: np.ndarray,
) -> LocalWork | None:
  """How long each client trains a second time; None if there is no second training.

  Args:
    second: the second training.
    first: how long clients train the first time, perhaps with several batches a step.
    batch_size: examples of a batch, as configured.
    sizes: [N] examples of each client.
  """
  if second is None:
    return None
  batches_per_step = second.algorithm.num_batches
  return LocalWork(
    local_epochs=second.epochs or first.local_epochs,
    local_epochs_min=0 if second.epochs else first.local_epochs_min,
    batch_size=_useful_batch_size(batch_size, sizes, batches_per_step),
    drop_last=first.drop_last,
    purpose=second.purpose,
    batches_per_step=batches_per_step,
    steps_limit=second.max_steps or 0,
    example_share=second.example_share,
    second_round_epochs=second.second_round_epochs or 0,
  )


def who_takes_part(options: TrainingSetupOptions, sizes: np.ndarray) -> Participation:
  """Who takes part in the rounds; sizes: [N] examples of each client.

  Raises:
    UsageError: a round would have too few clients, or no straggler or attacker although
      the configuration asks for some.
  """
  num_drawn = shares.num_drawn(options.num_clients, options.participation)
  num_stragglers = _num_stragglers(options.straggler_fraction, num_drawn)
  send_partial_work = options.stragglers_send_partial_work
  available = options.availability.build(
    Available, sizes, **options.availability_options
  )
  require_enough(available, num_drawn, options.num_rounds)
  return Participation(
    num_clients=options.num_clients,
    cohort_size=shares.num_sending(
      num_drawn, num_stragglers, stragglers_send_partial_work=send_partial_work
    ),
    available=available,
    num_stragglers=num_stragglers,
    stragglers_send_partial_work=send_partial_work and num_stragglers > 0,
    attackers=_attackers(options),
  )


def _num_stragglers(fraction: float, num_drawn: int) -> int:
  num_stragglers = shares.num_stragglers(num_drawn, fraction)
  if num_stragglers and num_stragglers == num_drawn:
    raise KnobError(
      'stragglers.fraction',
      fraction,
      f'makes all {num_drawn} clients of a round stragglers: lower it.',
    )
  if fraction and not num_stragglers:
    raise KnobError(
      'stragglers.fraction', fraction, f'of {num_drawn} clients is none: raise it.'
    )
  return num_stragglers


def _attackers(options: TrainingSetupOptions) -> np.ndarray | None:
  """Ids of the clients that attack; None without an attack."""
  if options.attack_fraction is None:
    return None
  fraction, num_clients = options.attack_fraction, options.num_clients
  attacker_ids = attackers.draw_attackers(options.seed, num_clients, fraction)
  if fraction and not len(attacker_ids):
    raise KnobError(
      'attack.fraction',
      fraction,
      f'of {num_clients} clients is none: raise it.',
    )
  if len(attacker_ids) == num_clients:
    raise KnobError(
      'attack.fraction',
      fraction,
      f'makes all {num_clients} clients attackers: lower it.',
    )
  return attacker_ids


def averaging(options: TrainingSetupOptions, algorithm: Algorithm) -> Averaging:
  """How the clients' models are averaged: by a server, or among neighbours."""
  if not algorithm.share:
    return Averaging(uniform_weights=options.uniform_weights)
  from moon_jax.planning import topology  # SciPy's graphs take time to load

  graph = options.topology.build(
    object,
    num_clients=options.num_clients,
    seed=options.seed,
    **options.topology_options,
  )
  mixing = functools.partial(topology.among, topology.metropolis_hastings(graph))
  return Averaging(uniform_weights=options.uniform_weights, mixing=mixing)
