"""Weights of torchvision's networks give the same logits here.

The networks are written again in PyTorch, with torchvision's names, from the papers and
torchvision's documentation.
"""

import functools

import jax
import numpy as np
import pytest

from moon_jax import models
from moon_jax.building.initial_weights import with_initial_weights
from moon_jax.core import weights
from moon_jax.core.errors import UsageError
from tests.golden import seeded
from tests.refusals import refused
from tests.selection import few

NUM_CLASSES = 5
SHAPE = (64, 64, 3)
BLOCKS = {'resnet18': (2, 2, 2, 2), 'resnet50': (3, 4, 6, 3)}
MOBILENET = (
  *((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2)),
  *((6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)),
)
WITHOUT_HEAD = {'design': 'torchvision', 'head': 'none'}


class Options:
  """What `with_initial_weights` asks of a configuration."""

  def __init__(self, model, options, weights_file):
    self.model, self.model_options = model, options
    self.weights_file = str(weights_file)


def resnet_shapes(blocks, *, bottleneck):
  """Names and shapes of the arrays of torchvision's ResNet, without the last layer."""
  shapes = {}

  def conv_norm(conv, norm, inputs, outputs, size):
    shapes[f'{conv}.weight'] = (outputs, inputs, size, size)
    for name in ('weight', 'bias', 'running_mean', 'running_var'):
      shapes[f'{norm}.{name}'] = (outputs,)
    shapes[f'{norm}.num_batches_tracked'] = ()

  conv_norm('conv1', 'bn1', 3, 64, 7)
  inputs = 64
  for stage, num_blocks in enumerate(blocks):
    width = 64 * 2**stage
    outputs = 4 * width if bottleneck else width
    sizes = (1, 3, 1) if bottleneck else (3, 3)
    for index in range(num_blocks):
      block = f'layer{stage + 1}.{index}'
      widths = [inputs, *[width] * (len(sizes) - 1), outputs]
      for number, size in enumerate(sizes, 1):
        conv, norm = f'{block}.conv{number}', f'{block}.bn{number}'
        conv_norm(conv, norm, widths[number - 1], widths[number], size)
      if index == 0 and (stage > 0 or inputs != outputs):
        shortcut = f'{block}.downsample'
        conv_norm(f'{shortcut}.0', f'{shortcut}.1', inputs, outputs, 1)
      inputs = outputs
  return shapes, inputs


@functools.cache
def state_of(model, num_classes=NUM_CLASSES):
  """A state dict of torchvision's network with pseudo-random numbers; not to change."""
  if model == 'mobilenet_v2':
    shapes, width, last = mobilenet_shapes(), 1280, 'classifier.1'
  else:
    shapes, width = resnet_shapes(BLOCKS[model], bottleneck=model == 'resnet50')
    last = 'fc'
  shapes |= {f'{last}.weight': (num_classes, width), f'{last}.bias': (num_classes,)}
  state = {}
  for name, shape in shapes.items():
    numbers = seeded.numbers(name, shape)
    if name.endswith('num_batches_tracked'):
      state[name] = np.zeros((), np.int64)
      continue
    if len(shape) > 1:
      numbers = numbers * np.sqrt(3 / np.prod(shape[1:]))
    elif name.endswith(('running_var', 'weight')):
      numbers = 1 + 0.3 * numbers
    else:
      numbers = 0.3 * numbers
    state[name] = numbers.astype(np.float32)
  return state


def mobilenet_shapes():
  shapes = {}

  def conv_norm(conv, norm, inputs, outputs, size):
    shapes[f'features.{conv}.weight'] = (outputs, inputs, size, size)
    for name in ('weight', 'bias', 'running_mean', 'running_var'):
      shapes[f'features.{norm}.{name}'] = (outputs,)

  conv_norm('0.0', '0.1', 3, 32, 3)
  inputs, number = 32, 1
  for expansion, outputs, num_blocks, _ in MOBILENET:
    for _ in range(num_blocks):
      width, block = expansion * inputs, f'{number}.conv'
      step = 0
      if expansion > 1:
        conv_norm(f'{block}.0.0', f'{block}.0.1', inputs, width, 1)
        step = 1
      conv_norm(f'{block}.{step}.0', f'{block}.{step}.1', 1, width, 3)
      conv_norm(f'{block}.{step + 1}', f'{block}.{step + 2}', width, outputs, 1)
      inputs, number = outputs, number + 1
  conv_norm('18.0', '18.1', 320, 1280, 1)
  return shapes


