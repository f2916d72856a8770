"""The steps of each network of the catalog.

A new network needs its steps in `STEPS`, and its files for PyTorch and ONNX follow. The
order is that of the network's `__call__` in `moon_jax/models/`, in evaluation mode.
"""

from collections.abc import Callable, Mapping

from moon_jax.core.types import PyTree
from moon_jax.exchange.description import Description
from moon_jax.models import mobilenet, resnet
from moon_jax.models.layers import GROUPS


def describe(
  model: str,
  options: Mapping[str, int | float | str],
  variables: PyTree,
  *,
  of_pictures: bool = True,
) -> Description:
  """The steps of a network of the catalog.

  Args:
    model: its name, a key of STEPS.
    options: its knobs.
    variables: its weights.
    of_pictures: whether the examples are pictures, [B, C, H, W].
  """
  network = Description(variables, of_pictures=of_pictures)
  STEPS[model](network, options)
  return network


def _mlp(network, options):
  network.flatten()
  _dense_relu(network, 'encoder')
  _head_and_classifier(network)


def _moon_cnn(network, options):
  _pooled_convolutions(network, options['norm'])
  _dense_relu(network, 'fc1')
  _dense_relu(network, 'fc2')
  _head_and_classifier(network)


def _dco_cnn(network, options):
  _pooled_convolutions(network, options['norm'])
  _dense_relu(network, 'fc1')
  network.dense('fc2')
  network.copy_to('representation')


def _cnn_transformer(network, options):
  def conv(name):
    network.conv(name, padding=1)
    network.batch_norm(f'{name}_norm')
    network.relu()

  for first, second in (('conv1', 'conv2'), ('conv3', 'conv4')):
    conv(first)
    conv(second)
    network.max_pool()
  network.dropout(options['dropout'])
  conv('conv5')
  conv('conv6')
  network.max_pool()
  network.tokens()
  for index in range(options['layers']):
    network.encoder_layer(
      f'encoder{index + 1}', heads=options['heads'], dropout=options['dropout']
    )
  network.flatten_tokens()
  _dense_relu(network, 'fc1')
  _dense_relu(network, 'fc2')
  _head_and_classifier(network)


def _resnet(blocks, *, bottleneck):
  def describe(network, options):
    def conv_norm(layer, *, stride=1, padding=0, source='x'):
      network.conv(f'{layer}/conv', stride=stride, padding=padding, source=source)
      if options['norm'] == 'group':
        network.group_norm(f'{layer}/norm', groups=GROUPS, source=source)
      else:
        network.batch_norm(f'{layer}/norm', source=source)

    def block(layer, stride):
      network.copy_to('shortcut')
      if bottleneck:
        conv_norm(f'{layer}/conv1')
        network.relu()
        conv_norm(f'{layer}/conv2', stride=stride, padding=1)
        network.relu()
        conv_norm(f'{layer}/conv3')
      else:
        conv_norm(f'{layer}/conv1', stride=stride, padding=1)
        network.relu()
        conv_norm(f'{layer}/conv2', padding=1)
      if network.has(f'{layer}/shortcut'):
        conv_norm(f'{layer}/shortcut', stride=stride, source='shortcut')
      network.add('shortcut')
      network.relu()

    if options['design'] == 'torchvision':
      conv_norm('stem', stride=2, padding=3)
      network.relu()
      network.max_pool(size=3, stride=2, padding=1)
    else:
      conv_norm('stem', padding=1)
      network.relu()
    for stage, num_blocks in enumerate(blocks):
      for index in range(num_blocks):
        stride = 2 if stage > 0 and index == 0 else 1
        block(f'stage{stage + 1}_block{index + 1}', stride)
    network.mean_of_pixels()
    _head_and_classifier(network)

  return describe


