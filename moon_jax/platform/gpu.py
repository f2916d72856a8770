"""Chooses the lanes, and the length of a segment, with which a GPU trains. Host side.

A GPU trains many small networks side by side as fast as one. It waits for the host
where its compiler does not know the length of a loop (`segments`). The constants come
from programs that were compiled for an H200; docs/gpu.md has what was measured on one,
with the MOON paper's network only.
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np

from moon_jax.algorithms.base import Algorithm
from moon_jax.core import tree
from moon_jax.core.errors import UsageError
from moon_jax.core.flags import flag
from moon_jax.core.types import PyTree, Server
from moon_jax.models import Network
from moon_jax.planning.lanes import LaneLayout
from moon_jax.planning.packing import pack
from moon_jax.planning.planner import Planner
from moon_jax.platform import hosts
from moon_jax.platform.client_memory import ClientMemory
from moon_jax.round.segments import (
  MAX_IMAGES_TOGETHER,
  MAX_STEPS_TOGETHER,
  steps_together,
)

MAX_LANES = 64
# With lanes of this many bytes, a step takes as long as starting its kernels, 70 us.
# This is of a model: programs move four to six times the bytes of the lanes, an H200
# 3.6 TB/s. Measured since: 1.3 TB/s with 9 lanes; other numbers were not tried.
_LANE_BYTES_PER_KERNEL_START = 50e6
# A step of a network with this many parameters takes much longer than the host needs to
# start the next one, and what frozen networks keep of many images is large.
SLOW_NUM_PARAMETERS = 5_000_000
# A network with this many parameters in convolutions keeps a GPU busy with one client;
# and cuDNN has the backward kernels of convolutions for one lane only.
LARGE_CONVOLUTIONS = 5_000_000
# The clients that leave and enter after a segment take as long as so many steps.
_SEGMENT_COST = 2
# To gather the images of some steps together takes as long as so many steps.
_GATHERING_COST = 0.3
_MAX_SEGMENT_STEPS = 256
# A step that takes gradients at other models keeps at most so many models more, beside
# the first gradient: Per-FedAvg's HF has three further gradients, and a model.
_MODELS_OF_MORE_GRADIENTS = 4
# A program with one lane of a large network takes at least this share of `lane_bytes`:
# that of `resnet18` takes 0.76 with JAX 0.10.2, and more with 0.12.
_LEAST_SHARE = 0.7
_MOST_SHARE = 1.3  # likewise, at most
_JUDGED_ROUNDS = range(4)  # a layout of the lanes is judged by the cohorts of these


class TrainingMemory(NamedTuple):
  """Bytes of a device's memory that a network's training takes, by an estimate.

  Attributes:
    lane_bytes: bytes of a lane: its client's memory, the model, its gradients, the
      state of the optimizer, and what a batch keeps for the backward pass.
    image_bytes: bytes of an image that is gathered for several steps together, and half
      of what a trained network would keep of it, for each frozen network.
    step_size: examples of a step, in all of its batches.
  """

  lane_bytes: float
  image_bytes: float
  step_size: int

  def of_lanes(self, num_lanes: int) -> float:
    """Bytes that lanes of a device take.

    Programs that were compiled for an H200 take 0.4 to 0.9 of it with JAX 0.10.2; with
    JAX 0.12.0.1, one lane of `resnet18` takes 1.27 times as much.
    """
    images_of_step = num_lanes * self.step_size
    images_ahead = min(
      images_of_step * MAX_STEPS_TOGETHER, max(images_of_step, MAX_IMAGES_TOGETHER)
    )
    return num_lanes * self.lane_bytes + images_ahead * self.image_bytes


def training_memory(
  network: Network, algorithm: Algorithm, image_shape: tuple[int, ...], batch_size: int
) -> TrainingMemory:
  """The memory of a device that training takes.

  Args:
    network: the network.
    algorithm: the algorithm.
    image_shape: (H, W, C).
    batch_size: B; a step may have several batches.
  """
  images = jax.ShapeDtypeStruct((batch_size, *image_shape), network.input_dtype)
  shapes_of_lane = functools.partial(_arrays_of_lane, network, algorithm)
  lane = jax.eval_shape(shapes_of_lane, network.shapes, images)
  backward_bytes = tree.num_bytes(lane.backward)
  float_image_bytes = 4 * math.prod(image_shape)
  # Per-FedAvg's FO takes one gradient after the other. Of HF's three batches, the last
  # has two gradients that do not wait for each other. Other batches are only images.
  num_batches = algorithm.num_batches
  num_at_a_time = math.ceil(num_batches / 2)
  num_waiting = batch_size * (num_batches - num_at_a_time)
  lane_bytes = (
    num_at_a_time * backward_bytes
    + num_waiting * float_image_bytes
    + 2 * tree.num_bytes(lane.client_memory)
    + 4 * tree.num_bytes(network.shapes)
  )
  if algorithm.descent or algorithm.perturb:
    params_bytes = tree.num_bytes(network.shapes['params'])
    lane_bytes += _MODELS_OF_MORE_GRADIENTS * params_bytes
  # Images are not gathered ahead for a slow network.
  image_bytes = 0
  if not _is_slow(network.shapes['params']):
    kept_by_frozen = len(lane.frozen) * backward_bytes / batch_size / 2
    image_bytes = float_image_bytes + kept_by_frozen
  return TrainingMemory(
    lane_bytes=lane_bytes,
    image_bytes=image_bytes,
    step_size=batch_size * num_batches,
  )


class _LaneArrays(NamedTuple):
  """A client's memory, its frozen networks, and what the backward pass needs."""

  client_memory: PyTree
  frozen: dict[str, PyTree]
  backward: PyTree


