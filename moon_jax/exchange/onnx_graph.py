"""Writes a network as an ONNX graph, with the weights in it."""

import itertools
import math
from collections.abc import Callable

import numpy as np

from moon_jax.core.errors import UsageError
from moon_jax.exchange.description import Description
from moon_jax.exchange.pytorch import Facts

# Operators of 2024, for ONNX Runtime 1.18 or newer.
_OPSET, _IR_VERSION = 21, 10
_EPSILON = 1e-5
_MOST_BYTES = 2**31 - 2**20  # protobuf's limit, less room for the graph


class _Graph:
  """Nodes and weights of an ONNX graph, in the order in which they are added."""

  def __init__(self, onnx):
    self._onnx = onnx
    self.nodes, self.initializers = [], []
    self._numbers = itertools.count(1)

  def node(self, operator: str, *inputs: str, **attributes: int | float | list) -> str:
    """Adds a node; returns the name of its output."""
    output = f'{operator.lower()}{next(self._numbers)}'
    self.nodes.append(
      self._onnx.helper.make_node(operator, inputs, [output], name=output, **attributes)
    )
    return output

  def constant(self, array: np.ndarray, name: str = '') -> str:
    """Adds an array of weights, or of numbers without a name; returns its name."""
    name = name or f'constant{next(self._numbers)}'
    tensor = self._onnx.numpy_helper.from_array(np.asarray(array, order='C'), name)
    self.initializers.append(tensor)
    return name

  def integers(self, *numbers: int) -> str:
    """Adds whole numbers, such as a shape."""
    return self.constant(np.array(numbers, np.int64))


def model_bytes(network: Description, facts: Facts) -> bytes:
  """The content of an .onnx file.

  Its input is `images` [B, C, H, W] float32, numbers as in the run's data; its outputs
  are `logits` [B, Y] and `representation` [B, D].

  Raises:
    UsageError: the package onnx is not installed, or the weights are too large for
      ONNX's format.
  """
  try:
    import onnx
    import onnx.helper
    import onnx.numpy_helper
  except ModuleNotFoundError:
    raise UsageError(
      "An .onnx file needs the package onnx: pip install 'moon_jax[onnx]'."
    ) from None

  graph = _Graph(onnx)
  tensors = {'x': _normalised(graph, facts)}
  for step in network.steps:
    x = tensors[step.sources[0]]
    if step.kind == 'add':
      tensors[step.target] = graph.node('Add', x, tensors[step.sources[1]])
    else:
      tensors[step.target] = _OPERATIONS[step.kind](graph, network, step, x)
  outputs = {'logits': tensors['x'], 'representation': tensors['representation']}
  for name, tensor in outputs.items():
    graph.nodes.append(onnx.helper.make_node('Identity', [tensor], [name], name=name))

  height, width, channels = facts.shape
  images = onnx.helper.make_tensor_value_info(
    'images', onnx.TensorProto.FLOAT, ['batch', channels, height, width]
  )
  model = onnx.helper.make_model(
    onnx.helper.make_graph(
      graph.nodes,
      facts.model,
      [images],
      [
        onnx.helper.make_tensor_value_info(
          name, onnx.TensorProto.FLOAT, ['batch', None]
        )
        for name in outputs
      ],
      graph.initializers,
    ),
    opset_imports=[onnx.helper.make_opsetid('', _OPSET)],
    ir_version=_IR_VERSION,
    producer_name='moon_jax',
    doc_string=facts.origin,
  )
  if facts.class_names:
    names = '\n'.join(map(str, facts.class_names))
    onnx.helper.set_model_props(model, {'class_names': names})
  if model.ByteSize() > _MOST_BYTES:
    raise UsageError(
      'The network has more than 2 GB of weights, which an .onnx file cannot hold.'
    )
  return model.SerializeToString()


def _normalised(graph, facts):
  """`images` in whole grey levels, with mean 0 and deviation 1."""
  onnx_type = graph._onnx.TensorProto
  precision = np.dtype(facts.number_type)
  black, white = facts.scale.low, facts.scale.high
  x = graph.node(
    'Cast',
    'images',
    to=onnx_type.DOUBLE if precision == np.float64 else onnx_type.FLOAT,
  )
  x = graph.node('Sub', x, graph.constant(np.array(black, precision)))
  x = graph.node('Mul', x, graph.constant(np.array(255 / (white - black), precision)))
  x = graph.node('Cast', graph.node('Round', x), to=onnx_type.FLOAT)
  x = _clip(graph, x, low=0, high=255)
  x = graph.node('Div', x, graph.constant(np.float32(255)))
  mean, std = (
    graph.constant(np.array(numbers, np.float32).reshape(1, -1, 1, 1), name)
    for name, numbers in (('mean', facts.mean), ('std', facts.std))
  )
  return graph.node('Div', graph.node('Sub', x, mean), std)


def _clip(graph, x, *, low, high):
  lowest, highest = (graph.constant(np.float32(bound)) for bound in (low, high))
  return graph.node('Clip', x, lowest, highest)


