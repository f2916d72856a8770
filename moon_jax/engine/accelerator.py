"""How many lanes, and how long a segment, a GPU trains a cohort with. Host side.

A GPU trains small networks of all clients as fast as that of one, and stops where its
compiler does not know how long a loop is (`segments`). Nothing here was measured on a
GPU: docs/performance.md has the programs' kernels, bytes and modelled times.
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import jax
import numpy as np

from moon_jax import tree
from moon_jax.algorithms.base import Algorithm
from moon_jax.engine import hosts
from moon_jax.engine.client_memory import Tier
from moon_jax.engine.planning import Planner, pack
from moon_jax.engine.segments import MOST_IMAGES, MOST_STEPS, steps_together
from moon_jax.models import Network
from moon_jax.types import PyTree, Server

# With more lanes a step moves more bytes than a GPU moves while it starts kernels.
MOST_LANES = 64
# A step of a network of so many parameters takes much longer than the host needs to
# start the next one, and what frozen ones leave behind of many images is large.
SLOW = 5_000_000
# One with so many in convolutions keeps a GPU busy with one client; and cuDNN has their
# backward kernels for one lane only.
CONVOLVED = 5_000_000
# What it takes, in steps, to load and store clients, and to look up a group of steps.
_BOUNDARY, _LOOKING_UP = 2, 0.3
_LONGEST = 256  # steps of a segment
_ROUNDS = range(4)  # whose cohorts are looked at


def memory_taken(
  network: Network,
  algorithm: Algorithm,
  image_shape: tuple[int, int, int],
  batch_size: int,
) -> Callable[[int], float]:
  """How many bytes some lanes of a device take, by an estimate: lanes -> bytes.

  A lane holds its client's memory, the model, its gradient and what an optimizer keeps,
  and what a batch leaves behind for the backward pass. Beside the lanes, where segments
  have a known length, are the images of several steps, and of each frozen network half
  of what a trained one would leave behind of them. Compiled programs, whose memory
  stands in docs/performance.md, take 0.4 to 0.9 of it.

  Args:
    network: what is trained.
    algorithm: how.
    image_shape: (H, W, C).
    batch_size: B.
  """
  memory, frozen, kept = jax.eval_shape(
    functools.partial(_of_one_lane, network, algorithm),
    network.shapes,
    jax.ShapeDtypeStruct((batch_size, *image_shape), np.float32),
  )
  left_behind = tree.num_bytes(kept)
  lane = left_behind + 2 * tree.num_bytes(memory) + 4 * tree.num_bytes(network.shapes)
  image = 4 * math.prod(image_shape) + len(frozen) * left_behind / batch_size / 2

  def taken(lanes):
    step = lanes * batch_size
    ahead = min(step * MOST_STEPS, max(step, MOST_IMAGES))
    return lanes * lane + (0 if _is_slow(network.shapes['params']) else ahead * image)

  return taken


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


def fits(
  network: Network,
  algorithm: Algorithm,
  images: np.ndarray,
  planner: Planner,
  memory: Tier,
) -> Callable[[int], bool]:
  """Whether a device has the memory for so many lanes; it has if it tells nothing.

  Args:
    network: what is trained.
    algorithm: how.
    images: [M, H, W, C] uint8, which each device holds.
    planner: of the rounds.
    memory: where the clients' memories are.
  """
  told = hosts.decided(lambda: jax.local_devices()[0].memory_stats() or {})
  if 'bytes_limit' not in told:
    return lambda lanes: True
  free = told['bytes_limit'] - told.get('bytes_in_use', 0)
  # The cohort's memories before and after a round, and all, or those that come and go.
  cohort = 2 * planner.cohort_size
  kept = cohort + (len(planner.sizes) if memory.name == 'device' else cohort)
  free -= images.nbytes + kept * memory.bytes_each
  taken = memory_taken(network, algorithm, images.shape[1:], planner.batch_size)
  return lambda lanes: taken(lanes) <= free


def planner_for(
  planner: Planner,
  *,
  choose_lanes: bool,
  params: PyTree,
  fits: Callable[[int], bool] = lambda lanes: True,
) -> Planner:
  """The planner with the lanes and the segments that suit a GPU.

  Args:
    planner: with a lane for each client if lanes may be chosen.
    choose_lanes: whether they may.
    params: of the network, arrays or ShapeDtypeStructs.
    fits: whether a device has the memory for so many lanes.
  """
  kernels = [leaf for leaf in jax.tree.leaves(params) if len(leaf.shape) == 4]
  if choose_lanes:
    each = planner.num_devices
    alone = tree.num_parameters(kernels) >= CONVOLVED
    counts = range(1, 1 if alone else MOST_LANES // each + 1)
    most = max(filter(fits, counts), default=1)
    bounded = min(planner.num_lanes, most * each)
    planner = _fewest_lanes(dataclasses.replace(planner, num_lanes=bounded))
  return planner if _is_slow(params) else _with_known_lengths(planner)


def _is_slow(params):
  return tree.num_parameters(params) >= SLOW


def _fewest_lanes(planner):
  """No lane more than the longest queue needs."""
  each, longest = planner.num_devices, _steps(planner)
  for lanes in range(each, planner.num_lanes, each):
    fewer = dataclasses.replace(planner, num_lanes=lanes)
    if _steps(fewer) <= longest:
      return fewer
  return planner


def _with_known_lengths(planner):
  """Segments of the length that costs least: filling up against boundaries."""
  lanes = planner.num_lanes // planner.num_devices

  def cost(planner):
    together = steps_together(planner.segment_steps, lanes, planner.batch_size)
    each = 1 + _BOUNDARY / planner.segment_steps + _LOOKING_UP / together
    return _steps(planner) * each

  lengths = range(1, min(int(_steps(planner)), _LONGEST) + 1)
  return min((dataclasses.replace(planner, segment_steps=n) for n in lengths), key=cost)


def _steps(planner):
  """Of the longest queue, the mean over some rounds."""
  longest = []
  for index in _ROUNDS:
    num_steps = planner.num_steps(planner.cohort(index))
    queues = pack(num_steps, planner.num_lanes)
    longest.append(max(int(num_steps[queue].sum()) for queue in queues))
  return float(np.mean(longest))
