"""The first weights of a network, from a file: ours, or torchvision's."""

import os
import pathlib
from collections.abc import Mapping
from typing import NamedTuple

import jax
import numpy as np

from moon_jax import models
from moon_jax.building.network import NetworkOptions
from moon_jax.core import files, weights
from moon_jax.core.errors import KnobError, UsageError, printable
from moon_jax.core.flags import flag, option
from moon_jax.core.output_files import any_of
from moon_jax.core.paths import expand
from moon_jax.data.data_errors import listed
from moon_jax.exchange import torchvision_weights

# Layers of heads in our networks, which a file for another head may have.
_HEADS = ('head_hidden', 'head_output', 'classifier')


class _Fitted(NamedTuple):
  """The arrays of a file that fit a network.

  Attributes:
    arrays: path of the variable -> array.
    drawn_layers: layers of the network that the file does not have in this shape.
    unused_layers: layers of the file that the network does not have in this shape.
  """

  arrays: dict[str, np.ndarray]
  drawn_layers: list[str]
  unused_layers: list[str]


def with_initial_weights(
  network: models.Network, options: NetworkOptions
) -> models.Network:
  """The network; if a file of weights is named, it starts from these weights.

  The file has the names of our variables, or of torchvision's network. It must have
  what computes the features. The layers of the head are drawn if the file has them not,
  or in another shape; `weights_notice` says so.

  Raises:
    UsageError: the file is missing, damaged, or of another network.
  """
  if not options.weights_file:
    return network
  path = expand(options.weights_file)
  if os.path.isdir(path):  # not is_dir, which raises if the name is too long
    raise KnobError(
      'initial_weights',
      str(path),
      'is a folder; write its weights by '
      f'python -m moon_jax.export {path} {option("output")}=FILE.safetensors.',
    )
  try:
    fitted = _fitted(path, weights.read_weights(path), network, options)
  except UsageError as error:
    raise UsageError(f'{flag("initial_weights")}: {error}') from None

  def init(seed):
    arrays = fitted.arrays
    if fitted.drawn_layers:
      arrays = weights.flat(network.init(seed)) | arrays
    return jax.device_put(weights.nested(arrays))

  return network._replace(
    init=init,
    weights_digest=files.sha256(path),
    weights_notice=_notice(options.weights_file, fitted),
  )


def _notice(weights_file: str, fitted: _Fitted) -> str:
  """Says which layers are drawn, and which layers of the file are not used."""
  if not fitted.drawn_layers:
    return ''
  unused = ''
  if fitted.unused_layers:
    unused = f'; not used of the file: {listed(fitted.unused_layers)}'
  return (
    f'{flag("initial_weights", weights_file)}: layers that are not from the file, but '
    f'drawn: {listed(fitted.drawn_layers)}{unused}.'
  )


def _fitted(
  path: pathlib.Path,
  arrays: Mapping[str, np.ndarray],
  network: models.Network,
  options: NetworkOptions,
) -> _Fitted:
  """Divides the layers of a network into those of the file and those to draw.

  Raises:
    UsageError: the file is of another network, or has numbers that are not finite.
  """
  design = ''
  if torchvision_weights.is_state_dict(arrays):
    design = _torchvision_design(path, options)
    renamed = torchvision_weights.renamed(options.model, arrays)
    if renamed.unknown:
      raise UsageError(
        f"{str(path)!r} is of another network: torchvision's {options.model} has no "
        f'{listed(renamed.unknown)}.'
      )
    arrays = renamed.arrays
  for name, array in arrays.items():
    if array.dtype.kind == 'f' and not np.isfinite(array).all():
      raise UsageError(
        f'{str(path)!r}: {printable(name)} has numbers that are not finite.'
      )

  shapes = weights.flat(network.shapes)
  body_layers = {_layer('/'.join(parts)) for parts in network.layers().body}
  mismatched = {name for name in shapes if not _fits(arrays.get(name), shapes[name])}
  drawn_layers = {_layer(name) for name in mismatched}
  refused = [
    name
    for name in sorted(mismatched)
    if (_layer(name) in body_layers and not _is_of_small_design(name, design))
    or (name in arrays and arrays[name].dtype != np.float32)
  ]
  # A layer that only the file has: a head's may stay there.
  refused += [
    name
    for name in arrays
    if name not in shapes
    and _layer(name) not in drawn_layers
    and _layer(name) not in _HEADS
  ]
  if refused:
    weights.require_type(path, refused[0], arrays, shapes)
  unused_layers = {_layer(name) for name in arrays if name not in shapes}
  unused_layers |= {_layer(name) for name in mismatched.intersection(arrays)}
  return _Fitted(
    arrays={name: arrays[name] for name in shapes if _layer(name) not in drawn_layers},
    drawn_layers=sorted(drawn_layers),
    unused_layers=sorted(unused_layers),
  )


def _torchvision_design(path: pathlib.Path, options: NetworkOptions) -> str:
  """The design of a network that torchvision has, too.

  Raises:
    UsageError: the network is another one, or has no batch normalisation.
  """
  if options.model not in torchvision_weights.NETWORKS:
    raise UsageError(
      f'{str(path)!r} has names of PyTorch; such weights are read for '
      f'{flag("model")}={any_of(torchvision_weights.NETWORKS)}, from torchvision.'
    )
  if options.model_options.get('norm') == 'group':
    raise UsageError(
      f'{str(path)!r} has weights of batch normalisation: '
      f'{flag("resnet.norm", "group")} must be batch.'
    )
  return options.model_options['design']


def _is_of_small_design(name: str, design: str) -> bool:
  return torchvision_weights.may_be_drawn(_layer(name), design)


def _layer(name: str) -> str:
  """'params/conv1/kernel' -> 'conv1'."""
  return '/'.join(name.split('/')[1:-1])


def _fits(array: np.ndarray | None, shape: jax.ShapeDtypeStruct) -> bool:
  return array is not None and (array.dtype, array.shape) == (shape.dtype, shape.shape)
