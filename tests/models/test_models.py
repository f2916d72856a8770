"""The networks: sizes by hand, values by the reference, convolutions by the library.

That they compute what PyTorch's layers compute is in test_parity.py.
"""

import functools
import itertools
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moon_jax import catalog, config, models
from moon_jax.core import tree
from moon_jax.core.errors import UsageError
from moon_jax.core.types import Form
from moon_jax.models import convolution, cpu_kernels, layers, mobilenet, resnet
from moon_jax.models.cnn import DcoCnn, MoonCnn
from moon_jax.models.convolution import FORMS, direct, forms, pooling
from tests import world
from tests.golden import seeded
from tests.selection import few

OPTIONS = {
  'cnn_transformer': {'layers': 6, 'heads': 8, 'feedforward': 2048, 'dropout': 0.1},
  'mlp': {'width': 16, 'representation': 8},
}

NORMALIZED = ('cnn_transformer', 'resnet18', 'resnet50', 'mobilenet_v2')

# Network -> numbers that the encoder hands to the projection head; 16 tokens of 256.
FEATURES = {'mlp': 16, 'moon_cnn': 84, 'tutorial_cnn': 84, 'dco_cnn': 512}
FEATURES |= {'cnn_transformer': 16 * 256, 'resnet18': 512, 'resnet50': 2048}
FEATURES |= {'mobilenet_v2': 1280}

# Biases and the scales and shifts of batch normalisation: 1, or 2, a channel.
BY_HAND = {
  # encoder 64*16 + 16 = 1,040; head 16*16 + 16 = 272 and 16*8 + 8 = 136;
  # classifier 8*4 + 4 = 36
  ('mlp', (8, 8, 1), 4): 1_040 + 272 + 136 + 36,
  # conv1 5*5*3*6 + 6 = 456       conv2 5*5*6*16 + 16 = 2,416
  # fc1 400*120 + 120 = 48,120    fc2 120*84 + 84 = 10,164
  # head 84*84 + 84 = 7,140 and 84*256 + 256 = 21,760
  # classifier 256*10 + 10 = 2,570; together the paper's 92,626
  ('moon_cnn', (32, 32, 3), 10): 92_626,
  # conv1 5*5*1*6 + 6 = 156 instead of 456; fc1 256*120 + 120 = 30,840 of 48,120
  ('moon_cnn', (28, 28, 1), 10): 92_626 - 300 - 17_280,
  # MOONFlower's network has the layers of moon_cnn.
  ('tutorial_cnn', (32, 32, 3), 10): 92_626,
  # conv1 5*5*3*32 + 32 = 2,432      conv2 5*5*32*64 + 64 = 51,264
  # fc1 5*5*64*512 + 512 = 819,712   fc2 512*10 + 10 = 5,130
  ('dco_cnn', (32, 32, 3), 10): 2_432 + 51_264 + 819_712 + 5_130,
  # conv1 5*5*1*32 + 32 = 832        fc1 4*4*64*512 + 512 = 524,800
  ('dco_cnn', (28, 28, 1), 10): 832 + 51_264 + 524_800 + 5_130,
  # Convolutions: 9 * (3*32 + 32*64 + 64*128 + 128*128 + 128*256 + 256*256) = 1,125,216;
  # bias, scale and shift of 32 + 64 + 128 + 128 + 256 + 256 = 864 channels: 2,592.
  # An encoder layer: qkv 256*768 + 768 = 197,376, output 256*256 + 256 = 65,792,
  # 256*2048 + 2048 = 526,336, 2048*256 + 256 = 524,544, two norms 4 * 256 = 1,024;
  # together 1,315,072.
  # fc1 16*256*256 + 256 = 1,048,832; fc2 65,792; classifier 256*10 + 10 = 2,570.
  ('cnn_transformer', (32, 32, 3), 10): sum(
    (1_125_216, 2_592, 6 * 1_315_072, 1_048_832, 65_792, 2_570)
  ),
  # Stem 9*3*64 + 2*64 = 1,856. Two 3x3 convolutions and two norms a block:
  # stage 1: 4 * (9*64*64 + 2*64) = 147,968
  # stage 2: 9*64*128 + 3 * 9*128*128 + 4 * 2*128 = 517,120, shortcut 64*128 + 2*128
  # stages 3 and 4 likewise: 2,066,432 and 8,261,632, shortcuts 33,280 and 132,096.
  # Head 512*512 + 512 = 262,656, 512*256 + 256 = 131,328; classifier 2,570.
  ('resnet18', (32, 32, 3), 10): sum(
    (1_856, 147_968, 517_120, 8_448, 2_066_432, 33_280, 8_261_632, 132_096)
  )
  + (262_656 + 131_328 + 2_570),
  # torchvision's ResNet-50 has 25,557,032, with 2048*1000 + 1000 of a classifier and
  # 7*7*3*64 of a stem; ours has 3*3*3*64. With MOON's head for CIFAR-100 these are the
  # 28.25 M of the paper.
  ('resnet50', (32, 32, 3), 100): sum(
    (25_557_032 - 2_049_000, 1_728 - 9_408, 2049 * 2048, 2049 * 256, 257 * 100)
  ),
}
# 64 pixels a side are 60, 30, 26, 13: fc1 has 13*13*16 inputs instead of 5*5*16.
BY_HAND[('moon_cnn', (64, 64, 3), 10)] = 92_626 + (2_704 - 400) * 120
# A block with C channels in, tC between and D out has tC (C + 9 + D) weights, three
# norms with 4 tC + 2 D, and C D + 2 D in a shortcut if C and D differ at stride 1.
# 32 -> 16, t 1: 32*57 + 128 + 32 = 1,984, shortcut 544.
# 16 -> 24, t 6: 5,136 + 432; 24 -> 24: 8,832. 24 -> 32: 10,000; 32 -> 32: 2 * 14,848.
# 32 -> 64: 21,056; 64 -> 64: 3 * 54,272. 64 -> 96: 66,624 + 6,336; 96: 2 * 118,272.
# 96 -> 160: 155,264; 160 -> 160: 2 * 320,000. 160 -> 320: 473,920 + 51,840.
# Stem 864 + 64, last 320*1280 + 2560, classifier 1280*10 + 10.
_BLOCKS = 2_528 + 5_568 + 8_832 + 10_000 + 29_696 + 21_056 + 162_816 + 72_960 + 236_544
_BLOCKS += 155_264 + 640_000 + 525_760
BY_HAND[('mobilenet_v2', (32, 32, 3), 10)] = _BLOCKS + 928 + 412_160 + 12_810


