"""Every knob once: name, default, meaning, bound. The other configs change a few.

`python launch.py --help` prints this list. The defaults are the settings of the MOON
paper (Li et al. 2021, arXiv:2103.16257, section 4.1), on a data set that needs no
download.
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
  """Returns the defaults; bounds are checked by moon_jax/config/."""
  config = ml_collections.ConfigDict()

  # With a server: fedavg, fedprox, scaffold, moon, sa_moon, dco_moon. Without one:
  # decentralized_fedavg, decentralized_moon, solo (alone), centralized (one client).
  config.algorithm = 'moon'  # how clients train and what becomes of it, see above
  # Pixels: any; moon_cnn, tutorial_cnn, dco_cnn 28x28 or 32x32; cnn_transformer 32x32.
  config.model = 'mlp'  # mlp, {moon,tutorial,dco}_cnn, cnn_transformer, resnet{18,50}
  config.seed = 0  # of every random draw; 0 to 2**31 - 1

  config.num_clients = 10  # clients that share the training data; at least 1
  config.participation = 1.0  # fraction of the clients in a round; in (0, 1]
  config.num_rounds = 100  # communication rounds; at least 1
  config.local_epochs = 10  # passes over its own data, per client and round; at least 1
  config.batch_size = 64  # examples per local step; at least 1
  config.drop_last = False  # leave out an epoch's last batch if it is not full
  config.client_weight = 'samples'  # in the server's average, or uniform: all the same
  config.batch_norm = 'averaged'  # running statistics, or local: clients keep their own
  config.eval_every_rounds = 1  # rounds between tests, the last always; at least 1
  config.checkpoint_every_rounds = 10  # rounds between saves, the last too; at least 1
  config.on_nonfinite = 'stop'  # at NaN or Inf, or skip_client: leave it out

  config.data = ml_collections.ConfigDict()
  config.data.source = 'digits'  # digits (embedded), tfds or npz
  config.data.name = ''  # TFDS data set, e.g. cifar10; for source=tfds
  config.data.dir = ''  # TFDS folder; '' is $TFDS_DATA_DIR or the TFDS default
  config.data.path = ''  # file with train_x, train_y, test_x, test_y; for source=npz
  config.data.limit = 0  # at most so many training and test examples; 0 is all

  config.partition = ml_collections.ConfigDict()
  config.partition.name = 'dirichlet'  # iid, dirichlet, shards, quantity or noise
  config.partition.beta = 0.5  # Dirichlet concentration, small is skewed; above 0
  config.partition.classes_per_client = 2  # exactly, for name=shards; at least 1
  config.partition.noise_sigma = 0.1  # of the last client, in pixel / 255; in [0, 1]
  config.partition.min_size = 10  # examples the smallest client must own; at least 1

  config.augmentation = ml_collections.ConfigDict()
  config.augmentation.name = 'none'  # none, flip, or crop_flip: shifts up to 4 pixels
  config.augmentation.padding = 'reflect'  # reflect, or zero: black; for crop_flip

  config.optimizer = ml_collections.ConfigDict()
  config.optimizer.name = 'sgd'  # local, started anew each round: sgd, adam or adamw
  config.optimizer.learning_rate = 0.01  # above 0
  config.optimizer.momentum = 0.9  # of sgd; in [0, 1)
  config.optimizer.nesterov = False  # of sgd: look ahead along the momentum
  config.optimizer.weight_decay = 1e-5  # coupled: decay * w in the gradient; at least 0
  config.optimizer.schedule = 'constant'  # or cosine, exponential, step: over rounds
  config.optimizer.decay = 0.1  # factor of exponential and step schedules; in (0, 1]
  config.optimizer.decay_every = 50  # rounds, until the factor is reached; at least 1

  # The rate is a number or a word: moon_jax/config/ alone checks this group's types.
  config.server_optimizer = ml_collections.ConfigDict(type_safe=False)
  config.server_optimizer.name = 'sgd'  # sgd (momentum: FedAvgM), adam (FedAdam), yogi
  config.server_optimizer.learning_rate = 'auto'  # above 0; auto: 1, adam, yogi 0.01
  config.server_optimizer.momentum = 0.0  # of sgd; in [0, 1)

  config.topology = ml_collections.ConfigDict()
  config.topology.name = 'ring'  # of neighbours: ring, grid, complete or erdos_renyi
  config.topology.degree = 2  # neighbours in a ring; even, below num_clients
  config.topology.edge_probability = 0.5  # of each pair, for erdos_renyi; in (0, 1]

  config.moon = ml_collections.ConfigDict()
  config.moon.mu = 5.0  # weight of the contrastive term; at least 0
  config.moon.tau = 0.5  # temperature of the contrastive term; above 0
  config.moon.negative = 'none'  # without a previous model: none, global or init model
  config.moon.similarity_on = 'representation'  # or features: before the head
  config.moon.num_previous = 1  # of a client's last models as negatives; at least 1
  config.moon.frozen_mode = 'evaluation'  # of the models compared with, or training

  config.sa_moon = ml_collections.ConfigDict()
  config.sa_moon.mu = 5.0  # weight of the contrastive term; at least 0
  config.sa_moon.initial_temperature = 1.0  # of a client's first step; above 0
  config.sa_moon.min_temperature = 0.001  # never below; above 0, at most the initial
  config.sa_moon.sigma = 0.005  # fall per relative change of the gradient; in [0, 1]
  config.sa_moon.scope = 'client'  # keeps its own; server: averaged over the round's

  config.dco_moon = ml_collections.ConfigDict()
  config.dco_moon.mu = 1.0  # weight of both terms, so also of a step; at least 0
  config.dco_moon.tau = 0.5  # temperature of the contrastive term; above 0
  # About half of the clients stray by 0.1 with mu = 1: docs/algorithms.md.
  config.dco_moon.theta = 0.1  # relative deviation that counts as straying; above 0
  config.dco_moon.normalise = False  # divide both weights by mu, above 0 then

  config.fedprox = ml_collections.ConfigDict()
  config.fedprox.mu = 0.01  # weight of the proximal term; at least 0

  config.mlp = ml_collections.ConfigDict()
  config.mlp.width = 128  # units of each hidden layer; at least 1
  config.mlp.representation = 64  # units of the representation; at least 1

  config.cnn_transformer = ml_collections.ConfigDict()
  config.cnn_transformer.layers = 6  # of the encoder; at least 1
  config.cnn_transformer.heads = 8  # of attention, in every layer; a divisor of 256
  config.cnn_transformer.feedforward = 2048  # hidden units of a layer; at least 1
  config.cnn_transformer.dropout = 0.1  # after convolutions, in the encoder; in [0, 1)

  config.execution = ml_collections.ConfigDict()
  config.execution.devices = 'auto'  # that share the lanes: auto (all) or a count
  config.execution.lanes = 'auto'  # clients trained side by side: auto or a count
  config.execution.convolution = 'auto'  # auto, library, im2col or banded; same values
  config.execution.cache_mib = 2048  # for MOON's frozen representations, MiB; 0 is none
  config.execution.dtype = 'float32'  # of the networks' arithmetic: float32 or bfloat16
  config.execution.matmul_precision = 'default'  # default, high or highest, as in JAX
  config.execution.deterministic = False  # on GPUs: the same bits in every run, slower
  config.execution.compile_cache = ''  # folder for compiled programs, private; '': none
  config.execution.profile = False  # trace two rounds and say where the time went

  return config