def _conv(graph, network, step, x):
  kernel, bias = (network.array(step.layer, name) for name in ('kernel', 'bias'))
  size, stride, padding = len(kernel), step.options['stride'], step.options['padding']
  return graph.node(
    'Conv',
    x,
    graph.constant(kernel.transpose(3, 2, 0, 1), f'{step.layer}/kernel'),
    '' if bias is None else graph.constant(bias, f'{step.layer}/bias'),
    kernel_shape=[size, size],
    strides=[stride, stride],
    pads=[padding] * 4,
    group=kernel.shape[3] if step.options['depthwise'] else 1,
  )


def _dense(graph, network, step, x):
  return _affine(graph, network, step.layer, x)


def _affine(graph, network, layer, x):
  kernel = graph.constant(network.array(layer, 'kernel'), f'{layer}/kernel')
  bias = graph.constant(network.array(layer, 'bias'), f'{layer}/bias')
  return graph.node('Add', graph.node('MatMul', x, kernel), bias)


def _scale_and_bias(graph, network, layer):
  return [
    graph.constant(network.array(layer, name), f'{layer}/{name}')
    for name in ('scale', 'bias')
  ]


def _batch_norm(graph, network, step, x):
  scale, bias = _scale_and_bias(graph, network, step.layer)
  mean, var = (
    graph.constant(network.statistic(step.layer, name), f'{step.layer}/{name}')
    for name in ('mean', 'var')
  )
  return graph.node('BatchNormalization', x, scale, bias, mean, var, epsilon=_EPSILON)


def _group_norm(graph, network, step, x):
  scale, bias = _scale_and_bias(graph, network, step.layer)
  groups = step.options['groups']
  return graph.node(
    'GroupNormalization', x, scale, bias, epsilon=_EPSILON, num_groups=groups
  )


def _layer_norm(graph, network, layer, x):
  scale, bias = _scale_and_bias(graph, network, layer)
  return graph.node('LayerNormalization', x, scale, bias, axis=-1, epsilon=_EPSILON)


def _encoder_layer(graph, network, step, x):
  """See `cnn_transformer.EncoderLayer`."""

  def affine(name, x):
    return _affine(graph, network, f'{step.layer}/{name}', x)

  def norm(name, x):
    return _layer_norm(graph, network, f'{step.layer}/{name}', x)

  heads = step.options['heads']
  width = network.array(f'{step.layer}/output', 'kernel').shape[0]
  # [B, tokens, 3 width] -> [3, B, heads, tokens, width / heads]
  shape = graph.integers(0, 0, 3, heads, width // heads)
  qkv = graph.node('Reshape', affine('qkv', x), shape)
  qkv = graph.node('Transpose', qkv, perm=[2, 0, 3, 1, 4])
  q, k, v = (
    graph.node('Gather', qkv, graph.constant(np.int64(index)), axis=0)
    for index in range(3)
  )
  scores = graph.node('MatMul', q, graph.node('Transpose', k, perm=[0, 1, 3, 2]))
  root = graph.constant(np.float32(math.sqrt(width / heads)))
  attention = graph.node('Softmax', graph.node('Div', scores, root), axis=-1)
  mixed = graph.node('MatMul', attention, v)
  mixed = graph.node('Transpose', mixed, perm=[0, 2, 1, 3])
  mixed = graph.node('Reshape', mixed, graph.integers(0, 0, width))
  x = norm('norm1', graph.node('Add', x, affine('output', mixed)))
  hidden = graph.node('Relu', affine('linear1', x))
  return norm('norm2', graph.node('Add', x, affine('linear2', hidden)))


def _max_pool(graph, network, step, x):
  size, stride, padding = (step.options[name] for name in ('size', 'stride', 'padding'))
  return graph.node(
    'MaxPool',
    x,
    kernel_shape=[size, size],
    strides=[stride, stride],
    pads=[padding] * 4,
  )


def _relu6(graph, network, step, x):
  return _clip(graph, x, low=0, high=6)


def _mean_of_pixels(graph, network, step, x):
  return graph.node('ReduceMean', x, graph.integers(2, 3), keepdims=0)


def _flatten(graph, network, step, x):
  return graph.node('Flatten', graph.node('Transpose', x, perm=[0, 2, 3, 1]), axis=1)


def _tokens(graph, network, step, x):
  pixels = graph.node('Reshape', x, graph.integers(0, 0, -1))
  return graph.node('Transpose', pixels, perm=[0, 2, 1])


_OPERATIONS: dict[str, Callable[..., str]] = {
  'conv': _conv,
  'dense': _dense,
  'batch_norm': _batch_norm,
  'group_norm': _group_norm,
  'encoder_layer': _encoder_layer,
  'relu': lambda graph, network, step, x: graph.node('Relu', x),
  'relu6': _relu6,
  'max_pool': _max_pool,
  'dropout': lambda graph, network, step, x: x,  # it does nothing outside of training
  'mean_of_pixels': _mean_of_pixels,
  'flatten': _flatten,
  'tokens': _tokens,
  'flatten_tokens': lambda graph, network, step, x: graph.node('Flatten', x, axis=1),
  'copy': lambda graph, network, step, x: x,
}