def test_a_network_without_head_classifies_its_features():
  # NIID-Bench's CNN: 92,626 without the head's 7,140 + 21,760, its classifier on 84.
  # Group normalisation has as many scales and shifts as batch normalisation.
  # A convolution has no bias then: 6 + 16 biases fewer, 2 * (6 + 16) numbers more.
  cases = {
    'moon_cnn': 92_626 - 28_900 - 2_570 + 850 + 22,
    'resnet18': 11_565_386 - 262_656 - 131_328 - 2_570 + 5_130,
  }
  for name, size in cases.items():
    shape = (32, 32, 3)
    network = models.make(
      name, image_shape=shape, num_classes=10, head='none', norm='group'
    )
    assert tree.num_parameters(network.shapes['params']) == size
    assert set(network.shapes) == {'params'}
    outputs = jax.eval_shape(network.apply, network.shapes, jnp.zeros((2, *shape)))
    assert outputs.representation.shape == (2, FEATURES[name])


def test_the_widths_of_a_head_are_its_knobs():
  for name, features in (('moon_cnn', 84), ('resnet18', 512)):
    network = models.make(
      name, image_shape=(28, 28, 1), num_classes=3, head_width=11, representation=7
    )
    params = network.shapes['params']
    shapes = [params[f'head_{layer}']['kernel'].shape for layer in ('hidden', 'output')]
    assert shapes == [(features, 11), (11, 7)]
    assert params['classifier']['kernel'].shape == (7, 3)


DEEPEST = [('resnet50', (32, 32, 3), 100), ('mobilenet_v2', (32, 32, 3), 10)]


