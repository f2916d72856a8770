"""Means, deviations, intervals and paired differences, against numbers by hand."""

import math

import pandas as pd
import pytest

from moon_jax.report import statistics
from moon_jax.report.statistics import Estimate, estimate, paired_difference


def test_an_estimate_is_a_mean_and_a_sample_deviation():
  # mean 4; squares (4 + 0 + 4) / (3 - 1) = 4, so the deviation is 2.
  assert estimate([2.0, 4.0, 6.0]) == Estimate(mean=4.0, std=2.0, n=3)
  # A missing number is not counted.
  assert estimate([2.0, math.nan, 4.0, 6.0]) == Estimate(mean=4.0, std=2.0, n=3)


def test_one_number_has_no_deviation_and_none_has_no_mean():
  single, empty = estimate([0.5]), estimate([])
  assert single == pytest.approx((0.5, math.nan, 1), nan_ok=True)
  assert math.isnan(single.half_width)
  assert empty == pytest.approx((math.nan, math.nan, 0), nan_ok=True)


def test_an_interval_is_students():
  # t(0.975, 2 degrees of freedom) = 4.302653; 4.302653 * 2 / sqrt(3) = 4.968275
  assert estimate([2.0, 4.0, 6.0]).half_width == pytest.approx(4.968275, rel=1e-6)
  # t(0.975, 10 degrees of freedom) = 2.228139, of a deviation from other numbers
  half_width = statistics.half_width(std=3.0, n=1, degrees_of_freedom=10)
  assert half_width == pytest.approx(3 * 2.228139, rel=1e-6)


@pytest.mark.parametrize(
  ('ours', 'theirs', 'mean', 'std', 'pairs'),
  [
    # One pair has no p-value, and equal differences have none.
    ({0: 0.5}, {0: 0.25}, 0.25, math.nan, 1),
    ({0: 0.9, 1: 0.8}, {0: 0.8, 1: 0.7}, 0.1, 0.0, 2),
    # Only seed 1 is in both; then no seed is.
    ({0: 0.9, 1: 0.5}, {1: 0.25, 2: 0.0}, 0.25, math.nan, 1),
    ({0: 0.5}, {1: 0.5}, math.nan, math.nan, 0),
  ],
)
def test_a_difference_is_over_pairs(ours, theirs, mean, std, pairs):
  difference = paired_difference(pd.Series(ours), pd.Series(theirs))
  assert difference.estimate == pytest.approx((mean, std, pairs), nan_ok=True)
  assert difference.p_value is None


def test_a_p_value_is_of_a_two_sided_paired_t_test():
  # Differences 1, 2, 3: t = 2 / (1 / sqrt(3)) = 3.4641 with 2 degrees of freedom.
  ours = pd.Series({0: 3.0, 1: 4.0, 2: 5.0})
  theirs = pd.Series({2: 2.0, 1: 2.0, 0: 2.0})
  difference = paired_difference(ours, theirs)
  assert difference.estimate == Estimate(mean=2.0, std=1.0, n=3)
  assert difference.p_value == pytest.approx(0.0741799, rel=1e-5)


def test_a_mean_curve_has_the_rounds_that_all_have():
  curves = pd.Series({1: 0.0, 2: 1.0, 4: 3.0}), pd.Series({2: 2.0, 3: 9.0, 4: 5.0})
  assert statistics.mean_curve(curves)['mean'].to_dict() == {2: 1.5, 4: 4.0}
  assert statistics.mean_curve([]).empty
