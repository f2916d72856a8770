"""Properties of the partitions, over many seeds and against independent arithmetic."""

import re
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moon_jax.core.errors import UsageError
from moon_jax.core.keys import Purpose, host_rng
from moon_jax.data import partition
from moon_jax.data.partition import base, feature_skew, label_skew
from tests.refusals import refused

LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 60))  # M = 600
# The mean client owns 100 examples; one draw in several leaves some client below 50.
OPTIONS = {'num_clients': 6, 'min_size': 50, 'seed': 0, 'beta': 0.5, 'balance': True}
OPTIONS |= {'classes_per_client': 2, 'noise_sigma': 0.1}


# Knobs that each rule takes.
TAKES = {
  'iid': (),
  'dirichlet': ('beta', 'balance'),
  'shards': ('classes_per_client',),
  'quantity': ('beta',),
  'noise': ('noise_sigma',),
}
OWN = {'beta', 'balance', 'classes_per_client', 'noise_sigma'}
NAMES = tuple(TAKES)


def dealt(name='dirichlet', labels=LABELS, **changes):
  unused = OWN - set(TAKES.get(name, ()))
  knobs = {n: v for n, v in (OPTIONS | changes).items() if n not in unused}
  return partition.deal(name, labels, **knobs)


def partition_of(name='dirichlet', labels=LABELS, **changes):
  return dealt(name, labels, **changes).partition


@pytest.mark.parametrize('name', NAMES)
def test_each_seed_has_its_own_partition_in_ascending_order(name):
  # With quantity skew, the smallest of 6 Dirichlet(0.5) shares is hardly ever 50.
  min_size = 20 if name == 'quantity' else 50
  splits = [partition_of(name, min_size=min_size, seed=seed) for seed in range(50)]
  assert len({split.indices.tobytes() for split in splits}) == 50
  same = partition_of(name, min_size=min_size, seed=49)
  assert all(map(np.array_equal, same, splits[-1]))
  assert (same.indices.dtype, same.offsets.dtype) == (np.int32, np.int64)
  assert min(split.sizes.min() for split in splits) >= min_size
  for i in range(6):
    assert np.all(np.diff(same.client(i)) > 0)


def largest_of_plain_dirichlet(rng, *, balance):
  """The largest of 10 clients' shares of 50,000 at beta 0.1, written anew.

  Shares of all clients are drawn, and those of the full ones set to 0.
  """
  while True:
    sizes = np.zeros(10)
    for _ in range(10):
      shares = rng.dirichlet([0.1] * 10)
      if balance:
        shares = np.where(sizes < 5000, shares, 0.0)
      sizes += 5000 * shares / shares.sum()
    if sizes.min() >= 10:
      return sizes.max()


@pytest.mark.parametrize('balance', [True, False])
def test_the_largest_client_is_as_large_as_by_independent_draws(balance):
  labels = np.repeat(np.arange(10), 5000)
  splits = [
    partition_of(
      labels=labels, num_clients=10, beta=0.1, min_size=10, balance=balance, seed=seed
    )
    for seed in range(60)
  ]
  ours = [split.sizes.max() for split in splits]
  rng = np.random.default_rng(0)
  truth = [largest_of_plain_dirichlet(rng, balance=balance) for _ in range(600)]
  error = np.std(truth) * (1 / 60 + 1 / 600) ** 0.5
  # The expected means are 8,350 balanced and 11,340 not, and their standard errors 116
  # and 323.
  assert abs(np.mean(ours) - np.mean(truth)) < 4 * error
  assert (np.mean(ours) > 9500) == (not balance)


def test_only_balanced_a_client_with_its_share_gets_no_more():
  # Two clients share two classes of 4 examples; a fair share is 4. At a vanishing beta
  # one client takes all of class 0 and holds 4 >= 4. So if balanced, the other client
  # takes all of class 1; if not, either may.
  labels = np.array([0, 1, 0, 1, 0, 1, 0, 1])
  for balance, sizes in ((True, {4}), (False, {4, 8})):
    splits = [
      partition_of(
        labels=labels, num_clients=2, beta=1e-9, min_size=0, balance=balance, seed=seed
      )
      for seed in range(40)
    ]
    largest = [split.sizes.max() for split in splits]
    assert set(largest) == sizes
    assert balance or 10 <= largest.count(8) <= 30
    # Either client may take class 0, and no class is split.
    owned = {tuple(split.client(0)) for split in splits}
    assert {(0, 2, 4, 6), (1, 3, 5, 7)} <= owned
    assert owned <= {(0, 2, 4, 6), (1, 3, 5, 7), tuple(range(8)), ()}


