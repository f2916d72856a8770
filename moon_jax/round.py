"""One communication round: gather the cohort, mix, train, aggregate, scatter. Pure."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from moon_jax import tree
from moon_jax.algorithms.base import Algorithm
from moon_jax.cohort import Plan
from moon_jax.data.device import TrainSplit
from moon_jax.lanes import Collected, Work
from moon_jax.types import ClientMetrics, PyTree, Scalars, State

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
    memories = tree.gather(state.clients, plan.clients)
    if algorithm.share:
      averages = tree.mix(jax.vmap(algorithm.share)(memories), plan.mixing)
      memories = jax.vmap(algorithm.mixed)(memories, averages)
    done = train(
      Work(
        received=algorithm.broadcast(state.server),
        memories=memories,
        plan=plan,
        round=state.round,
        scalars=scalars._replace(algorithm=numbers),
        data=data,
      )
    )
    server = algorithm.aggregate(state.server, done.mean, participation)
    clients = tree.scatter(state.clients, plan.clients, done.memories)
    if algorithm.share:
      params = jax.vmap(algorithm.share)(clients)['params']
      computed['consensus_distance'] = consensus_distance(params)
    new_state = State(
      server=algorithm.server_step(state.server, server, numbers),
      clients=clients,
      round=state.round + 1,
    )
    return new_state, done.metrics._replace(numbers=computed)

  return run_round


def consensus_distance(models: PyTree) -> jax.Array:
  """[] float32, the mean over clients of ||w_i - w||_2, with w the mean of all w_i.

  Args:
    models: leaves [N, ...], the parameters of every client, absent ones included.
  """

  def from_mean(leaf):
    return leaf - jnp.mean(leaf, axis=0, keepdims=True)

  squares = jax.vmap(tree.squared_norm)(jax.tree.map(from_mean, models))
  return jnp.mean(jnp.sqrt(squares))
