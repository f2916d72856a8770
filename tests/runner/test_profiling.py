"""The trace of a real program, and where its time went."""

import jax
import jax.numpy as jnp

from moon_jax.runner import clock as clock_lib
from moon_jax.runner.profiling import Profiler


@jax.jit
def run_round(x):
  return jax.lax.fori_loop(0, 20, lambda _, y: jnp.tanh(y @ y), x)


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
  return profiler.seconds(), len(profiler._clocks)


def test_the_time_of_the_two_traced_rounds(tmp_path):
  seconds, num_traced = profiled(tmp_path, num_rounds=5, first_round=1)
  assert num_traced == 2
  assert list(tmp_path.rglob('*.xplane.pb'))
  assert seconds['train'] > 0
  assert seconds['evaluate'] == seconds['save'] == 0


def test_a_single_round_is_traced_too(tmp_path):
  seconds, num_traced = profiled(tmp_path, num_rounds=1)
  assert num_traced == 1
  assert seconds['train'] > 0
