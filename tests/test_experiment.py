"""What a configuration builds, and what is compiled."""

import jax
import numpy as np
import pytest

from moon_jax import command_line, experiment
from moon_jax.errors import UsageError

TINY = ('--config.data.limit=200', '--config.partition.min_size=1')


def build(*flags):
  return experiment.build(command_line.parse([*TINY, *flags]).config)


def test_the_first_state_is_a_function_of_the_seed():
  def leaves(seed):
    return jax.tree.leaves(experiment.initial_state(build(f'--config.seed={seed}')))

  for a, b in zip(leaves(3), leaves(3), strict=True):
    np.testing.assert_array_equal(a, b)
  assert any(
    (np.asarray(a) != b).any() for a, b in zip(leaves(3), leaves(4), strict=True)
  )


@pytest.mark.parametrize(
  ('algorithm', 'down', 'up'),
  [('fedavg', 1, 1), ('fedprox', 1, 1), ('moon', 1, 1), ('solo', 0, 0)],
)
def test_traffic_is_what_a_real_deployment_would_move(algorithm, down, up):
  # mlp on 8x8 images: 64*128 + 128 + 128*128 + 128 + 128*64 + 64 + 64*10 + 10
  # = 33,738 parameters of 4 bytes. MOON's previous model never leaves the client.
  traffic = build(f'--config.algorithm={algorithm}').traffic
  assert traffic == (down * 33_738 * 4, up * 33_738 * 4)


def test_scalars_are_float32_arrays_of_every_number():
  built = build('--config.moon.mu=0.25')
  numbers = experiment.scalars(built, experiment.initial_state(built))
  assert numbers.algorithm == {'mu': 0.25, 'tau': 0.5}
  assert set(numbers.optimizer) == {'learning_rate', 'momentum', 'weight_decay'}
  assert all(leaf.dtype == np.float32 for leaf in jax.tree.leaves(numbers))


def test_one_program_serves_cohorts_of_every_size_and_other_numbers():
  built = build('--config.participation=0.3', '--config.local_epochs=1')
  state = experiment.initial_state(built)
  programs = experiment.compile_programs(built, state)
  sizes = set()
  for index in range(4):
    plan = built.planner.plan(index)
    sizes.add(int(plan.num_examples.sum()))
    numbers = experiment.scalars(built, state)
    numbers.algorithm['mu'] = np.float32(index)
    # A compiled program refuses other shapes: it cannot compile again.
    state, metrics = programs.run_round(state, plan, numbers, built.train)
    assert metrics.num_seen.sum() == plan.num_examples.sum()
  assert len(sizes) == 4
  assert int(state.round) == 4


def test_a_network_that_does_not_fit_is_refused_before_compiling():
  with pytest.raises(UsageError, match=r'8x8; use --config.model=mlp'):
    build('--config.model=moon_cnn')


def test_too_few_examples_for_the_clients():
  with pytest.raises(UsageError, match='201'):
    build('--config.num_clients=201')
