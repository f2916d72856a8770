"""Takes training examples from the clients for the server's validation."""

import numpy as np

from moon_jax.core.errors import KnobError
from moon_jax.core.keys import Purpose, host_rng
from moon_jax.core.shares import share_of
from moon_jax.core.types import Dataset
from moon_jax.data.pixels import images_of_rows


def validation_split(
  dataset: Dataset, fraction: float, seed: int
) -> tuple[Dataset, tuple[np.ndarray, np.ndarray] | None]:
  """Divides the training examples between the clients and the server.

  Args:
    dataset: the data set; its pixel statistics stay those of all training examples.
    fraction: fraction of the examples of each class, halves rounded up; 0: the
      validation examples are those that the data set reserves, if any.
    seed: seed of the draw.

  Returns:
    The data set without the validation examples, and these: images [V, H, W, C] and
    labels [V], in the order of the data; None if there are none.

  Raises:
    UsageError: the examples stay on disk, no example is left on one of the sides, or
      the data set reserves validation examples itself.
  """
  reserved = None
  if dataset.validation_images is not None:
    reserved = dataset.validation_images, dataset.validation_labels
  if not fraction:
    return dataset, reserved
  if reserved:
    raise KnobError(
      'data.validation',
      fraction,
      f'must be 0: the data have {len(reserved[1])} examples for validation.',
    )
  if dataset.stored:
    raise KnobError(
      'data.validation',
      fraction,
      f'must be 0: it needs training examples in memory, and those of '
      f'{dataset.name!r} stay on disk.',
    )
  rng = host_rng(seed, Purpose.VALIDATION)
  is_held_out = _drawn_by_class(dataset.train_labels, fraction, rng)
  num_held_out = np.count_nonzero(is_held_out)
  if num_held_out in (0, len(is_held_out)):
    raise KnobError(
      'data.validation',
      fraction,
      f'holds out {num_held_out} of {len(is_held_out)} training examples, because it '
      f'is rounded in each class: {"lower" if num_held_out else "raise"} it.',
    )
  users = dataset.train_clients
  remaining = dataset._replace(
    train_images=images_of_rows(dataset.train_images, ~is_held_out),
    train_labels=dataset.train_labels[~is_held_out],
    train_clients=None if users is None else users[~is_held_out],
  )
  return remaining, (
    images_of_rows(dataset.train_images, is_held_out),
    dataset.train_labels[is_held_out],
  )


def _drawn_by_class(
  labels: np.ndarray, fraction: float, rng: np.random.Generator
) -> np.ndarray:
  """[M] labels -> [M] bool, a random part of each class."""
  is_drawn = np.zeros(len(labels), bool)
  for label in np.unique(labels):
    rows = np.flatnonzero(labels == label)
    is_drawn[rng.permutation(rows)[: share_of(len(rows), fraction)]] = True
  return is_drawn
