"""Loads the trained model of a run, and classifies images by it."""

import dataclasses
import functools
import os
import pathlib
import warnings
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np

from moon_jax import config as config_lib
from moon_jax import models
from moon_jax.building import experiment
from moon_jax.building.algorithm import AlgorithmOptions, make_algorithm
from moon_jax.building.data import (
  DataOptions,
  load_data,
  with_one_client_if_centralized,
)
from moon_jax.building.network import NetworkOptions, make_network, with_initial_weights
from moon_jax.core import files, weights
from moon_jax.core.errors import NoCheckpointError, UsageError
from moon_jax.core.paths import expand
from moon_jax.core.types import Outputs, PyTree
from moon_jax.data import pickles, sources
from moon_jax.data.device import normalise
from moon_jax.data.errors import one_line
from moon_jax.data.pixels import PIXELS, grey_levels, with_channels
from moon_jax.platform import client_memory, devices
from moon_jax.predict import exported
from moon_jax.round import evaluation
from moon_jax.runner import checkpoint, layout, run_directory


class Predictions(NamedTuple):
  """The predictions of a model for M images.

  Attributes:
    labels: [M] int32, the classes of the highest logits.
    logits: [M, Y] float32.
    representations: [M, D] float32, the outputs of the projection head.
  """

  labels: np.ndarray
  logits: np.ndarray
  representations: np.ndarray


