"""A round of deep networks ends as sequential PyTorch's does, in float64."""

import dataclasses

import jax
import numpy as np
import pytest

from benchmarks import engine
from moon_jax import catalog, models
from moon_jax.building import experiment, programs
from moon_jax.config import cli, flatten
from tests.test_benchmarks import assert_same_average, flags, with_torch, write_images


def arrays_of_a_round(config):
  """The engine's round, computed in float64, as `benchmarks.engine` writes it."""

  def to_float64(leaf):
    return leaf.astype(np.float64) if leaf.dtype == np.float32 else leaf

  built = experiment.build(config)
  network = models.make(
    config.model,
    image_shape=built.data.train.examples.images.shape[1:],
    num_classes=built.data.class_counts.shape[1],
    convolution=config.execution.convolution,
    dtype='float64',
    **catalog.options('model', flatten(config)),
  )
  # Mean 0 and deviation 1 leave the images as they are; else both sides round
  # otherwise.
  examples = dataclasses.replace(
    built.data.train.examples, mean=np.zeros(3), std=np.ones(3)
  )
  train = dataclasses.replace(built.data.train, examples=examples)
  built = built._replace(network=network, data=built.data._replace(train=train))
  state = jax.tree.map(to_float64, engine.state_with_previous_models(built))
  plan = built.planner.plan(0)
  inputs = programs.round_inputs(built, 0, plan.for_device())
  run = programs.lower_programs(built, state, inputs, donate=False)[0].compile()
  traced_plan, scalars = inputs
  state_after, _ = run(state, traced_plan, scalars, built.data.train)
  arrays = engine.workload_arrays(built, state, plan)
  arrays |= engine.averaged_model(state_after)
  return {name: np.array(array) for name, array in arrays.items()}


@pytest.mark.slow  # compiles three deep networks
@with_torch
@pytest.mark.parametrize('algorithm', ['fedavg', 'moon'])
@pytest.mark.parametrize('model', ['cnn_transformer', 'resnet18', 'mobilenet_v2'])
def test_deep_networks_end_with_the_same_averaged_model(tmp_path, model, algorithm):
  # In float32 rounding turns some ReLU units on or off, and each step widens the
  # difference. In float64 no unit is so close to zero.
  import torch

  from benchmarks import pytorch_baseline, pytorch_networks

  file = tmp_path / 'images.npz'
  side, epochs = (32, 2) if model == 'cnn_transformer' else (16, 1)
  write_images(file, 12, side, 2)  # of 0 and 255
  knobs = {
    'model': model,
    'algorithm': algorithm,
    'batch_size': 4,  # of 6: the second one has 2 and filler
    'local_epochs': epochs,
    'execution.devices': 1,
    'execution.lanes': 1,
    # float32 holds these numbers exactly.
    'optimizer.learning_rate': 0.0078125,
    'optimizer.momentum': 0.875,
    'optimizer.weight_decay': 0.015625,
  }
  if model == 'cnn_transformer':
    knobs |= {
      'cnn_transformer.dropout': 0,
      'cnn_transformer.layers': 1,
      'cnn_transformer.heads': 4,
      'cnn_transformer.feedforward': 64,
    }
  config = cli.parse(flags(file, knobs)).config
  with jax.enable_x64(True), jax.numpy_dtype_promotion('standard'):
    ours = arrays_of_a_round(config)
  torch.set_default_dtype(torch.float64)
  try:
    workload = pytorch_baseline.Workload(ours)
    workload.images = workload.images.double()
    trainer = pytorch_baseline.Trainer(
      workload, algorithm=algorithm, channels_last=False, compiled=False
    )
    mean = trainer.round()
  finally:
    torch.set_default_dtype(torch.float32)
  theirs = {path: pytorch_networks.to_ours(tensor) for path, tensor in mean.items()}
  assert [len(rows) for rows in workload.batches[0]] == [4, 2] * epochs
  assert_same_average(ours, theirs, max_difference=1e-9)
