"""Keeps a command's programs compiled, so that its next start does not trace them.

JAX's own cache knows a program by its text, which takes seconds of tracing to make for
a deep network. Here programs are known by all that tracing depends on: the package's
code, the versions of what it is built on, the configuration, the data, the shapes, the
machine. What a user registers may import anything: it is traced in each start.
"""

import contextlib
import dataclasses
import hashlib
import importlib.metadata
import os
import pathlib
import pickle
import platform
import sys
import zlib
from typing import Any

import jax
import numpy as np
from jax.experimental import serialize_executable
from jax.sharding import Mesh

from moon_jax import catalog
from moon_jax import config as config_lib
from moon_jax.engine import hosts, programs
from moon_jax.engine.experiment import Experiment
from moon_jax.errors import RunError
from moon_jax.models import fused_cpu
from moon_jax.runner import files
from moon_jax.types import State

_PACKAGES = ('jax', 'jaxlib', 'flax', 'optax', 'numpy')


def entry_of(
  folder: pathlib.Path | None,
  experiment: Experiment,
  state: State,
  inputs: programs.RoundInputs,
) -> pathlib.Path | None:
  """The file of these programs, there or not; None if they cannot be kept.

  Args:
    folder: of the compile cache; None if there is none.
    experiment: what is run.
    state: a state of it, or its shapes.
    inputs: of any round.
  """
  flat = config_lib.flatten(experiment.config)
  if folder is None or hosts.count() > 1 or catalog.registered(flat):
    return None
  planner = {
    field.name: value
    for field in dataclasses.fields(experiment.planner)
    if not isinstance(value := getattr(experiment.planner, field.name), np.ndarray)
  }
  arguments = state, inputs, experiment.train, experiment.test
  shapes = [
    (leaf.shape, leaf.dtype, str(getattr(leaf, 'sharding', '')))
    for leaf in jax.tree.leaves(arguments)
  ]
  depends_on = (
    sorted(flat.items()),
    (experiment.data_digest, sorted(planner.items()), experiment.memory.name),
    (jax.tree.structure(arguments), shapes),
    _code(),
    [importlib.metadata.version(name) for name in _PACKAGES] + [sys.version],
    [(d.id, d.platform, d.device_kind) for d in jax.devices()],
    (platform.platform(), _processor(), fused_cpu.known_fault()),
    sorted(jax.config.values.items(), key=str),
    sorted(item for item in os.environ.items() if item[0].startswith(('JAX', 'XLA'))),
  )
  key = hashlib.sha256(repr(depends_on).encode()).hexdigest()
  return folder / f'jit_programs-{key}-cache'


def load(entry: pathlib.Path, mesh: Mesh) -> tuple[Any, Any] | None:
  """The two programs that were saved; None if there are none that can be loaded.

  mesh: the devices that run them.
  """
  where = {'execution_devices': list(mesh.devices.flat)}
  with contextlib.suppress(Exception):  # the compiler's own, of many kinds
    kept = pickle.loads(zlib.decompress(entry.read_bytes()))
    return tuple(
      serialize_executable.deserialize_and_load(*one, **where) for one in kept
    )
  return None


def save(entry: pathlib.Path, compiled: programs.Compiled) -> None:
  """Keeps the programs, unless the disk is full."""
  kept = [
    serialize_executable.serialize(one)
    for one in (compiled.run_round, compiled.evaluate)
  ]
  with contextlib.suppress(RunError), files.replacing(entry) as file:
    file.write(zlib.compress(pickle.dumps(kept), level=1))


def _code() -> str:
  """SHA-256 of the package's sources."""
  digest = hashlib.sha256()
  folder = pathlib.Path(__file__).parents[1]
  for path in sorted(p for p in folder.rglob('*') if p.suffix in ('.py', '.cc')):
    digest.update(str(path.relative_to(folder)).encode() + path.read_bytes())
  return digest.hexdigest()


def _processor() -> str:
  """What the processor can do, as far as the system tells."""
  with contextlib.suppress(OSError):
    lines = pathlib.Path('/proc/cpuinfo').read_text().splitlines()
    return str([line for line in lines if line.startswith(('model name', 'flags'))][:2])
  return platform.processor()
