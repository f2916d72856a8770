"""A fraction of clients or examples is rounded as the pages say, everywhere alike."""

import decimal

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from moon_jax.building import scheduling
from moon_jax.building.scheduling import TrainingSetupOptions
from moon_jax.catalog.algorithms import ALGORITHMS
from moon_jax.config import validate
from moon_jax.core import shares
from moon_jax.core.shares import share_of
from moon_jax.core.types import Dataset
from moon_jax.data import client_tests, drawn_test, holdout, imagefolder, partition

# In binary 100 * 0.145 + 0.5 is 14.999999999999998.
COUNT, FRACTION, SHARE = 100, 0.145, 15

WRITTEN = st.one_of(
  st.decimals(0, 1, places=3),
  st.decimals(0, 1, places=9),
  st.floats(0, 1).map(lambda number: decimal.Decimal(repr(number))),
)


@given(count=st.integers(0, 2**40), written=WRITTEN)
@example(count=COUNT, written=decimal.Decimal('0.145'))
@example(count=50, written=decimal.Decimal('0.29'))
@example(count=1, written=decimal.Decimal('0.49999999999999994'))
def test_halves_of_the_written_number_are_rounded_up(count, written):
  with decimal.localcontext(prec=1000):
    exact = count * decimal.Decimal(repr(float(written)))
    rounded = exact.to_integral_value(decimal.ROUND_HALF_UP)
  assert share_of(count, float(written)) == rounded


def test_every_fraction_is_rounded_by_the_same_rule():
  options = TrainingSetupOptions(
    validate(
      {
        'algorithm': 'fedavg',
        'num_clients': COUNT,
        'attack.name': 'alie',
        'attack.fraction': FRACTION,
        'stragglers.fraction': FRACTION,
      }
    )
  )
  who = scheduling.who_takes_part(options, np.full(COUNT, 4))
  assert (len(who.attackers), who.num_stragglers) == (SHARE, SHARE)
  assert shares.num_drawn(COUNT, FRACTION) == SHARE
  one_client = partition.Partition(np.arange(COUNT), np.array([0, COUNT]))
  _, tests = client_tests.hold_out(one_client, FRACTION, seed=0)
  assert tests.sizes.tolist() == [SHARE]
  images, labels = np.zeros((COUNT, 1, 1, 1), np.uint8), np.zeros(COUNT, int)
  one_class = Dataset('one', images, labels, images, labels, 1, mean=0.0, std=1.0)
  _, validation = holdout.validation_split(one_class, FRACTION, seed=0)
  assert len(validation[1]) == SHARE
  pictures = [imagefolder.Picture(f'{number}.png', 'cat') for number in range(COUNT)]
  test_draw = drawn_test.TestDraw(test_fraction=FRACTION, test_seed=0)
  assert len(imagefolder._drawn(pictures, test_draw).test) == SHARE


def test_the_rules_of_a_configuration_count_the_same_clients():
  (krum,) = [entry for entry in ALGORITHMS if entry.name == 'krum']
  values = {
    'num_clients': COUNT,
    'participation': FRACTION,
    'stragglers.fraction': 0.0,
    'krum.num_byzantine': 1,
    'krum.num_selected': SHARE,
  }
  assert list(krum.check(values)) == []
  (line,) = krum.check(values | {'krum.num_selected': SHARE + 1})
  assert f'at most {SHARE}' in line
