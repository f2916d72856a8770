"""Chooses the lanes, and the length of a segment, with which a GPU trains. Host side.

A GPU trains small networks of all clients as fast as that of one client, and waits for
the host where its compiler does not know the length of a loop (`segments`). The
constants come from programs that were compiled for an H200; docs/gpu.md has what was
measured on one, with the MOON paper's network only.
"""

import dataclasses
import functools
import math
from typing import NamedTuple

import jax
import numpy as np

from moon_jax.algorithms.base import Algorithm
from moon_jax.core import tree
from moon_jax.core.types import PyTree, Server
from moon_jax.models import Network
from moon_jax.planning.packing import pack
from moon_jax.planning.planner import Planner
from moon_jax.platform import hosts
from moon_jax.platform.tiers import Tier
from moon_jax.round.segments import MOST_IMAGES, MOST_STEPS, steps_together

MOST_LANES = 64
# With lanes of this many bytes, a step takes as long as starting its kernels, 70 us.
# This is of a model: programs move four to six times the bytes of the lanes, an H200
# 3.6 TB/s. Measured since: 1.3 TB/s with 9 lanes; other numbers were not tried.
_STARTING = 50e6
# A step of a network with this many parameters takes much longer than the host needs to
# start the next one, and what frozen networks keep of many images is large.
SLOW = 5_000_000
# A network with this many parameters in convolutions keeps a GPU busy with one client;
# and cuDNN has the backward kernels of convolutions for one lane only.
CONVOLVED = 5_000_000
# The costs of loading and storing clients, and of looking up a group of steps, in
# steps.
_BOUNDARY, _LOOKING_UP = 2, 0.3
_LONGEST = 256  # steps of a segment
_ROUNDS = range(4)  # rounds whose cohorts are examined


class Taken(NamedTuple):
  """Bytes of a device's memory that a network's training takes, by an estimate.

  Attributes:
    lane: bytes of a lane: its client's memory, the model, its gradient, the state of
      the optimizer, and what a batch keeps for the backward pass.
    image: bytes of an image that is looked up for several steps together, and half of
      what a trained network would keep of it, for each frozen network.
    batch_size: B.
  """

  lane: float
  image: float
  batch_size: int

  def by(self, lanes: int) -> float:
    """Bytes that lanes of a device take; compiled programs take 0.4 to 0.9 of it."""
    step = lanes * self.batch_size
    ahead = min(step * MOST_STEPS, max(step, MOST_IMAGES))
    return lanes * self.lane + ahead * self.image


def memory_taken(
  network: Network, algorithm: Algorithm, image_shape: tuple[int, ...], batch_size: int
) -> Taken:
  """The memory of a device that training takes.

  Args:
    network: the network.
    algorithm: the algorithm.
    image_shape: (H, W, C).
    batch_size: B.
  """
  images = jax.ShapeDtypeStruct((batch_size, *image_shape), np.float32)
  of_one_lane = functools.partial(_of_one_lane, network, algorithm)
  memory, frozen, kept = jax.eval_shape(of_one_lane, network.shapes, images)
  left_behind = tree.num_bytes(kept)
  lane = left_behind + 2 * tree.num_bytes(memory) + 4 * tree.num_bytes(network.shapes)
  image = 4 * math.prod(image_shape) + len(frozen) * left_behind / batch_size / 2
  return Taken(lane, 0 if _is_slow(network.shapes['params']) else image, batch_size)


def _of_one_lane(network, algorithm, variables, images):
  """A client's memory, its frozen networks, and what the backward pass needs."""
  server = Server(variables, algorithm.init_server(variables))
  memory = algorithm.init_client(variables)
  frozen = algorithm.frozen(algorithm.broadcast(server), memory)

  def train(params):
    given = variables | {'params': params}
    return network.train(given, images, images[:, 0, 0, 0], jax.random.key(0))

  _, backward, _ = jax.vjp(train, variables['params'], has_aux=True)
  return memory, frozen, backward


def memory_free(images: np.ndarray, planner: Planner, memory: Tier) -> float:
  """Bytes that a device has for training; infinity if the device does not say.

  Args:
    images: [M, H, W, C] uint8, which each device holds.
    planner: the planner of the rounds.
    memory: where the clients' memories are.
  """
  told = hosts.decided(lambda: jax.local_devices()[0].memory_stats() or {})
  if 'bytes_limit' not in told:
    return math.inf
  free = told['bytes_limit'] - told.get('bytes_in_use', 0)
  # The cohort's memories before and after a round, and all memories, or arriving ones.
  cohort = 2 * planner.cohort_size
  kept = cohort + (len(planner.sizes) if memory.name == 'device' else cohort)
  return free - images.nbytes - kept * memory.bytes_each


def planner_for(
  planner: Planner, *, choose_lanes: bool, params: PyTree, taken: Taken, free: float
) -> Planner:
  """The planner with the lanes and the segments that suit a GPU.

  Args:
    planner: the planner, with a lane for each client if lanes may be chosen.
    choose_lanes: whether lanes may be chosen.
    params: parameters of the network, arrays or ShapeDtypeStructs.
    taken: memory of a device that training takes.
    free: memory of a device that is free, in bytes.
  """
  slow = _is_slow(params)
  if choose_lanes:
    kernels = [leaf for leaf in jax.tree.leaves(params) if len(leaf.shape) == 4]
    each = planner.num_devices
    alone = tree.num_parameters(kernels) >= CONVOLVED
    counts = range(1, 1 if alone else MOST_LANES // each + 1)
    most = max((n for n in counts if taken.by(n) <= free), default=1)
    lanes = range(each, min(planner.num_lanes, most * each) + 1, each)
    planner = _soonest(planner, lanes, 0 if slow else taken.lane / _STARTING)
  return planner if slow else _with_known_lengths(planner)


def _is_slow(params):
  return tree.num_parameters(params) >= SLOW


def _soonest(planner, counts, share):
  """The smallest number of lanes with which a round ends soonest.

  Args:
    planner: the planner, with other lanes.
    counts: numbers of lanes to choose from, ascending.
    share: time that a lane adds to a step, as a fraction of a step without lanes.
  """

  def cost(planner):
    return _steps(planner) * (1 + share * planner.num_lanes / planner.num_devices)

  return min((dataclasses.replace(planner, num_lanes=n) for n in counts), key=cost)


def _with_known_lengths(planner):
  """Segments of the length that costs least: short ones have ends, long ones filler."""
  lanes = planner.num_lanes // planner.num_devices

  def cost(planner):
    together = steps_together(planner.segment_steps, lanes, planner.batch_size)
    each = 1 + _BOUNDARY / planner.segment_steps + _LOOKING_UP / together
    return _steps(planner) * each

  lengths = range(1, min(int(_steps(planner)), _LONGEST) + 1)
  return min((dataclasses.replace(planner, segment_steps=n) for n in lengths), key=cost)


def _steps(planner):
  """The steps of the longest queue, as a mean over some rounds of any clients."""
  longest, anyone = [], dataclasses.replace(planner, available=None)
  for index in _ROUNDS:
    num_steps = planner.num_steps(anyone.cohort(index))
    queues = pack(num_steps, planner.num_lanes)
    longest.append(max(int(num_steps[queue].sum()) for queue in queues))
  return float(np.mean(longest))
