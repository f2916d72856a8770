"""SA-MOON's network for CIFAR-10: convolutions, then a Transformer encoder.

What the paper leaves open is chosen here. The encoder layer is PyTorch's default, as in
Vaswani et al. 2017 (arXiv:1706.03762): normalisation after each sum, ReLU between two
dense layers of width 2048. One dropout rate holds for the place that the paper names,
after the second block of convolutions, and for the four of PyTorch's layer. There is no
positional encoding. The representation is the input of the output layer: 256 numbers,
after their ReLU.
"""

import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp

from moon_jax.core.types import Outputs
from moon_jax.models import convolution, initializers, layers
from moon_jax.models.convolution import pooling

WIDTH = 256


class CnnTransformer(nn.Module):
  """Six 3x3 convolutions, tokens of 256, encoder, two dense layers, classifier.

  The sides of the images are multiples of 8; those of 32x32 give 16 tokens.

  Attributes:
    num_classes: Y.
    convolution: a name for `convolution.choose`.
    layers: encoder layers.
    heads: attention heads, a divisor of 256.
    feedforward: hidden units of an encoder layer.
    dropout: probability that a number is dropped in training, in [0, 1).
  """

  num_classes: int
  convolution: str
  layers: int
  heads: int
  feedforward: int
  dropout: float

  @nn.compact
  def __call__(self, images, mask=None):
    """Maps images to Outputs, D = 256.

    Args:
      images: [B, H, W, C] float32.
      mask: [B] 1.0 for a real example in training; None in evaluation.
    """
    form = convolution.choose(self.convolution, size=3, features=32)
    conv = functools.partial(self._conv, form, mask)
    x = conv(form.arranged(images), 32, 'conv1')
    x = pooling.max_pool(conv(x, 64, 'conv2'))
    x = conv(x, 128, 'conv3')
    x = pooling.max_pool(conv(x, 128, 'conv4'))
    # Drawn as [C, H, W, B] in every form, so that the form does not change a draw.
    x = jnp.swapaxes(form.arranged(x), 0, -1)
    x = layers.Dropout(self.dropout)(x, deterministic=mask is None)
    x = form.arranged(jnp.swapaxes(x, 0, -1))
    x = conv(x, WIDTH, 'conv5')
    x = form.arranged(pooling.max_pool(conv(x, WIDTH, 'conv6')))
    x = x.reshape(x.shape[0], -1, WIDTH)  # pixels as tokens, row by row
    for index in range(self.layers):
      name = f'encoder{index + 1}'
      layer = EncoderLayer(self.heads, self.feedforward, self.dropout, name=name)
      x = layer(x, training=mask is not None)
    features = x.reshape(x.shape[0], -1)
    x = nn.relu(layers.dense(features, WIDTH, 'fc1'))
    z = nn.relu(layers.dense(x, WIDTH, 'fc2'))
    logits = layers.dense(z, self.num_classes, 'classifier')
    return Outputs(representation=z, logits=logits, features=features)

  def _conv(self, form, mask, x, features, name):
    x = layers.Conv(features, 3, form=form, padding=1, name=name)(x)
    norm = layers.BatchNorm(form.channels, relu=True, name=f'{name}_norm')
    return norm(x, mask)


class EncoderLayer(nn.Module):
  """x = norm(x + attention(x)), x = norm(x + feedforward(x)), with dropout.

  Vaswani et al. 2017, section 3, with the initial weights of PyTorch's
  `TransformerEncoderLayer`.

  Attributes:
    heads: attention heads, a divisor of the tokens' width.
    feedforward: hidden units.
    dropout: rate on the attention weights, on the hidden units and on both terms added.
  """

  heads: int
  feedforward: int
  dropout: float

  @nn.compact
  def __call__(self, x, *, training, is_token=None):
    """[B, tokens, width] -> [B, tokens, width].

    is_token: [B, tokens] bool, whom the others attend to; None: all of them.
    """

    def drop(x):
      return layers.Dropout(self.dropout)(x, deterministic=not training)

    x = layers.LayerNorm(name='norm1')(x + drop(self._attention(x, drop, is_token)))
    hidden = drop(nn.relu(layers.dense(x, self.feedforward, 'linear1')))
    y = drop(layers.dense(hidden, x.shape[-1], 'linear2'))
    return layers.LayerNorm(name='norm2')(x + y)

  def _attention(self, x, drop, is_token):
    """softmax(q k^T / sqrt(width / heads)) v for each head, then a dense layer."""
    batch, tokens, width = x.shape
    zeros = initializers.constant(0)
    # Xavier's limit for the three projections as one matrix, as PyTorch takes it.
    xavier = initializers.uniform(math.sqrt(6 / (width + 3 * width)))
    qkv = layers.dense(x, 3 * width, 'qkv', kernel_init=xavier, bias_init=zeros)
    q, k, v = jnp.moveaxis(qkv.reshape(batch, tokens, 3, self.heads, -1), 2, 0)
    scores = jnp.einsum('bqhd,bkhd->bhqk', q, k) / math.sqrt(width / self.heads)
    if is_token is not None:
      # Not -inf: an example without a token would be NaN.
      scores = jnp.where(is_token[:, None, None], scores, jnp.asarray(-1e30, x.dtype))
    mixed = jnp.einsum('bhqk,bkhd->bqhd', drop(jax.nn.softmax(scores)), v)
    return layers.dense(mixed.reshape(x.shape), width, 'output', bias_init=zeros)