def _mobilenet_v2(network, options):
  is_torchvisions = options['design'] == 'torchvision'
  relu = network.relu6 if is_torchvisions else network.relu
  stages = mobilenet.TORCHVISION_STAGES if is_torchvisions else mobilenet.STAGES

  def conv_norm(layer, *, stride=1, padding=0, depthwise=False, source='x'):
    network.conv(
      f'{layer}/conv',
      stride=stride,
      padding=padding,
      depthwise=depthwise,
      source=source,
    )
    network.batch_norm(f'{layer}/norm', source=source)

  def block(layer, *, stride, is_first):
    has_shortcut = stride == 1 and not (is_torchvisions and is_first)
    if has_shortcut:
      network.copy_to('shortcut')
    if network.has(f'{layer}/conv1'):
      conv_norm(f'{layer}/conv1')
      relu()
    conv_norm(f'{layer}/conv2', stride=stride, padding=1, depthwise=True)
    relu()
    conv_norm(f'{layer}/conv3')
    if not has_shortcut:
      return
    if network.has(f'{layer}/shortcut'):
      conv_norm(f'{layer}/shortcut', source='shortcut')
    network.add('shortcut')

  conv_norm('stem', stride=2 if is_torchvisions else 1, padding=1)
  relu()
  for stage, (_, _, num_blocks, stage_stride) in enumerate(stages):
    for index in range(num_blocks):
      stride = stage_stride if index == 0 else 1
      name = f'stage{stage + 1}_block{index + 1}'
      block(name, stride=stride, is_first=index == 0)
  conv_norm('last')
  relu()
  network.mean_of_pixels()
  _head_and_classifier(network, mobilenet.DROPOUT if is_torchvisions else 0)


def _cnn_1d(network, options):
  _windows(
    network,
    size=options['kernel'],
    dimensions=1,
    num_convolutions=2,
    norm=options['norm'],
  )


def _cnn_3d(network, options):
  _windows(network, size=3, dimensions=3, num_convolutions=3, norm=options['norm'])


def _windows(network, *, size, dimensions, num_convolutions, norm):
  network.channels_first(dimensions)
  for number in range(1, num_convolutions + 1):
    network.window_conv(f'conv{number}', size=size, dimensions=dimensions)
    _normalised(network, norm, number, dimensions=dimensions)
    network.window_pool(dimensions)
    network.relu()
  network.flatten_windows(dimensions)
  _dense_relu(network, 'fc1')
  _head_and_classifier(network)


def _gru(network, options):
  of_words = network.has_parameter('embedding_table')
  if of_words:
    network.embed()
  network.gru('gru', of_words=of_words)
  _head_and_classifier(network)


def _transformer(network, options):
  network.embed()
  network.add_places()
  for index in range(options['layers']):
    network.encoder_layer(
      f'encoder{index + 1}',
      heads=options['heads'],
      dropout=options['dropout'],
      of_words=True,
    )
  network.mean_of_words()
  _head_and_classifier(network)


def _pooled_convolutions(network, norm):
  for number in (1, 2):
    network.conv(f'conv{number}')
    _normalised(network, norm, number, dimensions=2)
    network.max_pool()
    network.relu()
  network.flatten()


def _normalised(network, norm, number, *, dimensions):
  """`models.layers.normalised`."""
  if norm == 'batch':
    network.batch_norm(f'norm{number}', dimensions=dimensions)
  elif norm == 'group':
    network.group_norm(f'norm{number}', groups=GROUPS)


def _dense_relu(network, layer):
  network.dense(layer)
  network.relu()


def _head_and_classifier(network, dropout=0):
  """`models.layers.head_and_classifier`."""
  if network.has('head_hidden'):
    _dense_relu(network, 'head_hidden')
    network.dense('head_output')
  network.copy_to('representation')
  network.dropout(dropout)
  network.dense('classifier')


STEPS: dict[str, Callable[..., None]] = {
  'mlp': _mlp,
  'moon_cnn': _moon_cnn,
  'tutorial_cnn': _moon_cnn,
  'dco_cnn': _dco_cnn,
  'cnn_transformer': _cnn_transformer,
  'resnet18': _resnet(resnet.BLOCKS['resnet18'], bottleneck=False),
  'resnet50': _resnet(resnet.BLOCKS['resnet50'], bottleneck=True),
  'mobilenet_v2': _mobilenet_v2,
  'cnn_1d': _cnn_1d,
  'cnn_3d': _cnn_3d,
  'gru': _gru,
  'transformer': _transformer,
}
