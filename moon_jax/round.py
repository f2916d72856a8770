"""One communication round: gather the cohort, train, aggregate, scatter. Pure."""

from collections.abc import Callable

from moon_jax import tree
from moon_jax.algorithms.base import Algorithm
from moon_jax.cohort import Plan
from moon_jax.data.device import TrainSplit
from moon_jax.lanes import Collected, Work
from moon_jax.types import ClientMetrics, Scalars, State

Round = Callable[[State, Plan, Scalars, TrainSplit], tuple[State, ClientMetrics]]


def make_round(algorithm: Algorithm, train: Callable[[Work], Collected]) -> Round:
  """Builds (state, plan, scalars, training split) -> (state, metrics [K]).

  Args:
    algorithm: its pure functions.
    train: trains a cohort; see `lanes.cohort_training`.
  """

  def run_round(state, plan, scalars, data):
    numbers = algorithm.scalars(scalars.algorithm, state.server.memory)
    computed = {name: numbers[name] for name in numbers.keys() - scalars.algorithm}
    participation = len(plan.clients) / (len(data.offsets) - 1)
    done = train(
      Work(
        received=algorithm.broadcast(state.server),
        memories=tree.gather(state.clients, plan.clients),
        plan=plan,
        round=state.round,
        scalars=scalars._replace(algorithm=numbers),
        data=data,
      )
    )
    new_state = State(
      server=algorithm.aggregate(state.server, done.mean, participation),
      clients=tree.scatter(state.clients, plan.clients, done.memories),
      round=state.round + 1,
    )
    return new_state, done.metrics._replace(numbers=computed)

  return run_round
