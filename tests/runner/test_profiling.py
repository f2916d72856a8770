"""The trace of a real round, and the report of its time."""

import time

import pytest

import moon_jax
from moon_jax.building import programs
from moon_jax.runner import profiling
from tests.run_directories import TINY
from tests.selection import few


def test_an_only_round_is_not_traced(tmp_path):
  changes = {'num_rounds': 1, 'execution.profile': True}
  config = moon_jax.load_config('configs/digits_moon.py', TINY | changes)
  moon_jax.run(config, tmp_path / 'run')
  assert not (tmp_path / 'run/profile').exists()


@pytest.mark.parametrize('seconds', few([60], [0.01]))
def test_the_second_round_is_traced(tmp_path, capsys, monkeypatch, seconds):
  compile_programs = programs.compile_programs

  def slowly(*arguments, **options):  # compiling does not shorten the trace
    time.sleep(0.3)
    return compile_programs(*arguments, **options)

  monkeypatch.setattr(programs, 'compile_programs', slowly)
  monkeypatch.setattr(profiling, 'SECONDS', seconds)
  changes = {'num_rounds': 4, 'execution.profile': True}
  config = moon_jax.load_config('configs/digits_moon.py', TINY | changes)
  spent = []
  moon_jax.run(
    config, tmp_path / 'run', callbacks=[lambda r: spent.append(r.clock.seconds)]
  )
  trace, *others = (tmp_path / 'run/profile').rglob('*.xplane.pb')
  assert not others
  assert b'run_round' in trace.read_bytes()
  assert b'$profiling.py' not in trace.read_bytes()  # Python's own calls are not traced
  expected = spent[1]['train']
  printed = capsys.readouterr().out
  assert f'where the time of the traced round went: train {expected:.2f} s' in printed
