"""The knobs of every run; those of one algorithm or model stand with it."""

from moon_jax.catalog.parts import (
  AUTO_OR_COUNT,
  COUNT,
  SEED,
  Auto,
  Bound,
  PartOf,
  above,
  at_least,
  between,
  knob,
  one_of,
)

# What a knob needs: (kind of part, trait), all of them.
_SEVERAL = (('algorithm', 'several_clients'),)
_SERVED = (('algorithm', 'served'),)
_WEIGHTED, _PEERS = (('algorithm', 'weighted'),), (('algorithm', 'decentralized'),)
_CONTRASTIVE = (('algorithm', 'contrastive'),)
_NORMALIZED, _CONVOLUTIONAL = (('model', 'normalized'),), (('model', 'convolutional'),)
_TFDS, _NPZ = (('data', 'tfds'),), (('data', 'npz'),)
_BETA = (*_SEVERAL, ('partition', 'beta'))
_SHARDS = (*_SEVERAL, ('partition', 'shards'))
_NOISE = (*_SEVERAL, ('partition', 'noise'))
_CROPS = (('augmentation', 'crop_flip'),)
_SGD, _DECAYING = (('optimizer', 'sgd'),), (('schedule', 'decaying'),)
_SERVER_SGD = (*_SERVED, ('server_optimizer', 'sgd'))
_RING, _RANDOM = (*_PEERS, ('topology', 'ring')), (*_PEERS, ('topology', 'erdos_renyi'))
# A resumed run may have another value: it is the same experiment.
_FREE = {'may_change': True}

_EVEN = Bound('even, at least 2', lambda value: value >= 2 and value % 2 == 0)
_FRACTION = Bound(
  'a fraction of the clients in (0, 1], not a count', lambda value: 0 < value <= 1
)
_BELOW_ONE, _UNIT, _POSITIVE = between(0, 1, '[)'), between(0, 1), between(0, 1, '(]')
_SIZE = at_least(0)
# 1 averages; FedAdam and FedYogi move every weight by up to the rate in a round.
_SERVER_RATE = Auto('server_optimizer.name', {'sgd': 1.0, 'adam': 0.01, 'yogi': 0.01})
_WEIGHTS, _STATISTICS = one_of('samples', 'uniform'), one_of('averaged', 'local')
_FORMS = one_of('auto', 'library', 'im2col', 'banded')

