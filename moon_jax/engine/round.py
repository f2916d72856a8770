"""One communication round: gather the cohort, mix, train, aggregate, scatter. Pure."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from moon_jax import tree
from moon_jax.algorithms.base import Algorithm
from moon_jax.data.device import TrainSplit
from moon_jax.engine.lanes import Collected, Work
from moon_jax.engine.schedule import Plan
from moon_jax.types import ClientMetrics, PyTree, Scalars, State, Upload

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
    finite = done.metrics.finite
    participation = jnp.sum(finite, dtype=jnp.float32) / (len(data.offsets) - 1)
    mean = mean_of_finite(done.mean, finite, plan.weights)
    server = algorithm.aggregate(state.server, mean, participation)
    kept = jnp.where(finite, plan.clients, -1)
    clients = tree.scatter(state.clients, kept, done.memories)
    if algorithm.share:
      params = jax.vmap(algorithm.share)(clients)['params']
      computed['consensus_distance'] = consensus_distance(params)
    new_state = State(
      server=algorithm.server_step(state.server, server, numbers),
      clients=clients,
      round=state.round + 1,
    )
    metrics = done.metrics._replace(
      numbers=computed, server_finite=tree.all_finite(new_state.server)
    )
    return new_state, metrics

  return run_round


def mean_of_finite(mean: Upload, finite: jax.Array, weights: jax.Array) -> Upload:
  """The mean over some of a cohort, from one in which the others count as zeros.

  Args:
    mean: over the whole cohort.
    finite: [K] bool, whose uploads are in it.
    weights: [K] float32, on any scale.
  """
  total = jnp.sum(jnp.where(finite, weights, 0.0)) / jnp.sum(weights)
  shares = Upload(total, jnp.mean(finite, dtype=jnp.float32))
  # Exactly 1 in every usual round, whatever order the sums are taken in.
  shares = jax.tree.map(lambda share: jnp.where(jnp.all(finite), 1.0, share), shares)
  return Upload(
    *(
      jax.tree.map(lambda leaf, share=share: leaf / share, part)
      for part, share in zip(mean, shares, strict=True)
    )
  )


def consensus_distance(models: PyTree) -> jax.Array:
  """[] float32, the mean over clients of ||w_i - w||_2, with w the mean of all w_i.

  Args:
    models: leaves [N, ...], the parameters of every client, absent ones included.
  """

  def from_mean(leaf):
    return leaf - jnp.mean(leaf, axis=0, keepdims=True)

  squares = jax.vmap(tree.squared_norm)(jax.tree.map(from_mean, models))
  return jnp.mean(jnp.sqrt(squares))
