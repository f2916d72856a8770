"""Clients that differ: present or absent, late or in time, with more or less work."""

import numpy as np
import pytest

import moon_jax
from moon_jax.building import experiment, scheduling
from moon_jax.building.scheduling import TrainingSetupOptions
from moon_jax.config import validate
from moon_jax.core import keys
from moon_jax.core.errors import UsageError
from moon_jax.planning import attackers as attackers_lib
from moon_jax.planning import availability
from moon_jax.planning.participation import Participation
from tests import world
from tests.planning.test_planning import trained_batches
from tests.round.test_round import assert_equal_to_reference, reference_run

EPOCHS = {'local_epochs': 4, 'local_epochs_min': 2}
PARTIAL_WORK = {'stragglers_send_partial_work': True}


def test_local_epochs_are_uniform_and_each_clients_own():
  training = world.planner(sizes=(16,) * 4, **EPOCHS).training
  everyone = np.arange(4)
  steps = np.array([training.steps_of_round(index, everyone) for index in range(300)])
  steps_of_epoch = int(training.real_steps(everyone)[0]) // 4
  num_epochs, counts = np.unique(steps // steps_of_epoch, return_counts=True)
  assert num_epochs.tolist() == [2, 3, 4]
  # 400 times each number, standard deviation sqrt(1200 * 2 / 9) = 16.3
  assert np.abs(counts - 400).max() < 5 * 16.3
  assert np.any(steps[:, 0] != steps[:, 1])
  steps_of_two = training.steps_of_round(7, np.array([3, 1]))
  np.testing.assert_array_equal(steps_of_two, steps[7, [3, 1]])


def planner_with_three_late(sizes):
  """A planner of rounds in which three clients are late, and send what they have."""
  return world.planner(
    sizes=sizes,
    cohort_size=len(sizes),
    local_epochs=1,
    num_stragglers=3,
    **PARTIAL_WORK,
  )


def test_each_late_client_draws_the_part_of_its_work_that_it_does():
  # Four steps each, but client 2 has one.
  planner, everyone = planner_with_three_late((64, 64, 16, 64)), np.arange(4)
  all_steps = planner.training.real_steps(everyone)
  steps_of_late = []
  for index in range(400):
    draw = planner.draw(index)
    steps = planner.training.steps_of_round(index, draw.clients, draw.interrupted)
    assert len(draw.stragglers) == 3
    (in_time,) = np.setdiff1d(everyone, draw.stragglers)
    assert steps[in_time] == all_steps[in_time]
    assert steps[2] == 1
    is_late = np.isin(everyone, draw.stragglers)
    steps_of_late.append(np.where(is_late, steps, 0)[[0, 1, 3]])
  num_steps, counts = np.unique(steps_of_late, return_counts=True)
  assert num_steps.tolist() == [0, 1, 2, 3]
  # A third of the rest each; standard deviation sqrt(900 * 2 / 9) = 14.1
  assert np.abs(counts[1:] - counts[1:].mean()).max() < 5 * 14.1
  assert np.any(np.diff(steps_of_late, axis=1))


def test_what_client_0_does_is_independent_of_who_is_drawn():
  """Its id is 0, which would be no part of a key: see `host_rng`."""
  planner, steps_of_client_0 = planner_with_three_late((11 * 16,) * 10), []
  for index in range(2000):
    draw = planner.draw(index)
    if 0 in draw.stragglers:
      steps = planner.training.steps_of_round(index, np.array([0]), draw.interrupted)
      steps_of_client_0.append(steps[0])
  # Uniform from 1 to 10; deviation 2.87 / sqrt(600).
  assert abs(np.mean(steps_of_client_0) - 5.5) < 4 * 0.12
  attack_seeds = attackers_lib.attack_seeds(3, 0, np.array([0]), np.array([0]))
  assert attack_seeds != keys.host_rng(3, keys.Purpose.ATTACK).integers(2**31)


@pytest.mark.parametrize('segment_steps', [0, 4])
@pytest.mark.parametrize('num_stragglers', [0, 2])
def test_less_work_is_the_first_of_the_same_batches(num_stragglers, segment_steps):
  all_work = world.planner(segment_steps=segment_steps, local_epochs=4).training
  planner = world.planner(
    segment_steps=segment_steps, num_stragglers=num_stragglers, **PARTIAL_WORK, **EPOCHS
  )
  steps_left_out = set()
  for index in range(10):
    draw, trained = planner.draw(index), trained_batches(planner.plan(index))
    steps = planner.training.steps_of_round(index, draw.clients, draw.interrupted)
    for slot, (rows, num_real) in enumerate(all_work.batches(index, draw.clients)):
      batches = [batch[:n].tolist() for batch, n in zip(rows, num_real, strict=True)]
      assert trained[slot] == batches[: steps[slot]]
    all_steps = all_work.real_steps(draw.clients)
    steps_left_out |= set((all_steps - steps).tolist())
    is_late = np.isin(draw.clients, draw.interrupted)
    assert is_late.sum() == num_stragglers
    assert np.all(steps[is_late] >= 1)
    assert np.all(steps[is_late] < all_steps[is_late])
  assert len(steps_left_out) > 2


def test_the_late_send_nothing_and_are_not_in_the_cohort():
  planner = world.planner(cohort_size=2, num_stragglers=1)
  without_stragglers = world.planner(cohort_size=3)
  slots_of_straggler = set()
  for index in range(20):
    plan = planner.plan(index)
    drawn = sorted([*plan.clients.tolist(), *plan.stragglers.tolist()])
    assert drawn == without_stragglers.cohort(index).tolist()
    assert plan.clients.tolist() == planner.cohort(index).tolist()
    slots_of_straggler.add(drawn.index(plan.stragglers[0]))
  assert slots_of_straggler == {0, 1, 2}


def test_a_federation_of_unequal_work_equals_the_reference():
  plans = world.planner(num_stragglers=1, **PARTIAL_WORK, **EPOCHS)
  history = world.run('fednova', 3, plans=plans)
  expected = reference_run('fednova', 3, plans=plans)
  assert_equal_to_reference('fednova', history, expected)


def draw_cohort(available, index, cohort_size, num_clients):
  participation = Participation(num_clients, cohort_size, available)
  return participation.draw(seed=0, round_index=index).clients.tolist()


def test_groups_take_turns():
  available = availability.cyclic(np.ones(7), groups=3)
  for index in range(9):
    group = set(range(index % 3, 7, 3))
    assert set(draw_cohort(available, index, 2, 7)) <= group
  availability.require_enough(available, 2, 9)
  message = 'In round 2 2 clients are available, and a round needs 3: lower'
  with pytest.raises(UsageError, match=message):
    availability.require_enough(available, 3, 2)
  availability.require_enough(available, 3, 1)


def test_clients_come_in_proportion_to_their_examples():
  available = availability.by_data(np.array([1, 2, 5]))
  drawn = [draw_cohort(available, index, 1, 3)[0] for index in range(2000)]
  # 250, 500 and 1250; standard deviations below 22.4
  assert np.abs(np.bincount(drawn) - [250, 500, 1250]).max() < 5 * 22.4


def test_uniform_availability_keeps_the_draw_of_saved_runs():
  available = availability.uniform(np.arange(9))
  assert available.of_round(3) is None
  rng = np.random.Generator(np.random.Philox(np.random.SeedSequence([0, 2, 5])))
  expected = np.sort(rng.choice(9, 4, replace=False)).tolist()
  assert draw_cohort(available, 5, 4, 9) == expected


def test_a_trace_by_hand_begins_again(tmp_path):
  path = tmp_path / 'trace.csv'
  text = 'client,first,last\n0,1,3\n2,1,1\n2,3,3\n1,2,2\n'
  path.write_text(text, encoding='utf-8-sig')  # as Excel writes it
  available = availability.trace(np.ones(4), path=str(path))
  cohorts = [draw_cohort(available, index, 2, 4) for index in range(6)]
  assert cohorts == [[0, 2], [0, 1], [0, 2]] * 2
  availability.require_enough(available, 2, 9)


@pytest.mark.usefixtures('quick_runs')
def test_a_run_has_one_trace(tmp_path):
  path = tmp_path / 'trace.csv'
  path.write_text('client,first,last\n0,1,9\n1,1,9\n')
  knobs = {
    'algorithm': 'fedavg',
    'num_clients': 3,
    'participation': 0.5,
    'data.limit': 100,
    'local_epochs': 1,
    'partition.min_size': 1,
    'availability.name': 'trace',
    'availability.path': str(path),
  }
  first = moon_jax.run(knobs | {'num_rounds': 1}, tmp_path / 'run')
  assert first.metrics[0]['clients'] == [0, 1]
  path.write_text('client,first,last\n0,1,9\n2,1,9\n')
  with pytest.raises(
    UsageError, match='had clients available at other times than this'
  ):
    moon_jax.run(knobs | {'num_rounds': 2}, tmp_path / 'run')


def test_a_file_of_another_form_is_no_trace(tmp_path):
  path = tmp_path / 'trace.csv'
  header = 'client,first,last\n'
  no_lines = ['', header]
  no_header = ['0,1,2\n0,1,2\n']
  no_client_or_round = ['4,1,2', '0,0,1', '0,3,2', '0,1', '0,a,b', f'0,1,{10**20}']
  lines = [f'{header}{line}\n' for line in no_client_or_round]
  message = f'^--config.availability.path={str(path)!r} must be a text: .* 0 to 3, '
  for text in [*no_lines, *no_header, *lines]:
    path.write_text(text)
    with pytest.raises(UsageError, match=message.replace('\\', '.')):
      availability.trace(np.ones(4), path=str(path))


def test_a_trace_of_nobody_s_home_is_refused():
  with pytest.raises(UsageError, match=r"'~nobody-here/x\.csv' must be a text"):
    availability.trace(np.ones(4), path='~nobody-here/x.csv')


def test_attackers_are_drawn_once_and_draw_anew_each_round():
  attackers = attackers_lib.draw_attackers(3, 10, 0.25)
  assert len(attackers) == len(set(attackers.tolist())) == 3  # 2.5, halves rounded up
  assert attackers.tolist() != attackers_lib.draw_attackers(4, 10, 0.25).tolist()
  # Only the attack label_flip changes labels.
  assert attackers_lib.label_flippers('label_flip', attackers) is attackers
  assert len(attackers_lib.label_flippers('ipm', attackers)) == 0
  assert len(attackers_lib.label_flippers('label_flip', None)) == 0
  cohort, attackers = np.array([1, 4, 8], np.int32), np.array([4, 8])
  first = attackers_lib.attack_seeds(3, 0, cohort, attackers)
  second = attackers_lib.attack_seeds(3, 1, cohort, attackers)
  assert first[0] == -1
  assert len({*first.tolist()[1:], *second.tolist()[1:]}) == 4
  assert min(*first[1:], *second[1:]) >= 0


SIZES_OF_TEN = np.full(10, 4)


def participation(knobs):
  return scheduling.who_takes_part(TrainingSetupOptions(validate(knobs)), SIZES_OF_TEN)


def test_the_knobs_decide_who_takes_part():
  half = participation(
    {
      'algorithm': 'fedavg',
      'participation': 0.5,
      'stragglers.fraction': 0.4,
      'availability.name': 'cyclic',
      'attack.name': 'alie',
      'attack.fraction': 0.2,
    }
  )
  assert (half.cohort_size, half.num_stragglers) == (3, 2)
  assert not half.stragglers_send_partial_work
  assert half.available.period == 2
  assert len(half.attackers) == 2
  partial = {'stragglers.fraction': 0.4, 'stragglers.send': 'partial'}
  everyone = participation({'algorithm': 'fedavg'} | partial)
  assert (everyone.cohort_size, everyone.num_stragglers) == (10, 4)
  assert everyone.stragglers_send_partial_work
  solo = participation({'algorithm': 'solo', 'attack.name': 'ipm'} | partial)
  assert (solo.num_stragglers, solo.attackers) == (0, None)
  # A config file may set what its other algorithms use.
  unused = {'algorithm': 'centralized', 'availability.name': 'cyclic'}
  assert participation(unused).available.period == 1


def local_work(knobs):
  return scheduling.local_work(TrainingSetupOptions(validate(knobs)), SIZES_OF_TEN)


def test_the_knobs_decide_how_long_clients_train():
  knobs = {'algorithm': 'fedavg', 'local_epochs': 3, 'local_epochs_min': 2}
  work = local_work(knobs)
  assert (work.local_epochs, work.local_epochs_min) == (3, 2)
  with pytest.raises(UsageError, match=r'local_epochs_min=4 must .*local_epochs=3\.$'):
    local_work(knobs | {'local_epochs_min': 4})


def test_stragglers_and_attackers_that_would_be_all_or_none_are_refused():
  one_client = {'algorithm': 'fedavg', 'participation': 0.1}
  with pytest.raises(
    UsageError, match=r'stragglers\.fraction=0\.5 makes all 1 clients'
  ):
    participation(one_client | {'stragglers.fraction': 0.5})
  for rule in ('trimmed_mean', 'krum'):
    with pytest.raises(UsageError, match=r'fraction=0\.99 makes all 10 clients'):
      participation({'algorithm': rule, 'stragglers.fraction': 0.99})
  four_clients = {'algorithm': 'fedavg', 'num_clients': 4}
  with pytest.raises(UsageError, match=r'stragglers\.fraction=0\.1 of 4 clients is no'):
    participation(four_clients | {'stragglers.fraction': 0.1})
  flips = {'attack.name': 'label_flip', 'attack.fraction': 0.1}
  with pytest.raises(UsageError, match=r'attack\.fraction=0\.1 of 4 clients is none'):
    participation(four_clients | flips)
  two_clients = {'algorithm': 'fedavg', 'num_clients': 2}
  flips_all = flips | {'attack.fraction': 0.75}
  assert len(participation(four_clients | flips_all).attackers) == 3
  with pytest.raises(UsageError, match=r'fraction=0\.75 makes all 2 clients attackers'):
    participation(two_clients | flips_all)


def test_an_attacker_that_flips_labels_trains_on_them():
  honest = experiment.build(validate({'algorithm': 'fedavg', 'data.limit': 300}))
  attacked = experiment.build(
    validate(
      {
        'algorithm': 'fedlc',
        'attack.name': 'label_flip',
        'attack.fraction': 0.2,
        'data.limit': 300,
      }
    )
  )
  assert not attacked.algorithm.needs_all_uploads
  true_labels = np.array(honest.data.train.examples.labels)
  labels = np.array(attacked.data.train.examples.labels)
  attackers = attacked.planner.participation.attackers
  rows_of_attackers = np.concatenate(attacked.data.partition.rows(attackers))
  other_rows = np.setdiff1d(np.arange(300), rows_of_attackers)
  flipped = 9 - true_labels[rows_of_attackers]
  np.testing.assert_array_equal(labels[rows_of_attackers], flipped)
  np.testing.assert_array_equal(labels[other_rows], true_labels[other_rows])
  assert 0 < len(rows_of_attackers) < 300
  # FedLC's margins use the labels that a client trains on; pictures show the true ones.
  np.testing.assert_array_equal(attacked.data.class_counts, honest.data.class_counts)
  counts = [
    np.bincount(labels[rows], minlength=10)
    for rows in attacked.data.partition.rows(range(10))
  ]
  np.testing.assert_array_equal(attacked.planner.client_facts['class_counts'], counts)


def test_an_attackers_own_test_has_true_labels():
  knobs = {
    'algorithm': 'fedavg',
    'data.limit': 300,
    'data.local_test': 0.25,
    'partition.min_size': 5,
  }
  honest = experiment.build(validate(knobs))
  flips = {'attack.name': 'label_flip', 'attack.fraction': 0.4}
  attacked = experiment.build(validate(knobs | flips))
  true_labels = np.array(honest.data.train.examples.labels)
  labels = np.array(attacked.data.train.examples.labels)
  rows_trained = attacked.data.partition.indices
  rows_tested = attacked.tests.of_clients.rows
  assert (labels[rows_trained] != true_labels[rows_trained]).any()
  np.testing.assert_array_equal(labels[rows_tested], true_labels[rows_tested])


@pytest.mark.usefixtures('quick_runs')
def test_records_name_who_is_late_and_who_attacks(tmp_path):
  config = {
    'algorithm': 'fedavg',
    'num_rounds': 3,
    'local_epochs': 1,
    'data.limit': 300,
    'stragglers.fraction': 0.3,
    'attack.name': 'ipm',
    'attack.fraction': 0.4,
    'checkpoint_every_rounds': 1,
  }
  lines = moon_jax.run(config, tmp_path / 'uninterrupted').metrics
  moon_jax.run(config | {'num_rounds': 1}, tmp_path / 'resumed')
  assert moon_jax.run(config, tmp_path / 'resumed').metrics == lines
  attackers = attackers_lib.draw_attackers(0, 10, 0.4).tolist()
  for line in lines:
    assert len(line['clients']) == 7
    assert sorted(line['clients'] + line['stragglers']) == list(range(10))
    assert line['attackers'] == [
      client for client in attackers if client in line['clients']
    ]
    assert line['bytes_down'] * 7 == line['bytes_up'] * 10
