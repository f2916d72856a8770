"""Evaluation is exact on a test set of any size."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moon_jax.core import tree
from moon_jax.engine import devices
from moon_jax.train import evaluation
from tests import reference, world
from tests.selection import few


def score(models, batch_size, num_devices=1):
  evaluate = evaluation.make_evaluation(
    world.network().apply, devices.mesh(num_devices), batch_size
  )
  return jax.jit(evaluate)(models, world.data()[0])


@pytest.mark.parametrize(
  ('batch_size', 'num_devices'),
  few(
    [(1, 1), (16, 3), (74, 1), (75, 2), (76, 8), (500, 1), (16, 8)],
    itertools.product([1, 16, 74, 75, 76, 500], [1, 2, 3, 8]),
  ),
)
def test_equals_one_plain_forward_however_it_is_split(batch_size, num_devices):
  _, images, labels = world.data()
  assert len(labels) == 75
  models = jax.tree.map(lambda leaf: leaf[None], world.variables())
  result = score(models, batch_size, num_devices)
  accuracy, loss = reference.accuracy_and_loss(
    reference.mlp, world.variables()['params'], images, labels
  )
  assert result.num_correct[0] == round(accuracy * 75)
  np.testing.assert_allclose(result.loss_sum[0] / 75, loss, rtol=1e-5)


@pytest.mark.parametrize(
  ('batch_size', 'num_devices'),
  few(
    [(16, 1), (16, 3), (74, 3), (500, 1)],
    itertools.product([1, 16, 74, 75, 76, 500], [1, 3]),
  ),
)
def test_filler_is_never_counted_as_correct(batch_size, num_devices):
  split, images, _ = world.data()
  logits = world.network().apply(world.variables(), images).logits
  # Labelled by the model itself: all 75 examples, and so all filler, are correct.
  easy = split._replace(labels=jnp.argmax(logits, axis=-1).astype(jnp.int32))
  models = tree.repeat(world.variables(), 1)
  evaluate = evaluation.make_evaluation(
    world.network().apply, devices.mesh(num_devices), batch_size
  )
  assert jax.jit(evaluate)(models, easy).num_correct[0] == 75


@pytest.mark.parametrize(('batch_size', 'num_devices'), [(16, 3), (74, 1), (500, 8)])
def test_counts_the_examples_of_each_client_apart(batch_size, num_devices):
  split, images, labels = world.data()
  logits = np.asarray(world.network().apply(world.variables(), images).logits)
  owners = np.random.default_rng(0).integers(0, 6, len(labels)).astype(np.int32)
  wanted = [0] * 7  # the last has no examples
  for row, owner in enumerate(owners.tolist()):
    wanted[owner] += int(np.argmax(logits[row]) == int(labels[row]))
  assert len(set(wanted)) > 2
  evaluate = evaluation.make_evaluation(
    world.network().apply, devices.mesh(num_devices), batch_size, num_clients=7
  )
  models = tree.repeat(world.variables(), 1)
  whose = split._replace(clients=jnp.asarray(owners))
  found = jax.jit(evaluate)(models, whose)
  assert found.by_client.tolist() == [wanted]
  assert found.num_correct[0] == sum(wanted)


def test_each_of_several_models_gets_its_own_score():
  others = world.network().init(1)
  stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), world.variables(), others)
  both = score(stacked, 16)
  for index, model in enumerate((world.variables(), others)):
    alone = score(tree.repeat(model, 1), 16)
    assert both.num_correct[index] == alone.num_correct[0]
    np.testing.assert_allclose(both.loss_sum[index], alone.loss_sum[0], rtol=1e-6)
  assert float(both.loss_sum[0]) != float(both.loss_sum[1])


def test_no_more_filler_than_needed():
  # 75 examples on two devices: 38 each, not 500.
  evaluate = evaluation.make_evaluation(world.network().apply, devices.mesh(2), 500)
  program = jax.make_jaxpr(evaluate)(tree.repeat(world.variables(), 1), world.data()[0])
  assert 'f32[38,' in str(program)
  assert '[500' not in str(program)


@pytest.mark.parametrize(('num_devices', 'batches_each'), [(1, 5), (3, 2), (8, 1)])
def test_devices_share_the_batches(num_devices, batches_each):
  # 75 examples in batches of 16 are five batches.
  mesh = devices.mesh(num_devices)
  evaluate = evaluation.make_evaluation(world.network().apply, mesh, 16)
  program = jax.make_jaxpr(evaluate)(tree.repeat(world.variables(), 1), world.data()[0])
  assert f'length={batches_each} ' in str(program).replace('\n', ' ')
