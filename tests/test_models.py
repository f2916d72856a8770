"""The networks: sizes by hand, values by the reference, convolutions by the library."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moon_jax import models, tree
from moon_jax.keys import Purpose, device_key
from moon_jax.models import convolution, layers
from tests import reference, world

FORMS = convolution.FORMS


def initial(name, image_shape, num_classes, **options):
  network = models.make(
    name, image_shape=image_shape, num_classes=num_classes, **options
  )
  return network.init(device_key(0, Purpose.INIT))


def test_moon_cnn_has_the_papers_92626_parameters_on_cifar10():
  # conv1 5*5*3*6 + 6 = 456       conv2 5*5*6*16 + 16 = 2,416
  # fc1 400*120 + 120 = 48,120    fc2 120*84 + 84 = 10,164
  # head 84*84 + 84 = 7,140 and 84*256 + 256 = 21,760
  # classifier 256*10 + 10 = 2,570
  assert tree.num_parameters(initial('moon_cnn', (32, 32, 3), 10)) == 92_626


def test_moon_cnn_on_28_pixels():
  # conv1 5*5*1*6 + 6 = 156 instead of 456; fc1 256*120 + 120 = 30,840 of 48,120
  parameters = tree.num_parameters(initial('moon_cnn', (28, 28, 1), 10))
  assert parameters == 92_626 - 300 - 17_280


def test_mlp_parameters():
  # encoder 64*16 + 16 = 1,040; head 16*16 + 16 = 272 and 16*8 + 8 = 136;
  # classifier 8*4 + 4 = 36
  parameters = initial('mlp', (8, 8, 1), 4, width=16, representation=8)
  assert tree.num_parameters(parameters) == 1_040 + 272 + 136 + 36


@pytest.mark.parametrize('shape', [(8, 8, 1), (32, 28, 3), (64, 64, 3)])
def test_moon_cnn_refuses_other_images(shape):
  with pytest.raises(models.ModelError, match=r"'moon_cnn' needs images of 28x28 or"):
    models.make('moon_cnn', image_shape=shape, num_classes=10)


@pytest.mark.parametrize('name', world.IMAGE_SHAPES)
def test_forward_equals_the_reference(name):
  _, images, _ = world.data(name)
  variables = world.variables(name)
  outputs = world.network(name).apply(variables, images)
  expected = getattr(reference, name)(variables['params'], images)
  np.testing.assert_allclose(outputs.representation, expected[0], atol=1e-5)
  np.testing.assert_allclose(outputs.logits, expected[1], atol=1e-5)


def test_initial_weights_fill_pytorchs_range():
  # U(-1/sqrt(fan_in), 1/sqrt(fan_in)) has the standard deviation limit / sqrt(3).
  params = initial('moon_cnn', (32, 32, 3), 10)['params']
  for layer, fan_in in (('conv1', 75), ('conv2', 150), ('fc1', 400), ('fc2', 120)):
    limit = fan_in**-0.5
    for leaf in params[layer].values():
      assert np.abs(leaf).max() <= limit
    kernel = np.asarray(params[layer]['kernel'])
    np.testing.assert_allclose(kernel.std(), limit / 3**0.5, rtol=0.1)
    assert np.abs(kernel.mean()) < limit / 10
    assert np.asarray(params[layer]['bias']).std() > limit / 10


NO_PADDING = ((0, 0), (0, 0))
# (height, width, channels), (kernel height, kernel width), stride, padding
SHAPES = (
  ((9, 7, 2), (3, 3), 1, NO_PADDING),
  ((6, 8, 1), (5, 2), 1, NO_PADDING),
  ((5, 5, 3), (5, 5), 1, NO_PADDING),
  ((6, 13, 2), (3, 3), 1, NO_PADDING),  # 11 columns: no tile divides them
  ((7, 16, 2), (3, 3), 1, ((1, 1), (1, 1))),
  ((9, 15, 2), (3, 3), 2, ((0, 1), (1, 1))),
  ((8, 14, 2), (1, 1), 2, NO_PADDING),
)


def normal(*shape, seed=0):
  """Standard normal float64 numbers."""
  return np.random.default_rng(seed).normal(size=shape)


def assert_same_values_and_gradients(mine, theirs, image, kernel):
  """Compares two functions of an image [C, H, W, B] and a kernel, in float64."""

  def both(x, w):
    value, pull = jax.vjp(mine, x, w)
    expected, expected_pull = jax.vjp(theirs, x, w)
    direction = normal(*value.shape, seed=2)
    return (value, *pull(direction)), (expected, *expected_pull(direction))

  with jax.enable_x64(True):
    x = normal(image[-1], *image[:-1], 4)
    w = normal(*kernel, image[-1], 6, seed=1)
    for found, expected in zip(*jax.jit(both)(x, w), strict=True):
      assert found.dtype == jnp.float64
      np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize('form', ['im2col', 'banded'])
@pytest.mark.parametrize(('image', 'kernel', 'stride', 'padding'), SHAPES)
def test_convolution_forms_equal_the_library(form, image, kernel, stride, padding):
  options = {'stride': stride, 'padding': padding}
  mine = functools.partial(FORMS[form], **options)
  theirs = functools.partial(convolution.library, **options)
  assert_same_values_and_gradients(mine, theirs, image, kernel)


@pytest.mark.parametrize('form', FORMS)
def test_convolution_forms_under_vmap_over_weights(form):
  options = {'stride': 1, 'padding': NO_PADDING}
  x = normal(3, 2, 8, 8, 5).astype(np.float32)
  w = normal(3, 3, 3, 2, 4, seed=1).astype(np.float32)
  pairs = zip(x, w, strict=True)
  looped = jnp.stack([convolution.library(*pair, **options) for pair in pairs])
  batched = jax.vmap(functools.partial(FORMS[form], **options))(x, w)
  np.testing.assert_allclose(batched, looped, atol=1e-5)


@pytest.mark.parametrize('padding', ['SAME', 'VALID'])
@pytest.mark.parametrize(('side', 'size', 'stride'), [(8, 3, 1), (8, 3, 2), (7, 5, 2)])
def test_conv_layer_pads_as_the_library_does(side, size, stride, padding):
  layer = layers.Conv(4, size, form='banded', stride=stride, padding=padding)
  x = normal(3, side, side, 2).astype(np.float32)
  variables = layer.init(jax.random.key(1), x)
  dimensions = ('CHWN', 'HWIO', 'CHWN')
  expected = jax.lax.conv_general_dilated(
    x,
    variables['params']['kernel'],
    (stride, stride),
    padding,
    dimension_numbers=dimensions,
  )
  expected += variables['params']['bias'].reshape(-1, 1, 1, 1)
  np.testing.assert_allclose(layer.apply(variables, x), expected, atol=1e-5)


@pytest.mark.parametrize('form', FORMS)
def test_the_form_changes_neither_weights_nor_outputs(form):
  shape = world.IMAGE_SHAPES['moon_cnn']
  network = models.make(
    'moon_cnn', image_shape=shape, num_classes=world.NUM_CLASSES, convolution=form
  )
  variables = network.init(device_key(0, Purpose.INIT))
  assert world.largest_difference(variables, world.variables('moon_cnn')) == 0
  images = world.data('moon_cnn')[1][:5]
  expected = world.network('moon_cnn').apply(variables, images)
  assert world.largest_difference(network.apply(variables, images), expected) < 1e-5


def test_max_pool_equals_reduce_window_and_its_gradient():
  x = normal(3, 6, 4, 2).astype(np.float32)
  direction = normal(3, 3, 2, 2, seed=1).astype(np.float32)

  def by_reduce_window(x):
    return reference.max_pool(x.transpose(3, 1, 2, 0)).transpose(3, 1, 2, 0)

  mine, pull = jax.vjp(convolution.max_pool, x)
  theirs, expected_pull = jax.vjp(by_reduce_window, x)
  np.testing.assert_array_equal(mine, theirs)
  np.testing.assert_allclose(pull(direction)[0], expected_pull(direction)[0], atol=1e-6)


@pytest.mark.parametrize('form', FORMS)
def test_an_odd_number_of_outputs_cannot_be_pooled(form):
  x, w = jnp.zeros((1, 9, 8, 2)), jnp.zeros((3, 3, 1, 1))  # 7 x 6 outputs
  with pytest.raises(ValueError, match='7x6'):
    FORMS[form](x, w, stride=1, padding=NO_PADDING, pool=True)


def test_max_pool_gives_the_gradient_to_the_first_of_equals_as_pytorch_does():
  # The only square is 1 2 / 2 2.
  x = jnp.array([1.0, 2.0, 2.0, 2.0]).reshape(1, 2, 2, 1)
  gradient = jax.grad(lambda x: 6 * convolution.max_pool(x).sum())(x)
  assert gradient.ravel().tolist() == [0, 6, 0, 0]


@pytest.mark.parametrize('form', ['im2col', 'banded'])
@pytest.mark.parametrize(
  ('image', 'stride', 'padding'),
  [
    ((8, 12, 2), 1, NO_PADDING),  # 6 x 10 outputs: tiles of 2 x 2
    ((10, 10, 1), 1, NO_PADDING),  # 8 x 8 outputs: tiles of 2 x 4
    ((8, 8, 2), 2, ((1, 0), (1, 0))),
  ],
)
def test_pooled_convolution_equals_convolution_then_pool(form, image, stride, padding):
  options = {'stride': stride, 'padding': padding}

  def in_turn(x, w):
    return convolution.max_pool(convolution.library(x, w, **options))

  mine = functools.partial(FORMS[form], **options, pool=True)
  assert_same_values_and_gradients(mine, in_turn, image, (3, 3))


def test_a_different_seed_gives_different_weights():
  make = functools.partial(device_key, purpose=Purpose.INIT)
  first, second = (world.network().init(make(seed)) for seed in (0, 1))
  assert world.largest_difference(first, second) > 0.01
