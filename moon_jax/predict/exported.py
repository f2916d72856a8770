"""A trained model as a file: weights and how to use them, or a network with them."""

import json
import pathlib

import numpy as np

from moon_jax import __version__, catalog
from moon_jax.building.network import NetworkOptions
from moon_jax.config import Config, used_value
from moon_jax.core import files, weights
from moon_jax.core.errors import UsageError, printable
from moon_jax.core.flags import flag
from moon_jax.core.types import Form, PyTree, Scale
from moon_jax.data.pictures import FORMATS
from moon_jax.exchange import networks, onnx_graph, pytorch
from moon_jax.runner.run_directory import METRICS, Record

_FIELDS = ('config', 'registered', 'images', 'data_digest')  # of config.json


def describe(
  workdir: pathlib.Path,
  saved: Record,
  round_number: int,
  *,
  client: int | None,
  client_name: str | None,
  num_classes: int,
) -> Record:
  """The metadata of a file of weights, as JSON.

  Args:
    workdir: the run directory.
    saved: its config.json.
    round_number: number of completed rounds.
    client: the client whose model it is; None for the global model.
    client_name: the name that the data give it; None if they give none.
    num_classes: Y.
  """
  metadata = {'moon_jax': __version__}
  for name in _FIELDS:
    if name in saved:
      metadata[name] = saved[name]
  metadata['num_classes'] = num_classes
  metadata['round'] = round_number
  if client is not None:
    # The recorded accuracy is a mean over the clients' models, not this one's.
    metadata['client'] = client
    if client_name is not None:
      metadata['client_name'] = client_name
    return metadata
  for line in files.read_lines(workdir / METRICS):
    if line['round'] == round_number and 'test_accuracy' in line:
      metadata['test_accuracy'] = line['test_accuracy']
  return metadata


def write(path: pathlib.Path, variables: PyTree, metadata: Record) -> None:
  """Writes the file; each text about the model is JSON."""
  texts = {name: json.dumps(content) for name, content in metadata.items()}
  weights.write(path, weights.flat(variables), texts)


def write_network(
  path: pathlib.Path,
  variables: PyTree,
  metadata: Record,
  config: Config,
  scale: Scale | None,
) -> None:
  """Writes the network for PyTorch or ONNX.

  Args:
    path: ends in .py, for PyTorch; the weights are then written to `weights_beside` it.
      Or it ends in .onnx.
    variables: variables of the network.
    metadata: see `describe`.
    config: the configuration of the run.
    scale: the numbers of black and white; None, of an older run: grey levels.

  Raises:
    UsageError: the network is not of the catalog, or a package is missing.
    RunError: a file cannot be written.
  """
  options = NetworkOptions(config)
  if catalog.part('model', options.model).registered:
    raise UsageError(
      f'{str(path)!r} cannot be written: {flag("model", options.model)} is a network '
      'of your own, whose layers only your code knows. A file that ends in '
      '.safetensors or .npz takes its weights.'
    )
  facts = _facts(metadata, config, scale or Scale())
  network = networks.describe(
    options.model,
    options.model_options,
    variables,
    of_pictures=facts.kind == 'picture',
  )
  if path.suffix == '.onnx':
    content = onnx_graph.model_bytes(network, facts)
  else:
    weights_file = weights_beside(path)
    _require_no_model(weights_file)
    content = pytorch.python_file(network, facts, weights_file.name).encode()
    weights.write(
      weights_file, pytorch.state_dict(network, facts), pytorch.metadata(facts)
    )
  with files.replacing(path) as file:
    file.write(content)


def weights_beside(python_file: pathlib.Path) -> pathlib.Path:
  """The file of the weights that a Python file of a network loads."""
  return python_file.with_name(f'{python_file.stem}_weights.safetensors')


def _require_no_model(weights_file: pathlib.Path) -> None:
  """Raises UsageError if a file holds a model that `write` has written."""
  if not weights_file.exists():
    return
  try:
    read(weights_file)
  except UsageError:
    return  # the weights of an older file for PyTorch, say
  raise UsageError(
    f'{str(weights_file)!r}, which the weights would replace, holds a model that '
    'moon_jax saved: move it, or choose another name.'
  )


def _facts(metadata: Record, config: Config, scale: Scale) -> pytorch.Facts:
  images = metadata['images']
  form = images.get('form') or Form()._asdict()
  whose = ''
  if 'client' in metadata:
    name = metadata.get('client_name', metadata['client'])
    whose = f' for client {printable(str(name))}'
  return pytorch.Facts(
    model=config.model,
    origin=(
      f'moon_jax {__version__} wrote it. {config.algorithm} trained the weights'
      f'{whose} in {metadata["round"]} rounds.'
    ),
    shape=tuple(images['shape']),
    mean=images['mean'],
    std=images['std'],
    scale=scale,
    side=used_value(config, 'data.image_size'),
    class_names=tuple(images.get('class_names', ())),
    kind=form['kind'],
    content=form['content'],
    words=tuple(images.get('words', ())),
    tokenizer=config.data.tokenizer,
    picture_bits=_picture_bits(form, config, scale),
    is_upright=turns_pictures(config),
    picture_formats=FORMATS,
  )


def _picture_bits(form: Record, config: Config, scale: Scale) -> int:
  """The bits of a channel in the files of pictures that the model takes; 0: of none."""
  if form['content'] == 'levels':
    return 16 if has_deep_pictures(config, scale) else 8
  return {'uint8': 8, 'uint16': 16}.get(form['dtype'], 0)


def has_deep_pictures(config: Config, scale: Scale | None) -> bool:
  """Whether grey levels come from pictures of 16 bits.

  Only files of pictures have 16 bits; arrays of any scale become levels of 8 bits.
  """
  source = catalog.part('data', config.data.source)
  return bool(scale) and source.has('pictures') and scale.dtype == 'uint16'


def turns_pictures(config: Config) -> bool:
  """Whether the run turned its pictures as their EXIF data say."""
  return config.data.source == 'huggingface'


def read(path: pathlib.Path) -> tuple[dict[str, np.ndarray], Record]:
  """The arrays of a file that `write` has written, and its metadata.

  Raises:
    UsageError: it is another file, or it is damaged.
  """
  arrays, texts = weights.read(path)
  entries = [f'{json.dumps(name)}: {text}' for name, text in texts.items()]
  document = '{' + ', '.join(entries) + '}'
  try:
    metadata = files.document(pathlib.Path('weights.json'), document.encode())
  except ValueError as error:
    raise UsageError(
      f'{str(path)!r} does not say which run its weights are from: {error} '
      'Files that `save` or moon_jax.export wrote do.'
    ) from None
  return arrays, metadata
