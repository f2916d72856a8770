"""A network as a list of steps, from which files for other programs are written.

`networks.py` has the steps of each network of the catalog. A step reads variables such
as `x` and sets one of them, as a line of Python does. Images are [B, C, H, W], other
examples are as the run has them: tables [B, D], signals [B, T, C], volumes
[B, D, H, W, C], words [B, T], where -1 is no word.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from moon_jax.core import weights
from moon_jax.core.types import PyTree


class Step(NamedTuple):
  """One operation.

  Attributes:
    kind: name of the operation: 'conv', 'relu', ...
    target: the variable that is set.
    sources: the variables that are read.
    layer: the layer whose weights it uses, such as 'stage1_block1/conv1/conv'; '' if it
      has no weights.
    options: further arguments of the operation.
  """

  kind: str
  target: str
  sources: tuple[str, ...]
  layer: str = ''
  options: Mapping[str, Any] = {}


class Description:
  """The steps of a network from the examples to the logits, and its weights.

  The last step leaves the logits in `x`; `representation` has the representation. Each
  method adds a step.

  Attributes:
    steps: the steps, in order.
  """

  def __init__(self, variables: PyTree, *, of_pictures: bool = True):
    """Takes the variables of the network: 'params' and perhaps 'batch_stats'."""
    self.steps: list[Step] = []
    self._of_pictures = of_pictures
    self._arrays = {
      path: np.asarray(leaf) for path, leaf in weights.flat(variables).items()
    }

  def has(self, layer: str) -> bool:
    """Whether the network has weights below a layer of this name."""
    return any(path.startswith(f'params/{layer}/') for path in self._arrays)

  def array(self, layer: str, name: str) -> np.ndarray | None:
    """A parameter of a layer, such as 'kernel'; None if the layer has none."""
    return self._arrays.get(f'params/{layer}/{name}')

  def has_parameter(self, name: str) -> bool:
    """Whether there is a parameter in no layer with this name."""
    return f'params/{name}' in self._arrays

  def parameter(self, name: str) -> np.ndarray:
    """A parameter that is in no layer, such as 'places'."""
    return self._arrays[f'params/{name}']

  def statistic(self, layer: str, name: str) -> np.ndarray:
    """A running statistic of a layer, 'mean' or 'var'."""
    return self._arrays[f'batch_stats/{layer}/{name}']

  def conv(
    self,
    layer: str,
    *,
    stride: int = 1,
    padding: int = 0,
    depthwise: bool = False,
    source: str = 'x',
  ) -> None:
    """A convolution; a depthwise one has a kernel for each channel."""
    options = {'stride': stride, 'padding': padding, 'depthwise': depthwise}
    self._step('conv', source, layer, options)

  def batch_norm(self, layer: str, source: str = 'x', *, dimensions: int = 2) -> None:
    """Batch normalisation by the running statistics, epsilon 1e-5."""
    self._step('batch_norm', source, layer, {'dims': dimensions})

  def group_norm(self, layer: str, *, groups: int, source: str = 'x') -> None:
    """Group normalisation, epsilon 1e-5."""
    self._step('group_norm', source, layer, {'groups': groups})

  def dense(self, layer: str) -> None:
    """An affine map of the last axis."""
    self._step('dense', layer=layer)

  def encoder_layer(
    self, layer: str, *, heads: int, dropout: float, of_words: bool = False
  ) -> None:
    """A layer of a Transformer's encoder, [B, tokens, width] to the same.

    With `of_words` no word attends to a place where `is_word` is false.
    """
    options = {'heads': heads, 'dropout': dropout}
    sources = ('x', 'is_word') if of_words else ('x',)
    self.steps.append(Step('encoder_layer', 'x', sources, layer, options))

  def window_conv(self, layer: str, *, size: int, dimensions: int) -> None:
    """A convolution with zeros around, whose kernel is that of a dense layer.

    The kernel is [size ** dimensions * inputs, outputs]: the steps of a window, or the
    voxels of a cube, side by side. Examples are [B, C, ...].
    """
    self._step('window_conv', layer=layer, options={'size': size, 'dims': dimensions})

  def window_pool(self, dimensions: int) -> None:
    """The largest of two steps, or of a cube of eight voxels; odd ends are left out."""
    self._step('window_pool', options={'dims': dimensions})

  def channels_first(self, dimensions: int) -> None:
    """[B, ..., C] -> [B, C, ...]."""
    self._step('channels_first', options={'dims': dimensions})

  def flatten_windows(self, dimensions: int) -> None:
    """[B, C, ...] -> [B, ... C]: step by step, or voxel by voxel."""
    self._step('flatten_windows', options={'dims': dimensions})

  def embed(self) -> None:
    """[B, T] words -> [B, T, width], zeros for no word; sets `is_word` [B, T]."""
    self.steps.append(Step('is_word', 'is_word', ('x',)))
    self.steps.append(Step('embed', 'x', ('x', 'is_word'), 'embedding_table'))

  def add_places(self) -> None:
    """Adds the learned numbers of each place, [T, width]."""
    self._step('add_places', layer='places')

  def gru(self, layer: str, *, of_words: bool) -> None:
    """[B, T, C] -> [B, width]: the state of gated recurrent units after the last step.

    With `of_words` a place where `is_word` is false leaves the state as it is.
    """
    sources = ('x', 'is_word') if of_words else ('x',)
    self.steps.append(Step('gru', 'x', sources, layer, {'of_words': of_words}))

  def mean_of_words(self) -> None:
    """[B, T, width] -> [B, width], the mean over the words; 0 if there is none."""
    self.steps.append(Step('mean_of_words', 'x', ('x', 'is_word')))

  def relu(self) -> None:
    """max(x, 0)."""
    self._step('relu')

  def relu6(self) -> None:
    """min(max(x, 0), 6)."""
    self._step('relu6')

  def max_pool(self, *, size: int = 2, stride: int = 2, padding: int = 0) -> None:
    """The largest number of each window."""
    options = {'size': size, 'stride': stride, 'padding': padding}
    self._step('max_pool', options=options)

  def dropout(self, rate: float) -> None:
    """Dropout, which only training has."""
    if rate:
      self._step('dropout', options={'rate': rate})

  def mean_of_pixels(self) -> None:
    """[B, C, H, W] -> [B, C]."""
    self._step('mean_of_pixels')

  def flatten(self) -> None:
    """[B, C, H, W] -> [B, H W C], pixel by pixel; other examples as they are."""
    self._step('flatten' if self._of_pictures else 'flatten_tokens')

  def tokens(self) -> None:
    """[B, C, H, W] -> [B, H W, C]: pixels, row by row."""
    self._step('tokens')

  def flatten_tokens(self) -> None:
    """[B, tokens, width] -> [B, tokens width]."""
    self._step('flatten_tokens')

  def copy_to(self, target: str) -> None:
    """Gives `x` a second name, for a later step."""
    self.steps.append(Step('copy', target, ('x',)))

  def add(self, other: str) -> None:
    """Adds another variable to `x`."""
    self.steps.append(Step('add', 'x', ('x', other)))

  def _step(self, kind, source='x', layer='', options=MappingProxyType({})):
    step = Step(
      kind=kind, target=source, sources=(source,), layer=layer, options=options
    )
    self.steps.append(step)
