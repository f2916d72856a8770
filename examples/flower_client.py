"""A client of Flower (pip install flwr) that starts from a trained model.

  python launch.py --workdir=runs/digits

and in a Flower app, with the client's own arrays,

  from examples import flower_client
  ClientApp(client_fn=lambda context: flower_client.Client(
      'runs/digits', images, labels).to_client())

`Client('digits.safetensors', ...)` starts from a file that `moon_jax.export` wrote.
Training does not change the running statistics of batch normalisation.
"""

import flwr
import jax
import numpy as np
import optax

import moon_jax
from moon_jax.core import weights


class Client(flwr.client.NumPyClient):
  """Trains and tests a model on the client's own images.

  It exchanges the arrays of `moon_jax.core.weights.flat`, sorted by their names.
  """

  def __init__(self, model, images, labels, *, rate=0.01, batch_size=32):
    """Loads the model.

    Args:
      model: a run directory or a file of weights.
      images: [M, H, W, C], numbers as in the run's data.
      labels: [M] integers.
      rate: learning rate.
      batch_size: number of examples in a step.
    """
    self._trained = moon_jax.load(model)
    self._names = list(weights.flat(self._trained.variables))
    self._images, self._labels = self._trained.grey_levels(images), labels
    self._rate, self._batch_size = rate, batch_size
    self._gradient = jax.jit(jax.value_and_grad(self._loss))

  def get_parameters(self, config):
    """Returns the arrays of the trained model."""
    leaves = weights.flat(self._trained.variables)
    return [np.asarray(leaves[name]) for name in self._names]

  def fit(self, parameters, config):
    """Trains for an epoch; returns the arrays, the number of examples, and the loss."""
    variables, losses = self._nested(parameters), []
    batches = range(0, len(self._labels), self._batch_size)
    for first in batches:
      rows = slice(first, first + self._batch_size)
      batch = self._images[rows], self._labels[rows]
      loss, gradient = self._gradient(variables['params'], variables, *batch)
      params = jax.tree.map(
        lambda w, g: w - self._rate * g, variables['params'], gradient
      )
      variables = variables | {'params': params}
      losses.append(float(loss))
    arrays = weights.flat(jax.device_get(variables)).values()
    return list(arrays), len(self._labels), {'loss': float(np.mean(losses))}

  def evaluate(self, parameters, config):
    """Returns the mean loss in nats, the number of examples, and the accuracy."""
    variables = self._nested(parameters)
    logits = self._trained.forward(variables, self._images).logits
    loss = optax.losses.softmax_cross_entropy_with_integer_labels(logits, self._labels)
    accuracy = float(np.mean(np.argmax(logits, 1) == self._labels))
    return float(loss.mean()), len(self._labels), {'accuracy': accuracy}

  def _nested(self, parameters):
    return weights.nested(dict(zip(self._names, parameters, strict=True)))

  def _loss(self, params, variables, images, labels):
    logits = self._trained.forward(variables | {'params': params}, images).logits
    losses = optax.losses.softmax_cross_entropy_with_integer_labels(logits, labels)
    return losses.mean()
