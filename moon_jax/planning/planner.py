"""Plans a round: which clients train, in which lane, on which batches. Plain NumPy.

`plan` explains lanes, segments and slots. A plan is a function of the seed and the
round alone, so a resumed run, or one with other lanes, trains on the same batches.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from moon_jax.core.keys import Purpose, host_rng
from moon_jax.planning.attackers import attack_seeds
from moon_jax.planning.batches import LocalWork, client_batches
from moon_jax.planning.lanes import LaneLayout, cut_into_segments
from moon_jax.planning.packing import pack
from moon_jax.planning.participation import Draw, Participation
from moon_jax.planning.plan import Cohort, LaneSchedule, RoundPlan


@dataclasses.dataclass(frozen=True)
class ClientData:
  """What clients own.

  Attributes:
    sizes: [N] int, examples of each client.
    rows_of: client ids [K] -> K arrays, the rows of the training split that each one
      owns.
  """

  sizes: np.ndarray
  rows_of: Callable[[np.ndarray], list[np.ndarray]]


@dataclasses.dataclass(frozen=True)
class Averaging:
  """How the server, or neighbours, average the clients' models.

  Attributes:
    uniform_weights: whether the average has equal weights, and not by examples.
    mixing: [K] clients that are present -> [K, K] float32, their mixing weights; None
      with a server.
  """

  uniform_weights: bool = False
  mixing: Callable[[np.ndarray], np.ndarray] | None = None


class TrainingPlan(NamedTuple):
  """One local training of a cohort.

  Attributes:
    schedule: what each lane trains.
    step_real: [S, L] bool, see `plan.RoundPlan`.
  """

  schedule: LaneSchedule
  step_real: np.ndarray


@dataclasses.dataclass(frozen=True)
class TrainingPlanner:
  """Plans one local training of any cohort: its batches, in lanes.

  Attributes:
    seed: the run's seed.
    cohort_size: K.
    data: what clients own.
    work: how long clients train, and on which batches.
    layout: the lanes and their segments.
    process_lanes: lanes whose batches this process makes; other lanes only have lengths
      here.
    min_steps: lower bound of S, so that runs that need fewer steps share programs.
  """

  seed: int
  cohort_size: int
  data: ClientData
  work: LocalWork
  layout: LaneLayout
  process_lanes: range
  min_steps: int = 0

  @functools.cached_property
  def max_steps(self) -> int:
    """S, the largest number of steps of a lane in any round."""
    num_steps = self.num_steps(np.arange(len(self.data.sizes)))
    max_steps = self.layout.max_steps(num_steps, self.cohort_size)
    return self.layout.whole_segments(max(self.min_steps, max_steps))

  @property
  def max_segments(self) -> int:
    """G; a segment has a known length, or it ends when a client does."""
    if self.layout.segment_steps:
      return self.max_steps // self.layout.segment_steps
    return min(self.cohort_size, self.max_steps)

  def with_work(self, work: LocalWork) -> 'TrainingPlanner':
    """The planner of another local training; S is what that training needs."""
    return dataclasses.replace(self, work=work, min_steps=0)

  def with_layout(self, layout: LaneLayout, process_lanes: range) -> 'TrainingPlanner':
    """The planner of the same local training in other lanes."""
    return dataclasses.replace(self, layout=layout, process_lanes=process_lanes)

  def real_steps(self, clients: np.ndarray) -> np.ndarray:
    """[K] client ids -> [K] steps that each one trains at most."""
    return self.work.max_steps(self.data.sizes[clients])

  def num_steps(self, clients: np.ndarray) -> np.ndarray:
    """[K] client ids -> [K] steps that each one is in a lane at most."""
    return self.layout.whole_segments(self.real_steps(clients))

  def epochs_of_round(
    self, clients: np.ndarray, in_second_round: Iterable[int] = ()
  ) -> np.ndarray:
    """[K] client ids -> [K] passes in the round, if no fewer are drawn."""
    epochs = np.full(len(clients), self.work.local_epochs)
    if self.work.second_round_epochs:
      is_second = np.isin(clients, list(in_second_round))
      epochs[is_second] = self.work.second_round_epochs
    return epochs

  def steps_of_round(
    self,
    round_index: int,
    clients: np.ndarray,
    interrupted: Iterable[int] = (),
    in_second_round: Iterable[int] = (),
  ) -> np.ndarray:
    """[K] client ids -> [K] steps that each one trains in the round.

    With `local_epochs_min`, a client's number of epochs is drawn. An interrupted client
    trains some of its steps: the number is drawn, from 1 to all but one.
    """
    epochs = self.epochs_of_round(clients, in_second_round)
    steps = self.work.limited(epochs * self.work.epoch_steps(self.data.sizes[clients]))
    most_epochs, fewest_epochs = self.work.local_epochs, self.work.local_epochs_min
    if fewest_epochs:
      for slot, client in enumerate(clients.tolist()):
        rng = host_rng(self.seed, Purpose.EPOCHS, round_index, client)
        num_epochs = rng.integers(fewest_epochs, most_epochs, endpoint=True)
        steps[slot] = steps[slot] // most_epochs * num_epochs
    for slot in np.flatnonzero(np.isin(clients, interrupted)):
      client = int(clients[slot])
      rng = host_rng(self.seed, Purpose.STRAGGLER_STEPS, round_index, client)
      steps[slot] = rng.integers(1, max(steps[slot], 2))
    return steps

  def batches(
    self,
    round_index: int,
    clients: np.ndarray,
    interrupted: Iterable[int] = (),
    slots: Iterable[int] | None = None,
    in_second_round: Iterable[int] = (),
  ) -> list[tuple[np.ndarray, np.ndarray]]:
    """The batches of clients [K] in a round, as far as they train.

    Args:
      round_index: the round, from 0.
      clients: [K] client ids, ascending.
      interrupted: those of them that stop before they have done all their steps.
      slots: slots of the clients whose batches are made; None: all.
      in_second_round: those that take part for the second time.

    Returns:
      For each of these slots, (example_rows [steps, B], num_real [steps]) as
      `client_batches` returns them.
    """
    rows_of_slot = self.data.rows_of(clients)
    steps = self.steps_of_round(round_index, clients, interrupted, in_second_round)
    epochs = self.epochs_of_round(clients, in_second_round)
    batches = []
    for slot in range(len(clients)) if slots is None else slots:
      rng_key = self.seed, round_index, int(clients[slot])
      example_rows, num_real = client_batches(
        rows_of_slot[slot],
        rng_key=rng_key,
        work=self.work,
        num_epochs=int(epochs[slot]),
      )
      batches.append((example_rows[: steps[slot]], num_real[: steps[slot]]))
    return batches

  def plan(
    self,
    round_index: int,
    clients: np.ndarray,
    interrupted: Iterable[int] = (),
    in_second_round: Iterable[int] = (),
  ) -> TrainingPlan:
    """The local training of clients [K] in a round.

    Args:
      round_index: the round, from 0.
      clients: [K] client ids, ascending.
      interrupted: those of them that stop before they have done all their steps.
      in_second_round: those that take part for the second time.
    """
    real_steps = self.steps_of_round(round_index, clients, interrupted, in_second_round)
    num_steps = self.layout.whole_segments(real_steps)
    queues = pack(num_steps, self.layout.num_lanes)
    slots_here = sorted(
      itertools.chain.from_iterable(queues[i] for i in self.process_lanes)
    )
    batches = self.batches(
      round_index, clients, interrupted, slots_here, in_second_round
    )
    batches_of_slot = dict(zip(slots_here, batches, strict=True))

    shape = self.max_steps, self.layout.num_lanes
    example_rows = np.zeros((*shape, self.work.step_size), np.int32)
    # Of filler steps: in segments of a fixed length 0 tells the round to drop the step.
    # Otherwise nothing reads its result.
    num_real = np.full(shape, 0 if self.layout.segment_steps else 1, np.int32)
    step_real = np.zeros(shape, bool)
    for lane, queue in enumerate(queues):
      first_step = 0
      for slot in queue:
        steps = slice(first_step, first_step + real_steps[slot])
        if slot in batches_of_slot:
          example_rows[steps, lane], num_real[steps, lane] = batches_of_slot[slot]
        step_real[steps, lane] = True
        first_step += num_steps[slot]

    segments = cut_into_segments(
      queues, num_steps, layout=self.layout, max_segments=self.max_segments
    )
    schedule = LaneSchedule(
      example_rows=example_rows,
      num_real=num_real,
      entering=segments.entering,
      leaving=segments.leaving,
      segment_bounds=segments.bounds,
      num_segments=segments.num_segments,
    )
    return TrainingPlan(schedule, step_real)


class _Participations:
  """Counts in how many rounds each client took part, round by round."""

  def __init__(self, cohort: Callable[[int], np.ndarray], num_clients: int):
    self._cohort = cohort
    self._start = 0, np.zeros(num_clients, int)
    self._last = self._start

  def before(self, round_index: int) -> np.ndarray:
    """[N] rounds before this one in which each client trained."""
    first_round, counts = self._last
    if first_round > round_index:
      first_round, counts = self._start
    counts = counts.copy()
    for index in range(first_round, round_index):
      counts[self._cohort(index)] += 1
    self._last = round_index, counts
    return counts


@dataclasses.dataclass(frozen=True)
class Planner:
  """Makes the plan of any round. `make_planner` makes a planner.

  Attributes:
    seed: the run's seed.
    participation: who takes part.
    training: plans the local training.
    second_training: plans a second local training of the same clients, see
      `Algorithm.second_training`; None without one.
    averaging: how the clients' models are averaged.
    client_facts: name -> [N, ...], what each client knows about its data, as
      `client_facts.facts_of_clients` returns it.
  """

  seed: int
  participation: Participation
  training: TrainingPlanner
  second_training: TrainingPlanner | None
  averaging: Averaging
  client_facts: dict[str, np.ndarray]

  def with_layout(
    self, layout: LaneLayout, process_lanes: range | None = None
  ) -> 'Planner':
    """The planner of the same rounds in other lanes.

    Args:
      layout: the lanes and their segments.
      process_lanes: lanes of this process; None: all lanes.
    """
    if process_lanes is None:
      process_lanes = range(layout.num_lanes)
    second_training = None
    if self.second_training:
      second_training = self.second_training.with_layout(layout, process_lanes)
    return dataclasses.replace(
      self,
      training=self.training.with_layout(layout, process_lanes),
      second_training=second_training,
    )

  def draw(self, round_index: int) -> Draw:
    """Who takes part in a round, from 0."""
    return self.participation.draw(self.seed, round_index)

  def cohort(self, round_index: int) -> np.ndarray:
    """[K] int32 ids of the clients that train and send in a round, ascending."""
    return self.draw(round_index).clients

  def in_second_round(self, round_index: int) -> list[int]:
    """The ids of the cohort that take part for the second time; [] if none asks.

    Who trained before is drawn again from the seed, so a resumed run has the same plan.
    """
    if not (self.second_training and self.second_training.work.second_round_epochs):
      return []
    clients = self.cohort(round_index)
    counts = self._participations.before(round_index)
    return clients[counts[clients] == 1].tolist()

  @functools.cached_property
  def _participations(self) -> '_Participations':
    return _Participations(self.cohort, self.participation.num_clients)

  def plan(self, round_index: int) -> RoundPlan:
    """The plan of a round, from 0."""
    draw = self.draw(round_index)
    clients = draw.clients
    training = self.training.plan(round_index, clients, draw.interrupted)
    second_schedule = None
    if self.second_training:
      second = self.second_training.plan(
        round_index, clients, draw.interrupted, self.in_second_round(round_index)
      )
      second_schedule = second.schedule
    mixing = None
    if self.averaging.mixing:
      mixing = self.averaging.mixing(clients)
    return RoundPlan(
      cohort=self.cohort_of(clients),
      schedule=training.schedule,
      second_schedule=second_schedule,
      mixing=mixing,
      attack_seeds=attack_seeds(
        self.seed, round_index, clients, self.participation.attackers
      ),
      step_real=training.step_real,
      stragglers=draw.stragglers,
    )

  def cohort_of(self, clients: np.ndarray) -> Cohort:
    """The cohort of any clients [K]: their weights, and what they know."""
    sizes = self.training.data.sizes[clients].astype(np.float32)
    facts = {
      name: np.float32(values[clients]) for name, values in self.client_facts.items()
    }
    return Cohort(
      clients=clients,
      weights=np.ones_like(sizes) if self.averaging.uniform_weights else sizes,
      client_facts=facts,
    )


def make_planner(
  *,
  seed: int,
  participation: Participation,
  data: ClientData,
  work: LocalWork,
  second_work: LocalWork | None = None,
  layout: LaneLayout,
  process_lanes: range | None = None,
  min_steps: int = 0,
  averaging: Averaging = Averaging(),
  client_facts: dict[str, np.ndarray] | None = None,
) -> Planner:
  """Makes the planner of a run.

  Args:
    seed: the run's seed.
    participation: who takes part.
    data: what clients own.
    work: how long clients train in a round, and on which batches.
    second_work: the same of a second local training; None without one.
    layout: the lanes and their segments.
    process_lanes: lanes of this process; None: all lanes.
    min_steps: lower bound of the steps of a lane, so that runs that need fewer steps
      share programs.
    averaging: how the clients' models are averaged.
    client_facts: what clients know about their data; None: nothing.
  """
  if process_lanes is None:
    process_lanes = range(layout.num_lanes)
  training = TrainingPlanner(
    seed=seed,
    cohort_size=participation.cohort_size,
    data=data,
    work=work,
    layout=layout,
    process_lanes=process_lanes,
    min_steps=min_steps,
  )
  return Planner(
    seed=seed,
    participation=participation,
    training=training,
    second_training=training.with_work(second_work) if second_work else None,
    averaging=averaging,
    client_facts=client_facts or {},
  )
