"""The trace of a real program, and where its time went."""

import jax
import jax.numpy as jnp
import pytest

from moon_jax.runner import clock as clock_lib
from moon_jax.runner.profiling import Profiler


@jax.jit
def run_round(x):
  """Two loops of the same products: 5 in the scope 'frozen', 20 outside."""

  def product(_, y):
    return jnp.tanh(y @ y)

  with jax.named_scope('frozen'):
    frozen = jax.lax.fori_loop(0, 5 + (x[0, 0] > 9).astype(jnp.int32), product, x)
  return jax.lax.fori_loop(0, 20 + (x[0, 0] > 9).astype(jnp.int32), product, frozen + x)


def profiled(folder, num_rounds, first_round=0):
  """Runs rounds as a run does; returns the seconds and how many rounds have a trace."""
  x = jnp.full((400, 400), 0.01)
  program = run_round.lower(x).compile()
  program(x).block_until_ready()
  rounds, clock = range(first_round, num_rounds), None
  profiler = Profiler(folder, rounds)
  for index in rounds:
    profiler.given(index)
    clock = clock_lib.Clock(clock)
    program(x).block_until_ready()
    clock.arrived('train')
    profiler.arrived(index, clock)
  assert profiler.began
  # Another trace can begin only if this one has ended.
  jax.profiler.start_trace(f'{folder}-another')
  jax.profiler.stop_trace()
  return profiler.seconds(program.as_text()), len(profiler._clocks)


def test_the_frozen_share_of_the_two_traced_rounds(tmp_path):
  seconds, num_traced = profiled(tmp_path, num_rounds=5, first_round=1)
  assert num_traced == 2
  assert list(tmp_path.rglob('*.xplane.pb'))
  assert seconds['train'] > 0
  assert seconds['evaluate'] == seconds['save'] == 0
  # 5 of 25 products; a noisy machine stretches either loop.
  assert seconds['frozen'] / seconds['train'] == pytest.approx(0.2, abs=0.1)


def test_a_single_round_is_traced_too(tmp_path):
  seconds, num_traced = profiled(tmp_path, num_rounds=1)
  assert num_traced == 1
  assert seconds['frozen'] > 0
