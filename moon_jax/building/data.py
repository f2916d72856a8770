"""The data of an experiment: loaded, divided among its owners, and on the devices."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jax.sharding import Mesh

from moon_jax import catalog
from moon_jax.building.streaming import Stream
from moon_jax.config import Config, ConfigError, changed, complaints, flatten, used
from moon_jax.core.errors import KnobError
from moon_jax.core.flags import flag
from moon_jax.core.types import Dataset
from moon_jax.data import holdout, partition, sources
from moon_jax.data.device import DeviceSplit, TrainSplit
from moon_jax.data.federated import users
from moon_jax.data.partition import Partition
from moon_jax.planning import clients
from moon_jax.platform import devices


class TrainingData(NamedTuple):
  """The clients' training examples: who owns them, and where they are.

  Attributes:
    partition: the owner of each training example.
    class_counts: [N, Y] training examples of each client and class.
    train: the training split on the devices; if it stays on disk, its shape.
    stream: reads each cohort's part of the split; None if the split is on the devices.
    user_ids: [N] ids of the users that are the clients; None for dealt data.
    num_users_left_out: users with fewer than `partition.min_size` training examples.
    class_names: [Y] names of the classes; () if the data have none.
    digest: SHA-256 of the whole data set, in hexadecimal.
  """

  partition: Partition
  class_counts: np.ndarray
  train: TrainSplit
  stream: Stream | None
  user_ids: np.ndarray | None
  num_users_left_out: int
  class_names: tuple[str, ...]
  digest: str


class Divided(NamedTuple):
  """A data set, and the owner of each of its training examples.

  Attributes:
    config: the configuration, with the number of clients that the data decide.
    dataset: the data set; its training examples are those of the clients.
    partition: the client that owns each of them.
    image_view: (images [M, H, W, C] uint8, partition) -> the images as their owners see
      them.
    validation: images [V, H, W, C] and labels [V] of the server; None if it has none.
    user_ids: [N] ids of the users that are the clients; None for dealt data.
    num_users_left_out: users with fewer than `partition.min_size` training examples.
  """

  config: Config
  dataset: Dataset
  partition: Partition
  image_view: Callable[[np.ndarray, Partition], np.ndarray]
  validation: tuple[np.ndarray, np.ndarray] | None
  user_ids: np.ndarray | None
  num_users_left_out: int

  @property
  def image_shape(self) -> tuple[int, int, int]:
    """(H, W, C)."""
    return self.dataset.train_images.shape[1:]


def load_data(
  config: Config, *, may_download: bool = True, trust_pickles: bool | None = None
) -> Dataset:
  """Loads the data set of a configuration.

  Args:
    config: the configuration.
    may_download: whether TensorFlow Datasets may download and prepare a missing set.
    trust_pickles: replaces the knob `data.trust_pickles`; None: as configured.

  Raises:
    DataError: the data set is missing or unusable.
  """
  options = catalog.options('data', flatten(config))
  if config.data.source == 'tfds' and not may_download:
    options['prepare'] = False
  if 'trust_pickles' in options and trust_pickles is not None:
    options['trust_pickles'] = trust_pickles
  return sources.load(config.data.source, limit=config.data.limit, **options)


def with_one_client_if_centralized(config: Config) -> Config:
  """The configuration; if its algorithm has no clients, one client owns all data."""
  if catalog.part('algorithm', config.algorithm).has('several_clients'):
    return config
  one_client = {
    'num_clients': 1,
    'participation': 1.0,
    'data.local_test': 0.0,
    'partition.name': 'iid',
    'partition.min_size': 1,
  }
  return changed(config, one_client)


def divide(config: Config, loaded: Dataset) -> Divided:
  """Decides which training examples the server keeps, and which each client owns.

  Raises:
    UsageError: the data cannot be divided as the configuration says.
  """
  seed = partition_seed(config)
  dataset, validation = holdout.validation_split(loaded, config.data.validation, seed)
  natural = users_are_clients(config)
  if dataset.stored and not natural:
    raise KnobError(
      'data.source',
      config.data.source,
      f'keeps each client on disk: it needs {flag("partition.name")}=natural, and '
      'an algorithm of several clients.',
    )
  num_users_left_out = 0
  if natural and users.sizes_of(dataset) is not None:
    dataset, num_users_left_out = users.without_small(
      dataset, config.partition.min_size
    )
    config = with_num_clients(config, len(users.sizes_of(dataset)))
  dealt = deal(config, dataset)
  return Divided(
    config=config,
    dataset=dataset,
    partition=dealt.split,
    image_view=dealt.see,
    validation=validation,
    user_ids=dataset.clients[: config.num_clients] if natural else None,
    num_users_left_out=num_users_left_out,
  )


def partition_seed(config: Config) -> int:
  """The seed of the partition and of what is held out."""
  seed = flatten(config).get('partition.seed', 'auto')
  return config.seed if seed == 'auto' else seed


def users_are_clients(config: Config) -> bool:
  """Whether the partition makes a client of each user of the data."""
  return not catalog.part('partition', config.partition.name).has('dealt')


def with_num_clients(config: Config, num_clients: int) -> Config:
  """The configuration with the number of clients that the data decide.

  Raises:
    ConfigError: the number does not fit other knobs.
  """
  changes = {'num_clients': num_clients}
  config = changed(config, changes)
  if problems := complaints(used(flatten(config)) | changes):
    raise ConfigError(problems)
  return config


def deal(config: Config, dataset: Dataset) -> partition.Skewed:
  """The owner of each training example, and how clients see their images."""
  if dataset.stored:
    offsets = np.concatenate([[0], np.cumsum(dataset.stored.sizes)])
    return partition.Skewed(Partition(dataset.train_labels, offsets))
  options = catalog.options('partition', flatten(config))
  if users_are_clients(config):
    options['clients'] = dataset.train_clients
  return partition.make(
    config.partition.name,
    dataset.train_labels,
    num_clients=config.num_clients,
    min_size=config.partition.min_size,
    seed=partition_seed(config),
    **options,
  )


def class_counts(dataset: Dataset, training: Partition) -> np.ndarray:
  """[N, Y] training examples of each client and class, as they are labelled."""
  if dataset.stored:
    return dataset.stored.class_counts
  return partition.class_counts(training, dataset.train_labels, dataset.num_classes)


def train_on_devices(
  divided: Divided, training: Partition, label_flippers: np.ndarray, mesh: Mesh
) -> TrainSplit:
  """The training split on the devices, as its owners see it.

  Args:
    divided: the data, in memory.
    training: owner of each example on which a client trains.
    label_flippers: ids of the clients that train on flipped labels.
    mesh: the devices.
  """
  dataset = divided.dataset
  # Of all that a client owns, also of what tests it.
  images = divided.image_view(dataset.train_images, divided.partition)
  labels = clients.labels_in_training(dataset, training, label_flippers)
  places = np.zeros(len(labels), np.int32)
  places[training.indices] = np.arange(len(training.indices))
  split = TrainSplit(
    examples=DeviceSplit(images, labels, dataset.mean, dataset.std),
    rows=training.indices,
    offsets=training.offsets.astype(np.int32),
    places=places,
  )
  return devices.replicate(split, mesh)
