"""Properties of the partitions, over many seeds and against independent arithmetic."""

import numpy as np
import pytest

from moon_jax.data import partition

LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 60))  # M = 600
# The mean client owns 100 examples; one draw in several leaves some client below 50.
OPTIONS = {'num_clients': 6, 'beta': 0.5, 'min_size': 50, 'seed': 0}


def make(name='dirichlet', labels=LABELS, **changes):
  return partition.make(name, labels, **(OPTIONS | changes))


def skew(split):
  """Mean over the clients of the share that a client's largest class has."""
  counts = partition.class_counts(split, LABELS, 10)
  return np.mean(counts.max(1) / counts.sum(1))


@pytest.mark.parametrize('name', list(partition.PARTITIONERS))
def test_every_example_has_one_owner_and_every_client_enough(name):
  for seed in range(200):
    split = make(name, seed=seed)
    assert sorted(split.indices.tolist()) == list(range(len(LABELS)))
    assert (split.offsets[0], split.offsets[-1]) == (0, len(LABELS))
    assert split.sizes.min() >= 50
    for i in range(6):
      assert np.all(np.diff(split.client(i)) > 0)
    assert (split.indices.dtype, split.offsets.dtype) == (np.int32, np.int64)


def test_dirichlet_gives_nothing_more_to_a_client_with_its_fair_share():
  capped = 0
  for seed in range(200):
    # 7 clients: the fair share 600 / 7 is no whole number.
    split = make(num_clients=7, seed=seed)
    held = np.zeros(7)
    for label in range(10):
      received = np.array([np.sum(LABELS[split.client(i)] == label) for i in range(7)])
      full = held >= 600 / 7
      assert not received[full].any()
      capped += full.sum()
      held += received
  assert capped > 200  # the rule was at work, not vacuous


def test_dirichlet_fills_to_the_cap_exactly():
  # Two clients, two classes of 4, a fair share of 4. At a vanishing beta one client
  # takes all of class 0; it then holds 4 >= 4, so the other takes all of class 1.
  labels = np.array([0, 1, 0, 1, 0, 1, 0, 1])
  first = set()
  for seed in range(20):
    split = make(labels=labels, num_clients=2, beta=1e-9, min_size=0, seed=seed)
    owned = {tuple(split.client(0)), tuple(split.client(1))}
    assert owned == {(0, 2, 4, 6), (1, 3, 5, 7)}
    first.add(int(split.client(0)[0]))
  assert first == {0, 1}  # either client may be the one


def test_dirichlet_at_a_huge_beta_is_even():
  split = make(beta=1e308)
  # 60 examples of each class over 6 clients: 10, give or take rounding down a cut.
  counts = partition.class_counts(split, LABELS, 10)
  np.testing.assert_allclose(counts, 10, atol=1)


@pytest.mark.parametrize('beta', [1e-320, 1e-12, 1e-3, 1e6])
def test_dirichlet_survives_extreme_concentrations(beta):
  for seed in range(20):
    split = make(beta=beta, min_size=0, seed=seed)
    assert sorted(split.indices.tolist()) == list(range(len(LABELS)))


def test_mean_share_of_a_class_is_even():
  # The first class meets no cap, so by symmetry each client expects 60 / 6 = 10 of it.
  # Var(share) = (1/6)(5/6) / (6 * 0.5 + 1) = 0.0347: over 400 seeds the mean of 60 *
  # share has standard error 60 * 0.186 / 20 = 0.56. Four of them: 2.2.
  splits = [make(min_size=0, seed=seed) for seed in range(400)]
  counts = np.mean([partition.class_counts(s, LABELS, 10)[:, 0] for s in splits], 0)
  np.testing.assert_allclose(counts, 10, atol=2.2)


def test_examples_of_a_class_are_shuffled():
  # Dealt in stored order, client 0 would own the first examples of class 0 always.
  members = np.flatnonzero(LABELS == 0)
  owned = [np.isin(members, make(seed=seed).client(0)) for seed in range(100)]
  early, late = np.split(np.mean(owned, axis=0), 2)
  assert abs(early.mean() - late.mean()) < 0.05


def test_small_beta_is_more_skewed():
  skews = [
    np.mean([skew(make(beta=beta, seed=seed)) for seed in range(10)])
    for beta in (0.1, 1.0, 100.0)
  ]
  assert skews[0] > skews[1] + 0.1 > skews[2] + 0.2


