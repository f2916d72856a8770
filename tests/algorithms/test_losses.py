"""The loss terms against numbers worked by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moon_jax.algorithms import losses

X, Y = np.array([[3.0, 0.0]], np.float32), np.array([[0.0, 0.5]], np.float32)
ZERO = np.zeros_like(X)


@jax.jit
def parts_and_gradients(z, z_global, z_previous, *, exists, temperature, mask):
  def loss(z, z_global, z_previous):
    parts = losses.model_contrastive(
      z=z,
      z_global=z_global,
      z_previous=z_previous,
      exists=exists,
      temperature=temperature,
      mask=mask,
    )
    return parts['contrastive_loss'], parts

  differentiate = jax.value_and_grad(loss, (0, 1, 2), has_aux=True)
  (_, parts), gradients = differentiate(z, z_global, z_previous)
  return parts | {'gradients': gradients}


def contrastive(z, z_global, *previous, exists=(True,), temperature=0.5, mask=None):
  """Parts and gradients of the loss; without a mask all examples are real."""
  return parts_and_gradients(
    z,
    z_global,
    np.stack(previous),
    exists=np.array(exists),
    temperature=np.float32(temperature),
    mask=np.float32([1] * len(z) if mask is None else mask),
  )


def loss(*representations, **options):
  return contrastive(*representations, **options)['contrastive_loss']


def test_cross_entropy_of_two_examples():
  # Logits (log 3, 0): softmax = (3/4, 1/4), so label 0 costs log(4/3) = 0.287682.
  # Logits (0, 0): softmax = (1/2, 1/2), label 1 costs log 2 = 0.693147.
  logits, labels = np.float32([[np.log(3), 0], [0, 0]]), np.array([0, 1])
  cross_entropy = jax.jit(losses.cross_entropy)
  for mask, expected in (
    ([1, 1], (0.287682 + 0.693147) / 2),
    ([1, 0], 0.287682),
    ([0, 0], 0),
  ):
    mean = cross_entropy(logits, labels, np.float32(mask))
    np.testing.assert_allclose(mean, expected, rtol=1e-5)
  # The content of filler does not matter.
  logits[1] = np.nan, np.inf
  mean = cross_entropy(logits, labels, np.float32([1, 0]))
  np.testing.assert_allclose(mean, 0.287682, rtol=1e-5)


def test_contrastive_prefers_the_global_model():
  # z along z_global, z_previous orthogonal, tau = 0.5: positive = 1 / 0.5 = 2,
  # negative = 0, loss = log(1 + exp(0 - 2)) = 0.126928
  np.testing.assert_allclose(loss(X, X, Y), 0.126928, rtol=1e-5)
  # The roles swapped: log(1 + exp(2)) = 2.126928
  np.testing.assert_allclose(loss(X, Y, X), 2.126928, rtol=1e-5)
  # tau = 2: positive = 1 / 2, loss = log(1 + exp(-0.5)) = 0.474077
  np.testing.assert_allclose(loss(X, X, Y, temperature=2.0), 0.474077, rtol=1e-5)
  assert loss(X, Y, X, temperature=1e-3) == pytest.approx(1000)
  # The mean is over real examples: the second one's loss would be 2.126928.
  z, z_global, z_previous = map(np.concatenate, ((X, Y), (X, X), (Y, Y)))
  first_example = loss(z, z_global, z_previous, mask=[1, 0])
  np.testing.assert_allclose(first_example, 0.126928, rtol=1e-5)
  assert loss(X, X, Y, mask=[0]) == 0


def test_contrastive_equals_the_papers_form():
  rng = np.random.default_rng(0)
  z, z_global, z_previous = rng.normal(size=(3, 5, 4)).astype(np.float32)
  tau = 0.7

  def cosine(a, b):
    return np.sum(a * b, 1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)

  positive = np.exp(cosine(z, z_global) / tau)
  negative = np.exp(cosine(z, z_previous) / tau)
  expected = np.mean(-np.log(positive / (positive + negative)))
  mean = loss(z, z_global, z_previous, temperature=tau)
  np.testing.assert_allclose(mean, expected, rtol=1e-5)


@pytest.mark.parametrize(
  ('exists', 'expected'),
  [
    # Similarities 1, 0 and -1 at tau = 0.5: log(e^2 + 1 + e^-2) - 2 = 0.142932
    ([True, True], 0.142932),
    ([False, True], 0.018150),  # log(e^2 + e^-2) - 2
    ([False, False], 0.0),
  ],
)
def test_contrastive_with_several_negatives(exists, expected):
  np.testing.assert_allclose(loss(X, X, Y, -X, exists=exists), expected, rtol=1e-4)
  # These vectors are off the axes, where a similarity has a slope.
  parts = contrastive(X + Y, X, Y + 1, 1 - X, exists=exists)
  z_gradient, _, previous_gradient = map(np.asarray, parts['gradients'])
  assert np.isfinite(z_gradient).all()
  assert np.isfinite(previous_gradient).all()
  assert (previous_gradient != 0).any(axis=(1, 2)).tolist() == exists
  assert (z_gradient != 0).any() == any(exists)


@pytest.mark.parametrize(
  ('exists', 'positive', 'negative', 'contrasted'),
  [
    # Two examples, at angles of 0 and 90 degrees to z_global, and a filler at 180:
    # (1 + 0) / 2. To the first previous 90 and 0, to the second 180 and 90 degrees:
    # (0 + 1) / 2 and (-1 + 0) / 2.
    ([True, True], 0.5, 0.0, 1.0),
    ([True, False], 0.5, 0.5, 1.0),
    ([False, True], 0.5, -0.5, 1.0),
    ([False, False], 0.0, 0.0, 0.0),
  ],
)
def test_cosines_are_means_over_what_counts(exists, positive, negative, contrasted):
  z = np.concatenate([X, Y, -X])
  z_global, first, second = (np.repeat(x, 3, axis=0) for x in (X, Y, -X))
  parts = contrastive(z, z_global, first, second, exists=exists, mask=[1, 1, 0])
  np.testing.assert_allclose(parts['positive_cosine'], positive, atol=1e-6)
  np.testing.assert_allclose(parts['negative_cosine'], negative, atol=1e-6)
  np.testing.assert_allclose(parts['contrasted_fraction'], contrasted, atol=1e-6)


def test_gradient_at_a_zero_representation_is_zero_or_finite():
  for z, z_global, z_previous in ((ZERO, X, Y), (X, ZERO, Y), (X, X, ZERO)):
    gradients = contrastive(z, z_global, z_previous)['gradients']
    assert all(np.isfinite(gradient).all() for gradient in gradients)
    assert z is not ZERO or not np.any(gradients[0])


def test_cosine_of_known_angles():
  a = np.float32([[1, 0], [1, 1], [2, 0], [0, 0]])
  b = np.float32([[0, 5], [3, 0], [-1, 0], [1, 0]])
  cosines = jax.jit(losses.cosine_similarity)(a, b)
  np.testing.assert_allclose(cosines, [0, 0.5**0.5, -1, 0], atol=1e-6)


def test_proximal_is_half_the_squared_distance():
  # (1 + 4 + 4) / 2 = 4.5
  params = {'a': jnp.array([1.0, 2.0]), 'b': jnp.array([[3.0]])}
  received = {'a': jnp.array([0.0, 0.0]), 'b': jnp.array([[1.0]])}
  assert losses.proximal(params, received) == 4.5
