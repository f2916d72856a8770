"""Networks of sequences: a GRU for words or signals, and a small Transformer for words.

Words are numbered from 0. -1 is no word: it fills up a short text, and changes nothing.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from moon_jax.models import initializers, layers
from moon_jax.models.cnn_transformer import EncoderLayer


class Gru(nn.Module):
  """Embedding of words, one layer of gated recurrent units, head, classifier.

  The features are the state after the last word, or the last step of a signal.

  Attributes:
    num_classes: Y.
    embedding: numbers that stand for a word.
    width: units of the recurrent layer and of the head's hidden layer.
    representation: D.
    vocabulary: number of words; 0 for signals, which have no embedding.
  """

  num_classes: int
  embedding: int
  width: int
  representation: int
  vocabulary: int = 0

  @nn.compact
  def __call__(self, sequences, mask=None):
    """[B, T] int32 words or [B, T, C] float32 -> Outputs; the same in training."""
    is_step = jnp.ones(sequences.shape[:2], bool)
    x = sequences
    if self.vocabulary:
      is_step = sequences >= 0
      x = embedded(self, sequences, self.embedding)
    state = _Gru(self.width, name='gru')(x, is_step)
    return layers.head_and_classifier(
      state, self.width, self.representation, self.num_classes
    )


class _Gru(nn.Module):
  """Gated recurrent units (Cho et al. 2014, arXiv:1406.1078), as PyTorch's `GRU`.

  r = s(W_ir x + b_ir + W_hr h + b_hr), z likewise, and
  n = tanh(W_in x + b_in + r (W_hn h + b_hn)); the new state is (1 - z) n + z h. The
  columns of both kernels are those of r, z and n.
  """

  width: int

  @nn.compact
  def __call__(self, x, is_step):
    """[B, T, C], [B, T] bool -> [B, width], the state after the last step."""
    uniform = initializers.uniform(self.width**-0.5)
    of_input = layers.dense(
      x, 3 * self.width, 'input', kernel_init=uniform, bias_init=uniform
    )
    kernel = self.param('hidden_kernel', uniform, (self.width, 3 * self.width))
    bias = self.param('hidden_bias', uniform, (3 * self.width,))

    def step(state, inputs):
      of_x, is_real = inputs
      of_state = state @ kernel + bias.reshape(1, -1)
      reset_x, update_x, new_x = jnp.split(of_x, 3, -1)
      reset_h, update_h, new_h = jnp.split(of_state, 3, -1)
      update = jax.nn.sigmoid(update_x + update_h)
      new = jnp.tanh(new_x + jax.nn.sigmoid(reset_x + reset_h) * new_h)
      changed = (1 - update) * new + update * state
      return jnp.where(is_real[:, None], changed, state), None

    steps = jnp.moveaxis(of_input, 1, 0), is_step.T
    first = jnp.zeros((len(x), self.width), of_input.dtype)
    return jax.lax.scan(step, first, steps)[0]


class Transformer(nn.Module):
  """Embedding of words and places, encoder layers, mean over words, head, classifier.

  The encoder is that of Vaswani et al. 2017 (arXiv:1706.03762) with PyTorch's layer and
  learned places. No word attends to a place without a word.

  Attributes:
    num_classes: Y.
    layers: encoder layers.
    heads: attention heads, a divisor of the width.
    width: numbers that stand for a word, and units of the head's hidden layer.
    feedforward: hidden units of an encoder layer.
    dropout: rate in the encoder layers.
    representation: D.
    vocabulary: number of words.
  """

  num_classes: int
  layers: int
  heads: int
  width: int
  feedforward: int
  dropout: float
  representation: int
  vocabulary: int = 0

  @nn.compact
  def __call__(self, words, mask=None):
    """Maps words to Outputs.

    Args:
      words: [B, T] int32, -1 for no word.
      mask: [B] 1.0 for a real example in training; None in evaluation.
    """
    is_word = words >= 0
    x = embedded(self, words, self.width)
    places = self.param(
      'places', initializers.normal(1.0), (words.shape[1], self.width)
    )
    x = x + places[None]
    for index in range(self.layers):
      name = f'encoder{index + 1}'
      layer = EncoderLayer(self.heads, self.feedforward, self.dropout, name=name)
      x = layer(x, training=mask is not None, is_token=is_word)
    total = jnp.sum(jnp.where(is_word[..., None], x, 0), 1)
    count = jnp.sum(is_word, 1, keepdims=True)
    features = total / jnp.maximum(count, 1).astype(x.dtype)
    return layers.head_and_classifier(
      features, self.width, self.representation, self.num_classes
    )


def embedded(module: nn.Module, words: jax.Array, width: int) -> jax.Array:
  """[B, T] words -> [B, T, width], zeros for no word; call inside `nn.compact`.

  The numbers of a word begin as N(0, 1), as PyTorch's `Embedding`.
  """
  shape = (module.vocabulary, width)
  table = module.param('embedding_table', initializers.normal(1.0), shape)
  vectors = table[jnp.clip(words, 0, module.vocabulary - 1)]
  return jnp.where((words >= 0)[..., None], vectors, 0)
