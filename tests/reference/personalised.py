"""FedRep, APFL, pFedMe, Per-FedAvg, FedALA: one client and batch at a time, in float64.

fedrep      the head alone, on its own batches, under the received body; then the body
            alone. The body is averaged, the head stays (arXiv:2102.07078).
apfl        w as in FedAvg; on the same batch, with m = a v + (1 - a) w before the step,
            v takes SGD's step along a (grad L(m) + decay m), and a goes down by
            rate <v - w, grad L(m)>, within [0, 1] (arXiv:2003.13461).
pfedme      K steps of theta on L(theta) + lam / 2 |theta - w|^2 on the batch, then w
            takes SGD's step along lam (w - theta); the server moves by beta of the mean
            change (arXiv:2006.08848).
per_fedavg  w takes SGD's step along g - alpha H g, with g on b2 at w - alpha grad on
            b1, and H g as a central difference on b3, or left out (arXiv:2002.07948).
fedala      weights W of the upper layers are learned on the blend o + (g - o) W first;
            training starts from the blend (arXiv:2212.01197).
"""

import jax
import jax.numpy as jnp
import numpy as np

from tests.reference.losses import cross_entropy
from tests.reference.networks import Model, combine, first_stats
from tests.reference.optimizers import sgd_step
from tests.reference.personal import Result


def wide(tree):
  """The tree in float64."""
  return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), tree)


def _loss(params, network, stats, images, labels):
  *_, logits, new = network.forward(Model(params, stats), images, training=True)
  return jnp.mean(cross_entropy(logits, labels)), new


_slope = jax.jit(jax.value_and_grad(_loss, has_aux=True), static_argnums=1)


class World:
  """What all clients share: the network, the data, the numbers.

  Attributes:
    network: of this reference.
    images: [M, H, W, C] float64.
    labels: [M].
    sgd: learning_rate, momentum, weight_decay.
    knobs: numbers of the algorithm.
  """

  def __init__(self, network, images, labels, sgd, knobs):
    self.network, self.labels, self.sgd = network, labels, sgd
    self.images = np.asarray(images, np.float64)
    self.knobs = knobs

  def slope(self, model, batch):
    """(loss, gradient, running statistics after the pass)."""
    with jax.enable_x64(True):
      (loss, stats), gradient = _slope(
        model.params, self.network, model.stats, self.images[batch], self.labels[batch]
      )
      return float(loss), wide(gradient), wide(stats)

  def step(self, params, velocity, direction):
    return sgd_step(
      params,
      velocity,
      direction,
      learning_rate=self.sgd['learning_rate'],
      momentum=self.sgd['momentum'],
      weight_decay=self.sgd['weight_decay'],
    )


def zero_velocity(params):
  return jax.tree.map(np.zeros_like, params)


def with_layers_of(params, layers, other):
  """`params`, with the named layers of `other`."""
  return {name: other[name] if name in layers else params[name] for name in params}


# --- local training -------------------------------------------------------------------


def fedrep(world, received, memory, batches, head_batches):
  """(what is sent, what is kept); `head` names the layers of the head."""
  head = world.knobs['head']
  body = [name for name in received.params if name not in head]
  params = with_layers_of(received.params, head, memory.params)
  velocity = zero_velocity(params)
  for batch in head_batches:
    _, gradient, _ = world.slope(Model(params, received.stats), batch)
    stepped, velocity = world.step(params, velocity, gradient)
    params = with_layers_of(params, head, stepped)
  stats, velocity = received.stats, zero_velocity(params)
  for batch in batches:
    _, gradient, stats = world.slope(Model(params, stats), batch)
    stepped, velocity = world.step(params, velocity, gradient)
    params = with_layers_of(params, body, stepped)
  trained = Model(params, stats)
  return trained, trained


def mixture(v, w, share):
  return jax.tree.map(lambda v, w: share * v + (1 - share) * w, v, w)


def apfl(world, received, memory, batches, head_batches):
  del head_batches
  (v, v_stats), share = memory
  w, stats = received
  rate, decay = world.sgd['learning_rate'], world.sgd['weight_decay']
  v_velocity, velocity = zero_velocity(v), zero_velocity(w)
  for batch in batches:
    between = mixture(v, w, share)
    _, at_w, stats = world.slope(Model(w, stats), batch)
    _, at_mixture, v_stats = world.slope(Model(between, v_stats), batch)
    products = jax.tree.map(lambda a, b, g: np.sum((a - b) * g), v, w, at_mixture)
    along = sum(jax.tree.leaves(products))
    v_velocity = jax.tree.map(
      lambda u, g, m: world.sgd['momentum'] * u + share * (g + decay * m),  # noqa: B023
      v_velocity,
      at_mixture,
      between,
    )
    v = jax.tree.map(lambda x, u: x - rate * u, v, v_velocity)
    w, velocity = world.step(w, velocity, at_w)
    if world.knobs['adaptive']:
      share = min(max(share - rate * along, 0.0), 1.0)
  return Model(w, stats), (Model(v, v_stats), share)


