"""Keeps what the programs of a run are traced to, so that later starts do not trace.

JAX's own cache knows a compiled program by its text, which takes seconds of tracing to
make for a deep network. Here the text (StableHLO, `jax.export`) is known by all that
tracing depends on: the package's code, the versions of what it is built on, the
configuration, the data, the shapes, the machine. What a user registers may import
anything, and who imports the package may change it: there each start traces.
"""

import hashlib
import importlib.metadata
import pathlib
import platform
import sys

import jax
from jax import export

from moon_jax import cache, catalog
from moon_jax import config as config_lib
from moon_jax.engine import hosts, programs
from moon_jax.engine.evaluation import Score
from moon_jax.engine.experiment import Experiment
from moon_jax.models import fused_cpu
from moon_jax.runner import program
from moon_jax.types import ClientMetrics

_PACKAGES = ('jax', 'jaxlib', 'flax', 'optax', 'numpy')
# Knobs that reach a program as arguments and shapes, if at all.
_OF_THE_HOST = ('seed', 'num_rounds', 'eval_every_', 'checkpoint_every_', 'partition.')
# Another version may understand foreign functions otherwise: the key has the versions.
_UNSTABLE = [export.DisabledSafetyCheck.custom_call('ALL')]

for kind in (ClientMetrics, Score):
  export.register_namedtuple_serialization(kind, serialized_name=kind.__name__)


def keeping(folder: pathlib.Path | None, experiment: Experiment) -> programs.Traced:
  """What traces each program once, and for later starts.

  Args:
    folder: where what is traced is kept; None if nowhere.
    experiment: what is run.
  """
  own = catalog.registered(config_lib.flatten(experiment.config))
  if folder is None or own or hosts.count() > 1 or not program.begun():
    return lambda function, arguments: function

  def traced(function, arguments):
    leaves, structure = jax.tree.flatten(arguments)
    state = jax.tree.structure(arguments[0])

    # In the server's state there may be Optax's types, which cannot be written.
    def bare(*leaves):
      result = function(*structure.unflatten(leaves))
      if isinstance(result, Score):
        return result
      return state.flatten_up_to(result[0]), result[1]

    name = function.func.__name__
    path = folder / f'jit_{name}-{_key(experiment, structure, leaves)}-traced'
    try:
      exported = export.deserialize(bytearray(path.read_bytes()))
    except FileNotFoundError:
      exported = export.export(jax.jit(bare), disabled_checks=_UNSTABLE)(*leaves)
      content = exported.serialize()
      cache.add(path, lambda file: file.write(content))

    def again(*arguments):
      result = exported.call(*jax.tree.leaves(arguments))
      if isinstance(result, Score):
        return result
      return state.unflatten(result[0]), result[1]

    again.__name__ = name
    return again

  return traced


def _key(experiment, structure, leaves):
  """Tells apart all that is traced differently."""
  flat = config_lib.flatten(experiment.config)
  depends_on = (
    sorted(item for item in flat.items() if not item[0].startswith(_OF_THE_HOST)),
    (experiment.data_digest, len(experiment.test_sizes), experiment.own_models),
    experiment.planner.segment_steps,
    (structure, [(one.shape, one.dtype, str(one.sharding)) for one in leaves]),
    _SOURCES,
    [importlib.metadata.version(name) for name in _PACKAGES] + [sys.version],
    [(d.id, d.platform, d.device_kind) for d in jax.devices()],
    (platform.platform(), bool(fused_cpu.known_fault())),
    sorted(jax.config.values.items(), key=str),
  )
  return hashlib.sha256(repr(depends_on).encode()).hexdigest()


def _digest(folder):
  """SHA-256 of the sources in a package."""
  digest = hashlib.sha256()
  for path in sorted(p for p in folder.rglob('*') if p.suffix in ('.py', '.cc')):
    digest.update(str(path.relative_to(folder)).encode() + path.read_bytes())
  return digest.hexdigest()


# Now: the files may change while the process runs.
_SOURCES = _digest(pathlib.Path(__file__).parents[1])
