"""The number of lanes and the length of segments on GPUs."""

import functools
import math
import re
import types

import jax
import numpy as np
import pytest

from moon_jax import catalog, config, models
from moon_jax.core import tree
from moon_jax.core.errors import UsageError
from moon_jax.planning.lanes import LaneLayout
from moon_jax.platform import gpu
from moon_jax.platform.client_memory import ClientMemory
from tests import world
from tests.selection import few


def network(dense, convolved=0):
  """The parameters of a network, this many of each kind."""
  shapes = (dense,), (1, 1, 1, convolved)
  return [jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes]


SMALL = network(gpu.SLOW_NUM_PARAMETERS - 1)
SLOW = network(gpu.SLOW_NUM_PARAMETERS)


def chosen(
  num_steps, num_devices=1, *, params=SMALL, lanes=None, lane=1, free=math.inf
):
  """The layout for clients of so many steps, all in every round.

  A lane takes `lane` bytes, and nothing is looked up ahead.
  """
  sizes = world.BATCH_SIZE * np.array(num_steps)
  return gpu.choose_layout(
    planner_with(
      sizes, layout=LaneLayout(num_lanes=lanes or len(sizes), num_devices=num_devices)
    ),
    may_change_lanes=lanes is None,
    params=params,
    training_memory=gpu.TrainingMemory(lane, 0, world.BATCH_SIZE),
    free_bytes=free,
  )


def planner_with(sizes, *, layout):
  return world.planner(
    layout.num_lanes,
    len(sizes),
    sizes,
    num_devices=layout.num_devices,
    segment_steps=layout.segment_steps,
    local_epochs=1,
  )


def test_no_lane_only_waits():
  # 10 | 6 + 3 | 5 + 4: a fourth lane would end no sooner.
  assert chosen([10, 6, 4, 5, 3]).num_lanes == 3
  assert chosen([5, 5, 5, 5]).num_lanes == 4


def test_lanes_that_make_a_step_longer_are_weighed_against_a_longer_round():
  steps = [10, 4, 4, 4]  # 22 in one lane, 12 in two, 10 in three

  def lanes(share, **options):
    return chosen(
      steps, lane=share * gpu._LANE_BYTES_PER_KERNEL_START, **options
    ).num_lanes

  assert lanes(0.1) == 3  # 13 against 14.4
  assert lanes(0.5) == 2  # 24 against 25
  assert lanes(8) == 1  # 198 against 204
  # Each of two devices has half of the lanes.
  assert lanes(0.2, num_devices=2) == 4  # 14 against 14.4
  assert lanes(0.5, num_devices=2) == 2  # 18 against 20
  assert lanes(8, params=SLOW) == 3


def test_lanes_are_shared_evenly_and_bounded_and_those_asked_for_stay():
  assert chosen([10, 6, 4, 5, 3, 1], num_devices=2).num_lanes == 4
  assert chosen(np.arange(100, 200), params=SLOW).num_lanes == gpu.MAX_LANES
  assert chosen([10, 6, 4, 5, 3], lanes=5).num_lanes == 5


def test_a_large_network_never_waits_for_the_end_of_a_segment():
  slow = chosen([100, 60, 40], params=SLOW)
  assert (slow.num_lanes, slow.segment_steps) == (2, 0)


def test_a_network_of_large_convolutions_has_one_lane():
  convolved = network(gpu.SLOW_NUM_PARAMETERS, gpu.LARGE_CONVOLUTIONS)
  large = chosen([100, 60, 40], params=convolved)
  assert (large.num_lanes, large.segment_steps) == (1, 0)
  two = chosen([100, 60, 40], num_devices=2, params=convolved)
  assert two.num_lanes == 2


@pytest.mark.parametrize('num_steps', [[1], [41], [240], [33] * 4, [200, 3, 100, 77]])
@pytest.mark.parametrize('lanes', [1, None])
def test_segments_are_few_and_fill_up_little(num_steps, lanes):
  layout = chosen(num_steps, lanes=lanes)
  sizes = world.BATCH_SIZE * np.array(num_steps)
  schedule = planner_with(sizes, layout=layout).plan(0).schedule
  num_segments = schedule.num_segments[0]
  steps = int(schedule.segment_bounds[0, num_segments])
  assert num_segments * layout.segment_steps == steps
  best = max(max(num_steps), sum(num_steps) / layout.num_lanes)
  assert steps <= 1.1 * best + gpu._SEGMENT_COST * len(num_steps)


# --- memory ---------------------------------------------------------------------------

# Network, form -> lanes -> MiB of the program compiled for an H200, with MOON and
# batches of 64 images of CIFAR.
COMPILED = {
  ('moon_cnn', 'auto_on_gpu'): {1: 103, 9: 661},
  ('resnet18', 'library'): {1: 961, 10: 5735},
  ('cnn_transformer', 'auto_on_gpu'): {9: 3778},
}
CIFAR = (32, 32, 3)


def network_of(name, form):
  flat = config.flatten(config.defaults()) | {'model': name}
  options = catalog.options('model', flat)
  return models.make(
    name, image_shape=CIFAR, num_classes=10, convolution=form, **options
  )


DEEP = ('resnet18', 'library')


@pytest.mark.parametrize(
  ('name', 'form'), few([program for program in COMPILED if program != DEEP], [DEEP])
)
def test_the_estimate_of_memory_is_above_what_compiled_programs_take(name, form):
  memory = gpu.training_memory(network_of(name, form), world.make('moon'), CIFAR, 64)
  for lanes, mebibytes in COMPILED[name, form].items():
    assert 1 < memory.of_lanes(lanes) / 2**20 / mebibytes < 2.5, lanes


