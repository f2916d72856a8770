"""Layers that the networks share, initialised as in the papers' PyTorch code."""

import functools
import math
from collections.abc import Callable, Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp

from moon_jax.core.errors import UsageError
from moon_jax.core.types import Outputs
from moon_jax.models import (
  batch_norm,
  convolution,
  cpu_kernels,
  dropout,
  initializers,
  products,
)
from moon_jax.models.convolution import depthwise, pooling
from moon_jax.models.convolution.direct import summed, summed_over_rows, widened

# Groups of channels of group normalisation, as in FedDyn's ResNet-18 (Acar et al. 2021,
# arXiv:2111.04263).
GROUPS = 2

_ZEROS, _ONES = initializers.constant(0), initializers.constant(1)


def _default(fan_in: int) -> Callable:
  """PyTorch's default for weights and biases: U(-1/sqrt(fan_in), 1/sqrt(fan_in))."""
  return initializers.uniform(1 / math.sqrt(fan_in))


def dense(
  x: jax.Array,
  features: int,
  name: str,
  *,
  use_bias: bool = True,
  kernel_init: Callable | None = None,
  bias_init: Callable | None = None,
) -> jax.Array:
  """[..., inputs] -> [..., features] affine map; call inside `nn.compact`.

  Args:
    x: [..., inputs].
    features: number of outputs.
    name: name of the layer.
    use_bias: whether a bias is added.
    kernel_init: initialises the kernel; None: PyTorch's default.
    bias_init: initialises the bias; None: PyTorch's default.
  """
  default_init = _default(x.shape[-1])
  layer = nn.Dense(
    features,
    use_bias=use_bias,
    name=name,
    dot_general=_product_form(x, features),
    kernel_init=kernel_init or default_init,
    bias_init=bias_init or default_init,
  )
  return layer(x)


def _product_form(x, features):
  """`nn.Dense`'s `dot_general` for such inputs and outputs; None: its own."""
  if x.dtype == jnp.bfloat16:
    return _affine_product
  return products.dot_general if products.are_for(x, features) else None


def _affine_product(x, kernel, dimensions, precision=None):
  """`nn.Dense`'s `dot_general`, for bfloat16."""
  flat = x.reshape(-1, len(kernel))
  product = jax.lax.platform_dependent(flat, kernel, cpu=_product, default=jnp.matmul)
  return product.reshape((*x.shape[:-1], -1))


@jax.custom_vjp
def _product(x, kernel):
  """[N, inputs], [inputs, features] bfloat16 -> [N, features] bfloat16.

  It and its gradients have the form that is fast on a CPU: `direct.summed`.
  """
  return summed('ni,if->nf', x, kernel).astype(x.dtype)


def _product_backward(saved, gradient):
  x, kernel = saved
  x_gradient = summed('nf,if->ni', gradient, kernel)
  kernel_gradient = summed_over_rows(x, gradient)
  return x_gradient.astype(x.dtype), kernel_gradient.astype(x.dtype)


_product.defvjp(lambda *factors: (_product(*factors), factors), _product_backward)


class Conv(nn.Module):
  """Images -> images of `features` channels, H' x W'; pooling halves both.

  Attributes:
    features: output channels.
    size: side of the kernel.
    form: how it is computed, and the layout of the images; it does not change values.
    stride: stride of the window, in both directions.
    padding: zeros on each of the four sides, as in PyTorch.
    pooled: whether to keep the largest of each 2x2 outputs, and 0 if that is negative:
      max-pooling and ReLU. Only with a bias and stride 1.
    use_bias: whether a bias is added.
    kernel_init: initialises the kernel; None: PyTorch's default.
  """

  features: int
  size: int
  form: convolution.Form
  stride: int = 1
  padding: int = 0
  pooled: bool = False
  use_bias: bool = True
  kernel_init: Callable | None = None

  @nn.compact
  def __call__(self, x):
    channels = x.shape[self.form.channels]
    default_init = _default(self.size * self.size * channels)
    shape = (self.size, self.size, channels, self.features)
    kernel = self.param('kernel', self.kernel_init or default_init, shape)
    bias = None
    if self.use_bias:
      bias = self.param('bias', default_init, (self.features,))
    padding = ((self.padding, self.padding),) * 2
    if self.pooled:
      return self.form.pooled(x, kernel, bias, padding)
    y = self.form.convolve(x, kernel, stride=self.stride, padding=padding)
    return y if bias is None else y + convolution.along(self.form.channels, bias)


