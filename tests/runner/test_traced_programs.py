"""What is traced once is not traced again, and nothing is taken for another's."""

import dataclasses
import functools
import types

import jax
import numpy as np
import pytest

from moon_jax import catalog, cli
from moon_jax.engine import evaluation, experiment, programs
from moon_jax.engine import round as round_lib
from moon_jax.models import fused_cpu
from moon_jax.runner import pipeline, program, traced_programs
from tests import world
from tests.processes import ROOT, check_success, launch

SMALL = {
  'data.limit': 60,
  'num_clients': 5,
  'partition.min_size': 1,
  'batch_size': 8,
}
# Whose network calls foreign functions.
IMAGES = {'model': 'moon_cnn', 'data.source': 'npz', 'data.path': 'data.npz'}
# Of the host, each of them changed.
OTHERS = {
  'seed': 3,
  'num_rounds': 5,
  'eval_every_rounds': 2,
  'checkpoint_every_rounds': 3,
  'partition.beta': 2.0,
  'partition.balance': False,
  'partition.min_size': 2,
}


def built(changes=(), **given):
  """An experiment, a state and the inputs of its first round."""
  flat = SMALL | dict(changes)
  if flat.get('algorithm') == 'centralized':
    flat = {n: v for n, v in flat.items() if not n.startswith(('num_cl', 'part'))}
  words = [f'--config.{name}={value}' for name, value in flat.items()]
  made = experiment.build(cli.parse(words).config, room=80, **given)
  inputs = programs.round_inputs(made, 0, made.planner.plan(0))
  return made, experiment.initial_state(made), inputs


@pytest.fixture(autouse=True)
def _as_a_program(monkeypatch):
  """This process is no one's but the package's."""
  monkeypatch.setattr(program, '_begun', True)


def save_images(path):
  images = np.arange(60 * 28 * 28, dtype=np.uint8).reshape(60, 28, 28)
  labels = np.arange(60) % 10
  np.savez(path, train_x=images, train_y=labels, test_x=images, test_y=labels)


def silent(*words, **how):
  """Is told that programs are compiled."""


def refuse(*given, **more):
  raise AssertionError('traced')


def run(made, state, inputs):
  compiled = pipeline.compile_programs(made, state, inputs, silent)
  donated = compiled.run_round.memory_analysis().alias_size_in_bytes
  state, metrics = compiled.run_round(state, *inputs, made.train)
  return metrics, compiled.evaluate(state, made.test), state, np.array(donated)


@pytest.mark.parametrize('network', [{'server_optimizer.name': 'adam'}, IMAGES])
def test_a_second_start_traces_nothing_and_has_the_same_numbers(
  tmp_path, monkeypatch, network
):
  save_images(tmp_path / 'data.npz')
  monkeypatch.chdir(tmp_path)
  plain = run(*built(network | {'execution.compile_cache': 'off'}))
  folder = {'execution.compile_cache': tmp_path / 'programs'}
  first = run(*built(network | folder))
  monkeypatch.setattr(round_lib, 'make_round', refuse)
  monkeypatch.setattr(evaluation, 'make_evaluation', refuse)
  again = run(*built(network | folder))
  assert jax.tree.structure(plain) == jax.tree.structure(again)
  assert world.largest_difference(plain, first) == 0
  assert world.largest_difference(plain, again) == 0
  # Another run of the same programs; and one of others.
  run(*built(network | folder | OTHERS))
  with pytest.raises(AssertionError, match='traced'):
    run(*built(network | folder | {'moon.mu': 2.0}))


CASES = [{'algorithm': name} for name in catalog.names('algorithm')]
CASES.append({'algorithm': 'moon', 'server_optimizer.name': 'adam'})
CASES.append({'algorithm': 'decentralized_moon', 'topology.name': 'erdos_renyi'})


@pytest.mark.parametrize('case', CASES, ids=lambda case: '-'.join(case.values()))
def test_what_is_left_out_of_the_name_changes_no_program(case):
  one, other = (programs.lower_programs(*built(c)) for c in (case, case | OTHERS))
  assert [low.as_text() for low in one] == [low.as_text() for low in other]


def test_what_a_program_depends_on_is_in_its_name(monkeypatch):
  made, state, inputs = built()

  def name(made=made, state=state, inputs=inputs):
    leaves, structure = jax.tree.flatten((state, *inputs, made.train))
    return traced_programs._key(made, structure, leaves)

  first = name()
  assert name(*built()) == first
  assert name(state=experiment.state_shapes(made)) == first  # as a sweep asks
  others = [
    name(*built({'moon.mu': 2.0})),
    name(*built({'data.limit': 61})),
    name(made._replace(data_digest='')),
    name(made._replace(own_models=True)),
    name(made._replace(planner=dataclasses.replace(made.planner, segment_steps=4))),
    name(made._replace(test_sizes=np.ones(3))),
    name(made, jax.tree.map(lambda leaf: leaf[..., None], state)),
    name(state=state._replace(round=[state.round])),  # the same leaves
  ]
  versions = types.SimpleNamespace(metadata=types.SimpleNamespace(version=len))
  for where, attribute, other in (
    (traced_programs, '_SOURCES', ''),
    (traced_programs, 'importlib', versions),
    (fused_cpu, 'known_fault', lambda: 'none'),
  ):
    with monkeypatch.context() as changed:
      changed.setattr(where, attribute, other)
      others.append(name())
  with jax.numpy_dtype_promotion('standard'):
    others.append(name())
  assert len({first, *others}) == 1 + len(others)


def test_a_network_without_convolutions_builds_no_kernels(tmp_path, monkeypatch):
  monkeypatch.setattr(fused_cpu, 'fault', functools.cache(fused_cpu.fault.__wrapped__))
  run(*built({'execution.compile_cache': tmp_path / 'programs'}))
  assert not fused_cpu.fault.cache_info().currsize


def test_the_name_changes_with_the_code(tmp_path):
  folder, found = tmp_path / 'package/runner', set()
  folder.mkdir(parents=True)
  for name, text in (('module.py', 'a = 1'), ('module.py', 'a = 2'), ('more.cc', '')):
    (folder / name).write_text(text)
    found.add(traced_programs._digest(tmp_path / 'package'))
  assert len(found) == 3
  assert traced_programs._digest(ROOT / 'moon_jax') == traced_programs._SOURCES


def test_with_code_of_the_users_own_nothing_is_kept(tmp_path, monkeypatch):
  made, *_ = built()
  assert traced_programs.keeping(None, made)(refuse, ()) is refuse
  with monkeypatch.context() as registered:
    registered.setattr(catalog, 'registered', lambda flat: ['one'])
    assert traced_programs.keeping(tmp_path, made)(refuse, ()) is refuse
  monkeypatch.setattr(program, '_begun', False)
  assert traced_programs.keeping(tmp_path, made)(refuse, ()) is refuse


@pytest.mark.slow
def test_another_process_runs_what_was_kept_with_its_own_kernels(tmp_path):
  save_images(tmp_path / 'data.npz')
  words = [f'--config.{name}={value}' for name, value in (SMALL | IMAGES).items()]
  words += ['--config.num_rounds=1', '--config.execution.compile_cache=programs']
  for name in ('first', 'second'):
    check_success(launch(tmp_path, *words, f'--workdir={name}'))
    metrics = (tmp_path / name / 'metrics.jsonl').read_bytes()
    kept = sorted((tmp_path / 'programs').iterdir())
    # Two compiled and two traced, with their digests, and the kernels in C++.
    assert len(kept) == 8 + (not fused_cpu.fault())
  assert metrics == (tmp_path / 'first/metrics.jsonl').read_bytes()
