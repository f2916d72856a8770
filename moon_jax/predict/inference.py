"""Loads the trained model of a run, and classifies images by it."""

import dataclasses
import functools
import os
import pathlib
import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np

from moon_jax import config as config_lib
from moon_jax import models
from moon_jax.building import experiment
from moon_jax.building.algorithm import (
  AlgorithmOptions,
  evaluates_client_models,
  make_algorithm,
)
from moon_jax.building.data import (
  DataOptions,
  load_data,
  with_one_client_if_centralized,
)
from moon_jax.building.initial_weights import with_initial_weights
from moon_jax.building.layer_training import FreezingOptions, with_frozen
from moon_jax.building.network import NetworkOptions, make_network
from moon_jax.core import client_names, files, weights
from moon_jax.core.errors import NoCheckpointError, UsageError
from moon_jax.core.flags import option
from moon_jax.core.output_files import MODEL_SUFFIXES, WEIGHT_SUFFIXES, any_of
from moon_jax.core.paths import expand
from moon_jax.core.types import Form, Outputs, PyTree, Scale
from moon_jax.data import example_forms, pickles, sources, texts
from moon_jax.data.data_errors import one_line
from moon_jax.data.device_split import normalise
from moon_jax.data.scale import (
  FEW_LEVELS,
  grey_levels,
  is_on_scale,
  is_valid_scale,
  not_finite_fault,
  numbers_of,
  scale_of,
  uses_few_levels,
  values_of,
  words_of,
)
from moon_jax.platform import devices
from moon_jax.predict import exported
from moon_jax.round import evaluation
from moon_jax.runner import checkpoint, client_file, run_directory, run_files


