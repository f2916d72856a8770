"""The data on the device: uint8, normalised when a batch is gathered."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

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

  def batch(self, rows: jax.Array, num_real: jax.Array) -> Batch:
    """Gathers and normalises one batch: (pixel / 255 - mean) / std.

    Args:
      rows: [B] int32.
      num_real: [] int32, the leading rows that are real examples; the rest is filler.
    """
    images = self.images[rows].astype(jnp.float32) / 255.0
    mean, std = self.mean.reshape(1, 1, 1, -1), self.std.reshape(1, 1, 1, -1)
    return Batch(
      images=(images - mean) / std,
      labels=self.labels[rows],
      mask=(jnp.arange(rows.shape[0]) < num_real).astype(jnp.float32),
    )


def put(
  images: np.ndarray, labels: np.ndarray, mean: np.ndarray, std: np.ndarray
) -> DeviceSplit:
  """Copies one split of a Dataset to the default device, once."""
  return jax.device_put(DeviceSplit(images, labels, mean, std))