def torch_logits(model, state, images):
  """The logits of torchvision's network [M, Y] for images [M, H, W, C]."""
  torch = pytest.importorskip('torch', reason='no torch')
  functional = torch.nn.functional
  tensors = {name: torch.from_numpy(array) for name, array in state.items()}

  def conv(x, name, *, stride=1, padding=0, groups=1):
    kernel = tensors[f'{name}.weight']
    return functional.conv2d(x, kernel, stride=stride, padding=padding, groups=groups)

  def norm(x, name):
    names = ('running_mean', 'running_var', 'weight', 'bias')
    mean, var, scale, bias = (tensors[f'{name}.{kind}'] for kind in names)
    return functional.batch_norm(x, mean, var, scale, bias, training=False)

  def resnet(x):
    x = norm(conv(x, 'conv1', stride=2, padding=3), 'bn1').relu()
    x = functional.max_pool2d(x, kernel_size=3, stride=2, padding=1)
    for stage, num_blocks in enumerate(BLOCKS[model]):
      for index in range(num_blocks):
        block, shortcut = f'layer{stage + 1}.{index}', x
        stride = 2 if stage and index == 0 else 1
        if model == 'resnet50':
          x = norm(conv(x, f'{block}.conv1'), f'{block}.bn1').relu()
          x = conv(x, f'{block}.conv2', stride=stride, padding=1)
          x = norm(x, f'{block}.bn2').relu()
          x = norm(conv(x, f'{block}.conv3'), f'{block}.bn3')
        else:
          x = conv(x, f'{block}.conv1', stride=stride, padding=1)
          x = norm(x, f'{block}.bn1').relu()
          x = norm(conv(x, f'{block}.conv2', padding=1), f'{block}.bn2')
        if f'{block}.downsample.0.weight' in tensors:
          shortcut = conv(shortcut, f'{block}.downsample.0', stride=stride)
          shortcut = norm(shortcut, f'{block}.downsample.1')
        x = (x + shortcut).relu()
    return functional.linear(x.mean((2, 3)), tensors['fc.weight'], tensors['fc.bias'])

  def mobilenet(x):
    x = conv(x, 'features.0.0', stride=2, padding=1)
    x = functional.relu6(norm(x, 'features.0.1'))
    number = 1
    for expansion, outputs, num_blocks, first_stride in MOBILENET:
      for index in range(num_blocks):
        block, before = f'features.{number}.conv', x
        stride, step = first_stride if index == 0 else 1, 0
        if expansion > 1:
          x = functional.relu6(norm(conv(x, f'{block}.0.0'), f'{block}.0.1'))
          step = 1
        depthwise = f'{block}.{step}'
        x = conv(x, f'{depthwise}.0', stride=stride, padding=1, groups=x.shape[1])
        x = functional.relu6(norm(x, f'{depthwise}.1'))
        x = norm(conv(x, f'{block}.{step + 1}'), f'{block}.{step + 2}')
        if stride == 1 and before.shape[1] == outputs:
          x = x + before
        number += 1
    x = functional.relu6(norm(conv(x, 'features.18.0'), 'features.18.1'))
    kernel, bias = tensors['classifier.1.weight'], tensors['classifier.1.bias']
    return functional.linear(x.mean((2, 3)), kernel, bias)

  compute = mobilenet if model == 'mobilenet_v2' else resnet
  with torch.no_grad():
    return compute(torch.from_numpy(images.transpose(0, 3, 1, 2).copy())).numpy()


@functools.cache
def _network_of(model, options):
  shape = {'image_shape': SHAPE, 'num_classes': NUM_CLASSES}
  return models.make(model, **shape, **dict(options))


def network_of(model, options):
  return _network_of(model, tuple(options.items()))


def loaded(model, options, state, folder):
  """The network, with these weights from a file."""
  weights.write(folder / 'theirs.safetensors', state, {})
  network = network_of(model, options)
  return with_initial_weights(
    network, Options(model, options, folder / 'theirs.safetensors')
  )


def loaded_whole(model, folder):
  """A network that takes every weight of the state dict of `model`."""
  options = {'design': 'torchvision'}
  if model != 'mobilenet_v2':
    options['head'] = 'none'
  network = loaded(model, options, state_of(model), folder)
  assert network.weights_notice == ''
  return network


@pytest.mark.parametrize('model', few(['resnet18'], ['resnet50', 'mobilenet_v2']))
def test_the_same_logits_as_in_pytorch(model, tmp_path):
  images = np.random.default_rng(0).standard_normal((2, *SHAPE)).astype(np.float32)
  expected = torch_logits(model, state_of(model), images)
  network = loaded_whole(model, tmp_path)
  logits = jax.jit(network.apply)(network.init(0), images).logits
  largest = np.abs(expected).max()
  assert np.ptp(expected) > 0.1
  np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-5 * max(1, largest))


