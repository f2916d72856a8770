"""Assigns clients to lanes, so that all lanes end at about the same time."""

import heapq

import numpy as np


def pack(num_steps: np.ndarray, num_lanes: int) -> list[list[int]]:
  """Longest-first packing: each slot joins the lane that is free first.

  Args:
    num_steps: [K] steps of each slot.
    num_lanes: L.

  Returns:
    L queues of slots; every slot with at least one step is in exactly one.
  """
  queues = [[] for _ in range(num_lanes)]
  free_at = [(0, lane) for lane in range(num_lanes)]
  for slot in np.argsort(-num_steps, kind='stable'):
    if num_steps[slot] > 0:
      end, lane = heapq.heappop(free_at)
      queues[lane].append(int(slot))
      heapq.heappush(free_at, (end + int(num_steps[slot]), lane))
  return queues