@pytest.mark.parametrize(
  ('name', 'image_shape', 'num_classes'),
  few([case for case in BY_HAND if case not in DEEPEST], DEEPEST),
)
def test_sizes_by_hand(name, image_shape, num_classes):
  network = make_network(name, image_shape, num_classes)
  size = BY_HAND[name, image_shape, num_classes]
  assert tree.num_parameters(network.shapes['params']) == size

  def both_modes(variables, key):
    images = jnp.zeros((5, *image_shape))
    trained, state = network.train(variables, images, jnp.ones(5), key)
    return network.apply(variables, images), trained, state

  evaluated, trained, state = jax.eval_shape(
    both_modes, network.shapes, jax.random.key(0)
  )
  width = {'dco_cnn': num_classes, 'mlp': 8, 'mobilenet_v2': 1280}.get(name, 256)
  assert evaluated.representation.shape == (5, width)
  assert evaluated.logits.shape == (5, num_classes)
  assert evaluated.features.shape == (5, FEATURES[name])
  assert trained == evaluated
  assert {'params': network.shapes['params']} | state == network.shapes
  assert bool(state) == (name in NORMALIZED)


# What a network is for -> the shape of an example.
EXAMPLES = {'of_pictures': (32, 32, 3), 'of_words': (4,), 'of_signals': (16, 2)}
EXAMPLES |= {'of_volumes': (8, 8, 8, 1)}


def every_design():
  """(Network, value of its knob `design`); '' for a network without the knob."""
  for name in catalog.names('model'):
    design = catalog.part('model', name).knobs.get('design')
    for value in design.bound.words if design else ('',):
      yield name, value


@pytest.mark.parametrize(
  ('name', 'design'),
  few(
    [('gru', ''), ('resnet18', 'torchvision')],
    every_design(),
  ),
)
def test_every_network_has_its_gradient_in_a_compiled_program(name, design):
  part = catalog.part('model', name)
  flat = config.flatten(config.defaults()) | {'model': name}
  options = catalog.options('model', flat)
  if design:
    options['design'] = design
  shape = next(shape for trait, shape in EXAMPLES.items() if part.has(trait))
  form = Form(content='words', vocabulary=world.NUM_WORDS)
  if not part.has('vocabulary'):
    form = None
  network = models.make(name, image_shape=shape, num_classes=4, form=form, **options)
  examples = jax.ShapeDtypeStruct((2, *shape), network.input_dtype)

  def sum_of_logits(params, variables, examples):
    trained = variables | {'params': params}
    outputs, _ = network.train(trained, examples, jnp.ones(2), jax.random.key(0))
    return jnp.sum(outputs.logits)

  params = network.shapes['params']
  gradient = jax.jit(jax.grad(sum_of_logits))
  assert jax.eval_shape(gradient, params, network.shapes, examples) == params


def make_network(name, shape, num_classes):
  options = OPTIONS.get(name, {})
  return models.make(name, image_shape=shape, num_classes=num_classes, **options)


# 32 features are enough for winograd's tiles; bottlenecks have strides and BatchNorm;
# mobilenet has depthwise convolutions.
FORMED = {
  'dco_cnn': (functools.partial(DcoCnn, num_classes=4), (6, 28, 28, 1)),
  'bottlenecks': (
    functools.partial(resnet.ResNet, 4, blocks=(1, 1), bottleneck=True),
    (12, 8, 8, 3),
  ),
  'mobilenet': (
    functools.partial(mobilenet.MobileNetV2, 4, stages=((1, 16, 2, 1), (6, 24, 1, 2))),
    (12, 8, 8, 3),
  ),
}


OTHER_FORMS = sorted(set(FORMS) - {'library'})


@pytest.mark.parametrize(
  ('network', 'form'),
  few(
    [
      *[('dco_cnn', form) for form in OTHER_FORMS],
      ('mobilenet', 'direct'),
    ],
    itertools.product(FORMED, OTHER_FORMS),
  ),
)
def test_the_form_changes_neither_shapes_nor_outputs(network, form):
  make_module, shape = FORMED[network]
  module = make_module(convolution=form)
  images = np.float32(seeded.numbers('images', shape))
  boxed = jax.eval_shape(module.init, jax.random.key(0), images)
  variables = seeded_variables(nn.unbox(boxed))
  library = module.clone(convolution='library')
  outputs, expected = (
    jax.jit(network.apply)(variables, images) for network in (module, library)
  )
  assert world.largest_difference(outputs, expected) < 1e-4


