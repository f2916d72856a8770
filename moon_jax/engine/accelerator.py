"""How many lanes, and how long a segment, a GPU trains a cohort with. Host side.

A GPU trains small networks of all clients as fast as that of one, and stops where its
compiler does not know how long a loop is (`segments`). Nothing here was measured on a
GPU: docs/performance.md has the programs' kernels, bytes and modelled times.
"""

import dataclasses

import jax
import numpy as np

from moon_jax import tree
from moon_jax.engine.planning import Planner, pack
from moon_jax.engine.segments import steps_together
from moon_jax.types import PyTree

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


def planner_for(planner: Planner, *, choose_lanes: bool, params: PyTree) -> Planner:
  """The planner with the lanes and the segments that suit a GPU.

  Args:
    planner: with a lane for each client if lanes may be chosen.
    choose_lanes: whether they may.
    params: of the network, arrays or ShapeDtypeStructs.
  """
  kernels = [leaf for leaf in jax.tree.leaves(params) if len(leaf.shape) == 4]
  if choose_lanes:
    each = planner.num_devices
    alone = tree.num_parameters(kernels) >= CONVOLVED
    most = 1 if alone else max(MOST_LANES // each, 1)
    bounded = min(planner.num_lanes, most * each)
    planner = _fewest_lanes(dataclasses.replace(planner, num_lanes=bounded))
  slow = tree.num_parameters(params) >= SLOW
  return planner if slow else _with_known_lengths(planner)


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
