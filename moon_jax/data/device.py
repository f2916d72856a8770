"""The data on the device: uint8, normalised when a batch is gathered."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from moon_jax.types import Batch


class DeviceSplit(NamedTuple):
  """A split of a data set in device memory.

  Attributes:
    images: [M, H, W, C] uint8.
    labels: [M] int32.
    mean: [C] float32 of pixel / 255.
    std: [C] float32 of pixel / 255.
  """

  images: jax.Array
  labels: jax.Array
  mean: jax.Array
  std: jax.Array

  def normalised(self, rows: jax.Array) -> jax.Array:
    """[B] int32 -> [B, H, W, C] float32, (pixel / 255 - mean) / std."""
    images = self.images[rows].astype(jnp.float32) / 255.0
    mean, std = self.mean.reshape(1, 1, 1, -1), self.std.reshape(1, 1, 1, -1)
    return (images - mean) / std

  def batch(self, rows: jax.Array, num_real: jax.Array) -> Batch:
    """Gathers and normalises one batch.

    Args:
      rows: [B] int32.
      num_real: [] int32, the leading rows that are real examples; the rest is filler.
    """
    return Batch(
      images=self.normalised(rows),
      labels=self.labels[rows],
      mask=(jnp.arange(rows.shape[0]) < num_real).astype(jnp.float32),
    )


class TrainSplit(NamedTuple):
  """The training split in device memory, and who owns which row of it.

  Attributes:
    examples: the split.
    rows: [M] int32, all its rows, client by client.
    offsets: [N + 1] int32, client i owns rows[offsets[i]:offsets[i + 1]].
  """

  examples: DeviceSplit
  rows: jax.Array
  offsets: jax.Array
