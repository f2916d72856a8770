"""Networks as the papers draw them: plain layers, one function each."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

# Accelerators round the factors of a float32 product by default.
FULL_PRECISION = lax.Precision.HIGHEST

# PyTorch's defaults: running = 0.9 running + 0.1 batch.
BATCH_NORM_MOMENTUM = 0.1
BATCH_NORM_EPSILON = 1e-5


class Model(NamedTuple):
  """One set of weights, and the running statistics of its BatchNorm layers."""

  params: dict
  stats: dict  # layer name -> {'mean': [D], 'var': [D]}; {} without BatchNorm


def dense(layer, x):
  """[B, D_in] -> [B, D_out]: x kernel + bias."""
  product = jnp.dot(x, layer['kernel'], precision=FULL_PRECISION)
  return product + layer['bias'][None, :]


def convolution(layer, x):
  """[B, H, W, C_in] -> [B, H - kh + 1, W - kw + 1, C_out], stride 1, no padding."""
  product = lax.conv_general_dilated(
    x,
    layer['kernel'],
    window_strides=(1, 1),
    padding='VALID',
    dimension_numbers=('NHWC', 'HWIO', 'NHWC'),
    precision=FULL_PRECISION,
  )
  return product + layer['bias'][None, None, None, :]


def relu(x):
  """max(x, 0), with derivative 0 at 0."""
  return jnp.where(x > 0, x, 0.0)


def max_pool(x):
  """[B, H, W, C] -> [B, H // 2, W // 2, C]: 2x2 windows, stride 2."""
  window = (1, 2, 2, 1)
  return lax.reduce_window(x, -jnp.inf, lax.max, window, window, 'VALID')


def batch_norm(layer, running, x, *, training):
  """scale (x - mean) / sqrt(var + 1e-5) + bias, as PyTorch's BatchNorm1d does it.

  While training, mean and var are the batch's, var with denominator B, and the
  running statistics move by a tenth towards them, var then with denominator B - 1.
  PyTorch refuses to train on one example; here its running variance moves towards 0.

  Args:
    layer: {'scale': [D], 'bias': [D]}.
    running: {'mean': [D], 'var': [D]}.
    x: [B, D], real examples only.
    training: False normalises by the running statistics and leaves them.

  Returns:
    [B, D] normalised, and the running statistics afterwards.
  """
  mean, var = running['mean'], running['var']
  if training:
    count = x.shape[0]
    mean = jnp.mean(x, axis=0)
    var = jnp.mean((x - mean[None, :]) ** 2, axis=0)
    unbiased = var * (count / max(count - 1, 1))
    old_share = 1 - BATCH_NORM_MOMENTUM
    running = {
      'mean': old_share * running['mean'] + BATCH_NORM_MOMENTUM * mean,
      'var': old_share * running['var'] + BATCH_NORM_MOMENTUM * unbiased,
    }
  normalised = (x - mean[None, :]) / jnp.sqrt(var + BATCH_NORM_EPSILON)[None, :]
  return layer['scale'][None, :] * normalised + layer['bias'][None, :], running


def encode_mlp(params, stats, images, training):
  """One hidden layer: `encoder`, ReLU."""
  del training
  flat = jnp.reshape(images, (images.shape[0], -1))
  return relu(dense(params['encoder'], flat)), stats


def encode_mlp_bn(params, stats, images, training):
  """One hidden layer: `encoder`, BatchNorm `norm`, ReLU."""
  x = jnp.reshape(images, (images.shape[0], -1))
  x = dense(params['encoder'], x)
  x, norm = batch_norm(params['norm'], stats['norm'], x, training=training)
  return relu(x), {'norm': norm}


def encode_moon_cnn(params, stats, images, training):
  """`conv1`, `conv2`, each ReLU and pool, then `fc1`, `fc2`, each ReLU."""
  del training
  x = max_pool(relu(convolution(params['conv1'], images)))
  x = max_pool(relu(convolution(params['conv2'], x)))
  x = jnp.reshape(x, (x.shape[0], -1))
  x = relu(dense(params['fc1'], x))
  return relu(dense(params['fc2'], x)), stats


def encode_cnn_1d(params, stats, signals, training):
  """`conv1`, `conv2` over time, each [BatchNorm,] pool and ReLU; then `fc1`, ReLU."""
  x, stats = convolutions(params, stats, signals, 2, training)
  return relu(dense(params['fc1'], jnp.reshape(x, (x.shape[0], -1)))), stats


def encode_cnn_3d(params, stats, volumes, training):
  """`conv1` to `conv3` in space, as in encode_cnn_1d; then `fc1`, ReLU."""
  x, stats = convolutions(params, stats, volumes, 3, training)
  return relu(dense(params['fc1'], jnp.reshape(x, (x.shape[0], -1)))), stats


def convolutions(params, stats, x, number, training):
  """[B, *sides, C]: convolutions with a zero border, each pooled by 2 in each side."""
  num_sides = x.ndim - 2
  letters = 'DHW'[-num_sides:]
  layouts = f'N{letters}C', f'{letters}IO', f'N{letters}C'
  new_stats = {}
  for name in [f'conv{index + 1}' for index in range(number)]:
    kernel, channels = params[name]['kernel'], x.shape[-1]
    side = round((kernel.shape[0] / channels) ** (1 / num_sides))
    x = lax.conv_general_dilated(
      x,
      jnp.reshape(kernel, (*[side] * num_sides, channels, -1)),
      window_strides=[1] * num_sides,
      padding='SAME',
      dimension_numbers=layouts,
      precision=FULL_PRECISION,
    )
    if 'bias' in params[name]:
      x = x + jnp.reshape(params[name]['bias'], (1,) * (num_sides + 1) + (-1,))
    norm = name.replace('conv', 'norm')
    if norm in params:
      flat = jnp.reshape(x, (-1, x.shape[-1]))
      flat, new_stats[norm] = batch_norm(
        params[norm], stats[norm], flat, training=training
      )
      x = jnp.reshape(flat, x.shape)
    window = (1, *[2] * num_sides, 1)
    lowest = np.array(-np.inf, x.dtype)
    x = relu(lax.reduce_window(x, lowest, lax.max, window, window, 'VALID'))
  return x, new_stats


def encode_gru(params, stats, words, training):
  """The state of a GRU (arXiv:1406.1078, PyTorch's form) after the last word >= 0."""
  del training
  words = words.astype(jnp.int32)
  cell, width = params['gru'], params['gru']['hidden_kernel'].shape[0]
  state = jnp.zeros((words.shape[0], width), params['embedding_table'].dtype)
  for step in range(words.shape[1]):
    is_word = (words[:, step] >= 0)[:, None]
    word = params['embedding_table'][jnp.maximum(words[:, step], 0)]
    inputs = dense(cell['input'], word)
    hidden = {'kernel': cell['hidden_kernel'], 'bias': cell['hidden_bias']}
    from_state = dense(hidden, state)
    reset, update = (
      jax.nn.sigmoid(gate(inputs, width, n) + gate(from_state, width, n))
      for n in range(2)
    )
    new = jnp.tanh(gate(inputs, width, 2) + reset * gate(from_state, width, 2))
    state = jnp.where(is_word, (1 - update) * new + update * state, state)
  return state, stats


def gate(x, width, number):
  """[B, 3 * width] -> [B, width]."""
  return x[:, number * width : (number + 1) * width]


def projection_and_classifier(params, features):
  """MOON's projection head, then the classifier on the head's output."""
  hidden = relu(dense(params['head_hidden'], features))
  representation = dense(params['head_output'], hidden)
  return representation, dense(params['classifier'], representation)


class Network(NamedTuple):
  """An encoder and what follows it.

  Called on params and [B, H, W, C] normalised pixels it returns [B, D]
  representation and [B, Y] logits; that needs a network without BatchNorm.
  """

  encode: Callable  # (params, stats, images, training) -> [B, F] features, stats
  head: Callable = projection_and_classifier  # (params, features) -> z, logits

  def __call__(self, params, images):
    _, z, logits, _ = self.forward(Model(params, {}), images, training=False)
    return z, logits

  def forward(self, model, images, *, training):
    """-> [B, F] features, [B, D] representation, [B, Y] logits, statistics."""
    features, stats = self.encode(model.params, model.stats, images, training)
    return (features, *self.head(model.params, features), stats)


# Kernels are [in, out], and those of convolutions [kh, kw, in, out]. The CNN is MOON's
# (arXiv:2103.16257); every network ends in head_hidden, head_output, classifier.
mlp = Network(encode_mlp)
mlp_bn = Network(encode_mlp_bn)
moon_cnn = Network(encode_moon_cnn)
# The kinds of tests/world.py; kernels are [window * in, out].
table = mlp
signal = signal_bn = Network(encode_cnn_1d)
volume = Network(encode_cnn_3d)
words = Network(encode_gru)


def first_stats(params):
  """Mean 0 and variance 1 for each layer that has a `scale`."""
  return {
    name: {
      'mean': np.zeros_like(layer['scale']),
      'var': np.ones_like(layer['scale']),
    }
    for name, layer in params.items()
    if 'scale' in layer
  }


def squared_distance(a, b):
  """||a - b||^2 over all parameters of two models."""
  squares = jax.tree.map(lambda x, y: ((x - y) ** 2).sum(), a, b)
  return sum(jax.tree.leaves(squares))


def norm(tree):
  """||tree||_2 over all its leaves."""
  return np.sqrt(sum(np.sum(leaf**2) for leaf in jax.tree.leaves(tree)))


def vector(tree):
  """All leaves as one vector of float64."""
  flat = [np.ravel(leaf) for leaf in jax.tree.leaves(tree)]
  return np.concatenate(flat).astype(np.float64)


def as_tree(values, tree):
  """A vector as a tree of these shapes."""
  leaves, structure = jax.tree.flatten(tree)
  ends = np.cumsum([np.size(leaf) for leaf in leaves])
  pairs = zip(np.split(values, ends[:-1]), leaves, strict=True)
  shaped = [np.float32(part).reshape(np.shape(leaf)) for part, leaf in pairs]
  return jax.tree.unflatten(structure, shaped)


def combine(coefficients, trees):
  """sum_i coefficients_i trees_i; coefficients are plain numbers."""
  total = jax.tree.map(np.zeros_like, trees[0])
  for coefficient, tree in zip(coefficients, trees, strict=True):
    a = float(coefficient)
    total = jax.tree.map(lambda t, x, a=a: t + a * x, total, tree)
  return total
