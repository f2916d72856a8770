"""The networks by name; each maps images to (representation, logits)."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from moon_jax.errors import UsageError
from moon_jax.models.mlp import Mlp
from moon_jax.models.moon_cnn import MoonCnn
from moon_jax.types import Outputs, PyTree

MODELS = {'mlp': Mlp, 'moon_cnn': MoonCnn}

_CONVOLUTIONAL = ('moon_cnn',)
_DEFAULT_FORM = 'banded'  # docs/performance.md; not yet measured on a GPU
_SIDES = {'moon_cnn': (28, 32)}


class ModelError(UsageError):
  """The network does not fit the images."""


class Network(NamedTuple):
  """A network as two pure functions.

  Attributes:
    init: key -> variables.
    apply: (variables, images [B, H, W, C] float32) -> Outputs.
  """

  init: Callable[[jax.Array], PyTree]
  apply: Callable[[PyTree, jax.Array], Outputs]


def make(
  name: str,
  *,
  image_shape: tuple[int, int, int],
  num_classes: int,
  convolution: str = 'auto',
  **options: int,
) -> Network:
  """Builds a network for images of one shape.

  Args:
    name: a key of MODELS.
    image_shape: (H, W, C).
    num_classes: Y.
    convolution: 'auto' or a key of convolution.FORMS; it does not change the values.
    **options: the knobs of the model's group.

  Raises:
    ModelError: the images have a shape that the network cannot take.
  """
  height, width, _ = image_shape
  sides = _SIDES.get(name)
  if sides and (height != width or height not in sides):
    raise ModelError(
      f'--config.model={name!r} needs images of '
      f'{" or ".join(f"{s}x{s}" for s in sides)} pixels, the data has '
      f'{height}x{width}; use --config.model=mlp.'
    )
  if name in _CONVOLUTIONAL:
    options['convolution'] = _DEFAULT_FORM if convolution == 'auto' else convolution
  module = MODELS[name](num_classes=num_classes, **options)

  def init(key):
    return module.init(key, jnp.zeros((1, *image_shape)))

  return Network(init, module.apply)
