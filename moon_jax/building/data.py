"""The data of an experiment: loaded, and divided among its owners. Needs no JAX."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from moon_jax import catalog
from moon_jax.config import (
  Config,
  ConfigError,
  changed,
  complaints,
  flatten,
  used_knobs,
  used_value,
)
from moon_jax.core import activity
from moon_jax.core.client_names import name_of
from moon_jax.core.errors import KnobError
from moon_jax.core.flags import flag
from moon_jax.core.types import Dataset, Form
from moon_jax.data import (
  client_tests,
  example_forms,
  holdout,
  partition,
  sources,
  texts,
)
from moon_jax.data.data_errors import DataError
from moon_jax.data.federated import users
from moon_jax.data.partition import Partition
from moon_jax.metrics import measuring


class DataOptions:
  """What a configuration says about the data, and about who owns which examples.

  Attributes:
    source: name of the source in the catalog.
    source_options: knobs of the source.
    limit: most examples to keep of each split; 0 keeps all.
    seed: seed of the partition and of what is held out.
    validation: fraction of the training examples that the server keeps.
    partition: name of the partition in the catalog.
    partition_options: knobs of the partition.
    users_are_clients: whether the partition makes a client of each user of the data.
    num_clients: number of clients, unless the users are the clients.
    min_size: fewest training examples that a client may own.
    local_test: fraction of each client's examples that test this client.
    text_options: how texts become words.
    data_flag: flag of the data, for messages.
  """

  def __init__(self, config: Config):
    flat = flatten(config)
    rule = catalog.part('partition', config.partition.name)
    self.source = config.data.source
    self.source_options = catalog.options('data', flat)
    self.limit = config.data.limit
    self.seed = partition_seed(config)
    self.validation = config.data.validation
    self.partition = config.partition.name
    self.partition_options = catalog.options('partition', flat)
    self.users_are_clients = not rule.has('dealt')
    self.num_clients = config.num_clients
    self.min_size = config.partition.min_size
    self.local_test = config.data.local_test
    self.text_options = sources.text_options_of(self.source_options)
    self.data_flag = sources.data_flag_of(self.source, self.source_options)


class Divided(NamedTuple):
  """A data set, and the owner of each of its training examples.

  Attributes:
    dataset: the data set; its training examples are those of the clients.
    partition: the client that owns each of them.
    image_view: (images [M, H, W, C] uint8, partition) -> the images as their owners see
      them.
    validation: images [V, H, W, C] and labels [V] of the server; None if it has none.
    user_ids: [N] ids of the users that are the clients; None for dealt data.
    num_users_left_out: users with fewer than `partition.min_size` training examples.
    text_notice: a line that says how texts were read; '' if there are none.
  """

  dataset: Dataset
  partition: Partition
  image_view: Callable[[np.ndarray, Partition], np.ndarray]
  validation: tuple[np.ndarray, np.ndarray] | None
  user_ids: np.ndarray | None
  num_users_left_out: int
  text_notice: str = ''

  @property
  def num_clients(self) -> int:
    """N."""
    return len(self.partition.sizes)

  def client_name(self, client: int) -> str:
    """The name that the data give a client, or its number."""
    return client_name(self.user_ids, client)


class PreparedData(NamedTuple):
  """What is known of an experiment without JAX.

  Attributes:
    config: the configuration, with the number of clients that the data decide.
    loaded: the data set as it was loaded.
    divided: the data set and the owner of each training example.
  """

  config: Config
  loaded: Dataset
  divided: Divided


def client_name(user_ids: np.ndarray | None, client: int) -> str:
  """The name that the data give a client, or its number.

  Args:
    user_ids: [N] ids of the users that are the clients; None for dealt data.
    client: its number.
  """
  return str(client) if user_ids is None else name_of(user_ids[client])


def partition_seed(config: Config) -> int:
  """The seed of the partition and of what is held out."""
  seed = flatten(config).get('partition.seed', 'auto')
  return config.seed if seed == 'auto' else seed


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


def with_clients_of_data(config: Config, divided: Divided) -> Config:
  """The configuration with the number of clients that the data decide.

  Args:
    config: the configuration.
    divided: its data.

  Raises:
    ConfigError: the number does not fit other knobs.
    KnobError: the configuration has a part, or a metric, that is not for such data.
  """
  if DataOptions(config).users_are_clients:
    changes = {'num_clients': divided.num_clients}
    config = changed(config, changes)
    if problems := complaints(used_knobs(flatten(config)) | changes):
      raise ConfigError(problems)
  require_fitting_parts(config, divided.dataset.form)
  metrics = catalog.listed_words(config.metrics)
  measuring.require_classes(metrics, divided.dataset.num_classes)
  return config


def load_data(
  options: DataOptions,
  *,
  may_download: bool = True,
  trust_pickles: bool | None = None,
  announce: Callable[[Dataset], None] | None = None,
  describes_tests: bool = True,
) -> Dataset:
  """Loads the data set, in which texts are texts still; see `with_words`.

  Args:
    options: what the configuration says about the data.
    may_download: whether TensorFlow Datasets may download and prepare a missing set.
    trust_pickles: replaces the knob `data.trust_pickles`; None: as configured.
    announce: see `sources.load`.
    describes_tests: see `sources.load`.

  Raises:
    DataError: the data set is missing or unusable.
  """
  source_options = dict(options.source_options)
  if options.source == 'tfds' and not may_download:
    source_options['prepare'] = False
  if 'trust_pickles' in source_options and trust_pickles is not None:
    source_options['trust_pickles'] = trust_pickles
  with activity.doing('reading the data'):
    return sources.load(
      options.source,
      limit=options.limit,
      announce=announce,
      describes_tests=describes_tests,
      **source_options,
    )


def prepare(
  asked_config: Config,
  load: Callable[[DataOptions], Dataset] = load_data,
  *,
  reads_texts: bool = True,
) -> PreparedData:
  """Loads the data and divides it, which finds most mistakes that depend on the data.

  Args:
    asked_config: the configuration as it was asked for.
    load: function that loads the data.
    reads_texts: whether texts become words, which may take long.

  Raises:
    UsageError: the data are missing, cannot be divided as asked, or do not fit.
  """
  config_for_data = with_one_client_if_centralized(asked_config)
  options = DataOptions(config_for_data)
  loaded = load(options)
  divided = divide(loaded, options)
  if config_for_data.keep_best == 'validation' and divided.validation is None:
    raise KnobError(
      'keep_best',
      'validation',
      f'needs examples for validation: add {flag("data.validation", 0.1)}, or let the '
      f'test set choose by {flag("keep_best", "test")}.',
    )
  if reads_texts:
    divided = with_words(divided, options)
  return PreparedData(
    config=with_clients_of_data(config_for_data, divided),
    loaded=loaded,
    divided=divided,
  )


def divide(loaded: Dataset, options: DataOptions) -> Divided:
  """Decides which training examples the server keeps, and which each client owns.

  Raises:
    UsageError: the data cannot be divided as the configuration says.
  """
  dataset, validation = holdout.validation_split(
    loaded, options.validation, options.seed
  )
  if dataset.stored and not options.users_are_clients:
    raise KnobError(
      'data.source',
      options.source,
      f'keeps each client on disk: it needs {flag("partition.name", "natural")}, and '
      'an algorithm of several clients.',
    )
  num_users_left_out = 0
  if options.users_are_clients and users.sizes_of(dataset) is not None:
    dataset, num_users_left_out = users.without_small(dataset, options.min_size)
  dealt = deal(dataset, options)
  user_ids = None
  if options.users_are_clients:
    user_ids = dataset.clients[: len(dealt.partition.sizes)]
  return Divided(
    dataset=dataset,
    partition=dealt.partition,
    image_view=dealt.image_view,
    validation=validation,
    user_ids=user_ids,
    num_users_left_out=num_users_left_out,
  )


def with_words(divided: Divided, options: DataOptions) -> Divided:
  """The data, in which texts have become words; other data as they are.

  The vocabulary is made of the texts on which clients train. What the server keeps for
  validation, what tests single clients, and users who are left out play no part in it.

  Raises:
    UsageError: the texts cannot be read, or not so much be held out.
  """
  dataset, validation = divided.dataset, divided.validation
  if dataset.form.content != 'texts':
    return divided
  trained = divided.partition
  if options.local_test:
    trained, _ = client_tests.hold_out(
      trained, options.local_test, options.seed, divided.client_name
    )
  vocabulary = texts.learn(
    options.data_flag,
    dataset.train_images[np.sort(trained.indices)],
    options.text_options,
  )
  if validation is not None:
    dataset = dataset._replace(
      validation_images=validation[0], validation_labels=validation[1]
    )
  dataset, notice = texts.in_words(options.data_flag, dataset, vocabulary)
  if validation is not None:
    validation = dataset.validation_images, dataset.validation_labels
  return divided._replace(dataset=dataset, validation=validation, text_notice=notice)


def deal(dataset: Dataset, options: DataOptions) -> partition.Dealt:
  """The owner of each training example, and how clients see their images."""
  if dataset.stored:
    offsets = np.concatenate([[0], np.cumsum(dataset.stored.sizes)])
    return partition.Dealt(Partition(dataset.train_labels, offsets))
  num_clients = options.num_clients
  rule_options = dict(options.partition_options)
  if options.users_are_clients:
    if dataset.train_clients is None:
      raise DataError(
        f'{flag("partition.name", options.partition)} needs data with user '
        f'ids: {_remedy_without_users(options)}.'
      )
    rule_options['clients'] = dataset.train_clients
    num_clients = len(users.sizes_of(dataset))
  return partition.deal(
    options.partition,
    dataset.train_labels,
    num_clients=num_clients,
    min_size=options.min_size,
    seed=options.seed,
    **rule_options,
  )


def _remedy_without_users(options: DataOptions) -> str:
  """What gives the examples of a source their users."""
  if catalog.part('data', options.source).registered:
    return 'return train_client, too, the user of each training example'
  if 'client' in options.source_options:
    return f'name the column of the users by {flag("data.client")}=COLUMN'
  if options.source == 'npz':
    return 'add train_client to the file, the user of each training example'
  return 'choose another source, or another partition, such as dirichlet'


def require_fitting_parts(config: Config, form: Form) -> None:
  """Refuses augmentations of other data, and noise on grey levels.

  An augmentation that a user has registered takes what it can.

  Raises:
    KnobError: the configuration has such a part, and the data are something else.
  """
  augmentation = catalog.part('augmentation', config.augmentation.name)
  trait = f'of_{example_forms.plural(form)}'
  is_plain = augmentation.name == 'none' or augmentation.registered
  if not (is_plain or augmentation.has(trait)):
    kinds = [
      plural
      for plural in ('pictures', 'signals', 'tables', 'volumes')
      if augmentation.has(f'of_{plural}')
    ]
    fitting = [
      name
      for name in catalog.names('augmentation')
      if catalog.part('augmentation', name).has(trait)
    ]
    raise KnobError(
      'augmentation.name',
      augmentation.name,
      f'is for {", ".join(kinds)}, and these data are {example_forms.plural(form)}: '
      f'choose {" or ".join([*fitting, "none"])}.',
    )
  rule = used_value(config, 'partition.name')
  if form.content != 'levels' and rule == 'noise':
    raise KnobError(
      'partition.name',
      rule,
      'adds noise to grey levels, and these data are other numbers: choose another '
      'partition.',
    )
