"""The planner of an experiment, with the devices and the memory that it depends on."""

import dataclasses

from moon_jax.engine import devices, gpu, scheduling, streaming, tiers


def planned(config, data, split, network, algorithm, *, backend, min_steps):
  """The devices, the planner, the reader of data on disk, and where memories are."""
  planner = scheduling.make_planner(
    config, split, backend, share=bool(algorithm.share), min_steps=min_steps
  )
  memory = tiers.choose(config, algorithm, network.shapes, planner.cohort_size)
  stream, images = None, data.train_images
  if data.stored:
    stream = streaming.Stream(data, planner.cohort_size)
    planner, images = dataclasses.replace(planner, rows=stream.rows), stream.held
  if backend != 'cpu':
    shape = images.shape[1:], planner.batch_size
    planner = gpu.planner_for(
      planner,
      choose_lanes=config.execution.lanes == 'auto',
      params=network.shapes['params'],
      taken=gpu.memory_taken(network, algorithm, *shape),
      free=gpu.memory_free(images, planner, memory),
    )
  mesh = devices.mesh(planner.num_devices)
  own = devices.own_lanes(mesh, planner.num_lanes)
  planner = dataclasses.replace(planner, own_lanes=own)
  if algorithm.second:
    planner = planner.with_second(algorithm.second.epochs)
  return mesh, planner, stream, memory