class Predictions(NamedTuple):
  """The predictions of a model for M images.

  Attributes:
    labels: [M] int32, the classes of the highest logits.
    logits: [M, Y] float32.
    representations: [M, D] float32, the outputs of the projection head; the logits, if
      the network returns these alone.
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
  def client_name(self) -> str | None:
    """Its name or number, as text; None if it is the global model."""
    number = self.client
    return None if number is None else self.about.get('client_name', str(number))

  @property
  def image_shape(self) -> tuple[int, ...]:
    """(H, W, C), or the shape of another example, its channels last."""
    return tuple(self.about['images']['shape'])

  @property
  def scale(self) -> Scale | None:
    """The numbers of black and white in the run's images.

    None in runs before 0.4.0, and of data that are no grey levels.
    """
    return _scale(self.about['images'])

  @property
  def form(self) -> Form:
    """What the run's examples are."""
    return _form(self.about['images'])

  @property
  def words(self) -> tuple[str, ...]:
    """[V] the vocabulary of the run's texts; () if its examples were no texts."""
    return tuple(self.about['images'].get('words', ()))

  @property
  def vocabulary(self) -> texts.Vocabulary:
    """How the run's texts were read; without words if its examples were no texts."""
    return texts.Vocabulary(
      tokenizer=self.config.data.tokenizer,
      words=self.words,
      length=self.image_shape[0],
    )

  @property
  def data_digest(self) -> str:
    """SHA-256 of the run's data set, in hexadecimal."""
    return self.about['data_digest']

  @functools.cached_property
  def clients(self) -> client_file.Clients:
    """The accuracy of each client in each tested round, from clients.csv.gz.

    Raises:
      UsageError: the run tests no client alone, or this is a file of weights.
    """
    return client_file.of_run(self.workdir)

  @functools.cached_property
  def forward(self) -> Callable[[PyTree, np.ndarray], Outputs]:
    """(variables, `grey_levels` [B, H, W, C] uint8) -> Outputs in evaluation mode.

    Of data that are no grey levels it takes `examples` in place of them.
    """
    images = self.about['images']
    mean, std = (np.asarray(images[name], np.float32) for name in ('mean', 'std'))
    content = self.form.content

    def forward(variables, levels):
      if content == 'levels' and levels.dtype != np.uint8:
        raise UsageError(
          f'forward takes grey levels, uint8, and not {levels.dtype}: '
          'grey_levels(images) makes them.'
        )
      return self.network.apply(variables, normalise(levels, mean, std, content))

    return jax.jit(forward)

  def grey_levels(self, images: np.ndarray) -> np.ndarray:
    """The images as the network sees them before they are normalised; for `forward`.

    Args:
      images: as for `predict`.

    Returns:
      [M, H, W, C] uint8: 0 is the `scale`'s low number, 255 its high number.

    Raises:
      UsageError: see `predict`.
    """
    if self.form.content != 'levels':
      raise UsageError(
        f'The {example_forms.plural(self.form)} of this model are no grey levels: use '
        'examples(arrays).'
      )
    return as_batch(images, self.image_shape, self.scale, self.form)

  def examples(self, arrays: np.ndarray) -> np.ndarray:
    """Examples as the network sees them before they are normalised; for `forward`.

    Args:
      arrays: as for `predict`.

    Returns:
      [M, ...] `grey_levels` of pictures, otherwise the numbers, with channels last.

    Raises:
      UsageError: see `predict`.
    """
    if self.form.content == 'levels':
      return self.grey_levels(arrays)
    if texts.is_text(arrays):
      arrays = texts.numbers_of(arrays, self.vocabulary)
    return as_numbers(arrays, self.image_shape, self.form)

  def predict(self, images: np.ndarray) -> Predictions:
    """Classifies images as the run's own tests do, in batches that are filled up.

    Args:
      images: [M, H, W] or [M, H, W, C] of the size of the training images, and on their
        `scale`: numbers as in the run's data. They are normalised by the training
        images' statistics. Other examples have the axes of the run's data. Where these
        were texts, they are [M] texts, or the numbers of their words.

    A UserWarning says so if these images use hardly any of the scale, as those divided
    by 255 once too often do.

    Raises:
      UsageError: the array has another shape, type or scale, or is empty.
    """
    levels = self.examples(images)
    if self.form.content == 'levels':
      self._warn_if_dark(images)
    batch_size = evaluation.examples_at_a_time(self.image_shape)
    batches = [
      self._predict_batch(levels[first : first + batch_size], batch_size)
      for first in range(0, len(levels), batch_size)
    ]
    return Predictions(
      labels=np.concatenate([batch.labels for batch in batches]),
      logits=np.concatenate([batch.logits for batch in batches]),
      representations=np.concatenate([batch.representations for batch in batches]),
    )

  def test_data(self, *, trust_pickles: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Loads the run's test split, for `predict`; downloads nothing.

    The images [M, H, W, C] are on the run's `scale`: uint8 if it is 0 to 255, otherwise
    floats. Other examples have their numbers. The axes are those of the run's data. The
    labels are [M] int32.

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
    if data.form.content == 'texts':
      data, _ = texts.in_words(options.data_flag, data, self.vocabulary)
    images = data.test_images
    if self.scale:
      images = numbers_of(images, self.scale)
    return example_forms.as_in_source(images, self.form), data.test_labels

  def save(self, path: str | pathlib.Path) -> None:
    """Writes the model to a file that other programs read.

    Args:
      path: ends in .safetensors or .npz, which `load` reads too: the arrays have the
        paths of `variables`, such as params/conv1/kernel. Or it ends in .py: a file
        with the network in PyTorch, for weights in NAME_weights.safetensors beside it.
        Or in .onnx. docs/weights.md describes all.

    Raises:
      UsageError: the path ends in anything else, or the network is not of the catalog
        and therefore unknown to PyTorch and ONNX.
      RunError: it cannot be written.
    """
    path = expand(path)
    if path.suffix not in MODEL_SUFFIXES:
      raise UsageError(f'{str(path)!r} must end in {any_of(MODEL_SUFFIXES)}.')
    if path.suffix in WEIGHT_SUFFIXES:
      exported.write(path, self.variables, self.about)
    else:
      exported.write_network(path, self.variables, self.about, self.config, self.scale)

  def _warn_if_dark(self, images: np.ndarray) -> None:
    """Warns of images that use few of the grey levels that the model was trained on."""
    images = np.asarray(images)
    training_uses_more = 255 * max(self.about['images']['std']) > FEW_LEVELS
    if self.scale and training_uses_more and uses_few_levels(images, self.scale):
      warnings.warn(
        f'The images are {values_of(images)}, and the model was trained on '
        f'{words_of(self.scale)}: are they on that scale?',
        stacklevel=3,
      )

  def _predict_batch(self, images: np.ndarray, batch_size: int) -> Predictions:
    """Predictions for at most a batch; every call has the shapes of a full batch."""
    rows = np.minimum(np.arange(batch_size), len(images) - 1)
    with jax.default_matmul_precision(self.config.execution.matmul_precision):
      outputs = jax.device_get(self.forward(self.variables, images[rows]))
    representations, logits, _ = (array[: len(images)] for array in outputs)
    return Predictions(
      labels=np.argmax(logits, axis=-1).astype(np.int32),
      logits=logits,
      representations=representations,
    )


def load(
  workdir: str | pathlib.Path,
  client: int | str | None = None,
  round: int | str | None = None,
) -> Trained:
  """Loads what a run learned; needs no training data.

  If the newest checkpoint is damaged, the one before it is loaded, and a UserWarning
  says so. A round that is asked for is loaded, or refused.

  Args:
    workdir: the run directory, also of a run in progress; or a file that
      `Trained.save` or `moon_jax.export` has written.
    client: name of the client whose model is loaded, or its number from 0, if each
      client has its own (SOLO, FedPer, FedRep, FedBN, Ditto, APFL, pFedMe, FedALA,
      FedProto, no server, `batch_norm=local`). A text that is both is the name. None:
      the global model, or the model of the only client.
    round: None for the newest checkpoint; 'best' for the best round, which a run with
      `keep_best` keeps; or the number of a round that is kept.

  Raises:
    UsageError: the path is no run directory, or has no such model.
    NoCheckpointError: the run directory has no usable checkpoint, or the round that is
      asked for is damaged.
  """
  devices.claim('auto', warn_if_late=False)  # a run may follow in this process
  workdir = expand(workdir)
  if os.path.isfile(workdir):  # not is_file, which raises if the name is too long
    return _from_weights_file(workdir, client, round)
  return _from_run_directory(workdir, client, round)


def _from_run_directory(
  workdir: pathlib.Path, client: int | str | None, round_choice: int | str | None
) -> Trained:
  """The model in a checkpoint."""
  saved = _read_saved_config(workdir)
  run_files.require_plain_path(workdir)
  class_counts, names = _read_partition(workdir)
  num_classes = class_counts.shape[1]
  config, network = _config_and_network(workdir, saved, num_classes)
  algorithm = make_algorithm(AlgorithmOptions(config), network)
  tested_models = algorithm.evaluated
  has_client_models = evaluates_client_models(algorithm, network.shapes)
  if algorithm.personal and not has_client_models and client is not None:
    # There is a global model too; the client's own is asked for.
    tested_models = jax.vmap(algorithm.personal, (None, 0))
    has_client_models = True
  num_client_models = config.num_clients if has_client_models else 0
  client = client_number(workdir, client, num_client_models, names)
  client_name = names[client] if names and client is not None else None

  def first_memory():
    """The memory of a client that has never trained: it is in no checkpoint."""
    first_network = network
    if has_client_models:
      first_network = with_initial_weights(network, NetworkOptions(config))
      if first_network.weights_digest != saved.get('weights_digest', ''):
        raise UsageError(f'{config.initial_weights!r} has changed since the run began.')
    first_variables = first_network.init(config.seed)
    return jax.device_get(algorithm.init_client(first_variables))

  shapes = jax.eval_shape(
    lambda variables: experiment.make_initial_state(
      algorithm, variables, config.num_clients
    ),
    network.shapes,
  )
  state = checkpoint.newest(
    workdir / 'checkpoints', shapes, client or 0, first_memory, round_choice
  )
  model_of_client = jax.device_get(tested_models(state.server, state.clients))
  return Trained(
    workdir=workdir,
    config=config,
    network=network,
    variables=jax.tree.map(lambda leaf: leaf[0], model_of_client),
    about=exported.describe(
      workdir,
      saved,
      int(state.round),
      client=client,
      client_name=client_name,
      num_classes=num_classes,
    ),
    class_counts=class_counts,
  )


def _from_weights_file(
  path: pathlib.Path, client: int | str | None, round_choice: int | str | None
) -> Trained:
  """The model in a file of weights, which holds one."""
  arrays, metadata = exported.read(path)
  if client is not None and not _is_client(client, metadata):
    word = client_names.in_message(client)
    raise UsageError(f'client={word} must be left out: {path} holds one model.')
  if round_choice not in (None, metadata.get('round')):
    raise UsageError(
      f'round={round_choice!r} must be left out: {path} holds one model.'
    )
  config, network = _config_and_network(path, metadata, metadata['num_classes'])
  return Trained(
    workdir=path,
    config=config,
    network=network,
    variables=weights.checked_variables(path, arrays, network.shapes),
    about=metadata,
  )


def _is_client(client: int | str, metadata: run_directory.Record) -> bool:
  """Whether a file of weights holds the model of this client.

  A text is the name. It may be the number as well, unless the name is one: in a run
  with the users '1', '2' and '3', '1' is not the client of number 1.
  """
  if 'client' not in metadata:
    return False
  number, name = metadata['client'], metadata.get('client_name')
  if not isinstance(client, str):
    return client == number
  is_named_by_number = name is not None and name.isdecimal()
  return client == name or (client == str(number) and not is_named_by_number)


def _config_and_network(
  path: pathlib.Path, saved: run_directory.Record, num_classes: int
) -> tuple[config_lib.Config, models.Network]:
  """The configuration of a run, and its network.

  Args:
    path: the run directory, or the file of weights.
    saved: the content of config.json, or the metadata of the file.
    num_classes: Y.

  Raises:
    UsageError: a part that it uses is not registered.
    NoCheckpointError: its configuration is not valid.
  """
  for warning in run_directory.require_registered(path, saved):
    warnings.warn(warning, stacklevel=4)
  config_file = path if path.is_file() else path / run_directory.CONFIG
  try:
    config = with_one_client_if_centralized(config_lib.validate(saved['config']))
  except config_lib.ConfigError as error:
    raise NoCheckpointError(f'{config_file}: {error.problems[0]}') from None
  images = saved['images']
  shape = tuple(images['shape'])
  try:
    form = _form(images)
    shapes = {np.shape(np.asarray(images[name], float)) for name in ('mean', 'std')}
  except (TypeError, ValueError):
    raise NoCheckpointError(
      f'{config_file} is damaged: its form, mean or std cannot be read.'
    ) from None
  if len(shapes) != 1 or not shapes <= {shape[-1:], shape}:
    raise NoCheckpointError(
      f'{config_file} is damaged: mean and std must be of each channel.'
    )
  if not example_forms.is_valid(form, shape):
    raise NoCheckpointError(f'{config_file} is damaged: {tuple(form)} is no form.')
  words = images.get('words', ())
  if words and not texts.is_vocabulary(words, form):
    raise NoCheckpointError(
      f'{config_file} is damaged: its words are no vocabulary of {form.vocabulary}.'
    )
  scale = _scale(images)
  if scale and not is_valid_scale(scale):
    raise NoCheckpointError(f'{config_file} is damaged: {tuple(scale)} is no scale.')
  class_names = images.get('class_names', ())
  if class_names and len(class_names) != num_classes:
    raise NoCheckpointError(
      f'{config_file} is damaged: it has {len(class_names)} names for '
      f'{num_classes} classes.'
    )
  network = make_network(NetworkOptions(config), shape, num_classes, form=form)
  return config, with_frozen(network, FreezingOptions(config))


def _scale(images: run_directory.Record) -> Scale | None:
  """The scale that config.json or a file of weights has; None in those before 0.4.0."""
  saved = images.get('scale')
  return Scale(**saved) if saved else None


def _form(images: run_directory.Record) -> Form:
  """The form that config.json or a file of weights has."""
  saved = images.get('form')
  if not saved:
    return Form()
  form = Form(**saved)
  return form._replace(range=tuple(form.range))


def as_numbers(arrays: np.ndarray, shape: tuple[int, ...], form: Form) -> np.ndarray:
  """Examples that are no grey levels, with their channels last.

  Args:
    arrays: the user's array, with the axes of the run's data.
    shape: shape of an example of these data, channels last.
    form: what it is.

  Raises:
    UsageError: the array has another shape or type, a number beyond the form's, or is
      empty.
  """
  arrays = np.asarray(arrays)
  name = f'The array of {example_forms.plural(form)}'
  if fault := example_forms.numbers_fault(name, arrays, form):
    raise UsageError(f'{fault}.')
  batch = (
    example_forms.arranged(arrays, form)
    if example_forms.has_axes(arrays, form)
    else arrays
  )
  if batch.shape[1:] != shape or not len(batch):
    expected = example_forms.as_in_source(np.empty((1, *shape), bool), form).shape[1:]
    sizes = ', '.join(map(str, expected))
    raise UsageError(
      f'{name} has shape {arrays.shape}; this network needs [M, {sizes}], M >= 1.'
    )
  # Every number keeps its value, as in training; see `example_forms.as_stored`.
  try:
    (batch,), _ = example_forms.as_stored([batch], form)
  except OverflowError as error:
    raise UsageError(f'{name}: {error}.') from None
  return batch


def as_batch(
  images: np.ndarray,
  shape: tuple[int, int, int],
  scale: Scale | None,
  form: Form | None = None,
) -> np.ndarray:
  """The images as [M, H, W, C] uint8.

  Args:
    images: the user's array.
    shape: (H, W, C) of the images that the network was trained on.
    scale: the scale of these images; None, of an older run: integers are in [0, 255],
      floats in [0, 1].
    form: what they are; None: pictures whose shape says where the channels are.

  Raises:
    UsageError: they have another scale, another shape, or are none.
  """
  images = np.asarray(images)
  form = form or Form()
  scale = scale or scale_of(images)
  if fault := not_finite_fault(images):
    raise UsageError(f'The array of images is {images.dtype}, and {fault}.')
  if not is_on_scale(images, scale):
    raise UsageError(
      f'The images are {values_of(images)}; this model was trained on '
      f'{words_of(scale)}. Convert them to these.'
    )
  images = grey_levels(images, scale)
  batch = (
    example_forms.arranged(images, form)
    if example_forms.has_axes(images, form)
    else images
  )
  if batch.ndim != 4 or batch.shape[1:] != shape or not len(batch):
    sizes = ', '.join(map(str, shape if shape[2] > 1 else shape[:2]))
    raise UsageError(
      f'The images have shape {images.shape}; this network needs [M, {sizes}], M >= 1.'
    )
  return batch


def client_number(
  workdir: pathlib.Path,
  client: int | str | None,
  num_client_models: int,
  names: Sequence[str] | None,
) -> int | None:
  """The number of the client whose model is asked for; None for the global model.

  Args:
    workdir: the run directory.
    client: name or number of the client; None for the global model.
    num_client_models: number of clients that have a model of their own; 0 if the model
      is global.
    names: names of the clients; None if they are numbered.

  Raises:
    UsageError: there is no such model.
  """
  if client is None:
    if num_client_models > 1:
      choices = f'its number, from 0 to {num_client_models - 1}'
      if names:
        choices = f'its name ({client_names.listed(names)}) or {choices}'
      raise UsageError(
        f'The run in {workdir} has no global model, but one for each client. Choose a '
        f'client by {choices}: {option("client")}=..., or client=... in Python.'
      )
    return None
  if not num_client_models:
    raise UsageError(
      f'client={client_names.in_message(client)} must be left out: the model is '
      f'global, for the run in {workdir}.'
    )
  place = f'the run in {workdir}'
  return client_names.number_of(client, names, num_client_models, place)


def _read_saved_config(workdir: pathlib.Path) -> run_directory.Record:
  """config.json of a run directory."""
  path = workdir / run_directory.CONFIG
  saved = files.read_json(path)
  if saved is None:
    raise run_files.no_run(workdir)
  if missing := {'config', 'data_digest', 'images'} - set(saved):
    raise NoCheckpointError(
      f'{path} is not what this version writes: it lacks {sorted(missing)}.'
    )
  return saved


def _read_partition(workdir: pathlib.Path) -> tuple[np.ndarray, list[str] | None]:
  """[N, Y] training examples of each client and class; the clients' names, if any."""
  path = workdir / run_files.PARTITION
  with one_line(f'{path} cannot be read'):
    class_counts = files.arrays(path, kinds=run_files.PARTITION_KINDS)['class_counts']
    names = client_names.saved_names(path)
    if names is not None and len(names) != len(class_counts):
      raise ValueError(f'{len(names)} names of {len(class_counts)} clients')
    return class_counts, names