def seeded_variables(shapes):
  """Variables from a formula, whose biases and statistics are not trivial."""

  def fill(path, leaf):
    name = '/'.join(part.key for part in path)
    return np.float32(seeded.leaf(name, leaf.shape))

  return jax.tree_util.tree_map_with_path(fill, shapes)


def one_layer():
  """The CNN-Transformer with one encoder layer."""
  knobs = {'layers': 1, 'heads': 4, 'feedforward': 24, 'dropout': 0.5}
  shape = (32, 32, 3)
  return models.make('cnn_transformer', image_shape=shape, num_classes=4, **knobs)


@functools.cache
def small_transformer():
  """The network's variables, images, and both modes compiled."""
  network = one_layer()
  images = np.float32(seeded.numbers('images', (3, 32, 32, 3)))
  variables = seeded_variables(network.shapes)
  return variables, images, jax.jit(network.apply), jax.jit(network.train)


def test_dropout_follows_the_key_and_only_in_training():
  variables, images, apply, train = small_transformer()
  mask = jnp.ones(3)
  first, repeated, other = (
    train(variables, images, mask, jax.random.key(seed))[0].logits for seed in (0, 0, 1)
  )
  np.testing.assert_array_equal(first, repeated)
  assert np.abs(first - other).max() > 1e-3
  logits = apply(variables, images).logits
  np.testing.assert_array_equal(logits, apply(variables, images).logits)
  assert np.abs(first - logits).max() > 1e-3


def test_the_places_of_dropout():
  network, shapes = one_layer(), []

  def record(function, args, kwargs, context):
    if isinstance(context.module, layers.Dropout):
      assert not kwargs['deterministic']
      shapes.append(args[0].shape)
    return function(*args, **kwargs)

  images, mask = jnp.zeros((3, 32, 32, 3)), jnp.ones(3)
  with nn.intercept_methods(record):
    jax.eval_shape(network.train, network.shapes, images, mask, jax.random.key(0))
  # Dropout follows the second block of convolutions, and in the encoder the attention's
  # weights, its output, the hidden units and their output.
  encoder = [(3, 4, 16, 16), (3, 16, 256), (3, 16, 24), (3, 16, 256)]
  assert shapes == [(128, 8, 8, 3), *encoder]


def test_filler_changes_neither_real_outputs_nor_statistics():
  variables, images, _, train = small_transformer()
  mask, key = jnp.array([1.0, 1.0, 0.0]), jax.random.key(0)
  outputs, state = train(variables, images, mask, key)
  others = images.copy()
  others[2] = 7.0
  changed, changed_state = train(variables, others, mask, key)
  np.testing.assert_array_equal(changed.logits[:2], outputs.logits[:2])
  assert world.largest_difference(changed_state, state) == 0
  assert np.abs(changed.logits[2] - outputs.logits[2]).max() > 1e-3


@pytest.mark.parametrize('module', [MoonCnn, DcoCnn])
def test_filler_does_not_reach_the_batch_normalisation_of_a_cnn(module):
  network = models.of_module(
    module(num_classes=4, convolution='auto_on_cpu', norm='batch'), (16, 16, 1)
  )
  variables, key = network.init(0), jax.random.key(0)
  train = jax.jit(network.train)
  images = np.random.default_rng(0).normal(size=(5, 16, 16, 1)).astype(np.float32)
  real, real_statistics = train(variables, images[:3], np.ones(3, np.float32), key)
  images[3:] *= 9.0
  filled, statistics = train(variables, images, np.float32([1, 1, 1, 0, 0]), key)
  assert world.largest_difference(filled.logits[:3], real.logits) < 1e-5
  assert world.largest_difference(statistics, real_statistics) < 1e-5
  unmasked, _ = train(variables, images, np.ones(5, np.float32), key)
  assert world.largest_difference(unmasked.logits[:3], real.logits) > 1e-2


REFUSED = (
  ('moon_cnn', (30, 32, 3), '9x10'),
  ('dco_cnn', (8, 8, 1), '0x0'),
  ('cnn_transformer', (28, 28, 1), '7x7'),
)


