"""The pytrees that cross file borders, and the axis letters; imports no own module.

Axis letters, the same in every docstring:

  N clients         K clients of a cohort    L lanes          M models, or examples
  S local steps     G segments of a round    B batch
  H W C image       D representation         Y classes      P devices

`variables` is a flax variable dict, `{'params': ...}`. `memory` is what a client (or
the server) keeps between rounds; an algorithm that keeps nothing uses `()`.

It does not load JAX, whose arrays it only names: the data are read before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
  import jax

PyTree = Any
LANES = 'lanes'  # the only axis of the mesh of devices, which share the lanes


class Scale(NamedTuple):
  """The numbers that are black and white in all images of a data set.

  Training, test, validation, every user and the images of a prediction share it: equal
  numbers are equal pixels. Nothing is guessed from the values of an array.

  Attributes:
    low: number of black, which is stored as 0.
    high: number of white, which is stored as 255.
    dtype: name of the dtype of the training images.
    declared: whether `data.range` or the source itself gives the two numbers. If not,
      the dtype decides, and the other images must be integers or floats as the training
      images are.
  """

  low: float = 0.0
  high: float = 255.0
  dtype: str = 'uint8'
  declared: bool = False


class Form(NamedTuple):
  """What the arrays of a data set hold, besides the shape of an example.

  Attributes:
    kind: 'picture', 'volume', 'signal', 'table' or 'words'.
    axes: letters of an example's axes in the source, such as 'CHW' or 'TC'; '': a
      picture whose shape says where the channels are.
    content: what the arrays of the Dataset hold: 'levels', grey levels on its `scale`;
      'numbers', those of the source; 'words', numbers of words, -1 for no word;
      'texts', [M] texts that are yet to become words.
    normalize: 'none', 'per_channel' or 'per_feature', for numbers.
    dtype: name of the arrays' dtype.
    range: the lowest and the highest number that are allowed; () allows all.
    vocabulary: how many words there are; 0 if the arrays hold none.
  """

  kind: str = 'picture'
  axes: str = ''
  content: str = 'levels'
  normalize: str = 'per_channel'
  dtype: str = 'uint8'
  range: tuple[float, ...] = ()
  vocabulary: int = 0


class Stored(NamedTuple):
  """Training examples that stay on disk, one record for each user.

  Attributes:
    sizes: [N] int64, number of examples of each user.
    class_counts: [N, Y] int64, number of examples of each class.
    records: [N] int64, the place of each user's record.
    read: some of `records` -> for each, the images [n, H, W, C] and the labels [n]
      int32.
    digest: SHA-256 of the content, in hexadecimal.
  """

  sizes: np.ndarray
  class_counts: np.ndarray
  records: np.ndarray
  read: Callable[[np.ndarray], list[tuple[np.ndarray, np.ndarray]]]
  digest: str


class Dataset(NamedTuple):
  """Examples and labels in host memory, plus the statistics that normalise them.

  Most data are pictures of grey levels, [M, H, W, C] uint8. `form` says what other
  arrays hold: volumes [M, D, H, W, C], signals [M, T, C], tables [M, D] or words
  [M, T], of the form's dtype. Their mean and deviation are those of the numbers
  themselves, of the last axis or of each number of an example.

  Attributes:
    name: the name for messages, e.g. 'cifar10'.
    train_images: [M, H, W, C] uint8.
    train_labels: [M] int32 in [0, num_classes).
    test_images: [M, H, W, C] uint8.
    test_labels: [M] int32 in [0, num_classes).
    num_classes: Y.
    mean: [C] float32, mean of pixel / 255 over the training split.
    std: [C] float32, standard deviation of pixel / 255, > 0.
    train_clients: [M] int32, the user of each training example, as an index into
      `clients`; None if the training examples have no user ids.
    test_clients: [M] int32, the same for the test examples; None if these have no ids.
    clients: ids of the users, as the data have them: users with a training example
      first, in ascending order; None if no example has a user id.
    stored: the training examples, if they stay on disk; the training arrays above are
      empty then.
    class_names: [Y] names of the classes, all different; () if the data have none.
    validation_images: [V, H, W, C] uint8, examples that the data set reserves for
      validation; None if there are none.
    validation_labels: [V] int32, their labels.
    scale: the numbers in the source that became pixels 0 and 255.
    form: what the arrays hold.
    feature_names: [D] names of the numbers of an example; () if the data have none.
    words: [V] the vocabulary, if the examples were texts; () otherwise.
    sample_rate: samples in a second, if the examples were sounds; 0 otherwise.
  """

  name: str
  train_images: np.ndarray
  train_labels: np.ndarray
  test_images: np.ndarray
  test_labels: np.ndarray
  num_classes: int
  mean: np.ndarray
  std: np.ndarray
  train_clients: np.ndarray | None = None
  test_clients: np.ndarray | None = None
  clients: np.ndarray | None = None
  stored: Stored | None = None
  class_names: tuple[str, ...] = ()
  validation_images: np.ndarray | None = None
  validation_labels: np.ndarray | None = None
  scale: Scale = Scale()
  form: Form = Form()
  feature_names: tuple[str, ...] = ()
  words: tuple[str, ...] = ()
  sample_rate: int = 0


class Outputs(NamedTuple):
  """What a network returns for a batch.

  Attributes:
    representation: [B, D] output of the projection head.
    logits: [B, Y] unnormalised class scores, computed from the representation.
    features: [B, F] output of the encoder, before the projection head; None: the
      representation.
  """

  representation: jax.Array
  logits: jax.Array
  features: jax.Array | None = None


class Layers(NamedTuple):
  """The variables of a network by kind of layer, as paths ('params', ..., 'kernel').

  Attributes:
    paths: paths of all variables.
    output: paths of the output layer.
    batch_norm: paths of batch normalisation: scales, biases and running statistics.
    body: paths of what computes the features; the others are the head.
  """

  paths: frozenset[tuple[str, ...]]
  output: frozenset[tuple[str, ...]]
  batch_norm: frozenset[tuple[str, ...]]
  body: frozenset[tuple[str, ...]] = frozenset()


class Batch(NamedTuple):
  """Examples of one local step.

  Attributes:
    images: [B, H, W, C] float32, normalised.
    labels: [B] int32.
    mask: [B] float32, 1.0 for a real example, 0.0 for filler.
  """

  images: jax.Array
  labels: jax.Array
  mask: jax.Array


class Task(NamedTuple):
  """What a client knows while it trains, besides its data.

  Attributes:
    received: what the server sent this round.
    memory: what the client kept from earlier rounds.
    local: the algorithm's memory of this local training; it may change in each step.
    scalars: name -> [] float32, numbers of the algorithm (mu, tau, ...).
    optimizer: name -> [] float32, numbers of the local optimizer (learning_rate, ...).
    loss_with: in `after_step`, another `local` -> [] the loss that the same weights
      would have had on the same batch, which costs a forward pass; None elsewhere.
    class_counts: [Y] float32, the client's training examples of each class; None unless
      `Algorithm.needs` names it.
    relative_size: [] float32, the client's training examples / the mean of all clients;
      None unless `Algorithm.needs` names it.
    epoch_steps: [] float32, steps of a pass over the client's data, in the second
      training if there is one; None unless `Algorithm.needs` names it.
    examined: after the last step, the total of `Algorithm.examine`; () elsewhere.
  """

  received: PyTree
  memory: PyTree
  local: PyTree
  scalars: dict[str, jax.Array]
  optimizer: dict[str, jax.Array]
  loss_with: Callable[[PyTree], jax.Array] | None = None
  class_counts: jax.Array | None = None
  relative_size: jax.Array | None = None
  epoch_steps: jax.Array | None = None
  examined: PyTree = ()


class Scalars(NamedTuple):
  """The traced scalars of a round: name -> [] float32, the same for every client.

  Attributes:
    algorithm: hyperparameters of the algorithm: mu, tau, ...
    optimizer: numbers of the local optimizer: learning_rate, ...
    seed: [] int32, the seed of every draw on the device.
  """

  algorithm: dict[str, jax.Array]
  optimizer: dict[str, jax.Array]
  seed: jax.Array


class Upload(NamedTuple):
  """What a client sends to the server.

  The server sees the mean over the cohort, unless it asks for `Uploads`.

  Attributes:
    weighted: averaged by the clients' weights, n_k / n.
    uniform: averaged with equal weights, 1 / K.
  """

  weighted: PyTree = ()
  uniform: PyTree = ()


class Uploads(NamedTuple):
  """What every client of a cohort sent; see `Algorithm.needs_all_uploads`.

  Attributes:
    stacked: an Upload, leaves [K, ...].
    weights: [K] float32 weights of the clients, on any scale.
    counted: [K] bool, whether what a client sent is finite. If not, the client is left
      out, and its leaves must not be multiplied by 0, because 0 * NaN is NaN.
    attack_seeds: [K] int32, -1 for an honest client, else a seed of its draws; None
      without an attack.
  """

  stacked: Upload
  weights: jax.Array
  counted: jax.Array
  attack_seeds: jax.Array | None = None


class ClientMetrics(NamedTuple):
  """What a round measures of a client; leaves [], or [K] for a cohort.

  Attributes:
    sums: name -> float32, the loss, its parts and how many examples were classified
      correctly, summed over examples.
    num_summed: float32 examples in the sums: those seen, but with several batches a
      step (`Algorithm.num_batches`) only those of the first batch of each step.
    num_seen: float32 examples seen; an example counts once an epoch.
    drift: float32, ||w_trained - w_start||_2 over all parameters.
    reports: name -> float32, further numbers that the algorithm reports of a client.
    computed: name -> [] float32, scalars that the algorithm computed; never stacked.
    finite: bool, whether all that the client sends, keeps and reports is finite; if
      not, the client is left out of the average, and its memory does not change. A
      second training comes after the average: if it fails, only the memory stays.
    server_finite: [] bool, whether the new server is finite; None for a single client.
  """

  sums: dict[str, jax.Array]
  num_summed: jax.Array
  num_seen: jax.Array
  drift: jax.Array
  reports: dict[str, jax.Array]
  computed: dict[str, jax.Array]
  finite: jax.Array
  server_finite: jax.Array | None


class Arrivals(NamedTuple):
  """The memories of a cohort, as far as a client store has to bring them.

  Attributes:
    memories: leaves [K, ...]; rows of clients of the last cohort are not read.
    previous_slots: [K] int32, the slot that a client had in the last cohort, whose
      memories are still on the device; -1 for a client that was not in it.
  """

  memories: PyTree
  previous_slots: jax.Array


class Server(NamedTuple):
  """The server between rounds.

  Attributes:
    variables: the global model, {'params': ...}, and with batch normalisation
      'batch_stats'.
    memory: what the algorithm's server keeps besides the model; () if it keeps nothing.
  """

  variables: PyTree
  memory: PyTree


class State(NamedTuple):
  """Everything that outlives a round, and so everything a checkpoint holds.

  Attributes:
    server: the global model and the server's memory.
    clients: leaves [N, ...], the memory of every client; with a client store [K, ...],
      the memories of the last cohort.
    round: [] int32, number of completed rounds.
  """

  server: Server
  clients: PyTree
  round: jax.Array
