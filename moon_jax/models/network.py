"""A network as pure functions, from the catalog or from any flax module."""

import functools
import inspect
from collections.abc import Callable
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from moon_jax import catalog
from moon_jax.catalog.part_errors import explaining_errors_of
from moon_jax.core.errors import KnobError, UsageError
from moon_jax.core.flags import flag
from moon_jax.core.types import Form, Layers, Outputs, PyTree
from moon_jax.models import initializers
from moon_jax.models.convolution.direct import widened
from moon_jax.models.layer_paths import layers_of

# Largest change of results by filler, as a fraction; bfloat16 has 8 bits.
_FILLER_TOLERANCE = 1e-2


class Network(NamedTuple):
  """A network as three pure functions.

  Attributes:
    shapes: the variables as `jax.ShapeDtypeStruct`s: 'params' and, with batch
      normalisation, the running statistics, 'batch_stats'.
    init: seed -> variables, all float32.
    apply: (variables, images [B, H, W, C] float32) -> Outputs in evaluation mode:
      running statistics, no dropout.
    train: (variables, images, mask [B] float32, key) -> (Outputs, statistics) in
      training mode: batch normalisation by the batch's real examples (mask 1.0; filler
      is 0.0), dropout by the key, which networks without dropout ignore. `statistics`
      has the new running statistics, {'batch_stats': ...}, or {} without batch
      normalisation.
    image_shape: (H, W, C), or the shape of another example.
    layers: () -> the variables of each kind of layer.
    weights_digest: SHA-256 of the file that `init` has read; '' if it draws.
    weights_notice: a sentence about what of the file is not used; '' if all is.
    frozen: paths of the variables that do not train; see
      `freezing.network_with_frozen_layers`.
    input_dtype: name of the dtype of `images`: float32, or int32 for words.
  """

  shapes: PyTree
  init: Callable[[int], PyTree]
  apply: Callable[[PyTree, jax.Array], Outputs]
  train: Callable[[PyTree, jax.Array, jax.Array, jax.Array], tuple[Outputs, PyTree]]
  image_shape: tuple[int, ...] = ()
  layers: Callable[[], Layers] | None = None
  weights_digest: str = ''
  weights_notice: str = ''
  frozen: frozenset[tuple[str, ...]] = frozenset()
  input_dtype: str = 'float32'


def make(
  name: str,
  *,
  image_shape: tuple[int, ...],
  num_classes: int,
  form: Form | None = None,
  convolution: str = 'auto',
  dtype: str = 'float32',
  **options: int | float,
) -> Network:
  """Builds a network of the catalog for images of one shape.

  Args:
    name: name of the model.
    image_shape: (H, W, C), or the shape of another example.
    num_classes: Y.
    form: what an example is; None: a picture.
    convolution: a name for `forms.choose`; same values up to rounding.
    dtype: number format of the arithmetic, 'float32' or 'bfloat16'; variables and
      outputs are float32. 'float64', which no knob names, also gives float64 outputs;
      JAX then needs 64 bits.
    **options: the knobs of the model's group.

  Raises:
    KnobError: the images have a shape that the network cannot take.
  """
  part = catalog.part('model', name)
  form = form or Form()
  if part.has('vocabulary'):
    options['vocabulary'] = form.vocabulary
  if part.has('convolutional'):
    options['convolution'] = convolution
  module = part.build(nn.Module, num_classes=num_classes, **options)
  with explaining_errors_of(part):
    try:
      input_dtype = 'int32' if form.content == 'words' else 'float32'
      network = of_module(module, image_shape, dtype, input_dtype)
    except UsageError as error:
      size = f'examples of {"x".join(map(str, image_shape))}'
      if form.kind == 'picture':
        size = f'images of {image_shape[0]}x{image_shape[1]} pixels'
      raise KnobError('model', name, f'does not fit {size}: {error}') from None
    if part.registered:
      _require_outputs(network, num_classes)
  return network


def _require_outputs(network, num_classes):
  """Raises TypeError unless the network returns right Outputs, also in training."""
  params = jax.tree.leaves(network.shapes.get('params'))
  if any(leaf.dtype != jnp.float32 for leaf in params):
    raise TypeError(f'its params must be float32; see {flag("execution.dtype")}')
  images = jnp.zeros((2, *network.image_shape), network.input_dtype)
  in_evaluation = jax.eval_shape(network.apply, network.shapes, images)
  in_training, _ = jax.eval_shape(
    network.train, network.shapes, images, jnp.ones(2), jax.random.key(0)
  )
  for outputs in (in_evaluation, in_training):
    for name, array in zip(Outputs._fields, outputs, strict=True):
      if name != 'logits' and isinstance(outputs, LogitsAlone):
        continue
      is_right = array.ndim == 2 and len(array) == 2 and array.dtype == jnp.float32
      if name == 'logits':
        is_right = is_right and array.shape[1] == num_classes
      if not is_right:
        raise TypeError(
          f'the {name} of 2 images and {num_classes} classes are {array.dtype} of '
          f'shape {array.shape}'
        )


class LogitsAlone(Outputs):
  """The Outputs of a network that returns logits alone; all three arrays are these.

  Whoever reads the representation or the features gets a line that says what to do.
  """

  __slots__ = ()

  @property
  def representation(self):
    raise UsageError(
      'The network returns logits alone, and this needs its representation: return '
      'moon_jax.Outputs(representation=..., logits=...).'
    )

  features = representation


