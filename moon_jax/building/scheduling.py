"""Makes the planner that a configuration asks for, and what it depends on."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jax.sharding import Mesh

from moon_jax import catalog
from moon_jax.algorithms.base import Algorithm
from moon_jax.building import streaming
from moon_jax.catalog.blaming import blamed
from moon_jax.config import Config, flatten, used_value
from moon_jax.core.errors import UsageError
from moon_jax.core.types import Dataset
from moon_jax.data import partition
from moon_jax.models import Network
from moon_jax.planning import clients
from moon_jax.planning import planner as planning
from moon_jax.platform import devices, gpu, hosts, tiers


class Schedule(NamedTuple):
  """What decides where and when each client trains.

  Attributes:
    mesh: the devices, which share the lanes.
    planner: makes the plan of any round.
    stream: reads each cohort's examples; None if all examples are on the devices.
    client_memory: where the clients' memories are between rounds.
    label_flippers: [F] ids of the clients that train on flipped labels.
  """

  mesh: Mesh
  planner: planning.Planner
  stream: streaming.Stream | None
  client_memory: tiers.Tier
  label_flippers: np.ndarray


def make_schedule(
  config: Config,
  *,
  data: Dataset,
  split: partition.Partition,
  class_counts: np.ndarray,
  network: Network,
  algorithm: Algorithm,
  backend: str,
  min_steps: int,
) -> Schedule:
  """Makes the planner, and what it depends on.

  Args:
    config: the configuration of the run.
    data: the data set.
    split: the owner of each training example, without the clients' own tests.
    class_counts: [N, Y] training examples of each client and class.
    network: the network.
    algorithm: the algorithm.
    backend: kind of device, as JAX names it.
    min_steps: lower bound of the steps that a round has room for.
  """
  planner = make_planner(
    config, split, backend, share=bool(algorithm.share), min_steps=min_steps
  )
  label_flippers = clients.label_flippers(config.attack.name, planner.attackers)
  with blamed(catalog.part('algorithm', config.algorithm)):
    known = clients.client_facts(algorithm.needs, class_counts, label_flippers)
  planner = dataclasses.replace(planner, known=known)
  client_memory = tiers.choose(config, algorithm, network.shapes, planner.cohort_size)
  stream, images = None, data.train_images
  if data.stored:
    if planner.attackers is not None and config.attack.name == 'label_flip':
      raise UsageError('--config.attack.name=label_flip needs data in memory.')
    stream = streaming.Stream(data, planner.cohort_size)
    planner, images = dataclasses.replace(planner, rows=stream.rows), stream.held
  if backend != 'cpu':
    shape = images.shape[1:], planner.batch_size
    planner = gpu.planner_for(
      planner,
      choose_lanes=config.execution.lanes == 'auto',
      params=network.shapes['params'],
      taken=gpu.memory_taken(network, algorithm, *shape),
      free=gpu.memory_free(images, planner, client_memory),
    )
  mesh = devices.mesh(planner.num_devices)
  own = devices.own_lanes(mesh, planner.num_lanes)
  planner = dataclasses.replace(planner, own_lanes=own)
  if algorithm.second:
    planner = planner.with_second(algorithm.second.epochs)
  return Schedule(
    mesh=mesh,
    planner=planner,
    stream=stream,
    client_memory=client_memory,
    label_flippers=label_flippers,
  )


def cohort_size(num_clients: int, participation: float) -> int:
  """K: the participating fraction of the clients, halves rounded up; at least one."""
  return max(1, math.floor(num_clients * participation + 0.5))


def num_lanes(
  requested: int | str, cohort_size: int, backend: str, num_devices: int
) -> tuple[int, int]:
  """L, at most K unless the last device is filled up; and P, how many devices to use.

  Args:
    requested: 'auto' or a count.
    cohort_size: K.
    backend: kind of device, as JAX names it. One client keeps a CPU device busy; an
      accelerator needs all of them.
    num_devices: number of devices.
  """
  most = num_devices if backend == 'cpu' else cohort_size
  lanes = min(most if requested == 'auto' else requested, cohort_size)
  devices = min(num_devices, lanes)
  return math.ceil(lanes / devices) * devices, devices


def make_planner(
  config: Config,
  split: partition.Partition,
  backend: str,
  *,
  share: bool = False,
  min_steps: int = 0,
) -> planning.Planner:
  """The planner; `share` says whether clients average among themselves."""
  client = int(np.argmin(split.sizes))
  if config.drop_last and split.sizes[client] < config.batch_size:
    raise UsageError(
      f'Client {client} owns {split.sizes[client]} examples, less than a batch of '
      f'--config.batch_size={config.batch_size}: with --config.drop_last=true it would '
      'not train at all. Lower batch_size, or raise --config.partition.min_size.'
    )
  size, differing = _differing(config, split.sizes)
  num_devices = devices.available(config.execution.devices)
  lanes, num_devices = num_lanes(config.execution.lanes, size, backend, num_devices)
  if num_devices < hosts.count():
    raise UsageError(
      f'{hosts.count()} processes need a lane each, and the run has {lanes}: start '
      f'fewer, or raise --config.execution.lanes (at most {size}, clients of a round).'
    )
  return planning.Planner(
    sizes=split.sizes,
    rows=split.rows,
    seed=config.seed,
    cohort_size=size,
    local_epochs=config.local_epochs,
    # A batch larger than every client would only add filler.
    batch_size=min(config.batch_size, int(split.sizes.max())),
    num_lanes=lanes,
    num_devices=num_devices,
    drop_last=config.drop_last,
    uniform_weights=used_value(config, 'client_weight') == 'uniform',
    mixing=_mixing(config) if share else None,
    min_steps=min_steps,
    **differing,
  )


def _differing(config: Config, sizes: np.ndarray) -> tuple[int, dict[str, Any]]:
  """The number of uploads in a round, and the planner's fields about clients."""
  flat, name = flatten(config), '--config.local_epochs_min'
  value = functools.partial(used_value, config)
  if (low := value('local_epochs_min')) > config.local_epochs:
    raise UsageError(
      f'{name}={low} must be at most --config.local_epochs={config.local_epochs}.'
    )
  size = cohort_size(config.num_clients, config.participation)
  late = math.floor((slow := value('stragglers.fraction')) * size + 0.5)
  if late and late == size:
    raise UsageError(
      f'--config.stragglers.fraction={slow} makes all {size} '
      'clients of a round stragglers: lower it.'
    )
  if slow and not late:
    raise UsageError(
      f'--config.stragglers.fraction={slow} of {size} clients is none: raise it.'
    )
  part = catalog.part('availability', value('availability.name'))
  available = part.build(clients.Available, sizes, **catalog.options(part.kind, flat))
  clients.require_enough(available, size, config.num_rounds)
  partial = value('stragglers.send') == 'partial'
  attacking = None
  if catalog.used('attack.fraction', flat):
    fraction = config.attack.fraction
    attacking = clients.attackers(config.seed, config.num_clients, fraction)
    if fraction and not len(attacking):
      raise UsageError(
        f'--config.attack.fraction={fraction} of {config.num_clients} clients is none: '
        'raise it.'
      )
  found = {'local_epochs_min': low, 'available': available, 'attackers': attacking}
  found |= {'num_stragglers': late, 'partial': partial and late > 0}
  return size if partial else size - late, found


def _mixing(config: Config) -> Callable[[np.ndarray], np.ndarray]:
  """[K] clients that are present -> [K, K] float32, their mixing weights."""
  from moon_jax.algorithms.wrappers import topology  # SciPy's graphs take time to load

  flat = flatten(config)
  given = {'num_clients': config.num_clients, 'seed': config.seed}
  given |= catalog.options('topology', flat)
  graph = catalog.chosen('topology', flat).build(object, **given)
  return functools.partial(topology.among, topology.metropolis_hastings(graph))
