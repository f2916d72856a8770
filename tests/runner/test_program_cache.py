"""The second start of a command traces nothing, and never loads another's programs."""

import dataclasses
import functools
import types

import jax
import numpy as np
import pytest

from moon_jax import cli
from moon_jax.engine import devices, experiment, programs
from moon_jax.models import fused_cpu
from moon_jax.runner import pipeline, program_cache
from tests import world

SMALL = {
  'data.limit': 60,
  'num_clients': 2,
  'partition.name': 'iid',
  'mlp.width': 8,
  'mlp.representation': 8,
  'batch_size': 16,
}


def built(**changes):
  """An experiment, a state and the inputs of its first round."""
  flat = SMALL | {name.replace('__', '.'): value for name, value in changes.items()}
  words = [f'--config.{name}={value}' for name, value in flat.items()]
  made = experiment.build(cli.parse(words).config)
  inputs = programs.round_inputs(made, 0, made.planner.plan(0))
  return made, experiment.initial_state(made), inputs


def silent(*words, **how):
  """Is told that programs are compiled."""


def test_a_second_start_traces_nothing_and_ends_with_the_same_numbers(
  tmp_path, monkeypatch
):
  folder = tmp_path / 'programs'
  results = []
  for _ in range(2):
    made, state, inputs = built(execution__compile_cache=str(folder))
    compiled = pipeline.compile_programs(made, state, inputs, silent, keep=True)
    assert compiled.run_round.memory_analysis().output_size_in_bytes > 0
    state, metrics = compiled.run_round(state, *inputs, made.train)
    results.append((metrics, compiled.evaluate(state, made.test), state.server))
    monkeypatch.setattr(programs, 'lower_programs', None)
  assert world.largest_difference(*results) == 0
  # The next one is for another program.
  made, state, inputs = built(execution__compile_cache=str(folder), moon__mu=2.0)
  with pytest.raises(TypeError, match='not callable'):
    pipeline.compile_programs(made, state, inputs, silent, keep=True)


def test_what_a_program_depends_on_is_in_its_name(tmp_path, monkeypatch):
  made, state, inputs = built()

  def name(made=made, state=state, inputs=inputs):
    return program_cache.entry_of(tmp_path, made, state, inputs).name

  first = name()
  assert name(*built()) == first
  assert name(state=experiment.state_shapes(made)) == first  # as a sweep asks
  others = [
    name(*built(moon__mu=2.0)),
    name(*built(seed=1)),
    name(*built(data__limit=61)),
    name(made._replace(data_digest='')),
    name(made._replace(planner=dataclasses.replace(made.planner, num_lanes=4))),
    name(state=jax.tree.map(lambda leaf: np.float16(leaf), state)),
  ]
  for where, attribute, other in (
    (program_cache, '_code', lambda: ''),
    (program_cache, '_processor', lambda: ''),
    (fused_cpu, 'known_fault', lambda: 'none'),
    (
      program_cache,
      'importlib',
      types.SimpleNamespace(metadata=types.SimpleNamespace(version=len)),
    ),
  ):
    with monkeypatch.context() as changed:
      changed.setattr(where, attribute, other)
      others.append(name())
  monkeypatch.setenv('XLA_FLAGS', '--xla_cpu_enable_fast_math=true')
  others.append(name())
  assert len({first, *others}) == 1 + len(others)


def test_a_network_without_convolutions_builds_no_kernels(tmp_path, monkeypatch):
  monkeypatch.setattr(fused_cpu, 'fault', functools.cache(fused_cpu.fault.__wrapped__))
  assert program_cache.entry_of(tmp_path, *built())
  assert not fused_cpu.fault.cache_info().currsize


def test_the_name_changes_with_the_code(tmp_path, monkeypatch):
  source = tmp_path / 'package/runner/module.py'
  source.parent.mkdir(parents=True)
  source.write_text('a = 1')
  monkeypatch.setattr(program_cache, '__file__', str(source))
  before = program_cache._code()
  source.write_text('a = 2')
  after = program_cache._code()
  source.with_name('more.cc').write_text('')
  assert len({before, after, program_cache._code()}) == 3


def test_what_cannot_be_loaded_is_compiled(tmp_path):
  (tmp_path / 'entry').write_bytes(b'half a pro')
  mesh = devices.mesh(1)
  assert program_cache.load(tmp_path / 'entry', mesh) is None
  assert program_cache.load(tmp_path / 'none', mesh) is None


def test_with_a_part_of_the_users_own_nothing_is_kept(tmp_path, monkeypatch):
  given = built()
  assert program_cache.entry_of(None, *given) is None
  monkeypatch.setattr(program_cache.catalog, 'registered', lambda flat: ['one'])
  assert program_cache.entry_of(tmp_path, *given) is None
