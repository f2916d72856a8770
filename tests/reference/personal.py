"""Personal models: FedPer, FedBABU, FedBN, Ditto, one client and batch at a time.

fedper  the layers `private` stay with the client; the others are averaged by examples
        (arXiv:1912.00818). An absent client keeps its own; all begin with the first.
fedbabu the layers `fixed` are never moved; the others are averaged by examples
        (arXiv:2106.06042).
fedbn   fedper of every layer with a `scale`, and of its running statistics
        (arXiv:2102.07623).
ditto   FedAvg; beside it v <- v - rate (grad L(v) + lam (v - w)), w as received
        (arXiv:2012.04221, algorithms 1 and 2), on batches of its own.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tests.reference.losses import cross_entropy
from tests.reference.networks import Model, combine, first_stats
from tests.reference.optimizers import sgd_step


class Result(NamedTuple):
  """The results of a round."""

  server: Model
  personal: dict  # client id -> Model, of all N clients


def _slope(network, params, stats, images, labels):
  """The gradient of the mean cross entropy, and the new running statistics."""

  def loss(params):
    *_, logits, new = network.forward(Model(params, stats), images, training=True)
    return jnp.mean(cross_entropy(logits, labels)), new

  return jax.grad(loss, has_aux=True)(params)


slope = jax.jit(_slope, static_argnums=0)


def trained(network, model, data, batches, sgd, anchor=None, lam=0.0, fixed=()):
  """A local training; with an anchor lam / 2 ||v - anchor||^2 is part of the loss.

  The layers `fixed` are after each step what they were.
  """
  (params, stats), (images, labels) = model, data
  velocity = jax.tree.map(np.zeros_like, params)
  for indices in batches:
    gradient, stats = jax.device_get(
      slope(network, params, stats, images[indices], labels[indices])
    )
    if anchor is not None:
      gradient = jax.tree.map(
        lambda g, v, w: g + lam * (v - w), gradient, params, anchor
      )
    params, velocity = sgd_step(params, velocity, gradient, **sgd)
    params = params | {name: model.params[name] for name in fixed}
  return Model(params, stats)


def replaced(model, other, private):
  """`model` with the private layers of `other`."""
  params = {name: other.params[name] for name in private}
  running = {name: other.stats[name] for name in private if name in other.stats}
  return Model(model.params | params, model.stats | running)


def run(network, params, data, *, sizes, rounds, sgd, private=(), fixed=(), ditto=None):
  """[Result] of each round.

  Args:
    network: of this reference.
    params: the first model's.
    data: images [M, H, W, C] and labels [M].
    sizes: [N] examples of each client.
    rounds: for each round, client -> its batches, each some indices.
    private: names of the layers that stay with the client.
    fixed: names of the layers that are never moved.
    sgd: learning_rate, momentum, weight_decay.
    ditto: None, or (lam, rate, of each round client -> the batches of its own model).
  """
  params = jax.tree.map(np.asarray, params)
  first = Model(params, first_stats(params))
  server = first
  personal = dict.fromkeys(range(len(sizes)), first)
  results = []
  for index, cohort in enumerate(rounds):
    starts = {c: replaced(server, personal[c], private) for c in cohort}
    ends = {
      c: trained(network, starts[c], data, cohort[c], sgd, fixed=fixed) for c in cohort
    }
    if ditto:
      lam, rate, batches = ditto
      other = sgd | {'learning_rate': rate}
      for c in cohort:
        personal[c] = trained(
          network, personal[c], data, batches[index][c], other, server.params, lam
        )
    else:
      personal |= ends
    total = sum(sizes[c] for c in cohort)
    mean = combine([sizes[c] / total for c in cohort], [ends[c] for c in cohort])
    server = replaced(mean, first, private)
    if not ditto:
      personal = {c: replaced(server, personal[c], private) for c in personal}
    results.append(Result(server, dict(personal)))
  return results
