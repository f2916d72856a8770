"""FedALA: Zhang et al., AAAI 2023, arXiv:2212.01197: adaptive local aggregation."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from moon_jax.algorithms import base
from moon_jax.algorithms.fedper import personal_paths
from moon_jax.algorithms.private import Paths, divided, joined
from moon_jax.core.types import Layers, PyTree, Upload

# The losses of so many epochs must agree before the first learning of W ends.
NUM_RECORDS = 10


class Memory(NamedTuple):
  """What a client keeps.

  Attributes:
    model: O, the model that it trained last.
    weights: W, {'params': ...} of the upper layers, in [0, 1].
    has_trained: [] bool, whether there is an O.
  """

  model: PyTree
  weights: PyTree
  has_trained: jax.Array


class _Learning(NamedTuple):
  """W while it is learned.

  Attributes:
    weights: W.
    num_steps: [] float32 steps so far.
    losses: [NUM_RECORDS] float32, losses of the last batch of the last epochs, the
      newest last.
    has_converged: [] bool, whether these losses agree.
  """

  weights: PyTree
  num_steps: jax.Array
  losses: jax.Array
  has_converged: jax.Array


def fedala(
  *,
  layers: str,
  eta: float,
  example_share: float,
  threshold: float,
  start_epochs: int,
  evaluate: str,
  network_layers: Layers,
) -> base.Algorithm:
  """FedAvg whose clients start from a blend of the global model and their own last one.

  With G as received and O as trained last by this client, training starts from G in the
  lower layers, and from O + (G - O) * W in the upper ones. W has a number for each
  weight; it is first 1, and kept. Before the training, on a part of the client's
  examples that is drawn in each round,

  W <- clip(W - eta grad L(blend) * (G - O), 0, 1) after each batch,

  which renews the blend; G and O stay. This takes one epoch, but in the client's second
  round, the first with an O, it goes on until the losses of the last batch of 10 epochs
  deviate by less than the threshold (at least 11 epochs), for at most `start_epochs`.
  In its first round a client starts from G; if that round is left out because it was
  not finite, the plan does not know, and this first learning has one epoch. The whole
  model is sent. Statistics of batch normalisation are those of G. eta = 0 is FedAvg.

  Args:
    layers: names of the upper layers, separated by commas; '' is the output layer.
    eta: rate of W, at least 0.
    example_share: fraction of the examples that W is learned on, in (0, 1].
    threshold: standard deviation at which the first learning ends, at least 0.
    start_epochs: most epochs of the first learning, at least 1.
    evaluate: the client's own model: 'blend', of the new global model and its own last
      one by the last W; or 'trained', its own last one. Both are the new global model
      if the client has none.
    network_layers: the layers of the network.

  Raises:
    KnobError: no layer has that name, no layer is left, or the output layer is
      unknown.
  """
  layer_paths = personal_paths(layers, network_layers, knob='fedala.layers')
  upper_paths = frozenset(path for path in layer_paths if path[0] == 'params')

  def init_client(variables):
    upper_layers = _upper_layers(variables, upper_paths)
    return Memory(
      model=variables,
      weights=jax.tree.map(jnp.ones_like, upper_layers),
      has_trained=jnp.array(False),
    )

  def download(received, memory):
    return _blend(received, memory, memory.weights, upper_paths)

  def upload(trained, task):
    memory = task.memory._replace(model=trained, has_trained=jnp.array(True))
    return Upload(weighted=trained), memory

  def personal(server, memory):
    if evaluate == 'blend':
      return download(server.variables, memory)

    def own_or_global(own_leaf, server_leaf):
      return jnp.where(memory.has_trained, own_leaf, server_leaf)

    return jax.tree.map(own_or_global, memory.model, server.variables)

  return base.Algorithm(
    hyperparameters={'eta': eta, 'threshold': threshold},
    needs=frozenset({'epoch_steps'}),
    init_client=init_client,
    download=download,
    upload=upload,
    personal=personal,
    second_training=base.SecondTraining(
      algorithm=_learning_of_weights(download, upper_paths),
      epochs=1,
      comes_first=True,
      example_share=example_share,
      second_round_epochs=start_epochs,
    ),
  )


def _learning_of_weights(download: Callable, upper_paths: Paths) -> base.Algorithm:
  """The training of W; it moves the blend through W alone, and sends nothing."""

  def begin(received, memory):
    return _Learning(
      weights=memory.weights,
      num_steps=jnp.zeros(()),
      losses=jnp.zeros(NUM_RECORDS),
      has_converged=jnp.array(False),
    )

  def descent(gradient, gradient_at, variables, task):
    is_learned = task.memory.has_trained & ~task.local.has_converged

    def step(w, slope, g, o):
      stepped = jnp.clip(w - task.scalars['eta'] * slope * (g - o), 0.0, 1.0)
      return jnp.where(is_learned, stepped, w)

    weights = jax.tree.map(
      step,
      task.local.weights,
      _upper_layers({'params': gradient}, upper_paths),
      _upper_layers(task.received, upper_paths),
      _upper_layers(task.memory.model, upper_paths),
    )
    return gradient, task.local._replace(weights=weights)

  def after_update(updated, params, task):
    blend = _blend(task.received, task.memory, task.local.weights, upper_paths)
    return blend['params']

  def upload(trained, task):
    return Upload(), task.memory._replace(weights=task.local.weights)

  return base.Algorithm(
    download=download,
    begin=begin,
    descent=descent,
    after_update=after_update,
    after_step=_with_loss,
    upload=upload,
  )


def _with_loss(task, loss, grads, key):
  """An `after_step`: at the end of an epoch, its last loss is recorded and judged."""
  learning = task.local
  num_steps = learning.num_steps + 1.0
  num_epochs = jnp.floor(num_steps / task.epoch_steps)
  ends_epoch = num_epochs * task.epoch_steps == num_steps
  shifted_losses = jnp.append(learning.losses[1:], loss)
  losses = jnp.where(ends_epoch, shifted_losses, learning.losses)
  losses_agree = jnp.std(losses) < task.scalars['threshold']
  converges = ends_epoch & (num_epochs > NUM_RECORDS) & losses_agree
  return learning._replace(
    num_steps=num_steps,
    losses=losses,
    has_converged=learning.has_converged | converges,
  )


def _upper_layers(variables, upper_paths):
  """The parameters of the upper layers, {'params': ...}."""
  _, upper_layers = divided({'params': variables['params']}, upper_paths)
  return upper_layers


def _blend(received, memory, weights, upper_paths):
  """G in the lower layers, O + (G - O) * W in the upper ones; all of G without an O."""
  blended = jax.tree.map(
    lambda o, g, w: jnp.where(memory.has_trained, o + (g - o) * w, g),
    _upper_layers(memory.model, upper_paths),
    _upper_layers(received, upper_paths),
    weights,
  )
  lower_layers, _ = divided(received, upper_paths)
  return joined(lower_layers, blended)
