"""The first weights: numbers drawn on the host, a function of seed and name.

`jax.random` compiles a program for every shape: 8 s for the MOON CNN on one core. So an
initialiser here draws nothing. It boxes the parameter with its distribution, as flax
boxes shardings, and `draw` fills the boxes of a network of which only shapes are
traced.
"""

from collections.abc import Callable

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from moon_jax.core.keys import Purpose, host_rng
from moon_jax.core.types import PyTree

Sample = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


def uniform(limit: float) -> Callable:
  """An initialiser: U(-limit, limit)."""
  limit = np.float32(limit)
  return _initializer(
    lambda rng, shape: limit * (2 * rng.random(shape, np.float32) - 1)
  )


def normal(deviation: float) -> Callable:
  """An initialiser: N(0, deviation**2)."""
  scale = np.float32(deviation)
  return _initializer(lambda rng, shape: scale * rng.standard_normal(shape, np.float32))


def constant(value: float) -> Callable:
  """An initialiser: the same number everywhere."""
  return _initializer(lambda rng, shape: np.full(shape, value, np.float32))


def draw(boxed: PyTree, seed: int, init: Callable[[jax.Array], PyTree]) -> PyTree:
  """Draws the variables of a network.

  Args:
    boxed: the result of `jax.eval_shape` for a module's `init`, with leaves in boxes.
    seed: seed of the run.
    init: key -> the same with numbers, for a module that has initialisers of its own.

  Returns:
    float32 arrays of these shapes. A leaf in a box depends on the seed, its own path,
    shape and distribution, and on nothing else.
  """

  def is_box(node):
    return isinstance(node, _Box)

  if not all(map(is_box, jax.tree.leaves(boxed, is_leaf=is_box))):
    key = jax.random.fold_in(jax.random.key(seed), int(Purpose.INIT))
    boxed = jax.jit(init)(key)

  def fill(path, box):
    if not is_box(box):
      return box
    name = '/'.join(key.key for key in path)
    rng = host_rng(seed, Purpose.INIT, *name.encode())
    return box.sample(rng, box.value.shape)

  filled = jax.tree_util.tree_map_with_path(fill, boxed, is_leaf=is_box)
  return jax.device_put(filled)


class _Box(flax.struct.PyTreeNode, nn.meta.AxisMetadata):
  """A parameter and how to draw it; flax takes it out of the box for the layers."""

  value: jax.Array
  sample: Sample = flax.struct.field(pytree_node=False)

  def unbox(self):
    return self.value

  def replace_boxed(self, val):
    return self.replace(value=val)

  def add_axis(self, index, params):
    raise NotImplementedError('No lifted transformation adds an axis to variables.')

  remove_axis = add_axis


def _initializer(sample: Sample) -> Callable:
  def init(key, shape, dtype=jnp.float32):
    # flax only needs its shape and type; a computation with it would fail.
    return _Box(jnp.full(shape, jnp.nan, dtype), sample)

  return init
