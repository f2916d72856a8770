"""The knobs of every run; those of one algorithm or model stand with it."""

from moon_jax.catalog.parts import (
  AUTO_OR_COUNT,
  INT32,
  SEED,
  Auto,
  Bound,
  above,
  at_least,
  between,
  counted,
  knob,
  number,
  one_of,
  switch,
  word,
)

# What a knob needs: (kind of part, trait), all of them.
_SEVERAL = (('algorithm', 'several_clients'),)
_SERVED = (('algorithm', 'served'),)
_WEIGHTED, _PEERS = (('algorithm', 'weighted'),), (('algorithm', 'decentralized'),)
_CONTRASTIVE = (('algorithm', 'contrastive'),)
_NORMALIZED, _CONVOLUTIONAL = (('model', 'normalized'),), (('model', 'convolutional'),)
_TFDS, _FILES, _PAIR = (('data', 'tfds'),), (('data', 'files'),), (('data', 'pair'),)
_FEATURES, _IDS = (('data', 'features'),), (('data', 'ids'),)
_NAMED, _TREE = (('data', 'named'),), (('data', 'imagefolder'),)
_DEALT = (*_SEVERAL, ('partition', 'dealt'))
_BETA = (*_SEVERAL, ('partition', 'beta'))
_DIRICHLET = (*_SEVERAL, ('partition', 'dirichlet'))
_SHARDS = (*_SEVERAL, ('partition', 'shards'))
_NOISE = (*_SEVERAL, ('partition', 'noise'))
_CROPS = (('augmentation', 'crop_flip'),)
_SGD, _DECAYING = (('optimizer', 'sgd'),), (('schedule', 'decaying'),)
_SERVER_SGD = (*_SERVED, ('server_optimizer', 'sgd'))
_CYCLIC = (*_SEVERAL, ('availability', 'cyclic'))
_TRACE = (*_SEVERAL, ('availability', 'trace'))
_ATTACKING = (*_SERVED, ('attack', 'attacking'))
_SCALED, _NOISY, _INNER = (
  (*_SERVED, ('attack', name)) for name in ('sign_flip', 'gaussian', 'ipm')
)
_RING, _RANDOM = (*_PEERS, ('topology', 'ring')), (*_PEERS, ('topology', 'erdos_renyi'))
# A resumed run may have another value: it is the same experiment.
_FREE = {'may_change': True}

_EVEN = Bound('even, at least 2', lambda value: value >= 2 and value % 2 == 0)
_BELOW_ONE, _UNIT, _POSITIVE = between(0, 1, '[)'), between(0, 1), between(0, 1, '(]')
_FRACTION = Bound('a fraction of the clients in (0, 1], not a count', _POSITIVE.holds)
_SIZE = at_least(0)
_SHARE = Bound('a share of the examples in [0, 1)', _BELOW_ONE.holds)
# 1 averages; FedAdam and FedYogi move every weight by up to the rate in a round.
_SERVER_RATE = Auto('server_optimizer.name', {'sgd': 1.0, 'adam': 0.01, 'yogi': 0.01})
_WEIGHTS, _STATISTICS = one_of('samples', 'uniform'), one_of('averaged', 'local')
_FEWEST = (at_least(0), INT32)
_SENT = one_of('nothing', 'partial')
_NONFINITE, _PADDINGS = one_of('stop', 'skip_client'), one_of('reflect', 'zero')
_LOGGERS = Bound(
  'names of tensorboard, wandb and mlflow, each once, with commas between',
  lambda value: value == '' or _are_once(value.split(',')),
)
_DTYPES = one_of('float32', 'bfloat16')
_PRECISIONS = one_of('default', 'high', 'highest')
_TIERS = one_of('auto', 'device', 'disk')
_FORMS = one_of('auto', 'library', 'banded', 'fused', 'direct', 'winograd')


def _are_once(names):
  known = {'tensorboard', 'wandb', 'mlflow'}
  return len(set(names)) == len(names) and known.issuperset(names)


