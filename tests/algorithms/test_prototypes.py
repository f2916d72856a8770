"""FedProc and FedProto by hand, and the pass over a client's data."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moon_jax.algorithms import prototypes
from moon_jax.algorithms.fedproc import prototype_loss
from moon_jax.algorithms.prototypes import ClassSums, Prototypes
from moon_jax.core.types import Batch, Outputs, Server, Task, Upload
from moon_jax.data import device_split
from tests import reference, world
from tests.selection import few

F = jnp.array([[0.6, 0.8]])
UNITS = Prototypes(jnp.eye(2), jnp.ones(2))


def batch(labels, mask=None):
  mask = np.ones(len(labels)) if mask is None else mask
  images = np.zeros((len(labels), 1, 1, 1), np.float32)
  return Batch(images, np.array(labels, np.int32), np.array(mask, np.float32))


def outputs(z, logits=None):
  z = jnp.array(z, jnp.float32)
  return Outputs(z, jnp.zeros((len(z), 2)) if logits is None else logits, z)


# --- FedProc --------------------------------------------------------------------------


@pytest.mark.parametrize(
  ('label', 'tau', 'expected'),
  [
    # log(1 + exp((0.8 - 0.6) / tau)) and log(1 + exp((0.6 - 0.8) / tau))
    (0, 1.0, 0.7981388694),
    (1, 1.0, 0.5981388694),
    (0, 0.5, 0.9130152524),
    (1, 0.5, 0.5130152524),
  ],
)
@pytest.mark.parametrize('scale', [1.0, 3.0])
def test_the_term_of_fedproc_by_hand(label, tau, expected, scale):
  # Cosines: the lengths of representation and prototypes do not matter.
  scaled = UNITS._replace(vectors=scale * UNITS.vectors)
  term = prototype_loss(F / scale, scaled, jnp.array([label]), tau)
  np.testing.assert_allclose(term, [expected], rtol=1e-6)


def test_a_class_without_a_prototype_leaves_the_sum_and_has_no_term():
  only_first = UNITS._replace(there=jnp.array([1.0, 0.0]))
  labels = jnp.array([0, 1])
  terms = prototype_loss(jnp.tile(F, (2, 1)), only_first, labels, 1.0)
  np.testing.assert_array_equal(terms, [0.0, 0.0])

  @jax.jit
  @jax.grad
  def gradient(z, exists):
    return jnp.sum(prototype_loss(z, UNITS._replace(there=exists), labels, 1.0))

  for exists in ([0.0, 0.0], [1.0, 0.0]):
    slope = gradient(jnp.tile(F, (2, 1)), jnp.array(exists))
    np.testing.assert_array_equal(slope, np.zeros((2, 2)))


@pytest.mark.parametrize(
  ('rounds', 'weight'), [(0, 1.0), (1, 0.01), (50, 0.5), (100, 1.0), (200, 1.0)]
)
def test_the_cross_entropy_counts_more_from_round_to_round(rounds, weight):
  algorithm = world.algorithm_of('fedproc', tau=1.0, rise=100.0)
  zeros = ClassSums(jnp.zeros((2, 2)), jnp.zeros(2))
  memory = algorithm.init_server({}, zeros=zeros)._replace(rounds=jnp.float32(rounds))
  scalars = algorithm.scalars({'tau': 1.0, 'rise': 100.0}, memory)
  np.testing.assert_allclose(scalars['a_t'], weight, rtol=1e-6)
  # Logits whose cross entropy is 0.4: log(1 + exp(x)) = 0.4.
  logits = jnp.array([[0.0, np.log(np.exp(0.4) - 1)]])
  received = Server({}, UNITS)
  now = Task(received, (), (), scalars, {})
  loss = jax.jit(
    lambda examples: algorithm.loss(outputs(F, logits), {}, None, now, examples)
  )
  total, parts = loss(batch([0]))
  np.testing.assert_allclose(parts['supervised_loss'], 0.4, rtol=1e-6)
  expected = weight * 0.4 + (1 - weight) * 0.7981388694
  np.testing.assert_allclose(total, expected, rtol=1e-6)
  if rounds == 1:
    np.testing.assert_allclose(total, 0.7941574807, rtol=1e-6)


def test_fedprocs_prototypes_are_means_of_directions():
  algorithm = world.algorithm_of('fedproc', tau=1.0, rise=100.0)
  # One client has three examples along (1, 0), of any length, and a filler.
  three = algorithm.examine(
    outputs([[2.0, 0.0], [0.5, 0.0], [1.0, 0.0], [9.0, 9.0]]),
    batch([0, 0, 0, 0], [1, 1, 1, 0]),
  )
  single = algorithm.examine(outputs([[0.0, 4.0]]), batch([0]))
  zeros = jax.tree.map(jnp.zeros_like, single)
  server = Server({}, algorithm.init_server({}, zeros=zeros))
  mean = jax.tree.map(lambda a, b: (a + b) / 2, three, single)
  after = algorithm.aggregate(server, Upload({}, mean), 1.0, {}).memory
  np.testing.assert_allclose(after.prototypes.vectors[0], [0.75, 0.25], rtol=1e-6)
  assert after.prototypes.there.tolist() == [1.0, 0.0]
  assert after.rounds == 1.0


# --- FedProto -------------------------------------------------------------------------


@pytest.mark.parametrize(
  ('z', 'distance', 'expected'),
  [
    # The representation differs from the prototype by (0.25, -0.25).
    ([[1.0, 0.0]], 'sum', 0.125),
    ([[1.0, 0.0]], 'mean', 0.0625),
    ([[2.0, 0.0], [1.0, 0.0], [0.0, 0.0]], 'mean', 0.3958333333),
  ],
)
def test_the_term_of_fedproto_by_hand(z, distance, expected):
  algorithm = world.algorithm_of('fedproto', lam=2.0, distance=distance)
  # The three examples of one client have mean (1, 0), and the other client's one is (0,
  # 1). The mean is weighted by examples.
  mean = ClassSums(jnp.array([[1.5, 0.5], [0.0, 0.0]]), jnp.array([2.0, 0.0]))
  zeros = jax.tree.map(jnp.zeros_like, mean)
  server = Server({}, prototypes.empty_prototypes(zeros))
  received = algorithm.aggregate(server, Upload(uniform=mean), 1.0, {}).memory
  np.testing.assert_allclose(received.vectors[0], [0.75, 0.25])
  # The last example is filler first; then its class has no prototype and adds 0.
  with_last = outputs([*z, [7.0, 7.0]])
  mask = [1.0] * len(z) + [0.0]
  now = Task(received, (), (), {'lam': jnp.float32(2.0)}, {})

  @jax.jit
  def loss(examples):
    return algorithm.loss(with_last, {}, None, now, examples)

  total, parts = loss(batch([0] * len(mask), mask))
  np.testing.assert_allclose(parts['prototype_loss'], expected, rtol=1e-6)
  np.testing.assert_allclose(total, np.log(2) + 2 * expected, rtol=1e-6)
  labels = [0] * len(z) + [1]
  _, parts = loss(batch(labels))
  mean_of_all = expected * len(z) / len(labels)
  np.testing.assert_allclose(parts['prototype_loss'], mean_of_all, rtol=1e-6)
  # The only prototype that exists is the nearest.
  np.testing.assert_allclose(parts['prototype_accuracy'], len(z) / len(labels))


def test_a_class_that_nobody_in_the_cohort_has_keeps_its_prototype():
  before = Prototypes(jnp.array([[1.0, 2.0], [3.0, 4.0]]), jnp.array([1.0, 0.0]))
  mean = ClassSums(jnp.array([[0.0, 0.0], [1.0, 3.0]]), jnp.array([0.0, 2.0]))
  after = prototypes.updated(before, mean)
  np.testing.assert_array_equal(after.vectors, [[1.0, 2.0], [0.5, 1.5]])
  assert after.there.tolist() == [1.0, 1.0]


# --- the pass over a client's data ----------------------------------------------------


def cohort_split_of(plans):
  """A function that makes the split of a cohort, as a stream brings it."""

  def cohort_split(index, split):
    clients = plans.plan(index).clients
    rows_of_slot = [
      split.rows_by_owner[split.offsets[client] : split.offsets[client + 1]]
      for client in clients
    ]
    ends = np.cumsum([len(rows) for rows in rows_of_slot])
    rows = jnp.concatenate(rows_of_slot)
    return device_split.TrainSplit(
      examples=split.examples,
      rows_by_owner=rows,
      offsets=jnp.array([0, *ends], jnp.int32),
      position_of_row=jnp.zeros_like(split.position_of_row)
      .at[rows]
      .set(jnp.arange(len(rows))),
      holds_cohort_only=True,
    )

  return cohort_split


@pytest.mark.parametrize(
  ('num_lanes', 'num_devices', 'options', 'holds_cohort_only'),
  few(
    [(4, 2, {'drop_last': True}, True)],
    [
      (2, 1, {'segment_steps': 2}, False),
      (1, 1, {}, False),
      (2, 1, {'drop_last': True}, True),
    ],
  ),
)
def test_every_example_counts_once_under_the_trained_network(
  num_lanes, num_devices, options, holds_cohort_only
):
  sizes = np.array(world.SIZES)
  # The first seed whose cohort is without the client of one example, that has no batch.
  for seed in range(20):
    plans = world.planner(num_lanes, num_devices=num_devices, seed=seed, **options)
    cohort = plans.cohort(0)
    if 0 not in cohort:
      break
  assert 0 not in cohort

  def whole_split(index, split):
    return split

  data_of = cohort_split_of(plans) if holds_cohort_only else whole_split
  ((state, _),) = world.run('fedproto', 1, plans=plans, data_of=data_of)
  _, images, labels = world.data()
  ends = np.cumsum(sizes)
  total, counts = np.zeros((4, 8)), np.zeros(4)
  for client in cohort:
    rows = np.arange(ends[client] - sizes[client], ends[client])
    params = world.of_client(state.clients['params'], client)
    z, _ = reference.mlp(params, images[rows])
    np.add.at(total, labels[rows], np.asarray(z, np.float64))
    np.add.at(counts, labels[rows], 1)
  assert counts.min() > 0
  means = total / counts[:, None]
  np.testing.assert_allclose(state.server.memory.vectors, means, atol=1e-5)
