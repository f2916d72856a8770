"""Networks of signals, volumes and words: PyTorch's layers, padding and filler."""

import pathlib

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moon_jax import models
from moon_jax.core.types import Form
from moon_jax.models.cnn_1d import Cnn1d
from moon_jax.models.cnn_3d import Cnn3d
from moon_jax.models.sequences import Gru, Transformer
from tests.golden import seeded
from tests.selection import few

FILE = pathlib.Path(__file__).parents[1] / 'golden/sequences.npz'
CLASSES, WORDS, LENGTH = 5, 11, 7


def words():
  """As in make_sequence_golden.py."""
  numbers = np.abs(seeded.numbers('words', (4, LENGTH)) * WORDS).astype(np.int32)
  lengths = np.array([LENGTH, 1, 4, LENGTH - 1])
  return np.where(np.arange(LENGTH) < lengths[:, None], numbers, -1)


def gru(vocabulary=0):
  return Gru(CLASSES, embedding=5, width=12, representation=6, vocabulary=vocabulary)


def transformer(dropout=0.0):
  return Transformer(
    CLASSES,
    layers=2,
    heads=2,
    width=8,
    feedforward=10,
    dropout=dropout,
    representation=6,
    vocabulary=WORDS,
  )


CASES = {
  'cnn_1d': (
    Cnn1d(CLASSES, channels=4, kernel=5, width=12, representation=6),
    seeded.numbers('signals', (4, 9, 3)),
  ),
  'cnn_3d': (
    Cnn3d(CLASSES, channels=3, width=12, representation=6),
    seeded.numbers('volumes', (3, 8, 9, 10, 2)),
  ),
  **{
    f'cnn_1d_{norm}': (
      Cnn1d(CLASSES, channels=4, kernel=5, width=12, representation=6, norm=norm),
      seeded.numbers('signals', (4, 9, 3)),
    )
    for norm in ('batch', 'group')
  },
  'cnn_3d_batch': (
    Cnn3d(CLASSES, channels=4, width=12, representation=6, norm='batch'),
    seeded.numbers('volumes', (3, 8, 9, 10, 2)),
  ),
  'gru_of_signals': (gru(), seeded.numbers('signals', (4, 9, 3))),
  'gru_of_words': (gru(WORDS), words()),
  'transformer': (transformer(), words()),
}


def seeded_variables(module, examples):
  def fill(path, leaf):
    return seeded.leaf('/'.join(part.key for part in path[1:]), leaf.shape)

  with jax.enable_x64(False):
    boxed = jax.eval_shape(module.init, jax.random.key(0), examples)
  return jax.tree_util.tree_map_with_path(fill, nn.unbox(boxed))


def computed(module, examples):
  """What make_sequence_golden.golden returns, from JAX."""
  variables = seeded_variables(module, examples)
  is_numeric = examples.dtype.kind == 'f'

  def loss(params, examples):
    mask = jnp.ones(len(examples))
    outputs, _ = module.apply(
      variables | {'params': params}, examples, mask, mutable=['batch_stats']
    )
    outputs = outputs.representation, outputs.logits
    weights = [seeded.numbers(f'output {i}', o.shape) for i, o in enumerate(outputs)]
    total = sum(jnp.sum(o * w) for o, w in zip(outputs, weights, strict=True))
    return total, outputs

  argnums = (0, 1) if is_numeric else (0,)
  differentiate = jax.jit(jax.grad(loss, argnums, has_aux=True))
  gradients, outputs = differentiate(variables['params'], examples)
  arrays = {f'output/{i}': output for i, output in enumerate(outputs)}
  by_path = flax.traverse_util.flatten_dict(gradients[0], sep='/')
  for path, leaf in by_path.items():
    arrays[f'gradient/{path}'] = seeded.summary(path, leaf)
  if is_numeric:
    arrays['gradient/examples'] = seeded.summary('examples', gradients[1])
  return arrays


SLOW = ['cnn_3d_batch']  # the dearest
PLAIN = [case for case in CASES if case not in SLOW]


@pytest.mark.parametrize('case', few(PLAIN, SLOW))
def test_outputs_and_gradients_equal_pytorchs(case):
  module, examples = CASES[case]
  with jax.enable_x64(True):
    arrays = computed(module, examples)
  with np.load(FILE) as file:
    names = [name for name in file.files if name.startswith(f'{case}:')]
    golden = {name.partition(':')[2]: file[name] for name in names}
  assert arrays.keys() == golden.keys()
  for name, expected in golden.items():
    atol = 1e-6 * np.abs(expected).max() + 1e-8
    np.testing.assert_allclose(
      arrays[name], expected, rtol=1e-6, atol=atol, err_msg=name
    )


@pytest.mark.parametrize('name', ['gru', 'transformer'])
def test_what_fills_up_a_text_changes_nothing(name):
  form = Form(kind='words', axes='T', content='words', vocabulary=WORDS)
  options = {
    'gru': {'embedding': 5, 'width': 8, 'representation': 4},
    'transformer': {
      **{'layers': 1, 'heads': 2, 'width': 8, 'feedforward': 8},
      **{'dropout': 0.0, 'representation': 4},
    },
  }
  network = models.make(
    name, image_shape=(LENGTH,), num_classes=3, form=form, **options[name]
  )
  assert network.input_dtype == 'int32'
  variables = network.init(0)
  texts = words()
  apply = jax.jit(network.apply)
  logits = apply(variables, texts).logits
  # The words of a text with fewer places after it, and an empty text.
  if name == 'gru':
    short = apply(variables, texts[2:3, :4]).logits
    np.testing.assert_allclose(short, logits[2:3], rtol=1e-5, atol=1e-6)
  other = np.where(texts < 0, 0, texts)
  assert abs(apply(variables, other).logits[1] - logits[1]).max() > 1e-3
  nothing = apply(variables, np.full((1, LENGTH), -1, np.int32)).logits
  assert np.isfinite(nothing).all()


def test_dropout_of_the_transformer_is_drawn_for_each_example_by_the_key():
  module = transformer(dropout=0.5)
  texts = np.repeat(words()[:1], 4, 0)
  variables = seeded_variables(module, texts)
  variables = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), variables)

  @jax.jit
  def logits(seed):
    rngs = {'dropout': jax.random.key(seed)}
    return module.apply(variables, texts, jnp.ones(4), rngs=rngs).logits

  first = logits(0)
  assert abs(first[0] - first[1]).max() > 1e-3
  np.testing.assert_array_equal(first, logits(0))
  assert abs(first - logits(1)).max() > 1e-3