KNOBS = {
  'algorithm': word('moon', 'how clients train'),
  'model': word('mlp', 'the network'),
  'seed': knob(int, 0, 'of every random draw', SEED),
  'initial_weights': word(
    '', "file of the first weights, .safetensors or .npz; '' draws them", ()
  ),
  'num_clients': counted(10, 'that share the training data; natural: as named', _DEALT),
  'participation': number(1.0, 'those in a round', _FRACTION, _SEVERAL),
  'num_rounds': counted(100, 'communication rounds', **_FREE),
  'local_epochs': counted(10, 'passes of a client over its own data'),
  'local_epochs_min': knob(
    int, 0, 'fewest, drawn for each client and round; 0: no draw', _FEWEST, _SEVERAL
  ),
  'fine_tune_epochs': knob(
    int,
    0,
    "of the global model on each client's data before its own test",
    _FEWEST,
    _SERVED,
  ),
  'batch_size': counted(64, 'examples per local step'),
  'drop_last': switch(False, "leave out an epoch's last batch if it is not full"),
  'client_weight': word('samples', 'in the mean of the server', _WEIGHTS, _WEIGHTED),
  'batch_norm': word(
    'averaged', 'running statistics; local: each its own', _STATISTICS, _NORMALIZED
  ),
  'eval_every_rounds': counted(1, 'rounds between tests', **_FREE),
  'checkpoint_every_rounds': counted(10, 'rounds between saves, the last too', **_FREE),
  'on_nonfinite': word('stop', 'at NaN or Inf', _NONFINITE, **_FREE),
  'logger': word(
    'tensorboard',
    "where else records go: tensorboard, wandb, mlflow; '': nowhere",
    _LOGGERS,
    **_FREE,
  ),
  'data.source': word('digits', 'where the images come from'),
  'data.name': word(
    '', 'data set of TFDS or torchvision, e.g. cifar10', (), _NAMED, required=True
  ),
  # What it holds is compared itself.
  'data.dir': word(
    '', "TFDS folder; '' is $TFDS_DATA_DIR or the default", (), _TFDS, **_FREE
  ),
  'data.path': word('', 'file or folder of the data', (), _FILES, required=True),
  'data.test_path': word('', 'file of the test examples', (), _PAIR, required=True),
  'data.client': word(
    '', "feature or column that names the user; '' is none", (), _IDS
  ),
  'data.image': word('', "name of the images; '' is pixels, image, ...", (), _FEATURES),
  'data.label': word(
    '', "name of the labels; '' is label, fine_label, ...", (), _FEATURES
  ),
  'data.test_fraction': number(
    0.0,
    'fraction of each class drawn for the test; 0 if divided already',
    _BELOW_ONE,
    _TREE,
  ),
  'data.test_seed': knob(int, 0, 'seed of the draw of test images', SEED, _TREE),
  'data.image_size': knob(
    int, 0, 'pixels of each side after resizing; 0: as they are', (_SIZE, INT32), _TREE
  ),
  'data.limit': knob(int, 0, 'at most so many of each split; 0 is all', _SIZE),
  'data.validation': number(
    0.0, 'share of each class that the server keeps for validation', _BELOW_ONE
  ),
  'data.local_test': number(
    0.0, "share of each client's examples that test it, drawn by seed", _SHARE, _SEVERAL
  ),
  'partition.name': word('dirichlet', 'how clients differ', (), _SEVERAL),
  'partition.beta': number(
    0.5, 'Dirichlet concentration: small is skewed', above(0), _BETA
  ),
  'partition.balance': switch(
    True, 'none for who holds M / N examples', (), _DIRICHLET
  ),
  'partition.classes_per_client': counted(2, 'exactly so many each', _SHARDS),
  'partition.noise_sigma': number(
    0.1, 'of the last client, in pixel / 255', _UNIT, _NOISE
  ),
  'partition.min_size': counted(
    10, 'examples the smallest client must own; natural: leaves out others', _SEVERAL
  ),
  # Unresolved, 'auto' is the same in runs of all seeds.
  'partition.seed': knob(
    int, 'auto', 'of who owns what; auto: seed', SEED, _DEALT, auto=True
  ),
  'augmentation.name': word('none', 'of training images'),
  'augmentation.padding': word(
    'reflect', 'beyond the border; zero: black', _PADDINGS, _CROPS
  ),
  'optimizer.name': word('sgd', 'local, anew each round'),
  'optimizer.learning_rate': number(0.01, 'of local training', above(0)),
  'optimizer.momentum': number(0.9, 'of sgd', _BELOW_ONE, _SGD),
  'optimizer.nesterov': switch(False, 'look ahead along the momentum', (), _SGD),
  'optimizer.weight_decay': number(1e-5, 'coupled, but of adamw', _SIZE),
  'optimizer.schedule': word('constant', 'of the rate over rounds'),
  'optimizer.decay': number(0.1, 'factor of the rate', _POSITIVE, _DECAYING),
  'optimizer.decay_every': counted(
    50, 'rounds, until the factor is reached', _DECAYING
  ),
  'server_optimizer.name': word('sgd', 'of the mean update', (), _SERVED),
  'server_optimizer.learning_rate': number(
    'auto', 'auto: 1, of adam and yogi 0.01', above(0), _SERVED, auto=_SERVER_RATE
  ),
  'server_optimizer.momentum': number(
    0.0, 'of sgd; above 0: FedAvgM', _BELOW_ONE, _SERVER_SGD
  ),
  'availability.name': word('uniform', 'who can be drawn for a round', (), _SEVERAL),
  'availability.groups': counted(2, 'of clients, one a round in turn', _CYCLIC),
  'availability.path': word(
    '', 'file of lines client,first round,last round', (), _TRACE, required=True
  ),
  'stragglers.fraction': number(
    0.0, 'of the clients of a round, too slow', _BELOW_ONE, _SERVED
  ),
  'stragglers.send': word(
    'nothing', 'by the deadline; partial: what they have', _SENT, _SERVED
  ),
  'attack.name': word('none', 'what some of the clients do', (), _SERVED),
  'attack.fraction': number(0.1, 'of all clients, who attack', _BELOW_ONE, _ATTACKING),
  'attack.scale': number(1.0, 'times the own update, sent back', above(0), _SCALED),
  'attack.sigma': number(1.0, 'deviation of what is sent', above(0), _NOISY),
  'attack.epsilon': number(0.5, 'times the mean update, sent back', above(0), _INNER),
  'topology.name': word('ring', 'of neighbours', (), _PEERS),
  'topology.degree': knob(int, 2, 'neighbours, below num_clients', _EVEN, _RING),
  'topology.edge_probability': number(0.5, 'of each pair', _POSITIVE, _RANDOM),
}