def _arrays_of_lane(network, algorithm, variables, images):
  server = Server(variables, algorithm.init_server(variables))
  client_memory = algorithm.init_client(variables)
  frozen = algorithm.frozen(algorithm.broadcast(server), client_memory)
  mask = images.reshape(len(images), -1)[:, 0].astype(np.float32)

  def train(params):
    trained = variables | {'params': params}
    return network.train(trained, images, mask, jax.random.key(0))

  _, backward, _ = jax.vjp(train, variables['params'], has_aux=True)
  return _LaneArrays(client_memory=client_memory, frozen=frozen, backward=backward)


def free_bytes(
  data_bytes: int,
  client_memory: ClientMemory,
  *,
  bytes_per_upload: int,
  num_clients: int,
  cohort_size: int,
  num_devices: int,
) -> float:
  """Bytes that a device has for training; infinity if the device does not say.

  Args:
    data_bytes: bytes of the examples that each device holds.
    client_memory: size and place of the clients' memories.
    bytes_per_upload: bytes of a client's upload; 0 if only their mean is kept.
    num_clients: N.
    cohort_size: K.
    num_devices: P.
  """
  statistics = hosts.decided_by_first(
    lambda: jax.local_devices()[0].memory_stats() or {}
  )
  if 'bytes_limit' not in statistics:
    return math.inf
  free = statistics['bytes_limit'] - statistics.get('bytes_in_use', 0)
  # The cohort's memories before and after a round, and all memories, or arriving ones.
  num_held = 2 * cohort_size
  num_held += num_clients if client_memory.on_device else 2 * cohort_size
  memory_bytes = num_held * client_memory.bytes_per_client
  # Several devices join their uploads by a sum, which is another array.
  num_uploads = cohort_size if num_devices == 1 else 2 * cohort_size
  return free - data_bytes - memory_bytes - num_uploads * bytes_per_upload


def require_room_for_one_lane(
  training_memory_of: Callable[[int], TrainingMemory],
  batch_size: int,
  free_bytes_with: Callable[[bool], float],
  client_memory: ClientMemory,
  bytes_per_upload: int = 0,
) -> None:
  """Refuses a run whose training cannot fit into a device even with one lane.

  Args:
    training_memory_of: B -> the memory that training takes with this batch size.
    batch_size: B that is asked for.
    free_bytes_with: whether all clients' memories are on the device -> bytes that are
      free for training.
    client_memory: size and place of the clients' memories.
    bytes_per_upload: see `free_bytes`.

  Raises:
    UsageError: it cannot fit; the message says what would fit, by the estimate.
  """
  needed = training_memory_of(batch_size).lane_bytes
  free = free_bytes_with(client_memory.on_device)
  if _LEAST_SHARE * needed <= free:
    return

  def largest_fitting_batch(free):
    sizes = [batch_size >> shift for shift in range(batch_size.bit_length())]
    fitting = (size for size in sizes if safely_needed(size) <= free)
    return next(fitting, None)

  @functools.cache  # tracing a large network takes seconds
  def safely_needed(size):
    memory = training_memory_of(size)
    return max(memory.of_lanes(1), _MOST_SHARE * memory.lane_bytes)

  # Memories on disk are offered only where they may be there, and leave more room.
  may_be_on_disk = client_memory.on_device and client_memory.bytes_per_client > 0
  may_be_on_disk = may_be_on_disk and hosts.count() == 1
  batch_here = largest_fitting_batch(free) or 0
  batch_on_disk = 0
  if may_be_on_disk:
    batch_on_disk = largest_fitting_batch(free_bytes_with(False)) or 0
  remedies = []
  if batch_here:
    remedies.append(flag('batch_size', batch_here))
  if batch_on_disk > batch_here:
    remedy = flag('execution.client_store', 'disk')
    if batch_on_disk < batch_size:
      remedy += f' {flag("batch_size", batch_on_disk)}'
    remedies.append(remedy)
  advice = f'this would fit: {" or ".join(remedies)}'
  if not remedies:
    fewer_clients = ''
    if client_memory.bytes_per_client or bytes_per_upload:
      fewer_clients = f'fewer clients in a round ({flag("participation")}), '
    advice = (
      f'no batch size would fit: take a smaller network, {fewer_clients}or a larger '
      'device'
    )
  gibibyte = 2**30
  raise UsageError(
    f'Training one client at a time needs some {needed / gibibyte:.1f} GiB of the '
    f'device, and {max(free, 0) / gibibyte:.1f} GiB are free beside the data and what '
    f'clients keep and send; {advice}.'
  )