def test_mean_share_of_a_class_is_even():
  # The first class meets no cap, so by symmetry each client expects 60 / 6 = 10 of it.
  # Var(share) = (1/6)(5/6) / (6 * 0.5 + 1) = 0.0347: over 400 seeds the mean of 60 *
  # share has standard error 60 * 0.186 / 20 = 0.56. Four of them: 2.2.
  splits = [partition_of(min_size=0, seed=seed) for seed in range(400)]
  counts = np.mean([partition.class_counts(s, LABELS, 10)[:, 0] for s in splits], 0)
  np.testing.assert_allclose(counts, 10, atol=2.2)


def test_examples_of_a_class_are_shuffled():
  # If examples were dealt in stored order, client 0 would own the first ones of class
  # 0.
  members = np.flatnonzero(LABELS == 0)
  owned = [np.isin(members, partition_of(seed=seed).client(0)) for seed in range(100)]
  early, later = np.split(np.mean(owned, axis=0), 2)
  assert abs(early.mean() - later.mean()) < 0.05


def test_iid_sizes_differ_by_at_most_one():
  split = partition_of('iid', num_clients=7)
  # 600 = 7 * 85 + 5
  assert sorted(split.sizes) == [85, 85, 86, 86, 86, 86, 86]
  # A client expects 8.6 examples of each class, with a standard deviation of 2.8.
  assert partition.class_counts(split, LABELS, 10).max() < 20


def test_class_counts_by_hand():
  split = partition.Partition(np.array([1, 3, 0, 2, 4]), np.array([0, 2, 2, 5]))
  labels = np.array([0, 2, 0, 2, 1])
  counts = partition.class_counts(split, labels, 4)
  assert counts.tolist() == [[0, 0, 2, 0], [0, 0, 0, 0], [2, 1, 0, 0]]
  assert split.sizes.tolist() == [2, 0, 3]
  assert split.client(2).tolist() == [0, 2, 4]


@pytest.mark.parametrize('name', NAMES)
def test_too_few_examples_is_refused(name):
  message = r'6 clients with at least 101 examples need 606, and there are 600: .*'
  with pytest.raises(UsageError, match=message + 'num_clients'):
    partition_of(name, min_size=101)
  if name in ('iid', 'noise'):
    assert partition_of(name, min_size=100).sizes.tolist() == [100] * 6


# With one class for each client, of 10 and 90 examples, one client owns 10 in any draw.
ONE_OF_50 = {'num_clients': 2, 'classes_per_client': 1, 'min_size': 50}


@pytest.mark.parametrize(
  ('name', 'labels', 'knobs', 'message'),
  [
    ('dirichlet', LABELS, {'beta': 0.01, 'min_size': 99}, r'beta=0\.01 gave \d of 6'),
    ('shards', np.repeat([0, 1], [10, 90]), ONE_OF_50, 'per_client=1 gave 1 of 2'),
  ],
)
def test_a_rule_gives_up_with_the_numbers(name, labels, knobs, message, monkeypatch):
  monkeypatch.setattr(base, 'MAX_ATTEMPTS', 5)
  full_message = (
    rf'^--config\.partition\..*{message} clients fewer than {knobs["min_size"]} of '
    rf'{len(labels)} examples in the last of 5 draws: change it, or lower '
    r'--config\.partition\.min_size or --config\.num_clients\.$'
  )
  with pytest.raises(UsageError, match=full_message):
    partition_of(name, labels, **knobs)


# Labels as a data set may have them: few or many, classes missing, one class only.
SOME_LABELS = st.lists(st.integers(0, 9), min_size=1, max_size=120).map(np.array)


@settings(max_examples=60, deadline=None)
@given(
  name=st.sampled_from(NAMES),
  labels=SOME_LABELS,
  num_clients=st.integers(1, 2**31 - 1) | st.integers(1, 20),
  beta=st.floats(0, exclude_min=True, allow_infinity=False) | st.floats(0.05, 10),
  balance=st.booleans(),
  classes_per_client=st.integers(1, 2**31 - 1) | st.integers(1, 10),
  min_size=st.integers(1, 2**31 - 1) | st.integers(1, 3),
  seed=st.integers(0, 2**31 - 1),
)
def test_any_valid_knobs_give_a_partition_or_one_line_that_names_a_knob(
  name, labels, min_size, **knobs
):
  complaint = None
  try:
    split = partition_of(name, labels, min_size=min_size, **knobs)
  except UsageError as error:
    complaint = str(error)
  if complaint:
    assert len(complaint.splitlines()) == 1
    assert '--config.partition.' in complaint
    # These rules fail only if there are too few examples.
    enough = knobs['num_clients'] * min_size <= len(labels)
    assert not (enough and name in ('iid', 'noise', 'quantity'))
    return
  assert sorted(split.indices.tolist()) == list(range(len(labels)))
  assert len(split.sizes) == knobs['num_clients']
  assert split.sizes.min() >= min_size
  counts = partition.class_counts(split, labels, 10)
  assert counts.sum(1).tolist() == split.sizes.tolist()
  assert counts.sum(0).tolist() == np.bincount(labels, minlength=10).tolist()


