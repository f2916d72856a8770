"""Training examples that stay on disk: each round brings the examples of its cohort.

In a round the device holds an ordinary training split, of the cohort alone:

  examples         slot 0's, slot 1's, ..., and filler up to the size of the largest
                   cohort
  rows_by_owner    all of them, in this order
  offsets          where the rows of each slot begin; in a split in memory, those of
                   each client
"""

import dataclasses
import functools

import numpy as np
from jax.sharding import Mesh

from moon_jax.core.types import Dataset
from moon_jax.data.device_split import DeviceSplit, TrainSplit
from moon_jax.platform import devices


@dataclasses.dataclass(frozen=True)
class Stream:
  """Reads the examples of a cohort.

  Attributes:
    data: the data set, whose `stored` has the examples.
    cohort_size: K.
  """

  data: Dataset
  cohort_size: int

  @functools.cached_property
  def capacity(self) -> int:
    """Number of examples of the K largest clients."""
    sizes = self.data.stored.sizes
    largest = np.partition(sizes, len(sizes) - self.cohort_size)[-self.cohort_size :]
    return int(largest.sum())

  @property
  def device_images(self) -> np.ndarray:
    """Stands for a device's images, of this round and the next; takes no memory."""
    shape = (2 * self.capacity, *self.data.train_images.shape[1:])
    return np.broadcast_to(np.uint8(0), shape)

  def rows(self, clients: np.ndarray) -> list[np.ndarray]:
    """Clients [K] -> the rows of each one's examples in the split of their round."""
    ends = np.cumsum(self.data.stored.sizes[clients])
    return np.split(np.arange(ends[-1]), ends[:-1])

  def split_shape(self, mesh: Mesh) -> TrainSplit:
    """The split of any round, as ShapeDtypeStructs."""
    return devices.shapes(self._empty(), mesh)

  def load_split(
    self, clients: np.ndarray, slots: np.ndarray, mesh: Mesh
  ) -> TrainSplit:
    """The split of a round, on the devices.

    Args:
      clients: [K] the cohort.
      slots: slots whose examples are read; the examples of other slots, which lanes of
        another process train, are zeros here.
      mesh: the devices.
    """
    split, stored = self._empty(), self.data.stored
    split.offsets[1:] = np.cumsum(stored.sizes[clients])
    contents = stored.read(stored.records[clients[slots]])
    for slot, (images, labels) in zip(slots, contents, strict=True):
      rows = slice(split.offsets[slot], split.offsets[slot + 1])
      split.examples.images[rows] = images
      split.examples.labels[rows] = labels
    return devices.replicate(split, mesh)

  def _empty(self):
    size, data = self.capacity, self.data
    images = np.zeros((size, *data.train_images.shape[1:]), np.uint8)
    labels = np.zeros(size, np.int32)
    return TrainSplit(
      examples=DeviceSplit(images=images, labels=labels, mean=data.mean, std=data.std),
      rows_by_owner=np.arange(size, dtype=np.int32),
      offsets=np.zeros(self.cohort_size + 1, np.int32),
      position_of_row=np.arange(size, dtype=np.int32),
      holds_cohort_only=True,
    )