def test_iid_sizes_differ_by_at_most_one():
  sizes = make('iid', num_clients=7).sizes
  # 600 = 7 * 85 + 5
  assert sorted(sizes) == [85, 85, 86, 86, 86, 86, 86]
  assert skew(make('iid')) < 0.2  # 0.1 if exactly even


@pytest.mark.parametrize('name', list(partition.PARTITIONERS))
def test_the_seed_decides(name):
  same, again, other = make(name), make(name), make(name, seed=1)
  np.testing.assert_array_equal(same.indices, again.indices)
  np.testing.assert_array_equal(same.offsets, again.offsets)
  assert not np.array_equal(same.indices, other.indices)


def test_class_counts_by_hand():
  split = partition.Partition(np.array([1, 3, 0, 2, 4]), np.array([0, 2, 2, 5]))
  labels = np.array([0, 2, 0, 2, 1])
  counts = partition.class_counts(split, labels, 4)
  assert counts.tolist() == [[0, 0, 2, 0], [0, 0, 0, 0], [2, 1, 0, 0]]
  assert split.sizes.tolist() == [2, 0, 3]
  assert split.client(2).tolist() == [0, 2, 4]


@pytest.mark.parametrize('name', list(partition.PARTITIONERS))
def test_too_few_examples_is_refused(name):
  message = r'6 clients with at least 101 examples need 606, and there are 600: .*'
  with pytest.raises(partition.PartitionError, match=message + 'num_clients'):
    make(name, min_size=101)
  if name == 'iid':
    assert make(name, min_size=100).sizes.tolist() == [100] * 6


def test_dirichlet_gives_up_with_the_numbers(monkeypatch):
  monkeypatch.setattr(partition, 'MAX_ATTEMPTS', 5)
  with pytest.raises(partition.PartitionError) as caught:
    make(beta=0.01, min_size=99)
  message = str(caught.value)
  assert message.startswith(
    'Dirichlet(0.01) gave one of 6 clients fewer than 99 of 600 examples in each of 5 '
    'draws (at best '
  )
  # With min_size=0 the first of the five draws is accepted.
  first = make(beta=0.01, min_size=0).sizes.min()
  assert first <= int(message.split('at best ')[1].split(')')[0]) < 99
  for flag in ('partition.beta', 'partition.min_size', 'num_clients'):
    assert f'--config.{flag}' in message
  assert '\n' not in message


@pytest.mark.parametrize('beta', [0.0, -1.0, float('nan')])
def test_beta_must_be_above_zero(beta):
  with pytest.raises(partition.PartitionError, match=r'partition\.beta=.* above 0'):
    make(beta=beta)


def test_unknown_name_is_refused():
  with pytest.raises(partition.PartitionError, match=r"'shards' must be one of .*iid"):
    make('shards')


def test_save_is_complete_and_reproducible(tmp_path):
  split = make()
  counts = partition.class_counts(split, LABELS, 10)
  for name in ('a.npz', 'b.npz'):
    partition.save(tmp_path / name, split, counts)
  assert (tmp_path / 'a.npz').read_bytes() == (tmp_path / 'b.npz').read_bytes()
  assert {file.name for file in tmp_path.iterdir()} == {'a.npz', 'b.npz'}
  with np.load(tmp_path / 'a.npz', allow_pickle=False) as saved:
    assert set(saved) == {'indices', 'offsets', 'class_counts'}
    np.testing.assert_array_equal(saved['indices'], split.indices)
    np.testing.assert_array_equal(saved['offsets'], split.offsets)
    np.testing.assert_array_equal(saved['class_counts'], counts)


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
  split = make()
  counts = partition.class_counts(split, LABELS, 10)
  partition.save(tmp_path / 'a.npz', split, counts)
  before = (tmp_path / 'a.npz').read_bytes()

  def full_disk(file, **arrays):
    file.write(b'half')
    raise OSError('No space left on device')

  monkeypatch.setattr(np, 'savez', full_disk)
  with pytest.raises(OSError, match='No space left'):
    partition.save(tmp_path / 'a.npz', split, counts)
  assert (tmp_path / 'a.npz').read_bytes() == before