# --- shards ---------------------------------------------------------------------------


@st.composite
def shard_cases(draw):
  """Labels with gaps and unequal classes, and a number of clients that fits."""
  num_classes = draw(st.integers(1, 8))
  per_client = draw(st.integers(1, num_classes))
  num_clients = draw(st.integers(-(-num_classes // per_client), 12))
  most_owners = -(-num_clients * per_client // num_classes)
  size = st.integers(most_owners, 40)
  sizes = draw(st.lists(size, min_size=num_classes, max_size=num_classes))
  labels = np.repeat(3 * np.arange(num_classes), sizes)
  seed = draw(st.integers(0, 2**31 - 1))
  return np.random.default_rng(seed).permutation(labels), num_clients, per_client, seed


@settings(max_examples=100, deadline=None)
@given(case=shard_cases())
def test_shards_give_exactly_k_classes_as_evenly_as_can_be(case):
  labels, num_clients, per_client, seed = case
  split = label_skew.shards(
    labels,
    num_clients=num_clients,
    classes_per_client=per_client,
    min_size=1,
    seed=seed,
  )
  assert sorted(split.indices.tolist()) == list(range(len(labels)))
  owned = [set(labels[split.client(i)]) for i in range(num_clients)]
  assert {len(classes) for classes in owned} == {per_client}
  num_owners = [sum(label in mine for mine in owned) for label in np.unique(labels)]
  assert min(num_owners) >= 1
  assert max(num_owners) - min(num_owners) <= 1
  for label in np.unique(labels):
    counts = [np.sum(labels[split.client(i)] == label) for i in range(num_clients)]
    counts = [count for count in counts if count]
    assert max(counts) - min(counts) <= 1


def test_what_does_not_divide_goes_to_those_that_hold_least():
  # 3 classes of 5, all owned by both clients: 3 + 2, 2 + 3, then a tie: sizes 8 and 7.
  # If the first client always took the odd one, they would be 9 and 6.
  labels = np.repeat([0, 1, 2], 5)
  for seed in range(20):
    split = partition_of(
      'shards', labels, num_clients=2, classes_per_client=3, min_size=1, seed=seed
    )
    assert sorted(split.sizes) == [7, 8]


def test_shards_shuffle_a_class():
  # Dealt in stored order, each run of 6 examples would go to 6 different clients.
  split = partition_of('shards', classes_per_client=10)
  owners = np.empty(len(LABELS), int)
  owners[split.indices] = np.repeat(np.arange(6), split.sizes)
  runs = owners[LABELS == 0].reshape(10, 6)
  assert min(len(set(run)) for run in runs.tolist()) < 6


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'classes_per_client': 11}, r'client=11 must be in \[2, 10\]: 6 clients own'),
    ({'classes_per_client': 0}, r'client=0 must be in \[2, 10\]'),
    ({'num_clients': 4}, r'client=2 must be in \[3, 10\]: 4 clients own the 10 class'),
    # 301 * 2 slots for 10 classes: some class has 61 owners for its 60 examples.
    ({'num_clients': 301, 'min_size': 1}, 'class 0 has 60 examples for up to 61 cli'),
    # 5 clients of 120 examples are the most even: none can have 121.
    ({'num_clients': 5, 'min_size': 121}, '^5 clients with at least 121 examples need'),
  ],
)
def test_shards_that_cannot_be_are_refused(changes, message):
  with refused(UsageError, message):
    partition_of('shards', **changes)


# --- quantity -------------------------------------------------------------------------


def test_quantity_is_its_first_good_draw_where_there_is_one():
  for seed in range(40):
    attempts = (host_rng(seed, Purpose.PARTITION, a) for a in range(1000))
    for rng in attempts:
      shares = rng.dirichlet([0.5] * 6)
      cuts = (np.cumsum(shares[:-1]) * 600).astype(int)
      counts = np.diff(cuts, prepend=0, append=600)
      owners = rng.permutation(np.repeat(np.arange(6), counts))
      if counts.min() >= 20:
        break
    split = partition_of('quantity', num_clients=6, beta=0.5, min_size=20, seed=seed)
    assert split.sizes.tolist() == counts.tolist()
    for client in range(6):
      assert split.client(client).tolist() == np.flatnonzero(owners == client).tolist()


