"""Takes training examples from the clients for the server's validation."""

import numpy as np

from moon_jax.core.errors import UsageError
from moon_jax.core.keys import Purpose, host_rng
from moon_jax.core.types import Dataset


def validation_split(
  data: Dataset, share: float, seed: int
) -> tuple[Dataset, tuple[np.ndarray, np.ndarray] | None]:
  """Divides the training examples between the clients and the server.

  Args:
    data: the data set; its pixel statistics stay those of all training examples.
    share: share of the examples of each class, rounded to a whole number; 0: the
      validation examples are those that the data set reserves, if any.
    seed: seed of the draw.

  Returns:
    The data set without the validation examples, and these: images [V, H, W, C] and
    labels [V], in the order of the data; None if there are none.

  Raises:
    UsageError: the examples stay on disk, no example is left on one of the sides, or
      the data set reserves validation examples itself.
  """
  own = data.validation_images, data.validation_labels
  if not share:
    return data, None if own[0] is None else own
  flag = f'--config.data.validation={share:g}'
  if own[0] is not None:
    raise UsageError(
      f'{flag}: the data have {len(own[1])} examples for validation. Set it to 0.'
    )
  if data.stored:
    raise UsageError(
      f'{flag} needs training examples that are in memory: those of '
      f'{data.name!r} stay on disk. Set it to 0.'
    )
  held = _by_class(data.train_labels, share, host_rng(seed, Purpose.VALIDATION))
  if held.all() or not held.any():
    what = 'all' if held.all() else 'none'
    raise UsageError(
      f'{flag} holds out {what} of {len(held)} training examples, because it is '
      f'rounded in each class: {"lower" if held.all() else "raise"} it.'
    )
  rest = {
    name: values[~held]
    for name in ('train_images', 'train_labels', 'train_clients')
    if (values := getattr(data, name)) is not None
  }
  return data._replace(**rest), (data.train_images[held], data.train_labels[held])


def _by_class(labels: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
  """[M] labels -> [M] bool, a random share of each class."""
  held = np.zeros(len(labels), bool)
  for label in np.unique(labels):
    rows = np.flatnonzero(labels == label)
    held[rng.permutation(rows)[: int(share * len(rows) + 0.5)]] = True
  return held