@pytest.mark.parametrize('model', few(['mobilenet_v2'], ['resnet18', 'resnet50']))
def test_every_weight_has_its_place(model, tmp_path):
  state = state_of(model)
  network = loaded_whole(model, tmp_path)
  variables = jax.device_get(network.init(0))
  num_weights = sum(array.size for array in state.values() if array.ndim)
  assert sum(leaf.size for leaf in jax.tree.leaves(variables)) == num_weights
  numbers = np.sort(np.concatenate([a.ravel() for a in state.values() if a.ndim]))
  ours = np.sort(np.concatenate([a.ravel() for a in jax.tree.leaves(variables)]))
  np.testing.assert_array_equal(ours, numbers)


NOTICES = [
  (
    'resnet18',
    {},
    'drawn: classifier, head_hidden, head_output, stem/conv; '
    'not used of the file: classifier, stem/conv.',
  ),
  (
    'resnet18',
    {'design': 'torchvision'},
    'drawn: classifier, head_hidden, head_output; not used of the file: classifier.',
  ),
  (
    'resnet18',
    {'head': 'none'},
    'drawn: classifier, stem/conv; not used of the file: classifier, stem/conv.',
  ),
  ('mobilenet_v2', {}, 'stage1_block1/conv1/conv, stage1_block1/conv1/norm'),
]


@pytest.mark.slow
@pytest.mark.parametrize(('model', 'options', 'notice'), NOTICES)
def test_another_head_or_stem_is_drawn_and_named(model, options, notice, tmp_path):
  options = {'design': 'small'} | options
  network = loaded(model, options, state_of(model, num_classes=9), tmp_path)
  assert notice in network.weights_notice
  variables = network.init(3)
  drawn = network_of(model, options).init(3)
  np.testing.assert_array_equal(
    variables['params']['classifier']['kernel'], drawn['params']['classifier']['kernel']
  )
  block = 'stage2_block1'
  kernel = variables['params'][block]['conv1']['conv']['kernel']
  assert np.any(kernel != drawn['params'][block]['conv1']['conv']['kernel'])


def without(state, name):
  return {key: array for key, array in state.items() if key != name}


REFUSED = [
  ('resnet18', {'norm': 'group'}, lambda state: state, "norm='group' must be batch"),
  (
    'resnet18',
    {},
    lambda state: state | {'conv1.weight': np.zeros((64, 3, 3, 3), np.float32)},
    r'stem/conv/kernel is float32 \[3, 3, 3, 64\], must be float32 \[7, 7, 3, 64\]',
  ),
  (
    'resnet18',
    {},
    lambda state: without(state, 'layer2.0.bn1.running_var'),
    'stage2_block1/conv1/norm/var is missing',
  ),
  (
    'resnet18',
    {},
    lambda state: state | {'layer1.2.conv1.weight': state['layer1.0.conv1.weight']},
    'stage1_block3/conv1/conv/kernel .* must be left out',
  ),
  (
    'resnet18',
    {},
    lambda state: state | {'features.0.weight': state['layer1.0.conv1.weight']},
    r"torchvision's resnet18 has no features\.0\.weight",
  ),
  (
    'resnet18',
    {},
    lambda state: state | {'bn1.bias': np.full(64, np.nan, np.float32)},
    'stem/norm/bias has numbers that are not finite',
  ),
  (
    'resnet18',
    {},
    lambda state: {key: array.astype(np.float16) for key, array in state.items()},
    r'mean is float16 .* must be float32',
  ),
]
SLOWLY_REFUSED = [
  ('resnet50', {}, lambda state: state, r'stage1_block1/conv3/norm/mean is missing'),
]


@pytest.mark.parametrize(
  ('model', 'options', 'change', 'words'), few(REFUSED, SLOWLY_REFUSED)
)
def test_wrong_weights_are_one_line(model, options, change, words, tmp_path):
  with refused(UsageError, rf'^--config\.initial_weights: .*{words}'):
    loaded(model, WITHOUT_HEAD | options, change(state_of('resnet18')), tmp_path)


def test_torchvisions_weights_are_for_its_networks(tmp_path):
  words = r'has names of PyTorch; .*resnet18, resnet50 or mobilenet_v2'
  with refused(UsageError, words):
    loaded('moon_cnn', {'head': 'none'}, state_of('resnet18'), tmp_path)