def test_quantity_sets_aside_what_everyone_needs_if_no_draw_is_good():
  labels = np.zeros(10_000, int)
  # All examples are set aside, 10 for each client, and none is left to share.
  equal = partition_of('quantity', labels, num_clients=1000, beta=0.5, min_size=10)
  assert equal.sizes.tolist() == [10] * 1000
  # 9,000 examples are shared by the Dirichlet shares of another draw.
  split = partition_of('quantity', labels, num_clients=1000, beta=0.5, min_size=1)
  rest = host_rng(0, Purpose.PARTITION, base.MAX_ATTEMPTS).dirichlet([0.5] * 1000)
  np.testing.assert_allclose(split.sizes - 1, 9000 * rest, atol=1)


# --- noise ----------------------------------------------------------------------------

GREY = np.full((600, 6, 5, 2), 128, np.uint8)


def test_noise_rises_over_the_clients():
  split = partition_of('noise')
  assert all(map(np.array_equal, split, partition_of('iid')))
  noisy = feature_skew.add_noise(GREY, split, noise_sigma=0.12, seed=0)
  assert noisy.dtype == np.uint8
  assert noisy.shape == GREY.shape
  assert (GREY == 128).all()
  apart = noisy.astype(float) - 128
  for i in range(6):
    # 0.12 * 255 = 30.6 for the last of 6 clients; rounding adds a variance of 1 / 12.
    # 100 images of 60 pixels: a standard error of 1 / sqrt(2 * 6000) = 0.9 %.
    deviation = np.sqrt((30.6 * (i + 1) / 6) ** 2 + 1 / 12)
    assert apart[split.client(i)].std() == pytest.approx(deviation, rel=0.04)
    assert abs(apart[split.client(i)].mean()) < 4 * deviation / np.sqrt(6000)


def test_noise_is_rounded_to_the_nearest_and_clipped():
  split = partition.Partition(np.arange(600), np.array([0, 600]))
  draws = feature_skew.add_noise(GREY, split, noise_sigma=0.1, seed=0).astype(int) - 128
  assert abs(draws.mean()) < 0.5  # truncation would shift it by half a level
  for level in (0, 255):
    images = np.full_like(GREY, level)
    noisy = feature_skew.add_noise(images, split, noise_sigma=0.1, seed=0)
    np.testing.assert_array_equal(noisy, (level + draws).clip(0, 255))


def test_noise_of_an_example_is_its_own():
  def noisy(ends, seed=3):
    split = partition.Partition(np.arange(600), np.array([0, *ends, 600]))
    return feature_skew.add_noise(GREY, split, noise_sigma=0.1, seed=seed)

  # The only client and the last of two have the same level.
  of_one_client, of_two_clients = noisy([]), noisy([250])
  np.testing.assert_array_equal(of_two_clients[250:], of_one_client[250:])
  assert not (of_two_clients[:250] == of_one_client[:250]).all()
  # No two examples have the same noise, even in different blocks.
  assert len({image.tobytes() for image in of_one_client}) == 600
  np.testing.assert_array_equal(of_one_client, noisy([]))
  assert not (of_one_client == noisy([], seed=4)).all()


def test_only_noise_changes_what_clients_see():
  for name in NAMES:
    split, image_view = dealt(name)
    assert (image_view(GREY, split) is GREY) == (name != 'noise')
  np.testing.assert_array_equal(
    image_view(GREY, split),
    feature_skew.add_noise(GREY, split, noise_sigma=0.1, seed=0),
  )
  split, image_view = dealt('noise', noise_sigma=0.0)
  np.testing.assert_array_equal(image_view(GREY, split), GREY)


# --- many clients ---------------------------------------------------------------------


@pytest.mark.parametrize('name', NAMES)
def test_hundred_thousand_clients_are_dealt_in_seconds(name):
  labels = np.random.default_rng(0).integers(0, 10, 500_000)
  num_clients = 20_000 if name == 'dirichlet' else 100_000
  begin = time.process_time()
  split = partition_of(name, labels, num_clients=num_clients, min_size=1)
  partition.class_counts(split, labels, 10)
  assert time.process_time() - begin < 5  # 0.3 where this was written
  assert len(split.sizes) == num_clients
  assert split.sizes.min() >= 1


def test_hopeless_draws_are_refused_after_the_first():
  labels = np.random.default_rng(0).integers(0, 10, 50_000)
  message = r'beta=0\.5 gave (\d+) of 10000 clients .* in the last of 1 draws'
  with pytest.raises(UsageError, match=message) as caught:
    partition_of('dirichlet', labels, num_clients=10_000, min_size=5)
  assert int(re.search(message, str(caught.value))[1]) > base.HOPELESS


def test_a_draw_with_a_few_clients_below_is_followed_by_others(monkeypatch):
  # Some 20 of 400 clients with 25 examples each on average have fewer than 12.
  monkeypatch.setattr(base, 'MAX_ATTEMPTS', 100)
  labels = np.random.default_rng(0).integers(0, 10, 10_000)
  with pytest.raises(UsageError, match='in the last of 100 draws'):
    partition_of('dirichlet', labels, num_clients=400, min_size=12)
