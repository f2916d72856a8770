"""Writes a network as an ONNX graph, with the weights in it."""

import itertools
import json
import math
from collections.abc import Callable

import numpy as np

from moon_jax.core.errors import UsageError
from moon_jax.exchange.description import Description
from moon_jax.exchange.pytorch import Facts, metadata

# Operators of 2024, for ONNX Runtime 1.18 or newer.
_OPSET, _IR_VERSION = 21, 10
_EPSILON = 1e-5
_ONE = np.float32(1)
_MOST_BYTES = 2**31 - 2**20  # protobuf's limit, less room for the graph


class _Graph:
  """Nodes and weights of an ONNX graph, in the order in which they are added."""

  def __init__(self, onnx, numbers: itertools.count | None = None):
    self._onnx = onnx
    self.nodes, self.initializers = [], []
    self._numbers = numbers or itertools.count(1)

  @property
  def types(self):
    """ONNX's names of types."""
    return self._onnx.TensorProto

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

  def zeros(self, shape: str) -> str:
    """Adds zeros of a shape that the graph computes."""
    zero = self._onnx.numpy_helper.from_array(np.zeros(1, np.float32))
    return self.node('ConstantOfShape', shape, value=zero)

  def thirds(self, x: str, width: int) -> list[str]:
    """Adds the three parts of [..., 3 width]."""
    bounds = [(part * width, (part + 1) * width) for part in range(3)]
    return [
      self.node('Slice', x, self.integers(begin), self.integers(end), self.integers(-1))
      for begin, end in bounds
    ]

  def body(self) -> '_Graph':
    """A graph that is computed for each step; it may read this one's tensors."""
    return _Graph(self._onnx, self._numbers)

  def scan(
    self, body: '_Graph', changed: str, first: str, scanned: list[str], width: int
  ) -> str:
    """Adds a loop over axis 1 of some tensors; returns the last state.

    Args:
      body: computes a step from 'state' [B, width], 'of_step' [B, 3 width] and, if two
        tensors are scanned, 'is_real' [B].
      changed: the state after a step, in the body.
      first: the state before the first step.
      scanned: tensors [B, T, ...].
      width: of the state.
    """
    info, types = self._onnx.helper.make_tensor_value_info, self.types
    inputs = [
      info('state', types.FLOAT, ['batch', width]),
      info('of_step', types.FLOAT, ['batch', 3 * width]),
      info('is_real', types.BOOL, ['batch']),
    ]
    step = self._onnx.helper.make_graph(
      body.nodes,
      'step',
      inputs[: 1 + len(scanned)],
      [info(changed, types.FLOAT, ['batch', width])],
      body.initializers,
    )
    return self.node(
      'Scan',
      first,
      *scanned,
      body=step,
      num_scan_inputs=len(scanned),
      scan_input_axes=[1] * len(scanned),
    )