def choose_layout(
  planner: Planner,
  *,
  may_change_lanes: bool,
  params: PyTree,
  training_memory: TrainingMemory,
  free_bytes: float,
) -> LaneLayout:
  """The lanes and the segments that suit a GPU.

  Args:
    planner: plans the run in the lanes that are asked for; a lane for each client if
      they may change.
    may_change_lanes: whether another number of lanes may be chosen.
    params: parameters of the network, arrays or ShapeDtypeStructs.
    training_memory: memory of a device that training takes.
    free_bytes: memory of a device that is free.
  """
  layout = planner.training.layout
  is_slow = _is_slow(params)
  if may_change_lanes:
    kernels = [leaf for leaf in jax.tree.leaves(params) if len(leaf.shape) == 4]
    max_per_device = MAX_LANES // layout.num_devices
    if tree.num_parameters(kernels) >= LARGE_CONVOLUTIONS:
      max_per_device = 0
    fitting = [
      num_lanes
      for num_lanes in range(1, max_per_device + 1)
      if training_memory.of_lanes(num_lanes) <= free_bytes
    ]
    max_lanes = max(fitting, default=1) * layout.num_devices
    lane_share = training_memory.lane_bytes / _LANE_BYTES_PER_KERNEL_START
    layout = _soonest_layout(
      planner,
      num_devices=layout.num_devices,
      max_lanes=min(layout.num_lanes, max_lanes),
      step_time_of_lane=0 if is_slow else lane_share,
    )
  return layout if is_slow else _with_known_lengths(planner.with_layout(layout))


def _is_slow(params):
  return tree.num_parameters(params) >= SLOW_NUM_PARAMETERS


def _soonest_layout(planner, *, num_devices, max_lanes, step_time_of_lane):
  """The smallest number of lanes with which a round ends soonest.

  Args:
    planner: plans the run in any lanes.
    num_devices: P.
    max_lanes: the largest number of lanes.
    step_time_of_lane: time that a lane adds to a step, as a fraction of a step without
      lanes.
  """

  def cost(layout):
    step_time = 1 + step_time_of_lane * layout.num_lanes / layout.num_devices
    return _longest_queue(planner.with_layout(layout)) * step_time

  layouts = [
    LaneLayout(num_lanes=num_lanes, num_devices=num_devices)
    for num_lanes in range(num_devices, max_lanes + 1, num_devices)
  ]
  return min(layouts, key=cost)


def _with_known_lengths(planner):
  """Segments of the cheapest length: short ones end often, long ones have filler."""
  batch_size = planner.training.work.step_size

  def cost(layout):
    together = steps_together(layout.segment_steps, layout.lanes_per_device, batch_size)
    step_cost = 1 + _SEGMENT_COST / layout.segment_steps + _GATHERING_COST / together
    return _longest_queue(planner.with_layout(layout)) * step_cost

  longest_queue = int(_longest_queue(planner))
  lanes = planner.training.layout
  layouts = [
    LaneLayout(
      num_lanes=lanes.num_lanes,
      num_devices=lanes.num_devices,
      segment_steps=segment_steps,
    )
    for segment_steps in range(1, min(longest_queue, _MAX_SEGMENT_STEPS) + 1)
  ]
  return min(layouts, key=cost)


def _longest_queue(planner):
  """The steps of the longest queue, as a mean over some rounds of any clients."""
  longest = []
  for round_index in _JUDGED_ROUNDS:
    clients = planner.participation.draw_of_all(planner.seed, round_index).clients
    num_steps = planner.training.num_steps(clients)
    queues = pack(num_steps, planner.training.layout.num_lanes)
    longest.append(max(int(num_steps[queue].sum()) for queue in queues))
  return float(np.mean(longest))
