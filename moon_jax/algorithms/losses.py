"""The terms that local training minimises. Pure."""

import chex
import jax
import jax.numpy as jnp
import optax

from moon_jax.core import tree
from moon_jax.core.types import PyTree


def masked_mean(values: jax.Array, mask: jax.Array) -> jax.Array:
  """[B], [B] -> [] mean of the values whose mask is 1; 0 if there are none."""
  chex.assert_equal_shape([values, mask])
  real = jnp.where(mask > 0, values, 0.0)
  return jnp.sum(real) / jnp.maximum(jnp.sum(mask), 1.0)


def cross_entropy(logits: jax.Array, labels: jax.Array, mask: jax.Array) -> jax.Array:
  """Softmax cross entropy, the supervised loss.

  Args:
    logits: [B, Y].
    labels: [B] int32 in [0, Y).
    mask: [B] 1.0 for a real example, 0.0 for filler.

  Returns:
    [] mean over the real examples, in nats.
  """
  chex.assert_rank(logits, 2)
  chex.assert_equal_shape([labels, mask])
  example_losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
  return masked_mean(example_losses, mask)


def accuracy(logits: jax.Array, labels: jax.Array, mask: jax.Array) -> jax.Array:
  """[] share in [0, 1] of the real examples whose highest logit is their label's.

  The arguments are those of `cross_entropy`. It is recorded, and is no term of a loss.
  """
  is_correct = jnp.argmax(logits, axis=-1) == labels
  return masked_mean(is_correct.astype(mask.dtype), mask)


def model_contrastive(
  *,
  z: jax.Array,
  z_global: jax.Array,
  z_previous: jax.Array,
  exists: jax.Array,
  temperature: jax.Array,
  mask: jax.Array,
) -> dict[str, jax.Array]:
  """Pulls the representation to the global model's, away from the client's last ones.

  l_con = -log(exp(sim(z, z_global) / tau)
               / (exp(sim(z, z_global) / tau) + sum_p exp(sim(z, z_previous_p) / tau)))

  (Li et al. 2021, eq. 3, arXiv:2103.16257, with any number of negatives.)
  -log(e^a / (e^a + e^b)) is written as softplus(b - a), so that a small temperature
  cannot overflow.

  Args:
    z: [B, D] representation under the weights being trained.
    z_global: [B, D] representation under the weights received this round.
    z_previous: [M, B, D] representation under the weights that the client trained last.
    exists: [M] bool, which of the previous weights count; if none counts, the loss is
      0.
    temperature: [] tau > 0, no unit.
    mask: [B] 1.0 for a real example, 0.0 for filler.

  Returns:
    contrastive_loss: [] mean over the real examples, in nats; 0 if no negative counts.
    positive_cosine: [] mean of sim(z, z_global) over the real examples; 0 likewise.
    negative_cosine: [] mean of sim(z, z_previous_p) over the real examples and the
      negatives that count; 0 likewise.
    contrasted_fraction: [] 1.0 if a negative counts, otherwise 0.0.
  """
  chex.assert_rank(z, 2)
  chex.assert_equal_shape([z, z_global])
  chex.assert_shape(z_previous, (*exists.shape, *z.shape))
  chex.assert_shape(mask, z.shape[:1])
  positive = cosine_similarity(z, z_global)
  negatives = cosine_similarity(z[None], z_previous)
  # Finite, because the gradient of a sum over nothing but e^-inf is NaN.
  lowest = jnp.finfo(negatives.dtype).min
  scores = jnp.where(exists[:, None], negatives / temperature, lowest)
  excess = jax.nn.logsumexp(scores, axis=0) - positive / temperature
  contrasted = jnp.any(exists).astype(mask.dtype)
  per_negative = jax.vmap(masked_mean, in_axes=(0, None))(negatives, mask)
  return {
    'contrastive_loss': masked_mean(jax.nn.softplus(excess), mask),
    'positive_cosine': contrasted * masked_mean(positive, mask),
    'negative_cosine': masked_mean(per_negative, exists.astype(mask.dtype)),
    'contrasted_fraction': contrasted,
  }


def cosine_similarity(a: jax.Array, b: jax.Array, eps: float = 1e-8) -> jax.Array:
  """[..., D], [..., D] -> [...]; 0 with gradient 0 where a norm is at most eps."""

  def inverse_norm(x):
    square = jnp.sum(jnp.square(x), axis=-1)
    safe = square > eps**2
    # Guarded inside too: the branch not taken must not give a NaN gradient.
    return jnp.where(safe, jax.lax.rsqrt(jnp.where(safe, square, 1.0)), 0.0)

  # Scaling the sum, not the vectors: the gradient then needs no further sums.
  return jnp.sum(a * b, axis=-1) * inverse_norm(a) * inverse_norm(b)


def proximal(params: PyTree, received: PyTree) -> jax.Array:
  """1/2 ||w - w_received||^2 over all parameters, no unit.

  (Li et al. 2020, eq. 2 without mu, arXiv:1812.06127.)
  """
  chex.assert_trees_all_equal_shapes(params, received)
  return 0.5 * tree.squared_norm(tree.subtract(params, received))
