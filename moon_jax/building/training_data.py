"""The clients' training examples on the devices."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jax.sharding import Mesh

from moon_jax.building.data import Divided, client_name
from moon_jax.building.streaming import Stream
from moon_jax.core.types import Dataset, Form, PyTree, Scale
from moon_jax.data import partition
from moon_jax.data.device_split import TrainSplit, split_of
from moon_jax.data.partition import Partition
from moon_jax.planning.attackers import labels_in_training


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
    scale: the scale that the images have in the source.
    digest: SHA-256 of the whole data set, in hexadecimal.
    words_digest: SHA-256 of the vocabulary, and of the words that the texts became; ''
      if there were no texts.
    form: what the arrays hold.
    feature_names: [D] names of the numbers of an example; () if the data have none.
    words: [V] the vocabulary, if the examples were texts; () otherwise.
    sample_rate: samples in a second, if the examples were sounds; 0 otherwise.
  """

  partition: Partition
  class_counts: np.ndarray
  train: TrainSplit
  stream: Stream | None
  user_ids: np.ndarray | None
  num_users_left_out: int
  class_names: tuple[str, ...]
  scale: Scale
  digest: str
  words_digest: str = ''
  form: Form = Form()
  feature_names: tuple[str, ...] = ()
  words: tuple[str, ...] = ()
  sample_rate: int = 0

  def client_name(self, client: int) -> str:
    """The name that the data give a client, or its number."""
    return client_name(self.user_ids, client)

  def client_names(self) -> list[str]:
    """[N] `client_name` of each client."""
    return [self.client_name(client) for client in range(len(self.partition.sizes))]


def count_classes(dataset: Dataset, training_partition: Partition) -> np.ndarray:
  """[N, Y] training examples of each client and class, as they are labelled."""
  if dataset.stored:
    return dataset.stored.class_counts
  return partition.class_counts(
    training_partition, dataset.train_labels, dataset.num_classes
  )


def train_on_devices(
  divided: Divided,
  training_partition: Partition,
  label_flippers: np.ndarray,
  mesh: Mesh,
  put: Callable[[PyTree, Mesh], PyTree],
) -> TrainSplit:
  """The training split on the devices, as its owners see it.

  Args:
    divided: the data, in memory.
    training_partition: the owner of each example on which a client trains.
    label_flippers: ids of the clients that train on flipped labels.
    mesh: the devices.
    put: puts arrays on the devices, or makes shapes of them.
  """
  dataset = divided.dataset
  # A client's view is that of all its examples, also of those that test it.
  images = divided.image_view(dataset.train_images, divided.partition)
  labels = labels_in_training(dataset, training_partition, label_flippers)
  position_of_row = np.zeros(len(labels), np.int32)
  rows_by_owner = training_partition.indices
  position_of_row[rows_by_owner] = np.arange(len(rows_by_owner))
  split = TrainSplit(
    examples=split_of(dataset, images, labels),
    rows_by_owner=rows_by_owner,
    offsets=training_partition.offsets.astype(np.int32),
    position_of_row=position_of_row,
    holds_cohort_only=False,
  )
  return put(split, mesh)


def make_training_data(
  divided: Divided,
  *,
  training_partition: Partition,
  class_counts: np.ndarray,
  train_split: TrainSplit,
  stream: Stream | None,
  digest: str,
  words_digest: str,
) -> TrainingData:
  """The clients' training examples, with what the data set says about them.

  Args:
    divided: the data.
    training_partition: the owner of each example on which a client trains.
    class_counts: [N, Y] training examples of each client and class.
    train_split: the training split on the devices, or its shape.
    stream: reads each cohort's part of the split; None if the split is on the devices.
    digest: SHA-256 of the whole data set; '' if it has no arrays.
    words_digest: see `TrainingData`.
  """
  dataset = divided.dataset
  return TrainingData(
    partition=training_partition,
    class_counts=class_counts,
    train=train_split,
    stream=stream,
    user_ids=divided.user_ids,
    num_users_left_out=divided.num_users_left_out,
    class_names=dataset.class_names,
    scale=dataset.scale,
    form=dataset.form,
    feature_names=dataset.feature_names,
    words=dataset.words,
    sample_rate=dataset.sample_rate,
    digest=digest,
    words_digest=words_digest,
  )