@dataclasses.dataclass(frozen=True, repr=False)
class Trained:
  """A trained model; `load` makes it.

  Attributes:
    workdir: the run directory, or the file of weights.
    config: the configuration of the run; `centralized` has a single client in it.
    network: the network, without weights.
    variables: 'params' of the model and, with batch normalisation, 'batch_stats'.
    about: metadata of a file of weights: the configuration, the test accuracy, the mean
      and standard deviation that images are normalised by, ...
    class_counts: [N, Y] training examples of each client and class; None if the model
      was loaded from a file of weights.
  """

  workdir: pathlib.Path
  config: config_lib.Config
  network: models.Network
  variables: PyTree
  about: run_directory.Record
  class_counts: np.ndarray | None = None

  @property
  def round(self) -> int:
    """Completed rounds of the checkpoint."""
    return self.about['round']

  @property
  def client(self) -> int | None:
    """Number of the client whose model it is; None if it is the global model."""
    return self.about.get('client')

  @property
  def image_shape(self) -> tuple[int, int, int]:
    """(H, W, C)."""
    return tuple(self.about['images']['shape'])

  @property
  def data_digest(self) -> str:
    """SHA-256 of the run's data set, in hexadecimal."""
    return self.about['data_digest']

  @functools.cached_property
  def forward(self) -> Callable[[PyTree, np.ndarray], Outputs]:
    """(variables, images [B, H, W, C] uint8) -> Outputs in evaluation mode."""
    network, images = self.network, self.about['images']
    mean, std = (np.asarray(images[name], np.float32) for name in ('mean', 'std'))
    return jax.jit(lambda v, pixels: network.apply(v, normalise(pixels, mean, std)))

  def predict(self, images: np.ndarray) -> Predictions:
    """Classifies images as the run's own tests do, in batches that are filled up.

    Args:
      images: [M, H, W] or [M, H, W, C] of the size of the training images, uint8 or as
        `npz.load_npz` takes them; they are normalised by the training images'
        statistics.

    Raises:
      UsageError: the array has another shape or type, or is empty.
    """
    images = as_batch(images, self.image_shape)
    parts = [
      self._predict_batch(images[first : first + evaluation.BATCH_SIZE])
      for first in range(0, len(images), evaluation.BATCH_SIZE)
    ]
    return Predictions(*map(np.concatenate, zip(*parts, strict=True)))

  def test_data(self, *, trust_pickles: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Loads the run's test split: ([M, H, W, C] uint8, [M] int32); downloads nothing.

    Args:
      trust_pickles: whether pickled files of the run's data may run their code, as
        `data.trust_pickles`; what the run's configuration says does not count.

    Raises:
      UsageError: the data are missing, differ from the run's, or are pickles that are
        not trusted.
    """
    # Whoever wrote the configuration, nothing is downloaded and no pickle is trusted.
    options = DataOptions(self.config)
    try:
      data = load_data(options, may_download=False, trust_pickles=trust_pickles)
    except pickles.UntrustedPickleError as error:
      raise UsageError(
        f'The data of {self.workdir} are not read: {error.problem}; if you trust '
        'whoever made it, test_data(trust_pickles=True) reads it.'
      ) from None
    if sources.digest(data) != self.data_digest:
      raise UsageError(f'The data is not that of the training in {self.workdir}.')
    return data.test_images, data.test_labels

  def save(self, path: str | pathlib.Path) -> None:
    """Writes the model to a file that `load` and other programs read.

    Args:
      path: ends in .safetensors or .npz. The arrays have the paths of `variables`, such
        as params/conv1/kernel; docs/weights.md has their layouts.

    Raises:
      UsageError: the path ends in anything else.
      RunError: it cannot be written.
    """
    exported.write(expand(path), self.variables, self.about)

  def _predict_batch(self, images):
    """Predictions for at most a batch; every call has the shapes of a full batch."""
    rows = np.minimum(np.arange(evaluation.BATCH_SIZE), len(images) - 1)
    with jax.default_matmul_precision(self.config.execution.matmul_precision):
      outputs = jax.device_get(self.forward(self.variables, images[rows]))
    logits, representation = (
      leaf[: len(images)] for leaf in (outputs.logits, outputs.representation)
    )
    return np.argmax(logits, axis=-1).astype(np.int32), logits, representation


def load(workdir: str | pathlib.Path, client: int | None = None) -> Trained:
  """Loads what a run learned, from its newest checkpoint; needs no training data.

  Args:
    workdir: the run directory, also of a run in progress; or a file that
      `Trained.save` or `moon_jax.export` has written.
    client: number of the client whose model is loaded, from 0, if each client has its
      own (SOLO, FedPer, FedBN, Ditto, FedProto, no server, `batch_norm=local`); None:
      the global model, or the model of the only client.

  Raises:
    UsageError: the path is no run directory, or has no such model.
    NoCheckpointError: the run directory has no usable checkpoint.
  """
  devices.claim('auto', warn_if_late=False)  # a run may follow in this process
  workdir = expand(workdir)
  if os.path.isfile(workdir):  # not is_file, which raises if the name is too long
    return _of_file(workdir, client)
  saved, counts = _saved(workdir), _class_counts(workdir)
  config, network = _network(workdir, saved, counts.shape[1])
  algorithm = make_algorithm(AlgorithmOptions(config), network)
  model_of, own = (
    algorithm.evaluated,
    client_memory.has_client_models(algorithm, network.shapes),
  )
  if algorithm.personal and not own and client is not None:  # beside the global one
    model_of, own = jax.vmap(algorithm.personal, (None, 0)), True
  check_client(workdir, client, config.num_clients if own else 0)
  start = functools.partial(experiment.first_state, algorithm)
  state = jax.eval_shape(lambda v: start(v, config.num_clients), network.shapes)

  def first():
    # A client that has never trained has no model in the checkpoint.
    began = with_initial_weights(network, NetworkOptions(config)) if own else network
    if own and began.weights_digest != saved.get('weights_digest', ''):
      raise UsageError(f'{config.initial_weights!r} has changed since the run began.')
    return jax.device_get(algorithm.init_client(began.init(config.seed)))

  state = checkpoint.newest(workdir / 'checkpoints', state, client or 0, first)
  models = jax.device_get(model_of(state.server, state.clients))
  variables = jax.tree.map(lambda leaf: leaf[0], models)
  told = int(state.round), client, counts.shape[1]
  about = exported.describe(workdir, saved, *told)
  return Trained(workdir, config, network, variables, about, counts)


def _of_file(path: pathlib.Path, client: int | None) -> Trained:
  """The model in a file of weights, which holds one."""
  arrays, about = exported.read(path)
  if client not in (None, about.get('client')):
    raise UsageError(f'client={client} must be left out: {path} holds one model.')
  config, network = _network(path, about, about['num_classes'])
  variables = weights.fitted(path, arrays, network.shapes)
  return Trained(path, config, network, variables, about)


def _network(
  place: pathlib.Path, saved: run_directory.Record, num_classes: int
) -> tuple[config_lib.Config, models.Network]:
  """The configuration of a run, and its network.

  Raises:
    UsageError: a part that it uses is not registered.
    NoCheckpointError: its configuration is not valid.
  """
  for line in run_directory.require_registered(place, saved):
    warnings.warn(line, stacklevel=3)
  of = place if place.is_file() else place / run_directory.CONFIG
  try:
    config = with_one_client_if_centralized(config_lib.validate(saved['config']))
  except config_lib.ConfigError as error:
    raise NoCheckpointError(f'{of}: {error.problems[0]}') from None
  images = saved['images']
  if {len(images['mean']), len(images['std'])} != {images['shape'][2]}:
    raise NoCheckpointError(f'{of} is damaged: mean and std must be of each channel.')
  network = make_network(NetworkOptions(config), tuple(images['shape']), num_classes)
  return config, network


def as_batch(images: np.ndarray, shape: tuple[int, int, int]) -> np.ndarray:
  """The images as [M, H, W, C].

  Args:
    images: the user's array, uint8 or as `npz.load_npz` takes it.
    shape: (H, W, C) of the images that the network was trained on.

  Raises:
    UsageError: they have other pixels, another shape, or are none.
  """
  images = grey_levels(np.asarray(images))
  if images.dtype != np.uint8:
    raise UsageError(f'The images are {images.dtype}; pixels must be {PIXELS}.')
  whole = with_channels(images) if images.ndim in (3, 4) else images
  if whole.ndim != 4 or whole.shape[1:] != shape or not len(whole):
    sizes = ', '.join(map(str, shape if shape[2] > 1 else shape[:2]))
    raise UsageError(
      f'The images have shape {images.shape}; this network needs [M, {sizes}], M >= 1.'
    )
  return whole


def check_client(workdir: pathlib.Path, client: int | None, num_own: int) -> None:
  """Raises UsageError unless there is such a model; num_own is 0 for a global model."""
  if num_own > 1 and client is None:
    raise UsageError(
      f'The run in {workdir} has no global model, but one for each client: choose one '
      f'by client=N (--client=N), N from 0 to {num_own - 1}.'
    )
  if client is not None and not 0 <= client < num_own:
    wanted = f'0 to {num_own - 1}' if num_own else 'left out: the model is global'
    raise UsageError(f'client={client!r} must be {wanted}, for the run in {workdir}.')


def _saved(workdir: pathlib.Path) -> run_directory.Record:
  """config.json of a run directory."""
  path = workdir / run_directory.CONFIG
  saved = files.read_json(path)
  if saved is None:
    raise UsageError(
      f'{str(workdir)!r} is not a run directory: it has no {run_directory.CONFIG}.'
    )
  if missing := {'config', 'data_digest', 'images'} - set(saved):
    raise NoCheckpointError(
      f'{path} is not what this version writes: it lacks {sorted(missing)}.'
    )
  return saved


def _class_counts(workdir: pathlib.Path) -> np.ndarray:
  path = workdir / layout.PARTITION
  with one_line(f'{path} cannot be read'):
    return files.arrays(path, kinds=layout.PARTITION_KINDS)['class_counts']
