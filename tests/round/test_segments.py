"""Segments of a known length, which GPUs train, against those of any length."""

import jax
import numpy as np
import pytest

from moon_jax.round import segments
from tests import world
from tests.selection import few

TOLERANCE = 1e-5
STEPS = 16


def planner(num_lanes=2, num_devices=1, segment_steps=STEPS):
  """Clients of 9, 9, 27 and 18 steps; three of them in a round."""
  return world.planner(
    num_lanes, num_devices=num_devices, local_epochs=9, segment_steps=segment_steps
  )


def assert_same(
  algorithm,
  *,
  num_lanes=2,
  num_devices=1,
  segment_steps=STEPS,
  tolerance=TOLERANCE,
  **options,
):
  """Both kinds of segments give the same states and metrics, up to a tolerance."""
  known_length, any_length = (
    jax.tree.leaves(
      world.run(algorithm, 3, plans=planner(num_lanes, num_devices, steps), **options)
    )
    for steps in (segment_steps, 0)
  )
  for x, y in zip(known_length, any_length, strict=True):
    np.testing.assert_allclose(np.float64(x), np.float64(y), tolerance, tolerance)


# With two previous models, if the first weights differ in the last place, the weights
# differ by 1.3e-5 after 81 steps: this much is rounding. With batch normalisation they
# differ by 1.8e-4, and the two kinds of segments by 6e-8 after the first round.
@pytest.mark.parametrize(
  ('algorithm', 'options'),
  few(
    [('fedavg', {'augmentation': 'flip'})],
    [
      # The frozen networks see images ahead, so these are augmented ahead.
      ('moon', {'augmentation': 'crop_flip'}),
      *((name, {}) for name in ('scaffold', 'sa_moon', 'decentralized_moon')),
      ('moon', {'num_previous': 2, 'tolerance': 5e-5}),
      ('moon', {'model': 'mlp_bn', 'frozen_mode': 'training', 'tolerance': 1e-3}),
      ('moon', {'model': 'moon_cnn'}),
    ],
  ),
)
def test_a_known_length_changes_no_result(algorithm, options):
  assert_same(algorithm, **{'represent_once': False, **options})


@pytest.mark.slow
@pytest.mark.parametrize(
  ('num_lanes', 'num_devices', 'segment_steps'),
  [(1, 1, STEPS), (4, 2, STEPS), (2, 1, 7)],
)
def test_lanes_devices_and_the_length_change_no_result(
  num_lanes, num_devices, segment_steps
):
  assert_same(
    'moon',
    num_lanes=num_lanes,
    num_devices=num_devices,
    segment_steps=segment_steps,
    represent_once=False,
  )


def test_the_compiler_knows_how_long_a_segment_is():
  def conditions(plans):
    """The numbers of loops whose length only the device knows, and of other loops."""
    chosen, state = world.make('moon'), world.first_state('moon')
    segment_steps = plans.training.layout.segment_steps
    run_round = world.compiled_round(
      'moon', world.RoundOptions(represent_once=False, segment_steps=segment_steps)
    )
    jaxpr = jax.make_jaxpr(run_round)(
      state, plans.plan(0).for_device(), world.scalars(chosen), world.train_split()
    )
    return str(jaxpr).count(' while['), str(jaxpr).count(' scan[')

  assert conditions(planner()) == (1, 2)
  assert conditions(planner(segment_steps=0)) == (2, 0)


def test_steps_are_taken_together_as_far_as_they_fit():
  assert segments.steps_together(228, 9, 64) == 12  # 14 would fit, and not divide 228
  assert segments.steps_together(7, 2, 16) == 7
  assert segments.steps_together(1000, 64, 64) == 2
  assert segments.steps_together(1000, 500, 64) == 1
