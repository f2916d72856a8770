"""How a number of clients or examples is divided: by a fraction, into rows."""

import math
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


def num_drawn(num_clients: int, participation: float) -> int:
  """The number of clients that are drawn in a round; at least one.

  >>> num_drawn(10, 0.25), num_drawn(10, 0.01)
  (3, 1)

  Args:
    num_clients: N.
    participation: fraction of the clients that are drawn.
  """
  return max(1, share_of(num_clients, participation))


def num_stragglers(num_drawn: int, fraction: float) -> int:
  """The number of stragglers in a round; may be 0, or all.

  Args:
    num_drawn: number of clients that are drawn.
    fraction: fraction of them that are stragglers.
  """
  return share_of(num_drawn, fraction)


def num_sending(
  num_drawn: int, num_stragglers: int, *, stragglers_send_partial_work: bool
) -> int:
  """K, the number of clients that send something in a round; 0 if nobody is in time.

  >>> num_sending(10, 3, stragglers_send_partial_work=False)
  7

  Args:
    num_drawn: number of clients that are drawn.
    num_stragglers: number of them that are late.
    stragglers_send_partial_work: whether these send what they have; if not, they send
      nothing.
  """
  return num_drawn if stragglers_send_partial_work else num_drawn - num_stragglers


def num_rows_of_grid(count: int) -> int:
  """The number of rows of a full rectangle, as square as the count allows.

  It has no more rows than columns; of a prime number it has one.

  >>> num_rows_of_grid(12), num_rows_of_grid(16), num_rows_of_grid(7)
  (3, 4, 1)

  Args:
    count: how many there are, at least 1.
  """
  num_rows = math.isqrt(count)
  while count % num_rows:
    num_rows -= 1
  return num_rows
