"""Functions that register parts of a user's own.

A config file or a program calls them before it builds a configuration. The knobs of a
part are in the group with its name: `--config.fedcm.alpha=`. A taken name raises a
UsageError. So does a default that its knob does not take, at the start of any run, and
a function that cannot be called with its knobs, when the part is used.
"""

import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from moon_jax.catalog.algorithms import SERVED
from moon_jax.catalog.entries import Knob, Metric
from moon_jax.catalog.registry import register
from moon_jax.catalog.test_metrics import LOWER
from moon_jax.core.errors import UsageError

Knobs = Mapping[str, Knob] | None


class RegisteredCallback(NamedTuple):
  """A callback that runs call.

  Attributes:
    callback: the callback.
    file: the file that has registered it; '' in a notebook.
    name: its name in Python, or that of its class.
  """

  callback: Any
  file: str
  name: str

  def is_same(self, other: 'RegisteredCallback') -> bool:
    """Whether it is the other one, which its file may have made anew."""
    is_named_alike = (self.file, self.name) == (other.file, other.name)
    return self.callback is other.callback or is_named_alike


# Those of the config file that was loaded last. The key is the registering file, the
# callback's module and its name; or its id, if several may have the name.
_callbacks: dict[tuple[str, str, str] | int, RegisteredCallback] = {}


def register_algorithm(
  name: str,
  make: Callable,
  *,
  title: str = '',
  knobs: Knobs = None,
  traits: Iterable[str] = SERVED,
  metrics: Mapping[str, Metric] | None = None,
  check: Callable[[Mapping[str, Any]], Iterable[str]] | None = None,
) -> None:
  """Adds an algorithm: `--config.algorithm=NAME`.

  Args:
    name: small letters, digits and _.
    make: function of the part's knobs, by name, that returns a moon_jax.Algorithm.
    title: its name in reports; `name` if left out.
    knobs: name -> moon_jax.knob(...).
    traits: 'several_clients'; 'served' (the clients send to a server); 'weighted' (the
      server averages by `client_weight`); 'contrastive' (the loss compares with frozen
      networks); 'decentralized' (neighbours in a graph average what `share` gives). If
      left out, the first three; otherwise those that are named, in their place. All
      others need the first one, without which one client owns all data.
    metrics: column of metrics.jsonl -> moon_jax.Metric, which reports follow.
    check: (valid values, dotted name -> value) -> complaints, a list or an iterator of
      lines. Knobs with an invalid value, and those that the run does not use, are left
      out of the values; a check that reads such a knob ends there, without an error.
  """
  register(
    'algorithm',
    name,
    make,
    title=title,
    knobs=knobs,
    traits=traits,
    metrics=metrics,
    check=check,
  )


def register_model(
  name: str,
  make: Callable,
  *,
  knobs: Knobs = None,
  traits: Iterable[str] = (),
) -> None:
  """Adds a model: `--config.model=NAME`.

  Args:
    name: small letters, digits and _.
    make: function of `num_classes` and the part's knobs, by name, that returns a flax
      module. The module maps images [B, H, W, C] float32 to moon_jax.Outputs, or to
      logits [B, Y] for algorithms that need no representation. Of other data it gets
      tables [B, D], signals [B, T, C] or volumes [B, D, H, W, C], float32, or words
      [B, T] int32, where -1 is no word; the number of words that an embedding has room
      for is then a knob of yours. If its `__call__` has
      the arguments, it gets `mask`, [B] (1.0: a real example) in training and None
      otherwise, and `train`, whether it trains; any other keeps its default. Batch
      normalisation must use the mask: a network whose results depend on filler is
      refused.
    knobs: name -> moon_jax.knob(...).
    traits: 'normalized' (it has batch normalisation), 'convolutional' (`make` takes
      `convolution`, a name for moon_jax.models.convolution.choose).
  """
  register('model', name, make, knobs=knobs, traits=traits)


def register_data(name: str, make: Callable, *, knobs: Knobs = None) -> None:
  """Adds a data source: `--config.data.source=NAME`.

  Args:
    name: small letters, digits and _.
    make: function of the part's knobs, by name, that returns (train_x, train_y, test_x,
      test_y), as in an .npz file: images [M, H, W] or [M, H, W, C], labels integers [M]
      from 0 without gaps. Pixels are integers in [0, 255] or floats in [0, 1], unless
      `data.range` declares another range. Other arrays are tables [M, D], or what
      `data.axes` says. If the examples have user ids, train_client
      and test_client [M] follow, integers or text; either may be None.
    knobs: name -> moon_jax.knob(...).
  """
  register('data', name, make, knobs=knobs, traits={'arrays'})


