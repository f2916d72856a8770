"""Lays the clients of a round out in lanes and segments. Plain NumPy.

Clients own different amounts of data, so one lane per client would leave most lanes
idle while the largest client finishes; L shorter queues of equal length do not.

Clients enter lanes and leave them only between segments. A segment ends when a client
does, or, if a loop must know its length, after a fixed number of steps.
"""

import dataclasses
from typing import NamedTuple

import numpy as np


@dataclasses.dataclass(frozen=True)
class LaneLayout:
  """The lanes of a run and their segments.

  Attributes:
    num_lanes: L, a multiple of P.
    num_devices: P.
    segment_steps: steps of every segment, at whose end its clients wait; 0: a segment
      ends as soon as a client does.
  """

  num_lanes: int
  num_devices: int = 1
  segment_steps: int = 0

  @property
  def lanes_per_device(self) -> int:
    """L / P."""
    return self.num_lanes // self.num_devices

  def whole_segments(self, num_steps: np.ndarray | int) -> np.ndarray | int:
    """Numbers of steps, rounded up to what segments of a fixed length take."""
    return round_up(num_steps, multiple_of=self.segment_steps or 1)

  def max_steps(self, num_steps: np.ndarray, cohort_size: int) -> int:
    """The largest number of steps of a lane, for any cohort.

    Clients are packed longest first, so a client starts at the latest when the lanes
    have shared all longer clients evenly (Graham 1969, list scheduling). No cohort
    needs more steps than the K longest clients.

    Args:
      num_steps: [N] steps of each client in a lane, at most; whole segments.
      cohort_size: K.
    """
    longest_clients = np.partition(num_steps, len(num_steps) - cohort_size)
    longest_first = -np.sort(-longest_clients[-cohort_size:])
    steps_before = np.cumsum(longest_first) - longest_first
    segment_steps = self.segment_steps or 1
    start = steps_before // self.num_lanes // segment_steps * segment_steps
    has_lane_of_its_own = np.arange(cohort_size) < self.num_lanes
    start = np.where(has_lane_of_its_own, 0, start)
    return int((start + longest_first).max())


def round_up(number: np.ndarray | int, *, multiple_of: int) -> np.ndarray | int:
  """The next multiple of a number, or the number itself.

  >>> round_up(5, multiple_of=4)
  8
  """
  return -(-number // multiple_of) * multiple_of


class Segments(NamedTuple):
  """The segments of a round; see `plan.LaneSchedule`."""

  entering: np.ndarray
  leaving: np.ndarray
  bounds: np.ndarray
  num_segments: np.ndarray


def cut_into_segments(
  queues: list[list[int]],
  num_steps: np.ndarray,
  *,
  layout: LaneLayout,
  max_segments: int,
) -> Segments:
  """The segments of all devices.

  Args:
    queues: for each of the L lanes, the slots that it trains, in order.
    num_steps: [K] steps of each slot in a lane.
    layout: the lanes of the run.
    max_segments: G.
  """
  segments_by_device = []
  for first_lane in range(0, layout.num_lanes, layout.lanes_per_device):
    device_queues = queues[first_lane : first_lane + layout.lanes_per_device]
    segments_by_device.append(
      _segments_of_device(device_queues, num_steps, layout.segment_steps, max_segments)
    )
  return Segments(
    entering=np.hstack([segments.entering for segments in segments_by_device]),
    leaving=np.hstack([segments.leaving for segments in segments_by_device]),
    bounds=np.stack([segments.bounds for segments in segments_by_device]),
    num_segments=np.int32([segments.num_segments for segments in segments_by_device]),
  )


def _segments_of_device(queues, num_steps, segment_steps, max_segments):
  """The segments of one device's lanes; see `cut_into_segments`."""
  clients_end = [np.cumsum(num_steps[queue]) for queue in queues]
  segments_end = np.unique(np.concatenate(clients_end))
  if segment_steps:
    last_step = max(segments_end, default=0)
    segments_end = np.arange(segment_steps, last_step + 1, segment_steps)
  entering = np.full((max_segments, len(queues)), -1, np.int32)
  leaving = np.full((max_segments, len(queues)), -1, np.int32)
  for lane, queue in enumerate(queues):
    last_segment = np.searchsorted(segments_end, clients_end[lane])
    # A client enters when the client before it in the queue has left.
    first_segment = np.append(0, last_segment + 1)[:-1]
    entering[first_segment, lane] = queue
    leaving[last_segment, lane] = queue
  bounds = np.zeros(max_segments + 1, np.int32)
  bounds[1 : len(segments_end) + 1] = segments_end
  return Segments(
    entering=entering, leaving=leaving, bounds=bounds, num_segments=len(segments_end)
  )
