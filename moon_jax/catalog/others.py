"""Models, data sources, partitions, augmentations, optimizers, schedules, topologies.

Traits that others ask about:
  normalized     of a model: it has batch normalisation
  convolutional  of a model: it takes `convolution`, the form of its convolutions
  beta           of a partition: it takes `partition.beta`
  decaying       of a schedule: it takes `optimizer.decay` and `.decay_every`
"""

from moon_jax.catalog.parts import COUNT, Bound, Part, between, knob

_CONVOLUTIONAL = frozenset({'convolutional'})
_NORMALIZED = frozenset({'convolutional', 'normalized'})
_BETA = frozenset({'beta'})
_DECAYING = frozenset({'decaying'})
_HEADS = Bound('a divisor of 256', lambda value: value > 0 and 256 % value == 0)

_MLP_KNOBS = {
  'width': knob(int, 128, 'units of each hidden layer', COUNT),
  'representation': knob(int, 64, 'units of the representation', COUNT),
}
_TRANSFORMER_KNOBS = {
  'layers': knob(int, 6, 'of the encoder', COUNT),
  'heads': knob(int, 8, 'of attention, in every layer', _HEADS),
  'feedforward': knob(int, 2048, 'hidden units of a layer', COUNT),
  'dropout': knob(
    float, 0.1, 'after convolutions, in the encoder', between(0, 1, '[)')
  ),
}


def _table(kind, module, *rows):
  """The parts of a kind: (name, where below the module, title, traits, knobs)."""
  return tuple(
    Part(kind, name, f'{module}{where}', title, *more)
    for name, where, title, *more in rows
  )


OTHERS = (
  *_table(
    'model',
    'moon_jax.models.',
    ('mlp', 'mlp:Mlp', 'MLP', frozenset(), _MLP_KNOBS),
    ('moon_cnn', 'cnn:MoonCnn', 'CNN', _CONVOLUTIONAL),
    ('tutorial_cnn', 'cnn:MoonCnn', 'CNN', _CONVOLUTIONAL),  # cnn.py: why
    ('dco_cnn', 'cnn:DcoCnn', 'CNN', _CONVOLUTIONAL),
    (
      'cnn_transformer',
      'cnn_transformer:CnnTransformer',
      'CNN-Transformer',
      _NORMALIZED,
      _TRANSFORMER_KNOBS,
    ),
    ('resnet18', 'resnet:resnet18', 'ResNet-18', _NORMALIZED),
    ('resnet50', 'resnet:resnet50', 'ResNet-50', _NORMALIZED),
  ),
  *_table(
    'data',
    'moon_jax.data.',
    ('digits', 'sources:load_digits', 'digits'),
    ('tfds', 'tfds:load_tfds', 'TensorFlow Datasets'),
    ('npz', 'npz:load_npz', '.npz file'),
  ),
  *_table(
    'partition',
    'moon_jax.data.partition.',
    ('iid', 'quantity_skew:iid', 'IID'),
    ('dirichlet', 'label_skew:dirichlet', 'Dirichlet', _BETA),
    ('shards', 'label_skew:shards', 'shards'),
    ('quantity', 'quantity_skew:quantity', 'quantity', _BETA),
    ('noise', 'feature_skew:noise', 'noise'),
  ),
  *_table(
    'augmentation',
    'moon_jax.data.augment:',
    ('none', 'none', 'none'),
    ('flip', 'flip', 'flips'),
    ('crop_flip', 'crop_flip', 'crops and flips'),
  ),
  *_table(
    'optimizer',
    'moon_jax.engine.optimizers:',
    ('sgd', 'sgd', 'SGD'),
    ('adam', 'adam', 'Adam'),
    ('adamw', 'adamw', 'AdamW'),
  ),
  *_table(
    'schedule',
    'moon_jax.engine.optimizers:',
    ('constant', 'constant', 'constant'),
    ('cosine', 'cosine', 'cosine'),
    ('exponential', 'exponential', 'exponential', _DECAYING),
    ('step', 'step', 'step', _DECAYING),
  ),
  *_table(
    'server_optimizer',
    'moon_jax.algorithms.wrappers.server_optimizer:',
    ('sgd', 'sgd', 'FedAvgM'),
    ('adam', 'adam', 'FedAdam'),
    ('yogi', 'yogi', 'FedYogi'),
  ),
  *_table(
    'topology',
    'moon_jax.algorithms.wrappers.topology:',
    ('ring', 'ring', 'ring'),
    ('grid', 'grid', 'grid'),
    ('complete', 'complete', 'complete graph'),
    ('erdos_renyi', 'erdos_renyi', 'Erdos-Renyi graph'),
  ),
)
