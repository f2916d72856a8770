"""Clients whose images differ: the noise rises from client to client."""

import functools

import numpy as np

from moon_jax.core.keys import Purpose, host_rng
from moon_jax.data.partition.base import Dealt, Partition
from moon_jax.data.partition.quantity_skew import iid

_ROWS_AT_A_TIME = 100  # bounds the floats in memory; any number gives the same noise


def noise(
  labels: np.ndarray, *, num_clients: int, min_size: int, seed: int, noise_sigma: float
) -> Dealt:
  """Deals the examples as `iid` does; later clients see noisier images."""
  return Dealt(
    partition=iid(labels, num_clients=num_clients, min_size=min_size, seed=seed),
    image_view=functools.partial(add_noise, noise_sigma=noise_sigma, seed=seed),
  )


def add_noise(
  images: np.ndarray, partition: Partition, *, noise_sigma: float, seed: int
) -> np.ndarray:
  """Adds Gaussian noise of standard deviation sigma (i + 1) / N to client i's images.

  Noise-based feature skew of NIID-Bench (Li et al. 2022, arXiv:2102.02079): level
  sigma i / N for clients counted from 1, on the scale of pixel / 255. As in its public
  code the level is a standard deviation. That code draws noise whenever an image is
  read; here it is drawn once, and pixels are rounded and clipped to whole numbers in
  [0, 255].

  Args:
    images: [M, H, W, C] uint8; not changed.
    partition: the owner of every image.
    noise_sigma: standard deviation of the last client's noise, in [0, 1].
    seed: the run's seed. The standard normal draw of row m is a function of the seed
      and m alone; the owner only scales it.

  Returns:
    [M, H, W, C] uint8.
  """
  num_clients = len(partition.sizes)
  levels = 255 * noise_sigma * (np.arange(num_clients) + 1) / num_clients
  scale = np.empty(len(images), np.float32)
  scale[partition.indices] = np.repeat(levels, partition.sizes)
  rng = host_rng(seed, Purpose.NOISE)
  noisy = np.empty_like(images)
  for start in range(0, len(images), _ROWS_AT_A_TIME):
    rows = slice(start, start + _ROWS_AT_A_TIME)
    pixels = rng.standard_normal(images[rows].shape, np.float32)
    pixels *= scale[rows, None, None, None]
    pixels += images[rows]
    noisy[rows] = np.rint(pixels, out=pixels).clip(0, 255, out=pixels)
  return noisy
