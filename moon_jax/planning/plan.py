"""The plan of a round: what the devices read of it, and what the host keeps.

A *lane* is one of L parallel training slots; it trains a queue of clients back to back.
A *segment* is a stretch of steps in which no lane of a device changes its client.
A *slot* is a position in the cohort, 0..K-1; -1 stands for none.

Shapes are the same for every round of a run. Steps and segments past those that a round
needs are never executed.
"""

import dataclasses
from typing import NamedTuple

import numpy as np

from moon_jax.core.types import Arrivals


class Cohort(NamedTuple):
  """The clients that train in a round, by slot.

  Attributes:
    clients: [K] int32 client ids, ascending.
    weights: [K] float32, weight of each client in the server's average, on any scale.
    client_facts: name -> [K, ...] float32, what each client knows about its data; empty
      if the algorithm needs nothing of it.
  """

  clients: np.ndarray
  weights: np.ndarray
  client_facts: dict[str, np.ndarray]


class LaneSchedule(NamedTuple):
  """What each lane trains, step by step.

  Attributes:
    example_rows: [S, L, B] int32 rows of the training split, the batch of each step.
    num_real: [S, L] int32 number of leading examples of the batch that are real; the
      rest repeat the last real one. In segments of a fixed length, 0 marks a filler
      step.
    entering: [G, L] int32 slot that enters a lane before its device's segment.
    leaving: [G, L] int32 slot that leaves a lane after its device's segment.
    segment_bounds: [P, G + 1] int32; segment g of device p runs the steps
      segment_bounds[p, g] to segment_bounds[p, g + 1] - 1. Each device has the next
      L / P lanes.
    num_segments: [P] int32.
  """

  example_rows: np.ndarray
  num_real: np.ndarray
  entering: np.ndarray
  leaving: np.ndarray
  segment_bounds: np.ndarray
  num_segments: np.ndarray


class DevicePlan(NamedTuple):
  """What the devices read of a round's plan.

  Attributes:
    cohort: the clients that train.
    schedule: the lanes of their local training.
    second_schedule: the lanes of a second local training of the same clients; None
      without one.
    mixing: [K, K] float32; mixing[i, j] is the weight of slot j's model in slot i's
      model; rows and columns sum to 1. None with a server.
    attack_seeds: [K] int32, -1 for an honest client, else a seed of its draws; None
      without an attack.
    arrivals: the memories that a client store brings to the device; None without one.
  """

  cohort: Cohort
  schedule: LaneSchedule
  second_schedule: LaneSchedule | None = None
  mixing: np.ndarray | None = None
  attack_seeds: np.ndarray | None = None
  arrivals: Arrivals | None = None


@dataclasses.dataclass(frozen=True)
class RoundPlan:
  """The plan of a round, as the host keeps it.

  Attributes:
    cohort: the clients that train; a field of `DevicePlan`, as the next four are.
    schedule: the lanes of their local training.
    second_schedule: the lanes of a second local training; None without one.
    mixing: [K, K] weights of the slots in each other's models; None with a server.
    attack_seeds: [K] seeds of the attackers' draws; None without an attack.
    step_real: [S, L] bool, whether a lane trains in a step. If not, it has no client
      left, or its client has no step left in the segment, and it repeats row 0.
    stragglers: ids of the stragglers, ascending; None if the run has none.
  """

  cohort: Cohort
  schedule: LaneSchedule
  second_schedule: LaneSchedule | None
  mixing: np.ndarray | None
  attack_seeds: np.ndarray | None
  step_real: np.ndarray
  stragglers: np.ndarray | None

  @property
  def clients(self) -> np.ndarray:
    """[K] int32 ids of the cohort, ascending."""
    return self.cohort.clients

  @property
  def attackers(self) -> np.ndarray | None:
    """Ids of the cohort's clients that attack; None without an attack."""
    if self.attack_seeds is None:
      return None
    return self.clients[self.attack_seeds >= 0]

  def for_device(self, arrivals: Arrivals | None = None) -> DevicePlan:
    """What the devices read of the plan, with what a client store brings them."""
    return DevicePlan(
      cohort=self.cohort,
      schedule=self.schedule,
      second_schedule=self.second_schedule,
      mixing=self.mixing,
      attack_seeds=self.attack_seeds,
      arrivals=arrivals,
    )

  def with_few_steps(self, num_steps: int, num_second_steps: int = 1) -> 'RoundPlan':
    """A plan for measuring: only a few steps, all with the first client of each lane.

    If this client has fewer, the rows of the lane's next clients follow.

    Args:
      num_steps: at least 1; fewer on a device that has fewer in the round.
      num_second_steps: likewise, of a second training.
    """

    def few(schedule, num_steps):
      if schedule is None:
        return None
      bounds = schedule.segment_bounds.copy()
      steps_of_round = bounds[np.arange(len(bounds)), schedule.num_segments]
      bounds[:, 1] = np.minimum(num_steps, np.maximum(steps_of_round, 1))
      return schedule._replace(
        segment_bounds=bounds, num_segments=np.ones_like(schedule.num_segments)
      )

    return dataclasses.replace(
      self,
      schedule=few(self.schedule, num_steps),
      second_schedule=few(self.second_schedule, num_second_steps),
    )

  def num_transfers(self) -> int:
    """The number of models that clients receive in the round; they send as many.

    With a server it is one for each client. Without one it is two for each pair of
    neighbours that both take part.
    """
    if self.mixing is None:
      return len(self.clients)
    is_neighbour = ~np.eye(len(self.clients), dtype=bool)
    return int(np.count_nonzero(self.mixing[is_neighbour]))

  def utilisation(self) -> float:
    """Useful steps / executed steps, in (0, 1]."""
    bounds, num_segments = self.schedule.segment_bounds, self.schedule.num_segments
    num_devices = len(bounds)
    lanes_per_device = self.step_real.shape[-1] / num_devices
    steps_per_device = bounds[np.arange(num_devices), num_segments]
    return float(self.step_real.sum() / (steps_per_device.sum() * lanes_per_device))