class BatchNorm(nn.Module):
  """Images -> images, scale * (x - mean) / sqrt(var + 1e-5) + bias.

  It is PyTorch's. In training, mean and variance are those of the batch's real examples
  over all pixels, and the running statistics, which evaluation uses, are updated:
  running = 0.9 running + 0.1 batch (Ioffe and Szegedy 2015, arXiv:1502.03167). The
  batch is divided by its biased standard deviation, and the running variance takes the
  unbiased one. For bfloat16 the arithmetic is in float32, the results are bfloat16.

  If a channel has one real value, it has no unbiased variance: the output is `bias`,
  and the running variance does not change. (PyTorch refuses such a batch.) If it has
  none, neither running statistic changes, and the outputs mean nothing.

  Attributes:
    channels: the axis of the channels, the first or the last (-1); the batch is the
      other one.
    relu: whether negative outputs become 0.
  """

  channels: int
  relu: bool = False

  @nn.compact
  def __call__(self, x, mask):
    """mask: [B] 1.0 for a real example, 0.0 for filler; None in evaluation."""
    along = functools.partial(convolution.along, self.channels)
    shape = (x.shape[self.channels],)
    scale = widened(self.param('scale', _ONES, shape))
    bias = widened(self.param('bias', _ZEROS, shape))
    running_mean = self.variable('batch_stats', 'mean', _ZEROS, None, shape)
    running_var = self.variable('batch_stats', 'var', _ONES, None, shape)
    wide = widened(x)
    y = None
    if mask is None:
      mean, var = widened(running_mean.value), widened(running_var.value)
    else:
      if self.channels == -1 and cpu_kernels.are_for(x):
        y, mean, var = batch_norm.normalise(x, mask, scale, bias, self.relu)
      else:
        mean, var = _statistics(wide, mask, self.channels)
      count = _num_values(wide, mask)
      unbiased = var * count / jnp.maximum(count - 1, 1)
      _move(running_mean, mean, enough=count > 0)
      _move(running_var, unbiased, enough=count > 1)
    if y is None:
      factor = scale * jax.lax.rsqrt(var + 1e-5)
      y = (wide - along(mean)) * along(factor) + along(bias)
      y = nn.relu(y) if self.relu else y
    return y.astype(x.dtype)


class GroupNorm(nn.Module):
  """Images -> images, scale * (x - mean) / sqrt(var + 1e-5) + bias, as PyTorch's.

  Mean and biased variance are those of one example, over its pixels and a group of
  neighbouring channels (Wu and He 2018, arXiv:1803.08494): no example depends on
  another, and nothing is kept for evaluation. For bfloat16 it computes in float32, like
  BatchNorm.

  Attributes:
    channels: the axis of the channels, the first or the last (-1).
    groups: a divisor of the number of channels.
  """

  channels: int
  groups: int

  @nn.compact
  def __call__(self, x):
    along = functools.partial(convolution.along, self.channels)
    shape = (x.shape[self.channels],)
    if shape[0] % self.groups:
      raise UsageError(
        f'group normalisation has {self.groups} groups, and {shape[0]} channels cannot '
        'be divided into them: choose an even number.'
      )
    scale = widened(self.param('scale', _ONES, shape))
    bias = widened(self.param('bias', _ZEROS, shape))
    if self.channels == 0:
      grouped_shape, group_axes = (self.groups, -1, *x.shape[1:]), (1, 2, 3)
    else:
      grouped_shape, group_axes = (*x.shape[:-1], self.groups, -1), (1, 2, 4)
    grouped = widened(x).reshape(grouped_shape)
    mean = jnp.mean(grouped, axis=group_axes, keepdims=True)
    var = jnp.var(grouped, axis=group_axes, keepdims=True)
    y = ((grouped - mean) * jax.lax.rsqrt(var + 1e-5)).reshape(x.shape)
    return (y * along(scale) + along(bias)).astype(x.dtype)


