"""Compiles the programs of a run while the main thread decodes its pictures.

Programs depend on the shapes of the images and on the labels, which decide who trains
how many steps, and on no pixel. So once a source knows them, a thread builds the
experiment with shapes in place of pixels, and compiles. The run builds its own
experiment from what was decoded, and takes the programs only if all shapes agree.

JAX is loaded before the data only here, because decoding takes longer.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from moon_jax.building.data import DataOptions, load_data
from moon_jax.config import Config
from moon_jax.core import activity
from moon_jax.core.types import Dataset
from moon_jax.platform import hosts

if TYPE_CHECKING:
  from moon_jax.runner.compiled_ahead import CompiledAhead

# Fewer pictures are decoded sooner than an experiment is built twice.
MIN_PICTURES = 10_000


class CompilerAhead:
  """Compiles the programs of one run while `load` decodes its pictures."""

  def __init__(
    self, config: Config, claim_devices: Callable[[], None], min_steps: int = 0
  ):
    """Compiles nothing yet.

    Args:
      config: the configuration.
      claim_devices: claims its devices; called before anything is compiled.
      min_steps: see `experiment.build_with`.
    """
    self._config = config
    self._claim_devices = claim_devices
    self._min_steps = min_steps
    self._thread: threading.Thread | None = None
    self._is_cancelled = threading.Event()
    self._compiled: CompiledAhead | None = None
    self._failure: Exception | None = None

  def load(self, options: DataOptions) -> Dataset:
    """Loads as `load_data` does, and returns once the programs are compiled as well.

    The run waits, because the compiler changes JAX's settings while it uses the cache
    of programs. An error of the data is raised at once; the process then ends when what
    is being compiled is.
    """
    try:
      dataset = load_data(options, announce=self._start_compiling)
    except BaseException:
      self._is_cancelled.set()
      raise
    if self._thread and self._thread.is_alive():
      with activity.doing('compiling the round and the test'):
        self._thread.join()
    return dataset

  def compiled(self) -> CompiledAhead | None:
    """The programs, once `load` has returned; None if there are none.

    If compiling failed, a line on standard error says why. Call it when the run has
    built the same, which raises errors of the configuration.
    """
    if self._failure:
      reason = str(self._failure).partition('\n')[0]
      print(
        'compiling beside the decoding failed, so it begins again: '
        f'{type(self._failure).__name__}: {reason}',
        file=sys.stderr,
      )
    return self._compiled

  def _start_compiling(self, dataset: Dataset) -> None:
    """Starts the thread, unless there are few pictures or several processes.

    Args:
      dataset: it has labels, and the shapes of its images.
    """
    num_pictures = len(dataset.train_labels) + len(dataset.test_labels)
    if num_pictures < MIN_PICTURES or hosts.count() > 1:
      return
    self._claim_devices()
    self._thread = threading.Thread(
      target=self._compile, args=[dataset], name='compiling ahead'
    )
    self._thread.start()

  def _compile(self, dataset: Dataset) -> None:
    try:
      # Imported here: only now is JAX loaded.
      from moon_jax.runner import compiled_ahead

      self._compiled = compiled_ahead.compile_ahead(
        self._config, dataset, self._min_steps, self._is_cancelled
      )
    except Exception as error:
      # The run builds the same, and raises the same error, after those of the pictures.
      # If it raises none, `compiled` reports this one.
      self._failure = error
