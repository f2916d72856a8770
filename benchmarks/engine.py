"""Times the engine on one round, in a process of its own.

  python -m benchmarks.engine --repeats=5 --out=FILE.npz [launch.py's flags]

Prints one JSON line. --out keeps the round as benchmarks/pytorch_baseline.py reads it:
data, batches, received model and previous models, before anything is compiled, and once
more with the engine's averaged model. With --turns each timed round waits for its turn
(benchmarks/processes.py).
"""

import argparse
import json
import os
import sys
import time
from unittest import mock

import jax
import numpy as np

from moon_jax import catalog
from moon_jax import config as config_lib
from moon_jax.building import experiment, programs
from moon_jax.config import cli
from moon_jax.core import tree
from moon_jax.models import cpu_kernels
from moon_jax.platform import devices
from moon_jax.runner import clock


def main() -> None:
  """Runs the same round again and again; the first is not timed."""
  parser = argparse.ArgumentParser()
  parser.add_argument('--repeats', type=int, default=5)
  parser.add_argument('--out')
  parser.add_argument('--turns', action='store_true')
  parser.add_argument(
    '--bytes', action='store_true', help='count them: compiles a step'
  )
  options, flags = parser.parse_known_args()
  config = cli.parse(flags).config
  devices.claim(config.execution.devices)
  built = experiment.build(config)
  state = state_with_previous_models(built)
  plan = built.planner.plan(0)
  inputs = programs.round_inputs(built, 0, plan.for_device())
  if options.out:
    _write_arrays(options.out, workload_arrays(built, state, plan))
  begin = time.perf_counter()
  compiled = programs.lower_programs(built, state, inputs)[0].compile()
  compile_seconds = time.perf_counter() - begin

  seconds, cpu_seconds = [], []
  traced_plan, traced_scalars = inputs

  def run():
    copy = jax.block_until_ready(jax.tree.map(lambda leaf: leaf.copy(), state))
    cpu_begin, begin = time.process_time(), time.perf_counter()
    state_after, metrics = jax.block_until_ready(
      compiled(copy, traced_plan, traced_scalars, built.data.train)
    )
    seconds.append(time.perf_counter() - begin)
    cpu_seconds.append(time.process_time() - cpu_begin)
    return state_after, metrics

  state_after, metrics = run()
  seconds.clear()
  cpu_seconds.clear()
  if options.out:
    arrays = workload_arrays(built, state, plan) | averaged_model(state_after)
    _write_arrays(options.out, arrays)
  # Traces: before the turns, not between. For a GPU XLA would count nothing.
  is_counted = jax.default_backend() == 'cpu'
  step_flops = _step_flops(built, state) if is_counted else 0
  for _ in range(options.repeats):
    if options.turns:
      print('ready', flush=True)
      sys.stdin.readline()
    run()
  samples = int(metrics.num_seen.sum())
  steps = int(plan.step_real.sum())
  samples_per_second = samples / float(np.median(seconds))
  report = {
    'seconds': seconds,
    'cpu_seconds': cpu_seconds,
    'samples': samples,
    'samples_per_second': samples_per_second,
    'steps_per_second': steps / float(np.median(seconds)),
    'device': jax.devices()[0].device_kind,
    'compile_seconds': compile_seconds,
    'temporary_bytes': compiled.memory_analysis().temp_size_in_bytes,
    'model_bytes': tree.num_bytes(state.server.variables),
    'lanes': built.planner.training.layout.num_lanes,
    'peak_memory_bytes': clock.peak_memory_bytes(),
  }
  if options.bytes:
    report['step_bytes'] = _step_bytes(built, state)
  if is_counted:
    # Only real examples count: filler in partial batches is of no use.
    flops_of_example = step_flops / config.batch_size
    report['flops_per_second'] = flops_of_example * samples_per_second
  print(json.dumps(report))


def state_with_previous_models(built):
  """The first state, but with previous models that are not the received one."""
  state = experiment.initial_state(built)
  if not hasattr(state.clients, 'models'):
    return state
  other = config_lib.changed(built.config, {'seed': built.config.seed + 1})
  memories = experiment.initial_state(built._replace(config=other)).clients
  return state._replace(clients=memories._replace(count=memories.count + 1))