def register_partition(name: str, make: Callable, *, knobs: Knobs = None) -> None:
  """Adds a partition: `--config.partition.name=NAME`.

  Args:
    name: small letters, digits and _.
    make: function of the labels [M], and by name of `num_clients`, `min_size`, `seed`
      and the part's knobs, that returns a moon_jax.Partition;
      moon_jax.data.partition.grouped(owners [M], num_clients) makes one.
    knobs: name -> moon_jax.knob(...).
  """
  register('partition', name, make, knobs=knobs, traits={'dealt'})


def register_augmentation(name: str, make: Callable, *, knobs: Knobs = None) -> None:
  """Adds an augmentation: `--config.augmentation.name=NAME`.

  Args:
    name: small letters, digits and _.
    make: function of the part's knobs, by name, that returns a pure function of a JAX
      key, images [M, H, W, C] uint8 and rows [B] int32, which returns images[rows]
      augmented.
    knobs: name -> moon_jax.knob(...).
  """
  register('augmentation', name, make, knobs=knobs)


def register_optimizer(name: str, make: Callable, *, knobs: Knobs = None) -> None:
  """Adds an optimizer of local training: `--config.optimizer.name=NAME`.

  Args:
    name: small letters, digits and _.
    make: function of `learning_rate`, `weight_decay` and the part's knobs, by name,
      that returns an optax.GradientTransformation. The two and the knobs of type float
      are traced. Each client begins each round with a new state. Algorithms that need
      SGD refuse the optimizer.
    knobs: name -> moon_jax.knob(...), other than the two, `clip_norm` and
      `body_factor`, by which this package scales gradients and updates.
  """
  register('optimizer', name, make, knobs=knobs)


def register_schedule(name: str, make: Callable, *, knobs: Knobs = None) -> None:
  """Adds a schedule of the local learning rate: `--config.optimizer.schedule=NAME`.

  Args:
    name: small letters, digits and _.
    make: function of the round t, from 0, the number of rounds, and by name of the
      part's knobs, that returns the factor of the learning rate in this round, a Python
      number of at least 0. The factor may depend on `num_rounds`, so a resumed run
      cannot change that knob.
    knobs: name -> moon_jax.knob(...).
  """
  register('schedule', name, make, knobs=knobs)


def register_metric(
  name: str,
  function: Callable,
  *,
  title: str = '',
  unit: str = '',
  factor: float = 1.0,
  lower_is_better: bool = False,
) -> None:
  """Adds a metric of tests: `--config.metrics=NAME`, beside others.

  It is computed on the host, after each test, for the test and the validation split,
  and for each client that has tests of its own: docs/metrics.md has the columns.

  Args:
    name: small letters, digits and _.
    function: function of a moon_jax.Classified, the examples that a model has
      classified, that returns a number, or NaN if these examples do not define it.
    title: its name in reports; `name` if left out.
    unit: label of its axis in reports; `title` if left out.
    factor: factor from the number to that unit, such as 100 for per cent.
    lower_is_better: whether lower numbers are better, as for an error.
  """
  if name.startswith(('accuracy', 'loss')):
    raise UsageError(f'register_metric({name!r}): the name is taken, as a column.')
  title = title or name
  register(
    'metric',
    name,
    function,
    title=title,
    traits={LOWER} if lower_is_better else (),
    metrics={name: Metric(title, unit or title, factor)},
  )


def register_callback(callback: Any) -> None:
  """Adds a callback to all runs until another config file is loaded.

  Those are the runs of a command, `moon_jax.run` and `moon_jax.sweep`, also of
  configurations that were loaded before; `moon_jax.rounds` calls no callbacks. A config
  file that is loaded later forgets it; `load_config` then says so.

  Args:
    callback: a subclass of `moon_jax.Callback`, of which each run makes an instance, or
      a function of a round, as in `moon_jax.run`.

  Raises:
    UsageError: it is neither.
  """
  require_callback(callback)
  file = inspect.currentframe().f_back.f_globals.get('__file__', '')
  file = os.path.realpath(file) if file else ''
  name = getattr(callback, '__qualname__', type(callback).__qualname__)
  # A name that is defined again replaces itself. '<lambda>' and the class of instances
  # may name several.
  is_shared = '<' in name or not hasattr(callback, '__qualname__')
  key = id(callback) if is_shared else (file, callback.__module__, name)
  _callbacks[key] = RegisteredCallback(callback=callback, file=file, name=name)


def require_callback(entry: Any) -> None:
  """Raises UsageError for what is no callback, no class of one, and no function."""
  # `Callback` cannot be imported here, because it needs JAX. It has this mark.
  is_callback = getattr(entry, '_is_callback', False)
  is_function = callable(entry) and not isinstance(entry, type)
  if not (is_callback or is_function):
    raise UsageError(
      f'{entry!r} is no callback: it must be a function of a round, or derive from '
      'moon_jax.Callback.'
    )


def registered_callbacks() -> list[RegisteredCallback]:
  """The callbacks of the config file that was loaded last."""
  return [*_callbacks.values()]


def forget_callbacks() -> None:
  """Forgets the callbacks, before another config file is loaded."""
  _callbacks.clear()
