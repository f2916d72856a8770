"""How many lanes and how long a segment GPUs get."""

import dataclasses

import jax
import numpy as np
import pytest

from moon_jax.engine import accelerator
from tests import world


def network(dense, convolved=0):
  """The parameters of a network, so many of each kind."""
  shapes = (dense,), (1, 1, 1, convolved)
  return [jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes]


SMALL = network(accelerator.SLOW - 1)


def chosen(num_steps, num_devices=1, *, params=SMALL, lanes=None):
  """The planner for clients of so many steps, all in every round."""
  sizes = world.BATCH_SIZE * np.array(num_steps)
  plans = world.planner(lanes or len(sizes), len(sizes), sizes, num_devices=num_devices)
  return accelerator.planner_for(
    dataclasses.replace(plans, local_epochs=1),
    choose_lanes=lanes is None,
    params=params,
  )


def test_no_lane_only_waits():
  # 100 | 60 + 30 | 50 + 40: a fourth lane would end no sooner.
  assert chosen([100, 60, 40, 50, 30]).num_lanes == 3
  assert chosen([50, 50, 50, 50]).num_lanes == 4


def test_lanes_are_shared_evenly_by_devices():
  assert chosen([100, 60, 40, 50, 30, 1], num_devices=2).num_lanes == 4


def test_lanes_are_bounded_and_those_asked_for_stay():
  assert chosen(np.arange(100, 200)).num_lanes == accelerator.MOST_LANES
  assert chosen([100, 60, 40, 50, 30], lanes=5).num_lanes == 5


def test_a_large_network_never_waits_for_the_end_of_a_segment():
  slow = chosen([100, 60, 40], params=network(accelerator.SLOW))
  assert (slow.num_lanes, slow.segment_steps) == (2, 0)


def test_a_network_of_large_convolutions_has_one_lane():
  convolved = network(accelerator.SLOW, accelerator.CONVOLVED)
  large = chosen([100, 60, 40], params=convolved)
  assert (large.num_lanes, large.segment_steps) == (1, 0)
  two = chosen([100, 60, 40], num_devices=2, params=convolved)
  assert two.num_lanes == 2


@pytest.mark.parametrize('num_steps', [[1], [41], [240], [33] * 4, [200, 3, 100, 77]])
@pytest.mark.parametrize('lanes', [1, None])
def test_segments_are_few_and_fill_up_little(num_steps, lanes):
  planner = chosen(num_steps, lanes=lanes)
  plan, each = planner.plan(0), planner.segment_steps
  steps = int(plan.bounds[0, plan.num_segments[0]])
  assert plan.num_segments[0] * each == steps
  best = max(max(num_steps), sum(num_steps) / planner.num_lanes)
  assert steps <= 1.1 * best + accelerator._BOUNDARY * len(num_steps)
