"""Median, trimmed mean and Krum against plain numpy, and against a Byzantine client."""

import functools

import jax
import numpy as np
import pytest

from moon_jax.algorithms import robust
from moon_jax.core.types import Server, Upload, Uploads
from tests import reference, world
from tests.algorithms.test_options import NORMALISED_SIZES
from tests.reference import rules
from tests.round import test_nonfinite
from tests.round.test_round import assert_equal_to_reference, reference_run
from tests.selection import few

SIZE = 7
OPTIONS = {
  'median': {},
  'trimmed_mean': {'trim': 0.3},
  'krum': {'num_byzantine': 1, 'num_selected': 3},
}
# No client is left out, the first, one in the middle, two, or four. Then the number of
# clients that are left is odd or even.
LEFT_OUT = ((), (0,), (3,), (1, 6), (0, 2, 4, 5))


def uploads(models, left_out=()):
  """Uploads of a list of models; a client that is left out has sent NaN."""
  counted = ~np.isin(np.arange(len(models)), left_out)
  stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *models)
  for leaf in jax.tree.leaves(stacked):
    leaf[~counted] = np.nan
  weights = np.arange(1, len(models) + 1, dtype=np.float32)
  return Uploads(Upload(weighted=stacked), weights, counted)


def random_models(seed=0, size=SIZE):
  rng = np.random.default_rng(seed)

  def draw(*shape):
    return rng.normal(size=shape).astype(np.float32)

  return [
    {'params': {'a': draw(3, 2), 'b': draw(5)}, 'batch_stats': {'mean': draw(4)}}
    for _ in range(size)
  ]


@functools.cache
def aggregation(name):
  """The compiled rule, whose numbers are traced."""
  algorithm = getattr(robust, name)(**OPTIONS[name])
  assert algorithm.needs_all_uploads
  assert dict(algorithm.hyperparameters) == OPTIONS[name]
  return jax.jit(algorithm.aggregate)


def after(name, sent, **changes):
  """The global model that the rule makes from these uploads."""
  numbers = jax.tree.map(np.float32, OPTIONS[name] | changes)
  return aggregation(name)(Server((), ()), sent, np.float32(1), numbers).variables


def by_numpy(name, models, left_out=(), **changes):
  counted_models = [
    reference.Model(m['params'], m['batch_stats'])
    for client, m in enumerate(models)
    if client not in left_out
  ]
  numbers = dict.fromkeys(reference.Options._fields[1:7], 0.0)
  numbers |= OPTIONS[name] | changes
  model = rules.combined(counted_models, reference.Options(name, **numbers))
  return {'params': model.params, 'batch_stats': model.stats}


@pytest.mark.parametrize('left_out', LEFT_OUT)
@pytest.mark.parametrize('name', OPTIONS)
def test_equals_numpy(name, left_out):
  models = random_models()
  model = after(name, uploads(models, left_out))
  expected = by_numpy(name, models, left_out)
  assert world.largest_difference(model, expected) < 1e-6
  if len(left_out) < 4:  # with three left, the trimmed mean and Krum drop none
    mean = by_numpy('trimmed_mean', models, left_out, trim=0.0)
    assert world.largest_difference(model, mean) > 1e-2


@pytest.mark.parametrize(
  ('trim', 'cut'),
  [(0.0, 0), (0.1, 1), (0.0999, 1), (0.0998, 0), (0.29, 2), (0.3, 3), (0.49995, 4)],
)
def test_how_many_are_trimmed(trim, cut):
  # The mean of 0..9 stays 4.5 however many are cut off at both ends; the mean of the
  # squares does not.
  values = [{'params': np.float32(x * x)} for x in range(10)]
  squares = [x * x for x in range(cut, 10 - cut)]
  model = after('trimmed_mean', uploads(values), trim=trim)
  np.testing.assert_allclose(model['params'], np.mean(squares), rtol=1e-6)


def test_median_by_hand():
  values = [{'params': np.float32(x)} for x in (5.0, 1.0, 3e38, 2.0, 2.5e38)]
  assert after('median', uploads(values))['params'] == 5.0
  # The median of 1, 5, 2.5e38 and 3e38: a sum of the last two would overflow.
  np.testing.assert_allclose(after('median', uploads(values, [3]))['params'], 1.25e38)
  assert after('median', uploads(values, [0, 1, 2, 4]))['params'] == 2.0
  assert not np.isfinite(after('median', uploads(values, range(5)))['params'])


def test_the_numbers_of_the_docstrings():
  values = [{'params': np.float32(x)} for x in (5.0, 1.0, 9.0, 2.0)]
  assert after('median', uploads(values))['params'] == 3.5
  assert after('trimmed_mean', uploads(values), trim=0.25)['params'] == 3.5
  assert after('trimmed_mean', uploads(values[:3]), trim=0.333)['params'] == 5.0
  # Equal values: of 1, 1, 5 and 9 one of the ones is left out.
  tied = [{'params': np.float32(x)} for x in (1.0, 9.0, 1.0, 5.0)]
  assert after('trimmed_mean', uploads(tied), trim=0.25)['params'] == 3.0
  # Each coordinate has extremes of its own; the weights 1, 2 and 3 have no part.
  models = [(0.0, 7.0), (4.0, 100.0), (50.0, 8.0)]
  coordinates = [{'params': np.float32(model)} for model in models]
  middle = after('trimmed_mean', uploads(coordinates), trim=0.34)['params']
  np.testing.assert_array_equal(middle, [4.0, 8.0])