def model_bytes(network: Description, facts: Facts) -> bytes:
  """The content of an .onnx file.

  Its input is `images` [B, C, H, W] float32, numbers as in the run's data; of other
  examples it is `examples` float32, channels last, or `words` int64. Its outputs are
  `logits` [B, Y] and `representation` [B, D].

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
    sources = [tensors[source] for source in step.sources]
    tensors[step.target] = _OPERATIONS[step.kind](graph, network, step, *sources)
  outputs = {'logits': tensors['x'], 'representation': tensors['representation']}
  for name, tensor in outputs.items():
    graph.nodes.append(onnx.helper.make_node('Identity', [tensor], [name], name=name))

  shape = [*facts.shape]
  if facts.kind == 'picture':
    shape = [shape[2], *shape[:2]]
  elif any(step.kind == 'gru' for step in network.steps):
    shape[0] = 'steps'  # a recurrent network takes any number
  types = onnx.TensorProto
  examples = onnx.helper.make_tensor_value_info(
    facts.input_name,
    types.INT64 if facts.content == 'words' else types.FLOAT,
    ['batch', *shape],
  )
  model = onnx.helper.make_model(
    onnx.helper.make_graph(
      graph.nodes,
      facts.model,
      [examples],
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
  properties = metadata(facts)
  if facts.words:
    properties['tokenizer'] = facts.tokenizer
  if facts.class_names:
    properties['class_names'] = json.dumps(facts.class_names)
  if properties:
    onnx.helper.set_model_props(model, properties)
  if model.ByteSize() > _MOST_BYTES:
    raise UsageError(
      'The network has more than 2 GB of weights, which an .onnx file cannot hold.'
    )
  return model.SerializeToString()


def _normalised(graph, facts):
  """The input as the network sees it; pictures in whole grey levels."""
  if facts.content == 'words':
    return facts.input_name
  if facts.content == 'numbers':
    mean, std = (
      graph.constant(facts.arranged(numbers), name)
      for name, numbers in (('mean', facts.mean), ('std', facts.std))
    )
    return graph.node('Div', graph.node('Sub', facts.input_name, mean), std)
  onnx_type = graph._onnx.TensorProto
  precision = np.dtype(facts.number_type)
  black, white = facts.scale.low, facts.scale.high
  x = graph.node(
    'Cast',
    facts.input_name,
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


def _encoder_layer(graph, network, step, x, is_word=''):
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
  scores = graph.node('Div', scores, root)
  if is_word:
    is_seen = graph.node('Unsqueeze', is_word, graph.integers(1, 2))
    scores = graph.node('Where', is_seen, scores, graph.constant(np.float32(-1e30)))
  attention = graph.node('Softmax', scores, axis=-1)
  mixed = graph.node('MatMul', attention, v)
  mixed = graph.node('Transpose', mixed, perm=[0, 2, 1, 3])
  mixed = graph.node('Reshape', mixed, graph.integers(0, 0, width))
  x = norm('norm1', graph.node('Add', x, affine('output', mixed)))
  hidden = graph.node('Relu', affine('linear1', x))
  return norm('norm2', graph.node('Add', x, affine('linear2', hidden)))


def _window_conv(graph, network, step, x):
  """See `Description.window_conv`."""
  size, dims = step.options['size'], step.options['dims']
  kernel, bias = (network.array(step.layer, name) for name in ('kernel', 'bias'))
  kernel = kernel.reshape([size] * dims + [-1, kernel.shape[1]])
  return graph.node(
    'Conv',
    x,
    graph.constant(np.moveaxis(kernel, (-1, -2), (0, 1)), f'{step.layer}/kernel'),
    '' if bias is None else graph.constant(bias, f'{step.layer}/bias'),
    kernel_shape=[size] * dims,
    pads=[size // 2] * 2 * dims,
  )


def _window_pool(graph, network, step, x):
  dims = step.options['dims']
  return graph.node('MaxPool', x, kernel_shape=[2] * dims, strides=[2] * dims)


def _channels_first(graph, network, step, x):
  dims = step.options['dims']
  return graph.node('Transpose', x, perm=[0, dims + 1, *range(1, dims + 1)])


def _flatten_windows(graph, network, step, x):
  axes = [0, *range(2, step.options['dims'] + 2), 1]
  return graph.node('Flatten', graph.node('Transpose', x, perm=axes), axis=1)


def _is_word(graph, network, step, words):
  return graph.node('GreaterOrEqual', words, graph.constant(np.int64(0)))


def _embed(graph, network, step, words, is_word):
  table = network.parameter(step.layer)
  first, last = (graph.constant(np.int64(word)) for word in (0, len(table) - 1))
  rows = graph.node('Clip', words, first, last)
  vectors = graph.node('Gather', graph.constant(table, step.layer), rows, axis=0)
  return _without_filler(graph, vectors, is_word)


def _without_filler(graph, vectors, is_word):
  """[B, T, width], [B, T] -> the vectors of the words, zeros elsewhere."""
  is_real = graph.node('Unsqueeze', is_word, graph.integers(-1))
  return graph.node('Where', is_real, vectors, graph.constant(np.float32(0)))


def _add_places(graph, network, step, x):
  return graph.node('Add', x, graph.constant(network.parameter('places'), 'places'))


def _mean_of_words(graph, network, step, x, is_word):
  axis = graph.integers(1)
  vectors = _without_filler(graph, x, is_word)
  total = graph.node('ReduceSum', vectors, axis, keepdims=0)
  as_numbers = graph.node('Cast', is_word, to=graph.types.FLOAT)
  count = graph.node('ReduceSum', as_numbers, axis, keepdims=1)
  return graph.node('Div', total, graph.node('Max', count, graph.constant(_ONE)))


def _gru(graph, network, step, x, is_word=''):
  """See `Description.gru`: a loop over the steps, each as in `sequences._Gru`."""
  layer = step.layer
  width = len(network.array(layer, 'hidden_kernel'))
  of_input = _affine(graph, network, f'{layer}/input', x)
  kernel, bias = (
    graph.constant(network.array(layer, name), f'{layer}/{name}')
    for name in ('hidden_kernel', 'hidden_bias')
  )
  size = graph.node('Shape', x, start=0, end=1)
  zero = graph.zeros(graph.node('Concat', size, graph.integers(width), axis=0))
  body = graph.body()
  of_state = body.node('Add', body.node('MatMul', 'state', kernel), bias)
  reset_x, update_x, new_x = body.thirds('of_step', width)
  reset_h, update_h, new_h = body.thirds(of_state, width)
  reset = body.node('Sigmoid', body.node('Add', reset_x, reset_h))
  update = body.node('Sigmoid', body.node('Add', update_x, update_h))
  new = body.node('Tanh', body.node('Add', new_x, body.node('Mul', reset, new_h)))
  # (1 - z) n + z h
  share_of_new = body.node('Sub', body.constant(_ONE), update)
  changed = body.node(
    'Add', body.node('Mul', share_of_new, new), body.node('Mul', update, 'state')
  )
  scanned = [of_input]
  if is_word:
    is_real = body.node('Unsqueeze', 'is_real', body.integers(-1))
    changed = body.node('Where', is_real, changed, 'state')
    scanned.append(is_word)
  return graph.scan(body, changed, zero, scanned, width)


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
  'window_conv': _window_conv,
  'window_pool': _window_pool,
  'channels_first': _channels_first,
  'flatten_windows': _flatten_windows,
  'is_word': _is_word,
  'embed': _embed,
  'add_places': _add_places,
  'mean_of_words': _mean_of_words,
  'gru': _gru,
  'add': lambda graph, network, step, x, other: graph.node('Add', x, other),
  'copy': lambda graph, network, step, x: x,
}
