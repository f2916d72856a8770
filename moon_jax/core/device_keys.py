"""Random keys of the devices; each draw has its purpose, as on the host (`keys`)."""

import jax
import jax.numpy as jnp

from moon_jax.core.keys import Purpose


def step_key(seed: jax.Array, *parts: jax.Array) -> jax.Array:
  """A typed JAX key of a local step, keyed by (seed, round, client, step)."""
  key = jax.random.key(seed)
  for part in parts:
    key = jax.random.fold_in(key, part)
  return key


def seed_for(seed: jax.Array, purpose: Purpose) -> jax.Array:
  """[] int32 seed -> [] int32 seed for the draws of one purpose."""
  key = for_purpose(jax.random.key(seed), purpose)
  return jax.random.randint(key, (), 0, jnp.iinfo(jnp.int32).max)


def for_purpose(key: jax.Array, purpose: Purpose) -> jax.Array:
  """The key of one of the draws of a step."""
  return jax.random.fold_in(key, int(purpose))
