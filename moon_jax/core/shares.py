"""How many of a number of clients or examples a fraction is."""

from fractions import Fraction


def share_of(count: int, fraction: float) -> int:
  """The whole number nearest to fraction * count; halves are rounded up.

  The fraction counts as it is written: in binary, 0.145 * 100 is a little below 14.5.

  >>> share_of(100, 0.145)
  15
  >>> share_of(10, 0.25), share_of(10, 0.24)
  (3, 2)

  Args:
    count: how many there are, at least 0.
    fraction: at least 0.
  """
  numerator, denominator = Fraction(repr(float(fraction))).as_integer_ratio()
  return (2 * numerator * int(count) + denominator) // (2 * denominator)
