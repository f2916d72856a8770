"""The clients, lanes and batches of each round: properties of the plans."""

import jax
import numpy as np
import pytest

from moon_jax.building import scheduling
from moon_jax.core import shares
from moon_jax.planning.batches import LocalWork, client_batches
from moon_jax.planning.lanes import LaneLayout
from moon_jax.planning.packing import pack
from moon_jax.planning.participation import Participation
from moon_jax.planning.planner import ClientData, make_planner
from tests import world


def trained_batches(plan):
  """Reads the lanes as the devices do; slot -> batches of real rows, in order."""
  schedule = plan.schedule
  lanes_per_device = schedule.entering.shape[1] // len(schedule.segment_bounds)
  trained = {}
  for device in range(len(schedule.segment_bounds)):
    lanes = range(device * lanes_per_device, (device + 1) * lanes_per_device)
    for slot, batches in device_batches(plan, device, lanes):
      assert slot not in trained
      trained[slot] = batches
  return trained


def device_batches(plan, device, lanes):
  """Yields (slot, its batches) of one device's lanes."""
  schedule, current = plan.schedule, {}
  bounds = schedule.segment_bounds[device]
  for segment in range(int(schedule.num_segments[device])):
    for lane in lanes:
      if schedule.entering[segment, lane] >= 0:
        assert lane not in current
        current[lane] = int(schedule.entering[segment, lane]), []
    for step in range(bounds[segment], bounds[segment + 1]):
      for lane in lanes:
        if plan.step_real[step, lane]:
          num_real = schedule.num_real[step, lane]
          rows = schedule.example_rows[step, lane, :num_real]
          current[lane][1].append(rows.tolist())
    for lane in lanes:
      if schedule.leaving[segment, lane] >= 0:
        assert current[lane][0] == schedule.leaving[segment, lane]
        yield current.pop(lane)
  assert not current


def test_cohort_size():
  # At least one; 2.5 rounds up; 28.999999999999996 as a float.
  for num_clients, participation, size in (
    *((10, 1.0, 10), (100, 0.05, 5), (10, 0.01, 1)),
    *((10, 0.25, 3), (10, 0.24, 2), (100, 0.29, 29)),
  ):
    assert shares.num_drawn(num_clients, participation) == size


def test_draws_are_functions_of_seed_round_and_client():
  participation = Participation(num_clients=10, cohort_size=3)
  counts = np.zeros(10)

  def drawn(seed, index, client):
    ids = participation.draw(seed, index).clients
    assert np.all(np.diff(ids) > 0)
    counts[ids] += 1
    key = (seed, index, client)
    work = LocalWork(local_epochs=1, batch_size=8)
    rows, _ = client_batches(np.arange(40), rng_key=key, work=work)
    return ids.tolist(), rows.tolist()

  assert drawn(0, 3, 0) == drawn(0, 3, 0)
  for other in ((1, 3, 0), (0, 4, 0)):
    assert all(a != b for a, b in zip(drawn(0, 3, 0), drawn(*other), strict=True))
  assert drawn(0, 3, 0)[1] != drawn(0, 3, 1)[1]
  counts[:] = 0
  for index in range(2000):
    drawn(0, index, 0)
  # 600 each, standard deviation sqrt(2000 * 0.3 * 0.7) = 20
  assert np.abs(counts - 600).max() < 5 * 20


