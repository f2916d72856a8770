"""Runs side by side in one program are the same runs alone."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from moon_jax import cli, tree
from moon_jax.engine import devices, experiment, programs, replicas
from tests.selection import few

TINY = (
  '--config.data.limit=240',
  '--config.num_clients=5',
  '--config.partition.min_size=1',
  '--config.local_epochs=2',
  '--config.batch_size=16',
  '--config.mlp.width=16',
  '--config.mlp.representation=8',
)
# What replicas may differ in.
DIFFERENT = (
  ('--config.seed=3', '--config.partition.beta=0.5'),
  ('--config.seed=4', '--config.partition.beta=5', '--config.optimizer.momentum=0.5'),
  ('--config.seed=3', '--config.partition.name=iid', '--config.moon.tau=0.1'),
)
# One of each other kind: memories of several parts, none of a server, all uploads.
OTHERS = ('sa_moon', 'dco_moon', 'decentralized_moon', 'solo', 'krum')


def build(*flags):
  return experiment.build(
    cli.parse([*TINY, '--config.execution.devices=1', *flags]).config
  )


def build_all(*flags):
  used = '--config.algorithm=moon' in flags
  return [
    build(*flags, *(word for word in words if used or 'moon.' not in word))
    for words in DIFFERENT
  ]


def stack(trees):
  return jax.tree.map(lambda *leaves: np.stack(leaves), *map(jax.device_get, trees))


def alone(built, num_rounds):
  """[T] (state, metrics, score) after each round."""
  state, compiled, found = experiment.initial_state(built), None, []
  for index in range(num_rounds):
    inputs = programs.round_inputs(built, index, built.planner.plan(index))
    if compiled is None:
      compiled = programs.compile_programs(built, state, inputs, donate=False)
    state, metrics = compiled.run_round(state, *inputs, built.train)
    found.append((state, metrics, compiled.evaluate(state, built.test)))
  return jax.device_get(found)


def together(built, rounds, joined=None):
  """[T] (states, metrics, scores), leaves [R, ...], after each of `rounds` [T][R]."""
  joined = joined or replicas.join(built)
  states, compiled, found = stack(map(experiment.initial_state, built)), None, []
  states = devices.replicate(states, joined.mesh)
  for now in rounds:
    plan, _ = joined.planner.side_by_side(now)
    inputs = replicas.round_inputs(joined, built, now, plan)
    if compiled is None:
      compiled = programs.compile_programs(joined, states, inputs, donate=False)
    states, metrics = compiled.run_round(states, *inputs, joined.train)
    found.append((states, metrics, compiled.evaluate(states, joined.test)))
  return jax.device_get(found)


def check_same(built, many, rtol=1e-5):
  for r, one in enumerate(built):
    for mine, own in zip(many, alone(one, len(many)), strict=True):
      jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=rtol, atol=1e-5),
        tree.gather(mine, r),
        own,
      )


@pytest.mark.parametrize('algorithm', few(('moon', 'scaffold'), OTHERS))
def test_replicas_are_the_runs_alone(algorithm):
  built = build_all(f'--config.algorithm={algorithm}')
  assert replicas.alike(built) == [[0, 1, 2]]
  check_same(built, together(built, [[index] * 3 for index in range(3)]))


AUGMENTED = '--config.augmentation.name=crop_flip'
WAYS = {
  'two lanes': ('--config.execution.lanes=2',),
  'a part of the clients': ('--config.participation=0.4',),
  'augmented': (AUGMENTED,),
  'nothing kept': ('--config.execution.cache_mib=0',),
  'momentum of the server': ('--config.server_optimizer.momentum=0.9',),
}


@pytest.mark.parametrize('way', few(('two lanes', 'a part of the clients'), WAYS))
def test_in_every_way_of_training(way):
  built = build_all('--config.algorithm=moon', *WAYS[way])
  check_same(built, together(built, [[0] * 3, [1] * 3]))


def test_after_one_round_of_a_lane_each_the_bits_are_the_same():
  built = build_all('--config.algorithm=fedavg', '--config.execution.lanes=1')
  ((states, _, _),) = together(built, [[0] * 3])
  for r, one in enumerate(built):
    ((state, _, _),) = alone(one, 1)
    jax.tree.map(np.testing.assert_array_equal, tree.gather(states, r), state)


# With images of its own in each epoch, frozen networks see ahead of the steps.
KNOWN = ['moon', AUGMENTED], ['moon'], ['fedprox'], ['krum']


@pytest.mark.parametrize('words', few(KNOWN[:1], KNOWN))
def test_with_segments_of_a_known_length(words):
  """As on a GPU."""
  algorithm, *more = words
  lanes = '--config.execution.lanes=4'
  built = build_all(f'--config.algorithm={algorithm}', lanes, *more)
  joined = replicas.join(built)
  planner = dataclasses.replace(joined.planner, segment_steps=4)
  many = together(built, [[0] * 3, [1] * 3], joined._replace(planner=planner))
  check_same(built, many)


@pytest.mark.slow
def test_lanes_may_be_on_several_devices():
  flags = '--config.algorithm=moon', '--config.execution.devices=3'
  built = build_all(*flags)
  assert replicas.join(built).mesh.size == 3
  check_same(built, together(built, [[0] * 3, [1] * 3]))


def test_each_replica_may_be_in_a_round_of_its_own_or_in_none():
  built = build_all('--config.algorithm=moon')
  many = together(built, [[0, None, 0], [1, 0, None], [2, 1, None]])
  first, second, third = (alone(one, 3) for one in built)
  same = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)
  for mine, own in ((0, first[2]), (1, second[1]), (2, third[0])):
    jax.tree.map(same, tree.gather(many[-1][0], mine), own[0])
  start = experiment.initial_state(built[1])
  jax.tree.map(np.testing.assert_array_equal, tree.gather(many[0][0], 1), start)


def test_one_that_diverges_changes_no_other():
  wild = build(*DIFFERENT[0], '--config.optimizer.learning_rate=1e30')
  built = [wild, *(build(*words) for words in DIFFERENT[1:2])]
  many = together(built, [[0] * 2, [1] * 2])
  assert not many[-1][1].finite[0].all()
  for mine, own in zip(many, alone(built[1], 2), strict=True):
    same = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)
    jax.tree.map(same, tree.gather(mine, 1), own)


def test_lanes_mix_the_clients_of_all():
  built = build_all('--config.algorithm=fedavg', '--config.execution.lanes=2')
  joined = replicas.join(built)
  plan, each = joined.planner.side_by_side([0, None, 2])
  stored = plan.store[plan.store >= 0]
  assert sorted(stored) == [0, 1, 2, 3, 4, 10, 11, 12, 13, 14]
  in_lanes = [set(lane[lane >= 0] // 5) for lane in plan.store.T]
  assert in_lanes == [{0, 2}, {0, 2}]
  own = [built[0].planner.plan(0), built[2].planner.plan(2)]
  assert plan.step_real.sum() == sum(one.step_real.sum() for one in own)
  for r, one in ((0, own[0]), (2, own[1])):
    np.testing.assert_array_equal(each[r].clients, one.clients)
    np.testing.assert_array_equal(plan.weights[r], one.weights)
    assert each[r].step_real.sum() == one.step_real.sum()
  assert not plan.weights[1].any()
  assert not each[1].step_real.any()


def test_one_that_cannot_be_traced_is_alone():
  built = [build(f'--config.seed={seed}') for seed in range(3)]
  wrong = built[1].algorithm._replace(aggregate=lambda *given: None)
  built[1] = built[1]._replace(algorithm=wrong)
  assert replicas.alike(built) == [[0, 2], [1]]
  assert replicas.alike([]) == []


@pytest.mark.parametrize(
  'words',
  [
    ('--config.batch_size=8',),
    ('--config.mlp.width=8',),
    ('--config.participation=0.5',),
    ('--config.data.limit=200',),
    ('--config.partition.name=noise',),
    ('--config.execution.client_store=host', '--config.algorithm=moon'),
    ('--config.execution.profile=true',),  # a trace is of one run
  ],
)
def test_others_are_not_alike(words):
  usual = words[1:]  # the algorithm may be another one
  built = [build(*usual), build(*words), build(*usual, '--config.seed=8')]
  assert replicas.alike(built) == [[0, 2], [1]]
