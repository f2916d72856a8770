"""The loss terms against numbers worked by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moon_jax.algorithms import losses

ONES = jnp.ones(1)
X = jnp.array([[3.0, 0.0]])
Y = jnp.array([[0.0, 0.5]])


def contrastive(z, z_global, z_previous, temperature=0.5, mask=ONES):
  """The loss, with one negative."""
  return losses.model_contrastive(
    z=z,
    z_global=z_global,
    z_previous=z_previous[None],
    exists=jnp.array([True]),
    temperature=temperature,
    mask=mask,
  )['contrastive_loss']


def test_cross_entropy_of_two_examples():
  # Logits (log 3, 0): softmax = (3/4, 1/4), so label 0 costs log(4/3) = 0.287682.
  # Logits (0, 0): softmax = (1/2, 1/2), label 1 costs log 2 = 0.693147.
  logits = jnp.array([[jnp.log(3.0), 0.0], [0.0, 0.0]])
  labels = jnp.array([0, 1])
  both = losses.cross_entropy(logits, labels, jnp.ones(2))
  first = losses.cross_entropy(logits, labels, jnp.array([1.0, 0.0]))
  np.testing.assert_allclose(both, (0.287682 + 0.693147) / 2, rtol=1e-5)
  np.testing.assert_allclose(first, 0.287682, rtol=1e-5)


def test_filler_of_any_content_changes_nothing():
  logits = jnp.array([[1.0, 0.0], [jnp.nan, jnp.inf]])
  mask = jnp.array([1.0, 0.0])
  value = losses.cross_entropy(logits, jnp.array([1, 0]), mask)
  # -log(1 / (1 + e)) = log(1 + e) = 1.313262
  np.testing.assert_allclose(value, 1.313262, rtol=1e-5)


def test_no_real_example_is_zero():
  assert losses.cross_entropy(jnp.ones((2, 3)), jnp.zeros(2, int), jnp.zeros(2)) == 0
  assert contrastive(X, X, Y, mask=jnp.zeros(1)) == 0


def test_contrastive_prefers_the_global_model():
  # z along z_global, z_previous orthogonal, tau = 0.5: positive = 1 / 0.5 = 2,
  # negative = 0, loss = log(1 + exp(0 - 2)) = 0.126928
  np.testing.assert_allclose(contrastive(X, X, Y), 0.126928, rtol=1e-5)
  # The roles swapped: log(1 + exp(2)) = 2.126928
  np.testing.assert_allclose(contrastive(X, Y, X), 2.126928, rtol=1e-5)


def test_contrastive_divides_by_the_temperature():
  # tau = 2: positive = 1 / 2, loss = log(1 + exp(-0.5)) = 0.474077
  np.testing.assert_allclose(contrastive(X, X, Y, temperature=2.0), 0.474077, rtol=1e-5)


def test_contrastive_equals_the_papers_form():
  z, z_global, z_previous = jax.random.normal(jax.random.key(0), (3, 5, 4))
  tau = 0.7

  def cosine(a, b):
    return jnp.sum(a * b, 1) / jnp.linalg.norm(a, axis=1) / jnp.linalg.norm(b, axis=1)

  positive = jnp.exp(cosine(z, z_global) / tau)
  negative = jnp.exp(cosine(z, z_previous) / tau)
  expected = jnp.mean(-jnp.log(positive / (positive + negative)))
  value = contrastive(z, z_global, z_previous, temperature=tau, mask=jnp.ones(5))
  np.testing.assert_allclose(value, expected, rtol=1e-5)


def test_contrastive_mean_is_over_real_examples():
  z, other = jnp.concatenate([X, X, X]), jnp.concatenate([Y, Y, Y])
  mixed = z.at[1].set(Y[0])  # its loss alone would be 2.126928
  mask = jnp.array([1.0, 0.0, 1.0])
  value = contrastive(mixed, z, other, mask=mask)
  np.testing.assert_allclose(value, 0.126928, rtol=1e-5)


@pytest.mark.parametrize(
  ('exists', 'expected'),
  [
    # Similarities 1, 0 and -1 at tau = 0.5: log(e^2 + 1 + e^-2) - 2 = 0.142932
    ([True, True], 0.142932),
    ([True, False], 0.126928),
    ([False, True], 0.018150),  # log(e^2 + e^-2) - 2
    ([False, False], 0.0),
  ],
)
def test_contrastive_with_several_negatives(exists, expected):
  def loss(z, previous):
    return losses.model_contrastive(
      z=z,
      z_global=X,
      z_previous=previous,
      exists=jnp.array(exists),
      temperature=0.5,
      mask=ONES,
    )['contrastive_loss']

  previous = jnp.stack([Y, -X])
  np.testing.assert_allclose(loss(X, previous), expected, rtol=1e-4)
  # Off the axes, where a similarity has a slope.
  gradients = jax.grad(loss, argnums=(0, 1))(X + Y, previous + 1.0)
  assert all(jnp.isfinite(gradient).all() for gradient in gradients)
  assert (gradients[1] != 0).any(axis=(1, 2)).tolist() == exists
  assert (gradients[0] != 0).any() == any(exists)


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
  found = losses.model_contrastive(
    z=jnp.concatenate([X, Y, -X]),
    z_global=jnp.concatenate([X, X, X]),
    z_previous=jnp.stack([jnp.concatenate([Y, Y, Y]), jnp.concatenate([-X, -X, -X])]),
    exists=jnp.array(exists),
    temperature=0.5,
    mask=jnp.array([1.0, 1.0, 0.0]),
  )
  names = ('positive_cosine', 'negative_cosine', 'contrasted_fraction')
  values = [found[name] for name in names]
  np.testing.assert_allclose(values, [positive, negative, contrasted], atol=1e-6)


def test_contrastive_survives_a_tiny_temperature():
  assert contrastive(X, Y, X, temperature=1e-3) == pytest.approx(1000)


@pytest.mark.parametrize('argument', [0, 1, 2])
def test_gradient_at_a_zero_representation_is_zero_or_finite(argument):
  zero = jnp.zeros((1, 2))
  arguments = [X, X, Y]
  arguments[argument] = zero
  gradient = jax.grad(contrastive)(*arguments)
  assert jnp.isfinite(gradient).all()
  if argument == 0:
    np.testing.assert_array_equal(gradient, zero)


def test_cosine_of_known_angles():
  a = jnp.array([[1.0, 0.0], [1.0, 1.0], [2.0, 0.0], [0.0, 0.0]])
  b = jnp.array([[0.0, 5.0], [3.0, 0.0], [-1.0, 0.0], [1.0, 0.0]])
  expected = [0.0, 0.5**0.5, -1.0, 0.0]
  np.testing.assert_allclose(losses.cosine_similarity(a, b), expected, atol=1e-6)


def test_proximal_is_half_the_squared_distance():
  # (1 + 4 + 4) / 2 = 4.5
  params = {'a': jnp.array([1.0, 2.0]), 'b': jnp.array([[3.0]])}
  received = {'a': jnp.array([0.0, 0.0]), 'b': jnp.array([[1.0]])}
  assert losses.proximal(params, received) == 4.5
