"""Numbers as the page prints them, and means over five rounds."""

import math

import pandas as pd

from moon_jax.report.statistics import Estimate

NOT_RUN = 'not run'
_WINDOW = 5  # rounds whose tests are averaged


def text(estimate: Estimate, decimals: int = 1) -> str:
  """'66.4' of one number, '63.9 +- 2.0' of several, '' of none."""
  if estimate.n == 0:
    return ''
  mean = f'{estimate.mean:.{decimals}f}'
  return mean if estimate.n == 1 else f'{mean} +- {estimate.std:.{decimals}f}'


def endpoints(column: pd.Series) -> pd.Series:
  """Round -> the mean of the five rounds that end with it, if all five have a value.

  column: round -> value.
  """
  if column.empty:
    return column
  every_round = range(1, int(column.index.max()) + 1)
  windows = column.reindex(every_round).rolling(_WINDOW)
  # An exact sum: the rounding of a running sum would decide how a tie is printed.
  return windows.apply(lambda numbers: math.fsum(numbers) / _WINDOW, raw=True).dropna()


def late_mean(column: pd.Series) -> float:
  """The mean of the last five values, of whatever rounds they are; NaN with fewer."""
  return float(column.tail(_WINDOW).mean()) if len(column) >= _WINDOW else math.nan
