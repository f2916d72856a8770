"""Clients that differ: present or absent, late or in time, with more or less work."""

import numpy as np
import pytest

import moon_jax
from moon_jax.building import experiment, scheduling
from moon_jax.building.scheduling import ScheduleOptions
from moon_jax.config import validate
from moon_jax.core import keys
from moon_jax.core.errors import UsageError
from moon_jax.planning import availability, clients
from tests import world
from tests.planning.test_planning import trained_batches
from tests.round.test_round import assert_equal_to_reference, reference_run

EPOCHS = {'local_epochs': 4, 'local_epochs_min': 2}
PARTIAL_WORK = {'stragglers_send_partial_work': True}


def test_local_epochs_are_uniform_and_each_clients_own():
  plans = world.planner(sizes=(16,) * 4, **EPOCHS).training
  everyone = np.arange(4)
  rounds = np.array([plans.steps_of_round(t, everyone) for t in range(300)])
  each = int(plans.real_steps(everyone)[0]) // 4  # steps of an epoch
  counts = np.unique(rounds // each, return_counts=True)
  assert counts[0].tolist() == [2, 3, 4]
  # 400 each, standard deviation sqrt(1200 * 2 / 9) = 16.3
  assert np.abs(counts[1] - 400).max() < 5 * 16.3
  assert np.any(rounds[:, 0] != rounds[:, 1])
  again = plans.steps_of_round(7, np.array([3, 1]))
  np.testing.assert_array_equal(again, rounds[7, [3, 1]])


def partial(sizes):
  """A planner in whose rounds three clients are late, and send what they have."""
  return world.planner(
    sizes=sizes,
    cohort_size=len(sizes),
    local_epochs=1,
    num_stragglers=3,
    stragglers_send_partial_work=True,
  )


def test_each_late_client_draws_the_part_of_its_work_that_it_does():
  # Four steps each, but client 2 has one.
  plans, late = partial((64, 64, 16, 64)), []
  whole = plans.training.real_steps(np.arange(4)).tolist()
  for index in range(400):
    plan = plans.plan(index)
    steps = plans.training.steps_of_round(index, plan.clients, plan.stragglers)
    assert len(plan.stragglers) == 3
    in_time = np.setdiff1d(plan.clients, plan.stragglers)
    assert steps[in_time] == whole[in_time[0]]
    assert steps[2] == 1
    late.append([steps[c] if c in plan.stragglers else 0 for c in (0, 1, 3)])
  numbers, counts = np.unique(late, return_counts=True)
  assert numbers.tolist() == [0, 1, 2, 3]
  # A third of the rest each; standard deviation sqrt(900 * 2 / 9) = 14.1
  assert np.abs(counts[1:] - counts[1:].mean()).max() < 5 * 14.1
  assert np.any(np.diff(late, axis=1))


def test_what_client_0_does_is_independent_of_who_is_drawn():
  """Its id is 0, which would be no part of a key: see `host_rng`."""
  plans, steps = partial((11 * 16,) * 10), []
  for index in range(2000):
    plan = plans.plan(index)
    done = plans.training.steps_of_round(index, plan.clients, plan.stragglers)
    steps += [done[0]] if 0 in plan.stragglers else []
  # Uniform from 1 to 10; deviation 2.87 / sqrt(600).
  assert abs(np.mean(steps) - 5.5) < 4 * 0.12
  draw = clients.attack_seeds(3, 0, np.array([0]), np.array([0]))
  assert draw != keys.host_rng(3, keys.Purpose.ATTACK).integers(2**31)


@pytest.mark.parametrize('segment_steps', [0, 4])
@pytest.mark.parametrize(
  'more', [EPOCHS, {'num_stragglers': 2, **PARTIAL_WORK, **EPOCHS}], ids=str
)
def test_less_work_is_the_first_of_the_same_batches(more, segment_steps):
  whole = world.planner(segment_steps=segment_steps, local_epochs=4).training
  some = world.planner(segment_steps=segment_steps, **more)
  lengths = set()
  for index in range(10):
    plan, trained = some.plan(index), trained_batches(some.plan(index))
    late = some.draw(index).interrupted
    steps = some.training.steps_of_round(index, plan.clients, late)
    for slot, (rows, real) in enumerate(whole.batches(index, plan.clients)):
      pairs = list(zip(rows, real, strict=True))[: steps[slot]]
      assert trained[slot] == [row[:n].tolist() for row, n in pairs]
    full = whole.real_steps(plan.clients)
    lengths |= set((full - steps).tolist())
    late = np.isin(plan.clients, plan.stragglers)
    if 'num_stragglers' in more:
      assert late.sum() == 2
      assert np.all((steps[late] >= 1) & (steps[late] < full[late]))
  assert len(lengths) > 2


def test_the_late_send_nothing_and_are_not_in_the_cohort():
  plans = world.planner(cohort_size=2, num_stragglers=1)
  whole = world.planner(cohort_size=3)
  seen = set()
  for index in range(20):
    plan = plans.plan(index)
    together = sorted([*plan.clients.tolist(), *plan.stragglers.tolist()])
    assert together == whole.cohort(index).tolist()
    assert plan.clients.tolist() == plans.cohort(index).tolist()
    seen.add(together.index(plan.stragglers[0]))
  assert seen == {0, 1, 2}


def test_a_federation_of_unequal_work_equals_the_reference():
  plans = world.planner(num_stragglers=1, **PARTIAL_WORK, **EPOCHS)
  history = world.run('scaffold', 3, plans=plans)
  expected = reference_run('scaffold', 3, plans=plans)
  assert_equal_to_reference('scaffold', history, expected)


def chosen(available, index, size, num_clients):
  plans = world.planner(
    sizes=(16,) * num_clients, cohort_size=size, available=available
  )
  return plans.cohort(index).tolist()


def test_groups_take_turns():
  available = availability.cyclic(np.ones(7), groups=3)
  for index in range(9):
    group = set(range(index % 3, 7, 3))
    assert set(chosen(available, index, 2, 7)) <= group
  availability.require_enough(available, 2, 9)
  message = 'In round 2 2 clients are available, and a round needs 3: lower'
  with pytest.raises(UsageError, match=message):
    availability.require_enough(available, 3, 2)
  availability.require_enough(available, 3, 1)


def test_clients_come_in_proportion_to_their_examples():
  available = availability.by_data(np.array([1, 2, 5]))
  found = np.bincount([chosen(available, i, 1, 3)[0] for i in range(2000)])
  # 250, 500 and 1250; standard deviations below 22.4
  assert np.abs(found - [250, 500, 1250]).max() < 5 * 22.4


def test_uniform_availability_keeps_the_draw_of_saved_runs():
  available = availability.uniform(np.arange(9))
  assert available.of_round(3) is None
  rng = np.random.Generator(np.random.Philox(np.random.SeedSequence([0, 2, 5])))
  expected = np.sort(rng.choice(9, 4, replace=False)).tolist()
  assert chosen(available, 5, 4, 9) == expected


def test_a_trace_by_hand_begins_again(tmp_path):
  path = tmp_path / 'trace.csv'
  text = 'client,first,last\n0,1,3\n2,1,1\n2,3,3\n1,2,2\n'
  path.write_text(text, encoding='utf-8-sig')  # as Excel writes it
  available = availability.trace(np.ones(4), path=str(path))
  found = [chosen(available, index, 2, 4) for index in range(6)]
  assert found == [[0, 2], [0, 1], [0, 2]] * 2
  availability.require_enough(available, 2, 9)


@pytest.mark.usefixtures('quick_runs')
def test_a_run_has_one_trace(tmp_path):
  path = tmp_path / 'trace.csv'
  path.write_text('client,first,last\n0,1,9\n1,1,9\n')
  knobs = {'algorithm': 'fedavg', 'num_clients': 3, 'participation': 0.5}
  knobs |= {'data.limit': 100, 'local_epochs': 1, 'partition.min_size': 1}
  knobs |= {'availability.name': 'trace', 'availability.path': str(path)}
  first = moon_jax.run(knobs | {'num_rounds': 1}, tmp_path / 'run')
  assert first.metrics[0]['clients'] == [0, 1]
  path.write_text('client,first,last\n0,1,9\n2,1,9\n')
  with pytest.raises(
    UsageError, match='had clients available at other times than this'
  ):
    moon_jax.run(knobs | {'num_rounds': 2}, tmp_path / 'run')


@pytest.mark.parametrize(
  'text',
  ['', 'client,first,last\n', '0,1,2\n0,1,2\n', 'client,first,last\n4,1,2\n']
  + [
    f'client,first,last\n0,{words}\n'
    for words in ('0,1', '3,2', '1', 'a,b', f'1,{10**20}')
  ],
)
def test_another_trace_is_one_line(tmp_path, text):
  path = tmp_path / 'trace.csv'
  path.write_text(text)
  message = f'^--config.availability.path={str(path)!r} must be a text: .* 0 to 3, '
  with pytest.raises(UsageError, match=message.replace('\\', '.')):
    availability.trace(np.ones(4), path=str(path))


def test_a_trace_of_nobody_s_home_is_refused():
  with pytest.raises(UsageError, match=r"'~nobody-here/x\.csv' must be a text"):
    availability.trace(np.ones(4), path='~nobody-here/x.csv')


def test_attackers_are_drawn_once_and_draw_anew_each_round():
  found = clients.draw_attackers(3, 10, 0.25)
  assert len(found) == len(set(found.tolist())) == 3  # 2.5, halves rounded up
  assert found.tolist() != clients.draw_attackers(4, 10, 0.25).tolist()
  # Only the attack label_flip changes labels.
  assert clients.label_flippers('label_flip', found) is found
  assert len(clients.label_flippers('ipm', found)) == 0
  assert len(clients.label_flippers('label_flip', None)) == 0
  given = np.array([1, 4, 8], np.int32), np.array([4, 8])
  first, second = (clients.attack_seeds(3, index, *given) for index in (0, 1))
  assert first[0] == -1
  assert len({*first.tolist()[1:], *second.tolist()[1:]}) == 4
  assert min(*first[1:], *second[1:]) >= 0


SIZES_OF_TEN = np.full(10, 4)


def participation(**changes):
  config = validate({name.replace('__', '.'): v for name, v in changes.items()})
  return scheduling.who_takes_part(ScheduleOptions(config), SIZES_OF_TEN)


def test_the_knobs_decide_who_takes_part():
  some = participation(
    algorithm='fedavg',
    participation=0.5,
    stragglers__fraction=0.4,
    availability__name='cyclic',
    attack__name='alie',
    attack__fraction=0.2,
  )
  assert (some.cohort_size, some.num_stragglers) == (3, 2)
  assert not some.stragglers_send_partial_work
  assert some.available.period == 2
  assert len(some.attackers) == 2
  partial = {'stragglers__fraction': 0.4, 'stragglers__send': 'partial'}
  everyone = participation(algorithm='fedavg', **partial)
  assert (everyone.cohort_size, everyone.num_stragglers) == (10, 4)
  assert everyone.stragglers_send_partial_work
  plain = participation(algorithm='solo', **partial, attack__name='ipm')
  assert (plain.num_stragglers, plain.attackers) == (0, None)


def local_work(**knobs):
  return scheduling.local_work(ScheduleOptions(validate(knobs)), SIZES_OF_TEN)


def test_the_knobs_decide_how_long_clients_train():
  knobs = {'algorithm': 'fedavg', 'local_epochs': 3, 'local_epochs_min': 2}
  work = local_work(**knobs)
  assert (work.local_epochs, work.local_epochs_min) == (3, 2)
  with pytest.raises(UsageError, match=r'local_epochs_min=4 must .*local_epochs=3\.$'):
    local_work(**knobs | {'local_epochs_min': 4})


def test_stragglers_and_attackers_that_would_be_all_or_none_are_refused():
  with pytest.raises(
    UsageError, match=r'fraction=0\.5 makes all 1 clients of a round '
  ):
    participation(algorithm='fedavg', participation=0.1, stragglers__fraction=0.5)
  few = {'algorithm': 'fedavg', 'num_clients': 4}
  flips = {'attack.name': 'label_flip', 'attack.fraction': 0.1}
  with pytest.raises(UsageError, match=r'fraction=0\.1 of 4 clients is none: raise it'):
    participation(**few, **flips)
  with pytest.raises(UsageError, match=r'stragglers\.fraction=0\.1 of 4 clients is no'):
    participation(**few, **{'stragglers.fraction': 0.1})


def test_an_attacker_that_flips_labels_trains_on_them():
  config = validate(
    {
      'algorithm': 'fedlc',
      'attack.name': 'label_flip',
      'attack.fraction': 0.2,
      'data.limit': 300,
    }
  )
  honest = experiment.build(validate({'algorithm': 'fedavg', 'data.limit': 300}))
  built = experiment.build(config)
  assert not built.algorithm.needs_all_uploads
  given, found = (np.array(one.data.train.examples.labels) for one in (honest, built))
  mine = np.concatenate(
    built.data.partition.rows(built.planner.participation.attackers)
  )
  others = np.setdiff1d(np.arange(300), mine)
  np.testing.assert_array_equal(found[mine], 9 - given[mine])
  np.testing.assert_array_equal(found[others], given[others])
  assert 0 < len(mine) < 300
  # FedLC's margins use the labels that a client trains on; pictures show the true ones.
  np.testing.assert_array_equal(built.data.class_counts, honest.data.class_counts)
  counts = [
    np.bincount(found[r], minlength=10) for r in built.data.partition.rows(range(10))
  ]
  np.testing.assert_array_equal(built.planner.client_facts['class_counts'], counts)


def test_an_attackers_own_test_has_true_labels():
  knobs = {'algorithm': 'fedavg', 'data.limit': 300, 'data.local_test': 0.25}
  knobs |= {'partition.min_size': 5}
  honest = experiment.build(validate(knobs))
  flips = {'attack.name': 'label_flip', 'attack.fraction': 0.4}
  built = experiment.build(validate(knobs | flips))
  given, found = (np.array(one.data.train.examples.labels) for one in (honest, built))
  trained, tested = built.data.partition.indices, built.tests.of_clients.rows
  assert (found[trained] != given[trained]).any()
  np.testing.assert_array_equal(found[tested], given[tested])


@pytest.mark.usefixtures('quick_runs')
def test_records_name_who_is_late_and_who_attacks(tmp_path):
  config = {
    'algorithm': 'median',
    'num_rounds': 3,
    'local_epochs': 1,
    'data.limit': 300,
    'stragglers.fraction': 0.3,
    'attack.name': 'ipm',
    'attack.fraction': 0.4,
    'checkpoint_every_rounds': 1,
  }
  whole = moon_jax.run(config, tmp_path / 'whole').metrics
  moon_jax.run(config | {'num_rounds': 1}, tmp_path / 'parts')
  assert moon_jax.run(config, tmp_path / 'parts').metrics == whole
  attacking = clients.draw_attackers(0, 10, 0.4).tolist()
  for line in whole:
    assert len(line['clients']) == 7
    assert sorted(line['clients'] + line['stragglers']) == list(range(10))
    assert line['attackers'] == [c for c in attacking if c in line['clients']]
    assert line['bytes_down'] * 7 == line['bytes_up'] * 10
