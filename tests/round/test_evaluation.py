"""Evaluation is exact on a test set of any size."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moon_jax.core import tree
from moon_jax.platform import devices
from moon_jax.round import evaluation
from tests import reference, world
from tests.selection import few


@pytest.mark.parametrize(
  ('batch_size', 'num_devices'),
  few(
    [(16, 1), (76, 8)],
    [(1, 2), (74, 3), (75, 1), (75, 8), (500, 3)],
  ),
)
def test_equals_one_plain_forward_however_it_is_split(batch_size, num_devices):
  split, images, labels = world.data()
  assert len(labels) == 75
  models = [world.variables(), world.network().init(1)]
  apply = jax.jit(world.network().apply)
  logits = [apply(model, images).logits for model in models]
  answers = np.argmax(logits, axis=-1)
  owners = np.random.default_rng(0).integers(0, 6, len(labels)).astype(np.int32)
  # Users that own an example, and one that owns none.
  num_correct = [
    np.bincount(owners, answers_of_model == labels, minlength=7).tolist()
    for answers_of_model in answers
  ]
  assert len({*num_correct[0]}) > 2
  stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *models)
  split = dataclasses.replace(split, clients=jnp.asarray(owners))
  evaluate = evaluation.make_evaluation(
    world.network().apply, devices.mesh(num_devices), batch_size, num_users=7
  )
  evaluate = jax.jit(evaluate)
  score = evaluate(stacked, split)
  assert score.num_correct_of_users.tolist() == num_correct
  assert score.num_correct.tolist() == np.sum(num_correct, 1).tolist()
  for index, model in enumerate(models):
    params = model['params']
    _, loss = reference.accuracy_and_loss(reference.mlp, params, images, labels)
    np.testing.assert_allclose(score.loss_sum[index] / 75, loss, rtol=1e-5)
  # If the labels are a model's own answers, all 75 examples are correct, and filler is
  # too, but it must not count.
  easy = dataclasses.replace(split, labels=jnp.asarray(answers[0], jnp.int32))
  assert evaluate(stacked, easy).num_correct[0] == 75


@pytest.mark.parametrize(
  ('batch_size', 'num_devices', 'num_batches', 'size'),
  # 75 examples are five batches of 16; and 38 on each of two devices, not 500.
  [(16, 1, 5, 16), (16, 3, 2, 16), (16, 8, 1, 10), (500, 2, 1, 38)],
)
def test_devices_share_the_batches_without_needless_filler(
  batch_size, num_devices, num_batches, size
):
  mesh = devices.mesh(num_devices)
  evaluate = evaluation.make_evaluation(world.network().apply, mesh, batch_size)
  program = jax.make_jaxpr(evaluate)(tree.repeat(world.variables(), 1), world.data()[0])
  assert f'length={num_batches} ' in str(program).replace('\n', ' ')
  assert f'f32[{size},' in str(program)
  assert '[500' not in str(program)


def test_few_large_examples_are_tested_at_a_time(monkeypatch):
  sizes = {
    (32, 32, 3): 500,
    (64, 64, 3): 500,
    (224, 224, 3): 111,  # 64 MiB of 602,112 bytes
    (10_000, 10_000): 1,
  }
  for shape, size in sizes.items():
    assert evaluation.examples_at_a_time(shape) == size
  monkeypatch.setattr(evaluation, 'MOST_INPUT_BYTES', 20 * 4 * 8 * 8)
  evaluate = evaluation.make_evaluation(world.network().apply, devices.mesh(1))
  program = jax.make_jaxpr(evaluate)(tree.repeat(world.variables(), 1), world.data()[0])
  assert 'f32[20,8,8,1]' in str(program)
  assert 'length=4 ' in str(program).replace('\n', ' ')  # 75 examples