def test_krum_by_hand():
  # Distances to the n - f - 2 = 2 nearest: 0 -> 1 + 4, 1 -> 1 + 1, 2 -> 1 + 4 (to 0),
  # 10 -> 64 + 81, 100 -> 8100 + 9604.
  values = [{'params': np.float32(x)} for x in (100.0, 0.0, 2.0, 1.0, 10.0)]

  def krum(num_selected, num_byzantine=1):
    sent = uploads(values)
    numbers = {'num_selected': num_selected, 'num_byzantine': num_byzantine}
    return after('krum', sent, **numbers)['params']

  assert krum(num_selected=1) == 1.0
  # 0 and 2 tie at 5: Krum takes the client with the smaller id, whose value is 0.
  assert krum(num_selected=2) == 0.5
  assert krum(num_selected=3) == 1.0
  # With f = 2 the nearest alone counts: 0, 2 and 1 tie at 1.
  assert krum(num_selected=1, num_byzantine=2) == 0
  np.testing.assert_allclose(krum(num_selected=9), 22.6, rtol=1e-6)


def test_krum_squares_the_distances():
  # Of the two nearest, 9 has distances 3 and 4, and 1 has 1 and 5. Squared, 9 wins by
  # 9 + 16 = 25 against 1 + 25 = 26. Unsquared, 1 would win by 6 against 7.
  values = [{'params': np.float32(x)} for x in (0.0, 1.0, 6.0, 9.0, 13.0)]
  winner = after('krum', uploads(values), num_byzantine=1, num_selected=1)
  assert winner['params'] == 9.0


def test_krum_counts_the_remaining_clients():
  # Two clients are left out. Of the other three, 0 and 0.5 are nearest to each other:
  # three are too few for f = 1, so the distance to the nearest one decides.
  values = [{'params': np.float32(x)} for x in (7.0, 0.0, 0.5, 3.0, 7.0)]
  model = after('krum', uploads(values, [0, 4]), num_selected=1)
  assert model['params'] == 0.0
  model = after('krum', uploads(values, [0, 4]), num_selected=4)
  np.testing.assert_allclose(model['params'], 3.5 / 3, rtol=1e-6)


def test_statistics_have_no_part_in_krums_distances():
  models = random_models()
  for model, shift in zip(models, (0, 90, 0, 50, 0, 70, 0), strict=True):
    model['batch_stats']['mean'] = model['batch_stats']['mean'] + np.float32(shift)
  model = after('krum', uploads(models))
  assert world.largest_difference(model, by_numpy('krum', models)) < 1e-5


@pytest.mark.parametrize('value', [-1e30, 3e38])
@pytest.mark.parametrize('name', OPTIONS)
def test_a_byzantine_upload_moves_the_mean_and_no_robust_rule(name, value):
  models = random_models()
  models[2] = jax.tree.map(lambda leaf: np.full_like(leaf, value), models[2])
  sent = uploads(models)
  honest = [model for client, model in enumerate(models) if client != 2]
  model = jax.tree.map(np.asarray, after(name, sent))
  lowest = jax.tree.map(lambda *leaves: np.min(leaves, axis=0), *honest)
  highest = jax.tree.map(lambda *leaves: np.max(leaves, axis=0), *honest)
  in_range = jax.tree.map(
    lambda a, x, b: np.all((a <= x) & (x <= b)), lowest, model, highest
  )
  assert all(jax.tree.leaves(in_range))
  mean = jax.tree.map(lambda leaf: leaf.mean(0), sent.stacked.weighted)
  assert world.largest_difference(mean, honest[0]) > 1e28


# --- in a round -----------------------------------------------------------------------


IN_A_ROUND = [('median', 6, 3), ('trimmed_mean', 2, 1), ('krum', 6, 3)]


@pytest.mark.parametrize(
  ('name', 'num_lanes', 'num_devices'),
  few([('trimmed_mean', 2, 1)], IN_A_ROUND),
)
def test_a_round_equals_the_reference(name, num_lanes, num_devices):
  plans = world.planner(num_lanes, num_devices=num_devices)
  history = world.run(name, 3, plans=plans)
  expected = reference_run(name, 3, plans=plans)
  assert_equal_to_reference(name, history, expected)
  fedavg = reference_run('fedavg', 3, plans=plans)[-1].params
  assert world.largest_difference(fedavg, expected[-1].params) > 1e-3


@pytest.mark.parametrize(
  ('name', 'num_lanes', 'num_devices'), few([('krum', 6, 3)], IN_A_ROUND)
)
def test_a_client_that_is_not_finite_is_left_out(name, num_lanes, num_devices):
  test_nonfinite.test_equals_the_reference_without_that_client(
    name, num_lanes, num_devices, 1, np.nan
  )


@pytest.mark.slow  # test_equals_numpy has statistics too
@pytest.mark.parametrize('batch_norm', ['averaged', 'local'])
def test_with_batch_normalisation(batch_norm):
  options = {'model': 'mlp_bn', 'batch_norm': batch_norm}
  options['plans'] = world.planner(sizes=NORMALISED_SIZES)
  history = world.run('median', 2, represent_once=False, **options)
  expected = reference_run('median', 2, **options)
  for (state, _), truth in zip(history, expected, strict=True):
    variables = state.server.variables
    assert world.largest_difference(variables['params'], truth.params) < 1e-5
    assert world.largest_difference(variables['batch_stats'], truth.stats) < 1e-5
