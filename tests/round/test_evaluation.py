"""Evaluation is exact on a test set of any size."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moon_jax.core import tree
from moon_jax.platform import devices
from moon_jax.round import evaluation
from tests import reference, world
from tests.selection import few


def evaluated(models, split, batch_size, num_devices, **more):
  given = devices.mesh(num_devices), batch_size
  evaluate = evaluation.make_evaluation(world.network().apply, *given, **more)
  return jax.jit(evaluate)(models, split)


@pytest.mark.parametrize(
  ('batch_size', 'num_devices'),
  few(
    [(16, 1), (76, 8)],
    itertools.product([1, 16, 74, 75, 76, 500], [1, 2, 3, 8]),
  ),
)
def test_equals_one_plain_forward_however_it_is_split(batch_size, num_devices):
  split, images, labels = world.data()
  assert len(labels) == 75
  models = [world.variables(), world.network().init(1)]
  logits = [world.network().apply(model, images).logits for model in models]
  answers = np.argmax(logits, axis=-1)
  owners = np.random.default_rng(0).integers(0, 6, len(labels)).astype(np.int32)
  # Users that own an example, and one that owns none.
  right = [answer == labels for answer in answers]
  wanted = [np.bincount(owners, one, minlength=7).tolist() for one in right]
  assert len({*wanted[0]}) > 2
  stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *models)
  split = split._replace(clients=jnp.asarray(owners))
  found = evaluated(stacked, split, batch_size, num_devices, num_clients=7)
  assert found.by_client.tolist() == wanted
  assert found.num_correct.tolist() == np.sum(wanted, 1).tolist()
  for index, model in enumerate(models):
    given = model['params'], images, labels
    _, loss = reference.accuracy_and_loss(reference.mlp, *given)
    np.testing.assert_allclose(found.loss_sum[index] / 75, loss, rtol=1e-5)
  # If the labels are a model's own answers, all 75 examples are correct, and filler is
  # too, but it must not count.
  easy = split._replace(labels=jnp.asarray(answers[0], jnp.int32))
  assert evaluated(stacked, easy, batch_size, num_devices).num_correct[0] == 75


@pytest.mark.parametrize(
  ('batch_size', 'num_devices', 'each', 'size'),
  # 75 examples are five batches of 16; and 38 on each of two devices, not 500.
  [(16, 1, 5, 16), (16, 3, 2, 16), (16, 8, 1, 10), (500, 2, 1, 38)],
)
def test_devices_share_the_batches_without_needless_filler(
  batch_size, num_devices, each, size
):
  mesh = devices.mesh(num_devices)
  evaluate = evaluation.make_evaluation(world.network().apply, mesh, batch_size)
  program = jax.make_jaxpr(evaluate)(tree.repeat(world.variables(), 1), world.data()[0])
  assert f'length={each} ' in str(program).replace('\n', ' ')
  assert f'f32[{size},' in str(program)
  assert '[500' not in str(program)