EXECUTION = {
  'execution.devices': word(
    'auto', 'of a process, that share the lanes', AUTO_OR_COUNT, **_FREE
  ),
  'execution.lanes': word(
    'auto', 'clients trained side by side', AUTO_OR_COUNT, **_FREE
  ),
  'execution.convolution': word(
    'auto',
    'form of the convolutions; same values up to rounding',
    _FORMS,
    _CONVOLUTIONAL,
    **_FREE,
  ),
  'execution.cache_mib': knob(
    int, 2048, 'for frozen representations; 0: none', _SIZE, _CONTRASTIVE, **_FREE
  ),
  'execution.client_store': word(
    'auto',
    "clients' memories between rounds; auto: on the device up to 256 MiB in all, or "
    'if a round has a quarter of all clients',
    _TIERS,
    **_FREE,
  ),
  'execution.dtype': word('float32', "of the networks' arithmetic", _DTYPES),
  'execution.matmul_precision': word('default', 'as in JAX', _PRECISIONS),
  'execution.deterministic': switch(
    False, 'on GPUs: the same bits in every run, slower', **_FREE
  ),
  'execution.compile_cache': word(
    'auto', "private folder for compiled programs; auto: the user's; off", **_FREE
  ),
  'execution.profile': switch(
    False, 'trace the second round, say where its time went', **_FREE
  ),
}
