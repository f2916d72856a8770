"""Several runs as one program: the clients of all, side by side in the lanes.

A run that leaves a GPU half empty shares it with others, its *replicas*, which differ
from it in traced numbers, the seed and the partition. Nothing passes between them.
Their states are stacked, leaves [R, ...]; the queues of the lanes mix their clients.
"""

import contextlib
import dataclasses
import zlib
from collections.abc import Hashable, Sequence

import jax
import numpy as np

from moon_jax.data.device import TrainSplit
from moon_jax.engine import accelerator, devices, programs, scheduling
from moon_jax.engine.experiment import Experiment, initial_state, round_scalars
from moon_jax.engine.planning import Plan, Planner
from moon_jax.errors import RunError


@dataclasses.dataclass(frozen=True)
class ReplicaPlanner(Planner):
  """Plans rounds of R runs side by side, each as its own planner would.

  As a `Planner` it is that of a single run with all their clients, numbered one run
  after another; by it the lanes are chosen.

  Attributes:
    members: the planner of each run.
  """

  members: tuple[Planner, ...] = ()

  def cohort(self, round_index: int) -> np.ndarray:
    """[R * K] int, the clients of all runs in the round."""
    num_clients = len(self.members[0].sizes)
    cohorts = [one.cohort(round_index) for one in self.members]
    return np.concatenate([r * num_clients + one for r, one in enumerate(cohorts)])

  def side_by_side(self, rounds: Sequence[int | None]) -> tuple[Plan, list[Plan]]:
    """One round of each run.

    Args:
      rounds: [R] which one, from 0; None of a run that has no part.

    Returns:
      The plan of all: clients, examples, weights and mixing are [R, K, ...], and slot
      r * K + k is slot k of run r. And of each run a plan without lanes, whose
      `step_real` only has as many entries as the run trains steps.
    """
    size = self.cohort_size // len(self.members)
    numbers = [index or 0 for index in rounds]
    who = [one.who(index) for one, index in zip(self.members, numbers, strict=True)]
    has_part = np.array([[index is not None] for index in rounds])
    clients = [cohort[0] for cohort in who]
    found = [one.real_steps(c) for one, c in zip(self.members, clients, strict=True)]
    real_steps = np.where(has_part, found, 0)

    def make(slots):
      found = []
      for r, member in enumerate(self.members):
        own = [slot % size for slot in slots if slot // size == r]
        found += member.batches(numbers[r], clients[r], own)
      return found

    joined = [
      () if isinstance(parts[0], tuple) else np.stack(parts)
      for parts in zip(*who, strict=True)
    ]
    plan = Plan(*joined, *self.lanes(real_steps.ravel(), make))
    alone = [
      Plan(*mine, (), (), np.ones(steps.sum(), bool), *[()] * 4)
      for mine, steps in zip(who, real_steps, strict=True)
    ]
    counted = plan.weights * has_part.astype(np.float32)
    return plan._replace(weights=counted), alone

  @property
  def num_replicas(self) -> int:
    """R."""
    return len(self.members)


def join(built: Sequence[Experiment], backend: str | None = None) -> Experiment:
  """The experiments as one, which `programs` compiles for a state of leaves [R, ...].

  Args:
    built: one of the groups of `alike`.
    backend: as of `experiment.build`.

  Returns:
    The first one, but for the planner, the devices that it asks for, and the owners in
    the training split, which are [R, ...].
  """
  first, planners = built[0], tuple(one.planner for one in built)
  execution, size = first.config.execution, len(built) * first.planner.cohort_size
  backend = backend or jax.default_backend()
  available = devices.available(execution.devices)
  num_lanes, num_devices = scheduling.num_lanes(
    execution.lanes, size, backend, available
  )
  common = {
    field.name: getattr(first.planner, field.name)
    for field in dataclasses.fields(Planner)
  }
  changes = {
    'sizes': np.concatenate([one.sizes for one in planners]),
    'cohort_size': size,
    'num_lanes': num_lanes,
    'num_devices': num_devices,
    'segment_steps': 0,
    'own_lanes': None,
  }
  planner = ReplicaPlanner(**common | changes, members=planners)
  if backend != 'cpu':
    given = first.network, first.algorithm, first.train.examples.images
    planner = accelerator.suited(
      planner, *given, first.memory, choose_lanes=execution.lanes == 'auto'
    )
  mesh = devices.mesh(planner.num_devices)
  owners = [jax.device_get((one.train.rows, one.train.offsets)) for one in built]
  rows, offsets = map(np.stack, zip(*owners, strict=True))
  train = TrainSplit(first.train.examples, rows, offsets)
  return first._replace(
    planner=planner,
    mesh=mesh,
    train=devices.replicate(train, mesh),
    test=devices.replicate(first.test, mesh),
  )


def alike(built: Sequence[Experiment]) -> list[list[int]]:
  """Which experiments can be replicas: those with the same programs and images.

  Each is traced, which takes some seconds.

  Returns:
    Groups of indices, in order. Whose data or memories are not on the device is alone,
    as is one that is to be profiled, and one that cannot be traced.
  """
  planners = [_in_one_lane(one.planner) for one in built]
  room = max((planner.max_steps for planner in planners), default=0)
  groups: dict[Hashable, list[int]] = {}
  for index, (one, planner) in enumerate(zip(built, planners, strict=True)):
    key, on_device = index, one.stream is None and one.memory.name == 'device'
    if on_device and not one.config.execution.profile:
      images = zlib.crc32(jax.device_get(one.train.examples.images))
      planner = dataclasses.replace(planner, room=room)
      # An error is told when it is run alone.
      with contextlib.suppress(RunError), devices.out_of_memory_is_told():
        key = one.data_digest, images, _programs(one._replace(planner=planner))
    groups.setdefault(key, []).append(index)
  return list(groups.values())


def _in_one_lane(planner: Planner) -> Planner:
  """The planner but for what `join` chooses anew."""
  return dataclasses.replace(
    planner, num_lanes=planner.num_devices, segment_steps=0, own_lanes=None
  )


def _programs(built: Experiment) -> str:
  """The programs of a run, before XLA compiles them."""
  inputs = programs.round_inputs(built, 0, built.planner.plan(0))
  lowered = programs.lower_programs(built, initial_state(built), inputs)
  return ''.join(program.as_text() for program in lowered)


def round_inputs(
  joined: Experiment,
  built: Sequence[Experiment],
  rounds: Sequence[int | None],
  plan: Plan,
) -> programs.RoundInputs:
  """As `programs.round_inputs`, of one round of each run; see `side_by_side`."""
  scalars = [
    round_scalars(one.config, one.algorithm, index or 0)
    for one, index in zip(built, rounds, strict=True)
  ]
  stacked = jax.tree.map(lambda *numbers: np.stack(numbers), *scalars)
  return programs.to_device(joined, plan, stacked)