class Depthwise(nn.Module):
  """Images -> images of as many channels: a 3x3 kernel for each, without bias.

  Zeros around the images keep their size at stride 1. On a CPU, where XLA has no fast
  gradients for a grouped convolution, `depthwise` computes it, or else a sum over the
  kernel's nine places. For bfloat16 the sum is in float32.

  Attributes:
    form: form of the network's convolutions, which says the layout of the images.
    stride: stride of the window, in both directions.
  """

  form: convolution.Form
  stride: int = 1

  @nn.compact
  def __call__(self, x):
    channels = x.shape[self.form.channels]
    height, width = x.shape[1:3]
    kernel = widened(self.param('kernel', _default(9), (3, 3, 1, channels)))
    if self.form.channels == -1 and cpu_kernels.are_for(x):
      return depthwise.convolve(x, kernel, self.stride)
    padded = jnp.pad(widened(x), ((0, 0), (1, 1), (1, 1), (0, 0)))
    y = sum(
      convolution.along(self.form.channels, kernel[i, j])
      * padded[:, i : i + height : self.stride, j : j + width : self.stride]
      for i in range(3)
      for j in range(3)
    )
    return y.astype(x.dtype)


class Dropout(nn.Module):
  """Drops numbers in training, and divides the others by 1 - rate: Flax's `nn.Dropout`.

  The draws are Flax's, too: `dropout` makes them faster where it can.

  Attributes:
    rate: probability that a number is dropped, in [0, 1).
  """

  rate: float

  @nn.compact
  def __call__(self, x, *, deterministic):
    if deterministic or not self.rate:
      return x
    key = self.make_rng('dropout')
    if cpu_kernels.are_for(x):
      return dropout.dropped(x, jax.random.key_data(key), self.rate)
    keep = 1.0 - self.rate
    is_kept = jax.random.bernoulli(key, keep, x.shape)
    return jax.lax.select(is_kept, x / keep, jnp.zeros_like(x))


class LayerNorm(nn.Module):
  """[..., D] -> [..., D], scale * (x - mean) / sqrt(var + 1e-5) + bias, over D.

  It is PyTorch's, with the biased variance. For bfloat16 it computes in float32.
  """

  @nn.compact
  def __call__(self, x):
    shape = (1,) * (x.ndim - 1) + x.shape[-1:]
    scale = widened(self.param('scale', _ONES, x.shape[-1:]))
    bias = widened(self.param('bias', _ZEROS, x.shape[-1:]))
    wide = widened(x)
    mean = jnp.mean(wide, axis=-1, keepdims=True)
    var = jnp.var(wide, axis=-1, keepdims=True)
    y = (wide - mean) * jax.lax.rsqrt(var + 1e-5)
    return (y * scale.reshape(shape) + bias.reshape(shape)).astype(x.dtype)


def _num_values(x, mask):
  """Images, [B] -> [] number of values of a channel, without filler."""
  return jnp.sum(mask.astype(x.dtype)) * (x.shape[1] * x.shape[2])


def _statistics(x, mask, channels):
  """Images, [B] -> [C] mean, [C] biased variance."""
  batch_axis = -1 - channels
  is_real = convolution.along(batch_axis, mask > 0)
  pixel_axes = (1, 2, batch_axis % 4)
  count = _num_values(x, mask)

  def average(values):
    return jnp.sum(jnp.where(is_real, values, 0), pixel_axes) / jnp.maximum(count, 1)

  mean = average(x)
  variance = average(jnp.square(x - convolution.along(channels, mean)))
  return mean, variance