@pytest.mark.parametrize(('name', 'shape', 'pixels'), REFUSED)
def test_images_that_do_not_fit_are_refused(name, shape, pixels):
  problem = f'{shape[0]}x{shape[1]} pixels: it would pool {pixels} pixels by 2x2. Use '
  with pytest.raises(UsageError, match=re.escape(problem)):
    make_network(name, shape, 10)


@pytest.mark.parametrize('norm', ['batch', 'group'])
@pytest.mark.parametrize('side', [8, 12])
def test_images_that_do_not_fit_are_refused_with_a_norm_too(norm, side):
  with pytest.raises(UsageError, match=f'{side}x{side} pixels: it would pool 0x0'):
    models.make('moon_cnn', image_shape=(side, side, 1), num_classes=10, norm=norm)


def test_channels_that_two_groups_cannot_share_are_refused():
  with pytest.raises(UsageError, match='2 groups, and 5 channels cannot be divided'):
    models.make(
      'cnn_1d',
      image_shape=(32, 3),
      num_classes=4,
      norm='group',
      channels=5,
      kernel=5,
      width=8,
      representation=8,
    )


FITTING = (
  ('moon_cnn', (16, 96, 3), 1 * 21 * 16),
  ('dco_cnn', (96, 20, 1), 21 * 2 * 64),
  ('cnn_transformer', (8, 96, 3), 1 * 12 * 256),
)


@pytest.mark.parametrize(('name', 'shape', 'inputs'), FITTING)
def test_all_images_fit_that_can_be_pooled(name, shape, inputs):
  assert (
    make_network(name, shape, 10).shapes['params']['fc1']['kernel'].shape[0] == inputs
  )


NO_PADDING = ((0, 0), (0, 0))
# (height, width, channels), (kernel height, kernel width), stride, padding
SHAPES = (
  ((7, 12, 2), (5, 2), 1, NO_PADDING),  # 3 x 11 outputs: no tile divides them
  ((7, 16, 2), (3, 3), 1, ((1, 1), (1, 1))),
  ((9, 15, 2), (3, 3), 2, ((0, 1), (1, 1))),
  ((8, 14, 2), (1, 1), 2, NO_PADDING),
)


def normal(*shape, seed=0):
  """Standard normal float64 numbers."""
  return np.random.default_rng(seed).normal(size=shape)


def assert_same_values_and_gradients(mine, theirs, x, w):
  """Compares two functions of images and a kernel, in float64."""

  def both_forms(x, w):
    value, pull = jax.vjp(mine, x, w)
    expected, expected_pull = jax.vjp(theirs, x, w)
    direction = normal(*value.shape, seed=2)
    return (value, *pull(direction)), (expected, *expected_pull(direction))

  with jax.enable_x64(True):
    for array, expected in zip(*jax.jit(both_forms)(x, w), strict=True):
      assert array.dtype == jnp.float64
      np.testing.assert_allclose(array, expected, atol=1e-11)


def images_and_kernel(image, kernel):
  """[C, H, W, 4] for (height, width, channels), [h, w, C, 6] for (height, width)."""
  return normal(image[-1], *image[:-1], 4), normal(*kernel, image[-1], 6, seed=1)


def batch_last(form, *, stride, padding):
  """A form as a function of images [C, H, W, B], whatever its layout."""
  form = FORMS[form]

  def convolve(x, w):
    # `arranged` takes [B, H, W, C], so the axes are swapped before and after it.
    x = form.arranged(jnp.swapaxes(x, 0, -1))
    y = form.convolve(x, w, stride=stride, padding=padding)
    return jnp.swapaxes(form.arranged(y), 0, -1)

  return convolve


@pytest.mark.parametrize('form', ['banded', 'direct'])
@pytest.mark.parametrize(('image', 'kernel', 'stride', 'padding'), SHAPES)
def test_convolution_forms_equal_the_library(form, image, kernel, stride, padding):
  mine = batch_last(form, stride=stride, padding=padding)
  theirs = functools.partial(forms.library, stride=stride, padding=padding)
  assert_same_values_and_gradients(mine, theirs, *images_and_kernel(image, kernel))