def test_memory_of_one_lane_by_hand():
  network = world.network()
  size = tree.num_bytes(network.shapes)
  fedavg = gpu.training_memory(network, world.make('fedavg'), (8, 8, 1), 16).of_lanes(1)
  # The lane holds a model, a gradient, two arrays of the optimizer, and the images of
  # 16 steps: 16 of 256 bytes in each step.
  left_behind = fedavg - 4 * size - 16 * 16 * 256
  # Training keeps at least the inputs of the four layers, of 64, 16, 16 and 8 numbers.
  inputs = 4 * 16 * (64 + 16 + 16 + 8)
  assert inputs <= left_behind <= 2 * inputs
  # With MOON the client keeps a model, and two frozen networks see the images ahead.
  moon = gpu.training_memory(network, world.make('moon'), (8, 8, 1), 16).of_lanes(1)
  assert moon - fedavg == pytest.approx(2 * size + 16 * left_behind, rel=0.01)


def test_gradients_at_other_models_take_memory():
  network = world.network()
  four_models = 4 * tree.num_bytes(network.shapes['params'])
  images_of_batch = 16 * 8 * 8 * 4

  def memory(algorithm):
    return gpu.training_memory(network, algorithm, (8, 8, 1), batch_size=16)

  fedavg = memory(world.make('fedavg')).lane_bytes
  fedsam = memory(world.make('fedsam')).lane_bytes
  assert fedsam - fedavg == four_models
  # Of a step's two batches one is trained on at a time, and the other is images.
  first_order = memory(world.make('per_fedavg', hessian='none'))
  assert first_order.lane_bytes - fedavg == four_models + images_of_batch
  # Of three batches, the last one has two gradients at a time.
  of_batch = fedavg - 4 * tree.num_bytes(network.shapes)
  hessian_free = memory(world.make('per_fedavg', hessian='difference'))
  more = of_batch + four_models + images_of_batch
  assert hessian_free.lane_bytes - fedavg == more
  # The images of all batches are gathered ahead, for 16 steps.
  ahead = hessian_free.of_lanes(1) - hessian_free.lane_bytes
  assert ahead == 16 * 3 * images_of_batch


def test_lanes_are_bounded_by_memory_and_one_is_always_there():
  lanes = [10, 6, 4, 5, 3]  # three are enough
  assert chosen(lanes, free=4).num_lanes == 3
  assert chosen(lanes, free=2).num_lanes == 2
  assert chosen(lanes, free=0).num_lanes == 1
  assert chosen(lanes, num_devices=2, free=1).num_lanes == 2
  assert chosen(lanes, lanes=5, free=0).num_lanes == 5


def test_what_cannot_fit_is_refused_and_the_advice_fits(monkeypatch):
  # As for a large network, no images are looked up ahead.
  monkeypatch.setattr(gpu, 'SLOW_NUM_PARAMETERS', 1)
  network, algorithm = world.network(), world.make('moon')

  @functools.cache
  def needed(batch_size):
    return gpu.training_memory(network, algorithm, (8, 8, 1), batch_size)

  def require_room(batch_size, free, free_on_disk=0.0, *, on_device=True):
    """The small network with MOON, if so many bytes are free."""
    free_bytes = {True: free if on_device else free_on_disk, False: free_on_disk}
    memory = ClientMemory(on_device, bytes_per_client=1)
    gpu.require_room_for_one_lane(needed, batch_size, free_bytes.get, memory)

  enough, too_little = needed(4096).lane_bytes, 0.6 * needed(4096).lane_bytes
  require_room(4096, enough)
  with pytest.raises(
    UsageError, match=r'at a time needs some .* GiB are free'
  ) as error:
    require_room(4096, too_little)
  (size,) = map(int, re.findall(r'batch_size=(\d+)', str(error.value)))
  assert 1 <= size < 4096
  require_room(size, too_little)
  # Memories on disk that leave less room, as with all clients in a round, do not help.
  with pytest.raises(UsageError, match=rf'would fit: \S+batch_size={size}\.$'):
    require_room(4096, too_little, 0.9 * too_little)
  everything = 1.3 * needed(4096).lane_bytes
  with pytest.raises(UsageError, match=r"client_store='disk'\.$"):
    require_room(4096, -1.0, everything)
  require_room(4096, -1.0, everything, on_device=False)
  with pytest.raises(UsageError, match=r'no batch size would fit.*participation'):
    require_room(4096, 0.9 * needed(1).lane_bytes / 2)


@pytest.mark.parametrize(('tier', 'num_memories'), [('device', 4 + 6), ('disk', 6 + 6)])
@pytest.mark.parametrize(('num_devices', 'num_uploads'), [(1, 3), (2, 6)])
def test_a_device_has_free_what_neither_data_nor_memories_nor_uploads_take(
  tier, num_memories, num_devices, num_uploads, monkeypatch
):
  memory = ClientMemory(tier == 'device', 1000)

  def free(memory_stats):
    card = types.SimpleNamespace(memory_stats=lambda: memory_stats)
    monkeypatch.setattr(jax, 'local_devices', lambda: [card])
    return gpu.free_bytes(
      64_000,
      memory,
      bytes_per_upload=700,
      num_clients=4,
      cohort_size=3,
      num_devices=num_devices,
    )

  # Memory is taken by the data, and by the memories of 4 clients, or of a cohort of 3
  # as they arrive and leave, and of the cohort before and after the round. Uploads are
  # those of the cohort, and with several devices their sum.
  known = {'bytes_limit': 1_000_000, 'bytes_in_use': 12_345}
  left = 1_000_000 - 12_345 - 64_000
  assert free(known) == left - num_memories * 1000 - num_uploads * 700
  # A device without statistics of its memory has no limit.
  assert free(None) == free({}) == math.inf
