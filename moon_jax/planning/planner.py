"""Plans a round: which clients train, in which lane, on which batches. Plain NumPy.

A *lane* is one of L parallel training slots; it trains a queue of clients back to back.
Clients own different amounts of data, so one slot per client would leave most slots
idle while the largest client finishes; L shorter queues of equal length do not.

A *segment* is a stretch of steps in which no lane of a device changes its client.
Clients are loaded into lanes and stored from them only between segments. A segment ends
when a client does, or, if a loop must know its length, after a fixed number of steps.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from moon_jax.core.keys import Purpose, host_rng
from moon_jax.core.types import Arrivals
from moon_jax.planning import clients as clients_lib
from moon_jax.planning.batches import client_batches, epoch_steps
from moon_jax.planning.packing import pack


class Plan(NamedTuple):
  """One round's work; the shapes are the same for every round of a run.

  A slot is a position in the cohort, 0..K-1; -1 stands for none. Steps and segments
  past those that the round needs are never executed.

  Attributes:
    clients: [K] int32 client ids, ascending.
    weights: [K] float32, weight of each client in the server's average, on any scale.
    mixing: [K, K] float32; mixing[i, j] is the weight of slot j's model in slot i's
      model; rows and columns sum to 1. None with a server.
    rows: [S, L, B] int32 rows of the training split.
    num_real: [S, L] int32 number of leading examples of the batch that are real; the
      rest repeat the last real one. In segments of a fixed length, 0 marks a filler
      step.
    step_real: [S, L] bool; False where a lane has no client left, or its client no
      step, and repeats row 0. None on the device, which does not read it.
    load: [G, L] int32 slot that enters a lane before its device's segment.
    store: [G, L] int32 slot that leaves a lane after its device's segment.
    bounds: [P, G + 1] int32; segment g of device p runs the steps bounds[p, g] to
      bounds[p, g + 1] - 1. Each device has the next L / P lanes.
    num_segments: [P] int32.
    known: name -> [K, ...] float32, what each client's `Task` says about its data; None
      if the algorithm needs nothing of it.
    arrivals: what a client store brings to the device; None without one.
    stragglers: ids of the late clients, or None; None on the device.
    attackers: [K] int32, -1 for an honest client, else a seed of its draws; or None.
    second: plan of a second local training of the same clients; None without one.
  """

  clients: np.ndarray
  weights: np.ndarray
  mixing: np.ndarray | None
  rows: np.ndarray
  num_real: np.ndarray
  step_real: np.ndarray | None
  load: np.ndarray
  store: np.ndarray
  bounds: np.ndarray
  num_segments: np.ndarray
  known: dict[str, np.ndarray] | None = None
  arrivals: Arrivals | None = None
  stragglers: np.ndarray | None = None
  attackers: np.ndarray | None = None
  second: 'Plan | None' = None

  def for_device(self) -> 'Plan':
    """The plan without the fields that only the host reads."""
    second = self.second and self.second.for_device()
    return self._replace(step_real=None, stragglers=None, second=second)

  def num_transfers(self) -> int:
    """How often a client receives a model in the round, and as often one is sent.

    With a server, once for each client. Without one, once for each two neighbours that
    are both present, each way.
    """
    if self.mixing is None:
      return len(self.clients)
    others = ~np.eye(len(self.clients), dtype=bool)
    return int(np.count_nonzero(self.mixing[others]))

  def utilisation(self) -> float:
    """Useful steps / executed steps, in (0, 1]."""
    num_devices, num_lanes = len(self.bounds), self.step_real.shape[-1]
    steps = self.bounds[np.arange(num_devices), self.num_segments]
    return float(self.step_real.sum() / (steps.sum() * num_lanes / num_devices))


@dataclasses.dataclass(frozen=True)
class Planner:
  """Makes the plan of any round; a function of (seed, round) alone.

  Attributes:
    sizes: [N] int, examples of each client.
    rows: client ids [K] -> K arrays, the rows of the training split that each one owns.
    seed: the run's seed.
    cohort_size: K.
    local_epochs: passes of a client over its data in a round.
    batch_size: B.
    num_lanes: L, a multiple of P.
    num_devices: P.
    drop_last: whether an epoch's last batch is left out if it is not full; every client
      then owns at least one batch.
    uniform_weights: whether the average has equal weights, and not by examples.
    mixing: [K] clients that are present -> [K, K] float32, their mixing weights; None
      with a server.
    segment_steps: steps of every segment, at whose end its clients wait; 0: a segment
      ends as soon as a client does.
    min_steps: lower bound of S, so that runs that need fewer steps share programs.
    own_lanes: lanes whose batches are made; other lanes only have lengths. None: all.
    known: name -> [N, ...], as `clients.client_facts` returns it.
    local_epochs_min: a client's passes are drawn from this to local_epochs; 0: no draw.
    available: the clients that can be drawn; None: all.
    num_stragglers: number of stragglers in a round.
    partial: whether stragglers send what they have.
    attackers: ids of the attackers; None without an attack.
    purpose: purpose of the draws of batches.
    second: planner of a second local training; see `Algorithm.second`.
  """

  sizes: np.ndarray
  rows: Callable[[np.ndarray], list[np.ndarray]]
  seed: int
  cohort_size: int
  local_epochs: int
  batch_size: int
  num_lanes: int
  num_devices: int = 1
  drop_last: bool = False
  uniform_weights: bool = False
  mixing: Callable[[np.ndarray], np.ndarray] | None = None
  segment_steps: int = 0
  min_steps: int = 0
  own_lanes: range | None = None
  known: dict[str, np.ndarray] | None = None
  local_epochs_min: int = 0
  available: clients_lib.Available | None = None
  num_stragglers: int = 0
  partial: bool = False
  attackers: np.ndarray | None = None
  purpose: Purpose = Purpose.BATCHES
  second: 'Planner | None' = None

  def with_second(self, epochs: int | None) -> 'Planner':
    """The planner with a second local training; None: as many epochs as the first."""
    how = {'min_steps': 0, 'purpose': Purpose.SECOND}
    how |= {'local_epochs': epochs, 'local_epochs_min': 0} if epochs else {}
    return dataclasses.replace(self, second=dataclasses.replace(self, **how))

  def real_steps(self, clients: np.ndarray | slice = slice(None)) -> np.ndarray:
    """[K] client ids, by default all -> [K] steps that each one trains at most."""
    of_epoch = {'batch_size': self.batch_size, 'drop_last': self.drop_last}
    return self.local_epochs * epoch_steps(self.sizes[clients], **of_epoch)

  def num_steps(self, clients: np.ndarray | slice = slice(None)) -> np.ndarray:
    """[K] client ids, by default all -> [K] steps of each in a lane, at most."""
    return self._in_a_lane(self.real_steps(clients))

  def _in_a_lane(self, real):
    whole = self.segment_steps or 1
    return -(-real // whole) * whole

  def steps_of_round(self, round_index: int, clients: np.ndarray) -> np.ndarray:
    """[K] client ids -> [K] steps that each one trains in the round.

    A straggler that sends what it has at the deadline trains 1 step to all but one.
    """
    steps, low = self.real_steps(clients), self.local_epochs_min
    late = self._roster(round_index)[1] if self.partial else ()
    for slot, client in enumerate(clients.tolist() if low or self.partial else ()):
      if low:
        rng = host_rng(self.seed, Purpose.EPOCHS, round_index, client)
        epochs = rng.integers(low, self.local_epochs, endpoint=True)
        steps[slot] = steps[slot] // self.local_epochs * epochs
      if client in late:
        rng = host_rng(self.seed, Purpose.STRAGGLER_STEPS, round_index, client)
        steps[slot] = rng.integers(1, max(steps[slot], 2))
    return steps

  @functools.cached_property
  def max_steps(self) -> int:
    """S, the largest number of steps of a lane in any round.

    Longest first, a client starts when the lanes have shared the longer ones, at worst
    evenly (Graham 1969, list scheduling); no cohort is longer than the longest clients.
    """
    steps, size = self.num_steps(), self.cohort_size
    longest = -np.sort(-np.partition(steps, len(steps) - size)[-size:])
    whole = self.segment_steps or 1
    before = (np.cumsum(longest) - longest) // self.num_lanes // whole * whole
    begin = np.where(np.arange(size) < self.num_lanes, 0, before)
    return -(-max(self.min_steps, int((begin + longest).max())) // whole) * whole

  @property
  def max_segments(self) -> int:
    """G: a segment has a known length, or ends when a client does, after some step."""
    if self.segment_steps:
      return self.max_steps // self.segment_steps
    return min(self.cohort_size, self.max_steps)

  def cohort(self, round_index: int) -> np.ndarray:
    """[K] int32 ids of the round's clients, ascending."""
    return self._roster(round_index)[0]

  def _roster(self, round_index):
    """The round's clients [K], and its stragglers: some of them if `partial`."""
    chances = self.available and self.available.of_round(round_index)
    size = self.cohort_size + (0 if self.partial else self.num_stragglers)
    rng = host_rng(self.seed, Purpose.COHORT, round_index)
    drawn = rng.choice(len(self.sizes), size, replace=False, p=chances)
    clients = np.sort(drawn).astype(np.int32)
    if not self.num_stragglers:
      return clients, None
    rng = host_rng(self.seed, Purpose.STRAGGLERS, round_index)
    late = np.sort(rng.choice(clients, self.num_stragglers, replace=False))
    return (clients if self.partial else np.setdiff1d(clients, late)), late

  def batches(
    self, round_index: int, clients: np.ndarray, slots: Iterable[int] | None = None
  ) -> list[tuple[np.ndarray, np.ndarray]]:
    """`client_batches` of clients [K] in a round, or only of those in some slots."""
    names = ('local_epochs', 'batch_size', 'drop_last', 'purpose')
    how, rows = {name: getattr(self, name) for name in names}, self.rows(clients)
    steps = self.steps_of_round(round_index, clients)

    def of(k):
      key = self.seed, round_index, int(clients[k])
      whole = client_batches(rows[k], rng_key=key, **how)
      return tuple(part[: steps[k]] for part in whole)

    return [of(k) for k in (range(len(clients)) if slots is None else slots)]

  def plan(self, round_index: int, clients: np.ndarray | None = None) -> Plan:
    """The work of a round, of its own clients or of the given clients [K]."""
    whom = (clients, None) if clients is not None else self._roster(round_index)
    clients, stragglers = whom
    num_examples = self.sizes[clients].astype(np.float32)
    real_steps = self.steps_of_round(round_index, clients)
    num_steps = self._in_a_lane(real_steps)
    queues = pack(num_steps, self.num_lanes)
    lanes = range(self.num_lanes) if self.own_lanes is None else self.own_lanes
    own = sorted(itertools.chain(*(queues[lane] for lane in lanes)))
    work = dict(zip(own, self.batches(round_index, clients, own), strict=True))
    draws = clients_lib.attack_draws(self.seed, round_index, clients, self.attackers)
    return Plan(
      clients,
      np.ones_like(num_examples) if self.uniform_weights else num_examples,
      None if self.mixing is None else self.mixing(clients),
      *self._fill_lanes(queues, work, real_steps, num_steps),
      *self._all_segments(queues, num_steps),
      known=self.known and {k: np.float32(v[clients]) for k, v in self.known.items()},
      stragglers=stragglers,
      attackers=draws,
      second=self.second and self.second.plan(round_index),
    )

  def _fill_lanes(self, queues, work, real_steps, num_steps):
    max_steps, lanes = self.max_steps, self.num_lanes
    rows = np.zeros((max_steps, lanes, self.batch_size), np.int32)
    num_real = np.full((max_steps, lanes), 0 if self.segment_steps else 1, np.int32)
    step_real = np.zeros((max_steps, lanes), bool)
    for lane, queue in enumerate(queues):
      first = 0
      for slot in queue:
        span = slice(first, first + real_steps[slot])
        if slot in work:
          rows[span, lane], num_real[span, lane] = work[slot]
        step_real[span, lane] = True
        first += num_steps[slot]
    return rows, num_real, step_real

  def _all_segments(self, queues, num_steps):
    each = self.num_lanes // self.num_devices
    parts = [
      self._segments(queues[first : first + each], num_steps)
      for first in range(0, self.num_lanes, each)
    ]
    loads, stores, bounds, counts = zip(*parts, strict=True)
    return np.hstack(loads), np.hstack(stores), np.stack(bounds), np.int32(counts)

  def _segments(self, queues, num_steps):
    ends = [np.cumsum(num_steps[queue]) for queue in queues]
    cuts = np.unique(np.concatenate(ends))
    if steps := self.segment_steps:
      cuts = np.arange(steps, max(cuts, default=0) + 1, steps)
    load, store = np.full((2, self.max_segments, len(queues)), -1, np.int32)
    for lane, queue in enumerate(queues):
      last = np.searchsorted(cuts, ends[lane])
      first = np.append(0, last + 1)[:-1]
      load[first, lane], store[last, lane] = queue, queue
    bounds = np.zeros(self.max_segments + 1, np.int32)
    bounds[1 : len(cuts) + 1] = cuts
    return load, store, bounds, len(cuts)