def pfedme(world, received, memory, batches, head_batches):
  del memory, head_batches
  lam, rate = world.knobs['lam'], world.knobs['inner_learning_rate']
  w, stats = received
  theta, velocity = w, zero_velocity(w)
  for batch in batches:
    _, _, after = world.slope(Model(w, stats), batch)
    theta = theta if world.knobs['warm'] else w
    for _ in range(world.knobs['inner_steps']):
      _, gradient, _ = world.slope(Model(theta, after), batch)
      theta = jax.tree.map(
        lambda t, g, x: t - rate * (g + lam * (t - x)), theta, gradient, w
      )
    direction = jax.tree.map(lambda x, t: lam * (x - t), w, theta)
    w, velocity = world.step(w, velocity, direction)
    stats = after
  return Model(w, stats), Model(theta, stats)


def per_fedavg(world, received, memory, batches, head_batches):
  """Each batch is a list of two or three batches."""
  del head_batches
  alpha = world.knobs['alpha']
  w, stats = received
  velocity = zero_velocity(w)

  def at(params, length, direction, batch):
    moved = jax.tree.map(lambda x, d: x + length * d, params, direction)
    return world.slope(Model(moved, stats), batch)[1]

  for b1, b2, *b3 in batches:
    _, inner, after = world.slope(Model(w, stats), b1)
    stats = after
    g = at(w, -alpha, inner, b2)
    direction = g
    if b3:
      delta = world.knobs['delta']
      ahead, behind = at(w, delta, g, b3[0]), at(w, -delta, g, b3[0])
      direction = jax.tree.map(
        lambda g, a, b: g - alpha * (a - b) / (2 * delta),  # noqa: B023
        g,
        ahead,
        behind,
      )
    w, velocity = world.step(w, velocity, direction)
  return Model(w, stats), memory


def blended(received, memory, upper):
  """Where training starts: memory is (O, W), or None before the first round."""
  if memory is None:
    return received
  last, weights = memory
  params = dict(received.params)
  for name in upper:
    params[name] = jax.tree.map(
      lambda g, o, w: o + (g - o) * w,
      received.params[name],
      last.params[name],
      weights[name],
    )
  return Model(params, received.stats)


def fedala(world, received, memory, batches, head_batches):
  """`head_batches`: for each planned epoch of the learning of W, its batches."""
  upper = world.knobs['upper']
  weights = {name: jax.tree.map(np.ones_like, received.params[name]) for name in upper}
  if memory is not None:
    last, weights = memory
    records = []
    for epoch in head_batches:
      for batch in epoch:
        loss, gradient, _ = world.slope(
          blended(received, (last, weights), upper), batch
        )
        weights = {
          name: jax.tree.map(
            lambda w, d, g, o: np.clip(w - world.knobs['eta'] * d * (g - o), 0, 1),
            weights[name],
            gradient[name],
            received.params[name],
            last.params[name],
          )
          for name in upper
        }
      records.append(loss)
      if len(records) > 10 and np.std(records[-10:]) < world.knobs['threshold']:
        break
    memory = last, weights
  start = blended(received, memory, upper)
  params, stats = start
  velocity = zero_velocity(params)
  for batch in batches:
    _, gradient, stats = world.slope(Model(params, stats), batch)
    params, velocity = world.step(params, velocity, gradient)
  trained = Model(params, stats)
  return trained, (trained, weights)


LOCAL = {
  'fedrep': fedrep,
  'apfl': apfl,
  'pfedme': pfedme,
  'per_fedavg': per_fedavg,
  'fedala': fedala,
}


def run(algorithm, world, params, *, sizes, rounds, head_rounds):
  """[Result] of each round; the personal model of each of the N clients.

  Args:
    algorithm: a key of LOCAL.
    world: a World.
    params: the first model's.
    sizes: [N] examples of each client.
    rounds: for each round, client -> its batches, each some indices.
    head_rounds: for each round, client -> the batches of the training that comes first.
  """
  params = wide(params)
  first = server = Model(params, wide(first_stats(params)))
  starts = {'apfl': (first, world.knobs.get('alpha')), 'fedala': None}
  memories = dict.fromkeys(range(len(sizes)), starts.get(algorithm, first))
  results = []
  for cohort, head_cohort in zip(rounds, head_rounds, strict=True):
    sent = {}
    for client, batches in cohort.items():
      sent[client], memories[client] = LOCAL[algorithm](
        world, server, memories[client], batches, head_cohort.get(client)
      )
    total = sum(sizes[client] for client in cohort)
    shares = [sizes[client] / total for client in sent]
    mean = Model(
      params=combine(shares, [model.params for model in sent.values()]),
      stats=combine(shares, [model.stats for model in sent.values()]),
    )
    if algorithm == 'fedrep':
      head = world.knobs['head']
      mean = Model(with_layers_of(mean.params, head, first.params), mean.stats)
    if algorithm == 'pfedme':
      beta = world.knobs['beta']
      mean = Model(mixture(mean.params, server.params, beta), mean.stats)
    server = mean
    results.append(Result(server, personal_models(algorithm, world, server, memories)))
  return results


def personal_models(algorithm, world, server, memories):
  """client -> Model that is tested as its own."""
  if algorithm == 'fedrep':
    head = world.knobs['head']
    return {
      client: Model(with_layers_of(server.params, head, model.params), server.stats)
      for client, model in memories.items()
    }
  if algorithm == 'apfl':
    return {
      client: Model(mixture(model.params, server.params, share), model.stats)
      for client, (model, share) in memories.items()
    }
  if algorithm == 'fedala':
    upper = world.knobs['upper']
    return {
      client: blended(server, memory, upper) for client, memory in memories.items()
    }
  return dict(memories)