@pytest.mark.parametrize('form', FORMS)
def test_an_odd_number_of_outputs_cannot_be_pooled(form):
  x, w = np.zeros((1, 9, 8, 2), np.float32), np.zeros((3, 3, 1, 1), np.float32)
  x = FORMS[form].arranged(np.swapaxes(x, 0, -1))  # 7 x 6 outputs
  bias = np.zeros(1, np.float32)
  with pytest.raises(ValueError, match='7x6'):
    jax.eval_shape(lambda *a: FORMS[form].pooled(*a, NO_PADDING), x, w, bias)


# Pixels of a 2 x 2 square -> the one that gets the gradient; ReLU passes none at 0.
WINNERS = {'1333': 1, '3333': 0, '0133': 2, '3012': 0, '1223': 3, '0000': None}


@pytest.mark.parametrize('form', FORMS)
def test_the_first_of_equals_gets_the_gradient_as_in_pytorch(form):
  form, kernel = FORMS[form], jnp.ones((1, 1, 1, 1))
  squares = np.array([[float(digit) for digit in square] for square in WINNERS])
  x = form.arranged(np.float32(squares).reshape(-1, 2, 2, 1))

  @jax.jit
  @jax.grad
  def gradient(x):
    return 6 * form.pooled(x, kernel, jnp.zeros(1), NO_PADDING).sum()

  gradients = np.reshape(form.arranged(gradient(x)), squares.shape)
  expected = [[6.0 * (n == first) for n in range(4)] for first in WINNERS.values()]
  assert gradients.tolist() == expected


@pytest.mark.parametrize(
  ('image', 'kernel', 'padding'),
  [
    ((10, 10, 1), (3, 3), NO_PADDING),  # 8 x 8 outputs: tiles of 2 x 4
    ((8, 8, 2), (4, 2), ((1, 0), (2, 1))),  # 6 x 10 outputs: tiles of 2 x 2
  ],
)
def test_pooled_convolution_equals_its_steps_in_turn(image, kernel, padding):
  bias = normal(6, seed=3)

  def in_turn(x, w):
    y = forms.library(x, w, stride=1, padding=padding)
    return nn.relu(pooling.max_pool(y) + bias.reshape(-1, 1, 1, 1))

  def mine(x, w):
    return FORMS['banded'].pooled(x, w, bias, padding)

  assert_same_values_and_gradients(mine, in_turn, *images_and_kernel(image, kernel))


@pytest.mark.parametrize(
  ('size', 'features', 'form', 'on_cpu', 'on_gpu'),
  [
    (5, 6, 'banded', 'fused', 'banded'),
    (5, 32, 'winograd', 'fused', 'banded'),
    (3, 64, 'winograd', 'winograd', 'library'),
  ],
)
def test_auto_is_the_form_of_the_table(size, features, form, on_cpu, on_gpu):
  choose = functools.partial(convolution.choose, size=size, features=features)
  assert choose('auto') is FORMS[form]
  assert choose('auto_on_cpu') is FORMS[on_cpu]
  assert choose('auto_on_gpu') is FORMS[on_gpu]


def test_auto_does_without_a_compiler(monkeypatch):
  monkeypatch.setattr(cpu_kernels, 'fault', lambda: 'there is none')
  choose = functools.partial(convolution.choose, 'auto_on_cpu', size=5)
  assert choose(features=6) is FORMS['banded']
  assert choose(features=32) is FORMS['winograd']


def test_direct_has_no_other_convolution_than_the_one_a_loop_is_fast_at():
  x, w = np.zeros((1, 2, 8, 8, 3), np.float32), np.zeros((1, 3, 3, 3, 4), np.float32)

  def step(x, w):
    convolve = functools.partial(direct.convolve, stride=1, padding=NO_PADDING)
    gradients = jax.grad(lambda x, w: jnp.sum(convolve(x, w)), (0, 1))(x, w)
    return sum(map(jnp.sum, gradients))

  lanes = jax.jit(jax.vmap(step)).lower(x, w).as_text()
  kinds = set(re.findall(r'dim_numbers = (\S.*?->\[.*?\])', lanes))
  assert kinds == {'[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]'}
  assert 'feature_group_count = 1 ' in lanes