def _move(running, batch_statistic, *, enough):
  """Moves a running statistic to that of the batch, if the batch has enough values."""
  before = widened(running.value)
  # Not 0.9 a + 0.1 b: with a rate of 0 this is exactly the value before.
  rate = jnp.where(enough, jnp.asarray(0.1, batch_statistic.dtype), 0)
  after = before + rate * (batch_statistic - before)
  running.value = after.astype(running.value.dtype)


def normalised(x: jax.Array, norm: str, mask: jax.Array | None, name: str) -> jax.Array:
  """[B, ..., C] -> the same shape, normalised; call inside `nn.compact`.

  Args:
    x: [B, ..., C] with any axes between, such as the steps of a signal.
    norm: 'none' leaves x as it is; 'batch', see `BatchNorm`; 'group', see `GroupNorm`.
    mask: [B] 1.0 for a real example in training; None in evaluation.
    name: name of the layer.
  """
  if norm == 'none':
    return x
  as_images = x.reshape(len(x), -1, 1, x.shape[-1])
  if norm == 'batch':
    y = BatchNorm(-1, name=name)(as_images, mask)
  else:
    y = GroupNorm(-1, GROUPS, name=name)(as_images)
  return y.reshape(x.shape)


def pooled_convolutions(
  images: jax.Array,
  features: Sequence[int],
  form: str,
  *,
  norm: str = 'none',
  mask: jax.Array | None = None,
) -> jax.Array:
  """[B, H, W, C] -> [B, inputs of a dense layer]; call inside `nn.compact`.

  5x5 convolutions conv1, conv2, ..., each followed by 2x2 max-pooling and ReLU. With a
  normalisation, norm1, norm2, ..., which comes before the pooling, they have no bias.

  Args:
    images: [B, H, W, C].
    features: output channels of each convolution.
    form: a name for `convolution.choose`.
    norm: 'none'; 'batch', see `BatchNorm`; or 'group', see `GroupNorm`.
    mask: [B] 1.0 for a real example in training; None in evaluation.
  """
  if norm != 'none' and form == 'auto_on_cpu':
    form = 'auto'  # the kernels of 'fused' pool what they convolve
  form = convolution.choose(form, size=5, features=features[0])
  x = form.arranged(images)
  height, width = images.shape[1:3]
  for index, channels in enumerate(features):
    number = index + 1
    height, width = height - 4, width - 4
    pooling.check_even(height, width)
    height, width = height // 2, width // 2
    if norm == 'none':
      x = Conv(channels, 5, form, pooled=True, name=f'conv{number}')(x)
      continue
    x = Conv(channels, 5, form, use_bias=False, name=f'conv{number}')(x)
    if norm == 'batch':
      x = BatchNorm(form.channels, name=f'norm{number}')(x, mask)
    else:
      x = GroupNorm(form.channels, GROUPS, name=f'norm{number}')(x)
    x = nn.relu(pooling.max_pool(x))
  return form.arranged(x).reshape(images.shape[0], -1)


def head_and_classifier(
  features: jax.Array, head_width: int, representation: int, num_classes: int
) -> Outputs:
  """MOON's two-layer projection head, and a classifier on the head.

  Args:
    features: [B, F].
    head_width: units of the head's hidden layer; 0: there is no head, and the features
      are the representation.
    representation: D, outputs of the head.
    num_classes: Y.
  """
  z = features
  if head_width:
    hidden = nn.relu(dense(features, head_width, 'head_hidden'))
    z = dense(hidden, representation, 'head_output')
  logits = dense(z, num_classes, 'classifier')
  return Outputs(representation=z, logits=logits, features=features)