@pytest.mark.parametrize('size', [1, 15, 16, 17, 41])
def test_an_epoch_holds_every_example_once_in_a_new_order(size):
  owned = 100 + np.arange(size)
  work = LocalWork(local_epochs=3, batch_size=16)
  examples, num_real = client_batches(owned, rng_key=(0, 1, 2), work=work)
  steps = -(-size // 16)
  assert examples.shape == (3 * steps, 16)
  epochs = []
  for epoch in range(3):
    span = range(epoch * steps, (epoch + 1) * steps)
    epochs.append([int(row) for s in span for row in examples[s, : num_real[s]]])
    assert sorted(epochs[-1]) == owned.tolist()
    # Only the last batch is partial, and its filler repeats its last example.
    assert all(num_real[s] == 16 for s in span[:-1])
    last = span[-1]
    assert set(examples[last, num_real[last] :]) <= {examples[last, num_real[last] - 1]}
  assert size <= 5 or epochs[0] != epochs[1] != epochs[2]


def test_longest_first_packing_by_hand():
  # Steps 3, 7, 5, 1 on two lanes: 7 | 5, then 3 joins 5 (free at 5), then 1 joins 7.
  assert pack(np.array([3, 7, 5, 1]), 2) == [[1, 3], [2, 0]]
  assert pack(np.array([2, 0, 4]), 1) == [[2, 0]]


@pytest.mark.parametrize(
  ('num_lanes', 'num_devices'), [(1, 1), (2, 1), (3, 1), (2, 2), (4, 2), (6, 3), (8, 8)]
)
@pytest.mark.parametrize('segment_steps', [0, 1, 4])
def test_lanes_train_exactly_the_clients_batches(num_lanes, num_devices, segment_steps):
  for index in range(40):
    cohort_size = 3 + index % 2
    planner = world.planner(
      num_lanes, cohort_size, num_devices=num_devices, segment_steps=segment_steps
    )
    plan = planner.plan(index)
    trained = trained_batches(plan)
    assert sorted(trained) == list(range(cohort_size))
    work = planner.training.batches(index, plan.clients)
    for slot, (rows, num_real) in enumerate(work):
      expected = [row[:n].tolist() for row, n in zip(rows, num_real, strict=True)]
      assert trained[slot] == expected
    assert plan.cohort.weights.tolist() == [world.SIZES[c] for c in plan.clients]


def test_shapes_are_the_same_in_every_round_and_large_enough():
  rng = np.random.default_rng(0)
  for _ in range(30):
    sizes = rng.integers(1, 200, 12)
    num_devices = int(rng.integers(1, 4))
    planner = world.planner(
      num_lanes=num_devices * int(rng.integers(1, 6)),
      cohort_size=6,
      sizes=sizes,
      num_devices=num_devices,
      segment_steps=int(rng.integers(0, 9)),
    )
    plans = [planner.plan(index) for index in range(10)]
    shapes = {
      tuple(np.shape(leaf) for leaf in jax.tree.leaves(plan.for_device()))
      for plan in plans
    }
    assert len(shapes) == 1
    for plan in plans:
      bounds, num_segments = plan.schedule.segment_bounds, plan.schedule.num_segments
      last = bounds[np.arange(len(bounds)), num_segments]
      assert last.max() <= planner.training.max_steps


def test_utilisation():
  # Clients of 2, 2, 6 and 4 steps (two epochs) on two lanes: 6 + 2 | 4 + 2.
  plan = world.planner(num_lanes=2, cohort_size=4).plan(0)
  assert plan.utilisation() == 14 / 16
  assert world.planner(num_lanes=1, cohort_size=4).plan(0).utilisation() == 1.0
  # If each of the two lanes has its own device, the devices end after 8 and 6 steps.
  plan = world.planner(num_lanes=2, cohort_size=4, num_devices=2).plan(0)
  schedule = plan.schedule
  assert schedule.segment_bounds[[0, 1], schedule.num_segments].tolist() == [8, 6]
  assert plan.utilisation() == 1.0


def test_num_lanes_for_ten_clients():
  for requested, backend, num_devices, expected in (
    ('auto', 'cpu', 4, LaneLayout(4, num_devices=4)),
    ('auto', 'cpu', 16, LaneLayout(10, num_devices=10)),  # no more than clients
    ('auto', 'gpu', 4, LaneLayout(12, num_devices=4)),  # 3 lanes on each device
    (1, 'gpu', 4, LaneLayout(1, num_devices=1)),
    (3, 'cpu', 2, LaneLayout(4, num_devices=2)),
    (64, 'gpu', 1, LaneLayout(10, num_devices=1)),
  ):
    layout = scheduling.lane_layout(
      requested, cohort_size=10, backend=backend, num_devices=num_devices
    )
    assert layout == expected


# --- many clients ---------------------------------------------------------------------


def test_a_round_asks_for_the_rows_of_its_cohort_alone_and_once():
  requests = []

  def rows_of(clients):
    requests.append(clients.tolist())
    return world.owned(np.full(len(clients), 20))

  planner = make_planner(
    seed=0,
    participation=Participation(num_clients=1000, cohort_size=3),
    data=ClientData(sizes=np.full(1000, 20), rows_of=rows_of),
    work=LocalWork(local_epochs=1, batch_size=8),
    layout=LaneLayout(num_lanes=2),
  )
  assert requests == []
  plan = planner.plan(3)
  assert requests == [plan.clients.tolist()]


def test_max_steps_by_hand():
  def max_steps(num_lanes, **options):
    sizes = world.BATCH_SIZE * np.array([1, 5, 1, 3, 1, 7])
    planner = world.planner(num_lanes, 4, sizes, local_epochs=1, **options)
    return planner.training.max_steps

  # Four clients a round, at worst of 7, 5, 3 and 1 steps. With two lanes the third
  # starts after at most (7 + 5) / 2 and ends at 9, the fourth at 7 + 1.
  assert max_steps(2) == 9
  assert max_steps(1) == 16
  assert max_steps(4) == max_steps(6) == 7  # each has a lane
  # Segments of 4 steps round that up to 8, 8, 4 and 4: the last two both start at 8.
  assert max_steps(2, segment_steps=4) == 12
  assert max_steps(2, min_steps=30) == 30


def test_max_steps_is_enough_for_the_longest_clients_and_within_grahams_bound():
  rng = np.random.default_rng(0)
  for _ in range(200):
    size, num_lanes = (int(n) for n in rng.integers(1, 12, 2))
    planner = world.planner(num_lanes, size, sizes=rng.integers(1, 300, 12))
    planner = planner.training
    longest = np.sort(planner.num_steps(np.arange(12)))[::-1][:size]
    queues = pack(longest, num_lanes)
    assert max(longest[queue].sum() for queue in queues) <= planner.max_steps
    others = -(-longest[1:].sum() // num_lanes)
    assert planner.max_steps <= min(longest.sum(), longest[0] + others)


def test_segments_are_as_many_as_steps_at_most():
  # In four lanes each client ends after LOCAL_EPOCHS steps.
  plan = world.planner(4, 4, sizes=(1, 1, 1, 1)).plan(0)
  schedule = plan.schedule
  assert schedule.entering.shape == schedule.leaving.shape == (world.LOCAL_EPOCHS, 4)
  assert schedule.segment_bounds.shape == (1, world.LOCAL_EPOCHS + 1)


@pytest.mark.parametrize('segment_steps', [0, 4])
def test_a_plan_of_four_thousand_lanes_is_small(segment_steps):
  sizes = np.random.default_rng(0).integers(1, 60, 10_000)
  planner = world.planner(
    4000, 4000, sizes, has_server=True, segment_steps=segment_steps
  )
  plan = planner.plan(0)
  leaves = [plan.step_real, *jax.tree.leaves(plan.for_device())]
  assert sum(leaf.nbytes for leaf in leaves) < 10e6
  assert len(trained_batches(plan)) == 4000


@pytest.mark.parametrize('segment_steps', [0, 4])
def test_a_process_makes_the_batches_of_its_own_lanes(segment_steps):
  def plan_of_process(process_lanes):
    planner = world.planner(
      4, 4, segment_steps=segment_steps, num_devices=2, process_lanes=process_lanes
    )
    return planner.plan(0)

  full = plan_of_process(range(4))
  for first_lane in (0, 2):
    half = plan_of_process(range(first_lane, first_lane + 2))
    own_lanes = slice(first_lane, first_lane + 2)
    other_lanes = slice(2 - first_lane, 4 - first_lane)
    assert not half.schedule.example_rows[:, other_lanes].any()
    jax.tree.map(
      np.testing.assert_array_equal,
      with_batches_of(half, own_lanes),
      with_batches_of(full, own_lanes),
    )
    np.testing.assert_array_equal(half.step_real, full.step_real)


def with_batches_of(plan, lanes):
  """A plan for the device, with the batches of some lanes alone."""
  schedule = plan.schedule._replace(
    example_rows=plan.schedule.example_rows[:, lanes],
    num_real=plan.schedule.num_real[:, lanes],
  )
  return plan.for_device()._replace(schedule=schedule)
