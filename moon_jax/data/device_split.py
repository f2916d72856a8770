"""The data on the device, augmented and normalised as a batch is gathered."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from moon_jax.core.types import Batch, Dataset

# (images [M, H, W, C] uint8, rows [B] int32) -> [B, H, W, C] uint8.
RowView = Callable[[jax.Array, jax.Array], jax.Array]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DeviceSplit:
  """A split of a data set in device memory.

  Attributes:
    images: [M, H, W, C] uint8, or what `Dataset.form` says.
    labels: [M] int32.
    mean: [C] float32, mean of pixel / 255; see `Dataset` for other numbers.
    std: [C] float32, standard deviation of pixel / 255, likewise.
    clients: [M] int32 in [0, N'), the user of each example of a test split, if
      accuracies of users are asked for; otherwise None.
    content: `Form.content`. The compiler knows it.
  """

  images: jax.Array
  labels: jax.Array
  mean: jax.Array
  std: jax.Array
  clients: jax.Array | None = None
  content: str = dataclasses.field(default='levels', metadata={'static': True})

  def normalised(self, rows: jax.Array, view: RowView | None = None) -> jax.Array:
    """[B] int32 -> [B, H, W, C] float32, what the network sees of these rows.

    Args:
      rows: [B] int32.
      view: function that returns the rows as they are seen; None: as they are.
    """
    pixels = self.images[rows] if view is None else view(self.images, rows)
    return normalise(pixels, self.mean, self.std, self.content)

  def batch(
    self, rows: jax.Array, num_real: jax.Array, view: RowView | None = None
  ) -> Batch:
    """Gathers, augments and normalises one batch.

    Args:
      rows: [B] int32.
      num_real: [] int32, number of leading rows that are real examples; the rest is
        filler.
      view: function that returns the rows as they are seen, such as an augmentation
        with its key bound, `functools.partial(augment, key)`. None: as they are.
    """
    return masked(self.normalised(rows, view), self.labels[rows], num_real)


def split_of(
  dataset: Dataset,
  images: np.ndarray,
  labels: np.ndarray,
  clients: np.ndarray | None = None,
) -> DeviceSplit:
  """A split of a data set, with its statistics and content; still on the host.

  Args:
    dataset: the data set.
    images: [M, ...] examples of the split.
    labels: [M] int32.
    clients: see `DeviceSplit`.
  """
  return DeviceSplit(
    images=images,
    labels=labels,
    mean=dataset.mean,
    std=dataset.std,
    clients=clients,
    content=dataset.form.content,
  )


def masked(images: jax.Array, labels: jax.Array, num_real: jax.Array) -> Batch:
  """The Batch of images [B, H, W, C] and labels [B]; see `DeviceSplit.batch`."""
  mask = (jnp.arange(labels.shape[0]) < num_real).astype(jnp.float32)
  return Batch(images, labels, mask)


def normalise(
  pixels: jax.Array, mean: jax.Array, std: jax.Array, content: str = 'levels'
) -> jax.Array:
  """Examples as the network sees them: zero mean and unit deviation, float32.

  Args:
    pixels: [B, H, W, C] uint8, or examples of any shape and type.
    mean: [C], or of an example's shape.
    std: likewise.
    content: `Form.content`: grey levels are divided by 255 first; words stay int32.
  """
  if content == 'words':
    return pixels.astype(jnp.int32)
  if content == 'numbers':
    first_axes = range(pixels.ndim - mean.ndim)
    mean, std = jnp.expand_dims(mean, first_axes), jnp.expand_dims(std, first_axes)
    return (pixels.astype(jnp.float32) - mean) / std
  mean, std = mean.reshape(1, 1, 1, -1), std.reshape(1, 1, 1, -1)
  return (pixels.astype(jnp.float32) / 255.0 - mean) / std


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainSplit:
  """The training split in device memory, and the owner of each row.

  An owner is a client. If only a cohort's examples are loaded, it is a cohort's slot.

  Attributes:
    examples: the split.
    rows_by_owner: [M] int32, all its rows, owner by owner.
    offsets: [N + 1] int32, or [K + 1] if only the cohort's examples are loaded; owner i
      has rows_by_owner[offsets[i]:offsets[i + 1]].
    position_of_row: [M] int32, where in `rows_by_owner` each row of the split stands.
    holds_cohort_only: whether only the examples of a round's cohort are loaded. The
      compiler knows it.
  """

  examples: DeviceSplit
  rows_by_owner: jax.Array
  offsets: jax.Array
  position_of_row: jax.Array
  holds_cohort_only: bool = dataclasses.field(metadata={'static': True})

  def owners(self, clients: jax.Array) -> jax.Array:
    """[K] ids of a cohort's clients -> [K] the owner in this split of each slot."""
    return jnp.arange(len(clients)) if self.holds_cohort_only else clients