KNOBS = {
  'algorithm': knob(str, 'moon', 'how clients train', PartOf('algorithm')),
  'model': knob(str, 'mlp', 'the network', PartOf('model')),
  'seed': knob(int, 0, 'of every random draw', SEED),
  'num_clients': knob(int, 10, 'clients that share the training data', COUNT, _SEVERAL),
  'participation': knob(float, 1.0, 'those in a round', _FRACTION, _SEVERAL),
  'num_rounds': knob(int, 100, 'communication rounds', COUNT, **_FREE),
  'local_epochs': knob(int, 10, 'passes of a client over its own data', COUNT),
  'batch_size': knob(int, 64, 'examples per local step', COUNT),
  'drop_last': knob(bool, False, "leave out an epoch's last batch if it is not full"),
  'client_weight': knob(
    str, 'samples', 'in the mean of the server', _WEIGHTS, _WEIGHTED
  ),
  'batch_norm': knob(
    str,
    'averaged',
    'running statistics; local: each client its own',
    _STATISTICS,
    _NORMALIZED,
  ),
  'eval_every_rounds': knob(int, 1, 'rounds between tests', COUNT, **_FREE),
  'checkpoint_every_rounds': knob(
    int, 10, 'rounds between saves, the last too', COUNT, **_FREE
  ),
  'on_nonfinite': knob(
    str, 'stop', 'at NaN or Inf', one_of('stop', 'skip_client'), **_FREE
  ),
  'data.source': knob(str, 'digits', 'where the images come from', PartOf('data')),
  'data.name': knob(str, '', 'TFDS set, e.g. cifar10', (), _TFDS, required=True),
  # What it holds is compared itself.
  'data.dir': knob(
    str, '', "TFDS folder; '' is $TFDS_DATA_DIR or the default", (), _TFDS, **_FREE
  ),
  'data.path': knob(
    str, '', 'file with train_x, train_y, test_x, test_y', (), _NPZ, required=True
  ),
  'data.limit': knob(int, 0, 'at most so many of each split; 0 is all', _SIZE),
  'partition.name': knob(
    str, 'dirichlet', 'how clients differ', PartOf('partition'), _SEVERAL
  ),
  'partition.beta': knob(
    float, 0.5, 'Dirichlet concentration: small is skewed', above(0), _BETA
  ),
  'partition.classes_per_client': knob(int, 2, 'exactly so many each', COUNT, _SHARDS),
  'partition.noise_sigma': knob(
    float, 0.1, 'of the last client, in pixel / 255', _UNIT, _NOISE
  ),
  'partition.min_size': knob(
    int, 10, 'examples the smallest client must own', COUNT, _SEVERAL
  ),
  'augmentation.name': knob(str, 'none', 'of training images', PartOf('augmentation')),
  'augmentation.padding': knob(
    str, 'reflect', 'beyond the border; zero: black', one_of('reflect', 'zero'), _CROPS
  ),
  'optimizer.name': knob(str, 'sgd', 'local, anew each round', PartOf('optimizer')),
  'optimizer.learning_rate': knob(float, 0.01, 'of local training', above(0)),
  'optimizer.momentum': knob(float, 0.9, 'of sgd', _BELOW_ONE, _SGD),
  'optimizer.nesterov': knob(bool, False, 'look ahead along the momentum', (), _SGD),
  'optimizer.weight_decay': knob(float, 1e-5, 'coupled, but of adamw', _SIZE),
  'optimizer.schedule': knob(
    str, 'constant', 'of the rate over rounds', PartOf('schedule')
  ),
  'optimizer.decay': knob(float, 0.1, 'factor of the rate', _POSITIVE, _DECAYING),
  'optimizer.decay_every': knob(
    int, 50, 'rounds, until the factor is reached', COUNT, _DECAYING
  ),
  'server_optimizer.name': knob(
    str, 'sgd', 'of the mean update', PartOf('server_optimizer'), _SERVED
  ),
  'server_optimizer.learning_rate': knob(
    float,
    'auto',
    'auto: 1, of adam and yogi 0.01',
    above(0),
    _SERVED,
    auto=_SERVER_RATE,
  ),
  'server_optimizer.momentum': knob(
    float, 0.0, 'of sgd; above 0: FedAvgM', _BELOW_ONE, _SERVER_SGD
  ),
  'topology.name': knob(str, 'ring', 'of neighbours', PartOf('topology'), _PEERS),
  'topology.degree': knob(int, 2, 'neighbours, below num_clients', _EVEN, _RING),
  'topology.edge_probability': knob(float, 0.5, 'of each pair', _POSITIVE, _RANDOM),
}

EXECUTION = {
  'execution.devices': knob(
    str, 'auto', 'that share the lanes', AUTO_OR_COUNT, **_FREE
  ),
  'execution.lanes': knob(
    str, 'auto', 'clients trained side by side', AUTO_OR_COUNT, **_FREE
  ),
  'execution.convolution': knob(
    str,
    'auto',
    'form of the convolutions; same values',
    _FORMS,
    _CONVOLUTIONAL,
    **_FREE,
  ),
  'execution.cache_mib': knob(
    int, 2048, 'for frozen representations; 0: none', _SIZE, _CONTRASTIVE, **_FREE
  ),
  'execution.dtype': knob(
    str, 'float32', "of the networks' arithmetic", one_of('float32', 'bfloat16')
  ),
  'execution.matmul_precision': knob(
    str, 'default', 'as in JAX', one_of('default', 'high', 'highest')
  ),
  'execution.deterministic': knob(
    bool, False, 'on GPUs: the same bits in every run, slower', **_FREE
  ),
  'execution.compile_cache': knob(
    str, '', "folder for compiled programs, private; '': none", **_FREE
  ),
  'execution.profile': knob(
    bool, False, 'trace two rounds and say where the time went', **_FREE
  ),
}