def _step_flops(built, state):
  """Arithmetic that one client's step needs, in the plain form, by XLA's count."""
  config = config_lib.changed(built.config, {'execution.convolution': 'library'})
  # XLA counts nothing in the functions in C++.
  with mock.patch.object(cpu_kernels, 'fault', return_value='not counted'):
    return sum(
      share * _counted(part.cost_analysis(), 'flops')
      for part, share in _step(experiment.build(config), state)
    )


def _step_bytes(built, state):
  """Memory that one client's step moves, in the form that is used."""
  return sum(
    share * _counted(part.compile().cost_analysis(), 'bytes accessed')
    for part, share in _step(built, state)
  )


def _step(built, state):
  """(program, times it runs in a step) of the training step and the frozen networks.

  The frozen networks see every example once a round if their representations are kept,
  else, as with augmentation, in every step.
  """
  training = programs.local_training(built)
  plan, scalars = programs.round_inputs(built, 0, built.planner.plan(0).for_device())
  received = built.algorithm.broadcast(state.server)
  memory = tree.gather(state.clients, 0)
  batch = built.data.train.examples.batch(
    plan.schedule.example_rows[0, 0], plan.schedule.num_real[0, 0]
  )

  def represent(batch):
    key = jax.random.key(0)
    return training.represent(received, memory, batch.images, batch.mask, key)

  def step(references, batch):
    client = plan.cohort.clients[0]
    client_facts = tree.gather(plan.cohort.client_facts, 0)
    start = training.start(client, received, memory, scalars, batch, client_facts)
    return training.step(start, references, received, scalars, batch, jax.random.key(0))

  is_once_a_round = programs.max_table_examples(built, training, state)
  times_in_a_step = 1 / built.config.local_epochs if is_once_a_round else 1
  references = jax.eval_shape(represent, batch)
  return (
    (jax.jit(step).lower(references, batch), 1),
    (jax.jit(represent).lower(batch), times_in_a_step),
  )


def _counted(cost, name):
  """0 if XLA counts nothing: before compiling for a GPU it returns None."""
  return (cost or {}).get(name, 0)


def _write_arrays(path, arrays):
  """Writes an .npz file that is there when it is whole."""
  with open(f'{path}.part', 'wb') as file:
    np.savez(file, **arrays)
  os.replace(file.name, path)


def workload_arrays(built, state, plan):
  """The arrays of the .npz file, but for the result."""
  split = built.data.train.examples
  config = built.config
  part = catalog.part('model', config.model)
  defaults = {name: knob.default for name, knob in part.knobs.items()}
  options = catalog.options('model', config_lib.flatten(config))
  # PyTorch's networks have the default values too.
  changed_options = dict(options.items() - defaults.items())
  num_classes = built.data.class_counts.shape[1]
  arrays = {
    'train_images': split.images,
    'train_labels': split.labels,
    'model': config.model,
    'options': json.dumps({'classes': num_classes} | changed_options),
    'augmentation': config.augmentation.name,
    'mean': split.mean,
    'std': split.std,
    'num_clients': len(plan.clients),
    'num_examples': plan.cohort.weights,
    'mu': config.moon.mu,
    'tau': config.moon.tau,
    'learning_rate': config.optimizer.learning_rate,
    'momentum': config.optimizer.momentum,
    'weight_decay': config.optimizer.weight_decay,
  }
  batches = built.planner.training.batches(0, plan.clients)
  for slot, (rows, num_real) in enumerate(batches):
    arrays |= {f'rows_{slot}': rows, f'num_real_{slot}': num_real}
  arrays |= _named('received', state.server.variables)
  # FedAvg has no previous models; the file has the same form for every algorithm.
  if hasattr(state.clients, 'models'):
    previous = tree.gather(state.clients.models[0], plan.clients)
  else:
    previous = tree.repeat(state.server.variables, len(plan.clients))
  return arrays | _named('previous', previous)


def averaged_model(state_after):
  """The arrays of the result."""
  return _named('result', state_after.server.variables)


def _named(top, variables):
  """{'top/conv1/kernel': array, ...}, running statistics among the parameters."""
  leaves = jax.tree_util.tree_leaves_with_path(variables)
  return {
    '/'.join([top, *(key.key for key in path[1:])]): np.asarray(leaf)
    for path, leaf in leaves
  }


if __name__ == '__main__':
  main()