def _outputs_of(returned: Outputs | jax.Array) -> Outputs:
  """What a module returned, as Outputs in float32 or wider."""
  if not isinstance(returned, Outputs):
    logits = widened(returned)
    return LogitsAlone(logits, logits, logits)
  representation, logits, features = returned
  if features is None:
    features = representation
  return Outputs(
    representation=widened(representation),
    logits=widened(logits),
    features=widened(features),
  )


def _forward_function(module: nn.Module) -> Callable:
  """Builds (module, images, mask or None, whether it trains) -> what it returns.

  The arguments `mask` and `train` are passed by name, to a module that has them.

  Raises:
    TypeError: the module needs another argument, too.
  """
  parameters = [*inspect.signature(module.__call__).parameters.values()]
  for parameter in parameters[1:]:  # behind the images
    is_needed = parameter.default is parameter.empty and parameter.kind not in (
      parameter.VAR_POSITIONAL,
      parameter.VAR_KEYWORD,
    )
    if is_needed and parameter.name not in ('mask', 'train'):
      raise TypeError(
        f'its __call__ needs an argument {parameter.name!r}: beside the images it gets '
        'mask and train alone, by these names'
      )
  names = {parameter.name for parameter in parameters[1:]}

  def forward(module, images, mask, is_training):
    call = module
    if 'train' in names:
      call = functools.partial(module, train=is_training)
    return call(images, mask=mask) if 'mask' in names else call(images)

  return forward


def of_module(
  module: nn.Module,
  image_shape: tuple[int, ...],
  dtype: str = 'float32',
  input_dtype: str = 'float32',
) -> Network:
  """The pure functions of a flax module.

  Args:
    module: called with images [B, H, W, C] and, if its `__call__` has arguments of
      these names, `mask`, [B] in training and None otherwise, and `train`, whether it
      trains; returns Outputs, or logits alone.
    image_shape: (H, W, C), or the shape of another example.
    dtype: see `make`.
    input_dtype: 'float32', or 'int32' for words, which keep their type.

  Raises:
    TypeError: the module needs an argument that it does not get.
  """
  forward = _forward_function(module)

  def initial(key, images):
    return module.init(key, images, None, False, method=forward)

  # Only shapes: each number that JAX makes outside a program is a program of its own.
  images = jax.ShapeDtypeStruct((1, *image_shape), input_dtype)
  boxed = jax.eval_shape(initial, jax.eval_shape(jax.random.key, 0), images)

  def init(seed):
    def init_module(key):
      return initial(key, jnp.zeros(images.shape, images.dtype))

    return initializers.draw(boxed, seed, init_module)

  def narrowed(variables):
    # Running statistics keep their type, because each step adds little to them.
    params = jax.tree.map(lambda leaf: leaf.astype(dtype), variables['params'])
    return variables | {'params': params}

  def narrowed_images(images):
    return images if input_dtype == 'int32' else images.astype(dtype)

  def apply(variables, images):
    images = narrowed_images(images)
    return _outputs_of(
      module.apply(narrowed(variables), images, None, False, method=forward)
    )

  def train(variables, images, mask, key):
    returned, statistics = module.apply(
      narrowed(variables),
      narrowed_images(images),
      mask,
      True,
      method=forward,
      rngs={'dropout': key},
      mutable=['batch_stats'],
    )
    return _outputs_of(returned), statistics

  shapes = nn.unbox(boxed)

  def apply_as_is(variables, images):
    returned = module.apply(variables, images, None, False, method=forward)
    return returned if isinstance(returned, Outputs) else _outputs_of(returned)

  return Network(
    shapes=shapes,
    init=init,
    apply=apply,
    train=train,
    image_shape=tuple(image_shape),
    layers=functools.partial(layers_of, apply_as_is, images, shapes),
    input_dtype=input_dtype,
  )


def refuse_if_filler_matters(network: Network) -> None:
  """Trains on a batch with two kinds of filler: neither may reach the real examples.

  Raises:
    TypeError: the outputs of the real examples, or the running statistics, depend on
      the filler, as with batch normalisation without the mask.
  """
  num_real = 2
  mask = jnp.array([1.0] * num_real + [0.0] * num_real)
  rng = np.random.default_rng(0)
  shape = 2 * num_real, *network.image_shape

  @jax.jit
  def trained(variables, images):
    outputs, statistics = network.train(variables, images, mask, jax.random.key(0))
    return outputs.logits[:num_real], statistics

  variables = network.init(0)
  if network.input_dtype == 'int32':
    images, filler = (rng.integers(0, 2, shape, np.int32) for _ in range(2))
  else:
    images = rng.normal(size=shape).astype(np.float32)
    filler = 3.0 * rng.normal(size=shape)
  results = [jax.device_get(trained(variables, images))]
  images[num_real:] = filler[num_real:]
  results.append(jax.device_get(trained(variables, images)))
  pairs = zip(jax.tree.leaves(results[0]), jax.tree.leaves(results[1]), strict=True)
  for before, after in pairs:
    is_finite = np.isfinite(before)
    largest = np.abs(before).max(initial=1e-6, where=is_finite)
    change = np.abs(before - after).max(initial=0.0, where=is_finite)
    # NaN is above no tolerance. Where a network has NaN with any filler, training says.
    if not change <= _FILLER_TOLERANCE * largest:
      raise TypeError(
        'in training, filler changes its results for the real examples of a batch; '
        'batch normalisation needs the mask, in flax norm(x, mask=mask[:, None] > 0) '
        f'for x [B, D]. Without filler, {flag("drop_last", True)}, it may be as it is'
      )
