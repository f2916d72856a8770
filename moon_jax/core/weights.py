"""Weights in files that other programs read: .safetensors and .npz.

Both hold float32 arrays under the paths of the flax variables, such as
`params/conv1/kernel`, and texts about the run. The layouts are flax's: the kernel of a
convolution is [H, W, inputs, outputs], that of a dense layer [inputs, outputs].
"""

import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from flax import traverse_util

from moon_jax.core import files, machine_memory
from moon_jax.core.errors import UsageError, printable
from moon_jax.core.output_files import WEIGHT_SUFFIXES
from moon_jax.core.paths import expand
from moon_jax.core.types import PyTree

_METADATA = 'metadata'  # an array of text in an .npz file


def flat(variables: PyTree) -> dict[str, Any]:
  """Nested variables -> {path: leaf}; a path is its parts joined by '/'.

  >>> flat({'params': {'conv1': {'bias': np.zeros(6)}}}).keys()
  dict_keys(['params/conv1/bias'])
  """
  leaves = traverse_util.flatten_dict(variables, sep='/')
  return {path: leaves[path] for path in sorted(leaves)}


def nested(arrays: Mapping[str, np.ndarray]) -> PyTree:
  """Undoes `flat`."""
  return traverse_util.unflatten_dict(dict(arrays), sep='/')


def read_weights(path: str | pathlib.Path) -> dict[str, np.ndarray]:
  """Reads the arrays of a .safetensors or .npz file; nothing is unpickled.

  Args:
    path: the file; its suffix says which of the two formats it has.

  Returns:
    Path, such as 'params/conv1/kernel', -> array, as `flat` has it.

  Raises:
    UsageError: it is no such file, or it is damaged.
  """
  return read(path)[0]


def checked_variables(
  path: pathlib.Path, arrays: Mapping[str, np.ndarray], shapes: PyTree
) -> PyTree:
  """The arrays as the variables of a network, if they are those of this network.

  Args:
    path: the file, for the message.
    arrays: path -> array.
    shapes: shapes of the network's variables, as `jax.ShapeDtypeStruct`s.

  Raises:
    UsageError: the network has other variables; the message names the first of them.
  """
  required = flat(shapes)
  for name in sorted({*required, *arrays}):
    require_type(path, name, arrays, required)
  return nested(arrays)


def require_type(
  path: pathlib.Path,
  name: str,
  arrays: Mapping[str, np.ndarray],
  required: Mapping[str, Any],
) -> None:
  """Raises UsageError unless an array has the dtype and shape that a network needs.

  Args:
    path: the file, for the message.
    name: path of the variable.
    arrays: path -> array of the file.
    required: path -> `jax.ShapeDtypeStruct` of the network's variable.
  """
  form = _form(arrays[name]) if name in arrays else 'missing'
  required_form = _form(required[name]) if name in required else 'left out'
  if form != required_form:
    raise UsageError(
      f'{str(path)!r} is of another network: its {printable(name)} is {form}, must be '
      f'{required_form}.'
    )


def _form(leaf: Any) -> str:
  """Dtype and shape, such as 'float32 [6]'."""
  return f'{leaf.dtype} {list(leaf.shape)}'


def read(path: str | pathlib.Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
  """The arrays, as `read_weights` has them, and the texts; {} if there are none."""
  path = expand(path)
  if path.suffix not in WEIGHT_SUFFIXES or not os.path.isfile(path):
    raise UsageError(f'{str(path)!r} must be a file that ends in .safetensors or .npz.')
  read_file = _read_npz if path.suffix == '.npz' else _read_safetensors
  try:
    arrays, texts = read_file(path)
    arrays = {name: arrays[name] for name in sorted(arrays)}
    return arrays, {str(name): str(text) for name, text in texts.items()}
  except Exception as error:  # each library has its own errors
    reason = ' '.join(str(error).split())[:200]
    raise UsageError(f'{str(path)!r} cannot be read: {reason}.') from None


def write(
  path: pathlib.Path, arrays: Mapping[str, np.ndarray], texts: Mapping[str, str]
) -> None:
  """Replaces a file by arrays and texts about the run, wholly or not at all.

  Args:
    path: its suffix is one of WEIGHT_SUFFIXES.
    arrays: as `flat` has them.
    texts: name -> text.

  Raises:
    UsageError: the suffix is not one of WEIGHT_SUFFIXES.
    RunError: it cannot be written.
  """
  if path.suffix not in WEIGHT_SUFFIXES:
    raise UsageError(f'{str(path)!r} must end in .safetensors or .npz.')
  if path.suffix == '.npz':
    metadata = np.array(json.dumps(dict(texts)))
    files.write_arrays(path, {**arrays, _METADATA: metadata})
    return
  from safetensors import numpy as safetensors

  with files.replacing(path) as file:
    # safetensors writes the memory of an array, in whatever order its axes are.
    in_c_order = {name: np.asarray(array, order='C') for name, array in arrays.items()}
    file.write(safetensors.save(in_c_order, dict(texts)))


def _read_safetensors(path):
  from safetensors import safe_open

  files.require_regular(path)
  machine_memory.require_file_fits(path, files.size(path))
  with safe_open(path, 'numpy') as file:
    arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    return arrays, file.metadata() or {}


def _read_npz(path):
  arrays = files.arrays(path, files.array_names(path))
  metadata = arrays.pop(_METADATA, None)
  texts = {} if metadata is None else json.loads(str(metadata))
  return arrays, texts
