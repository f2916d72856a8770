"""The trace of real rounds, and where their time went."""

import pytest

import moon_jax
from tests.run_directories import TINY
from tests.selection import few


@pytest.mark.parametrize(('num_rounds', 'traced'), few([(4, 2)], [(1, 1)]))
def test_the_second_and_third_round_are_traced_or_the_only_one(
  tmp_path, capsys, num_rounds, traced
):
  changes = {'num_rounds': num_rounds, 'execution.profile': True}
  config = moon_jax.load_config('configs/digits_moon.py', TINY | changes)
  seconds = []
  given = [lambda round: seconds.append(round.clock.seconds)]
  moon_jax.run(config, tmp_path / 'run', callbacks=given)
  assert list((tmp_path / 'run/profile').rglob('*.xplane.pb'))
  expected = sum(one['train'] for one in seconds[1:3] or seconds)
  assert len(seconds[1:3] or seconds) == traced
  said = capsys.readouterr().out
  assert f'where the time of the traced rounds went: train {expected:.2f} s' in said
