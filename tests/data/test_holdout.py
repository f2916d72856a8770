"""The server's validation split: its examples, and its use."""

import numpy as np
import pytest

import moon_jax
from moon_jax.building import experiment
from moon_jax.config import cli
from moon_jax.core.errors import UsageError
from moon_jax.core.types import Dataset, Stored
from moon_jax.data import sources
from moon_jax.data.holdout import validation_split
from tests.refusals import refused
from tests.run_directories import TINY
from tests.world import of_client

pytestmark = pytest.mark.usefixtures('quick_runs')
# 20 examples of class 0, 15 of class 1, 4 of class 2; each image is its own number.
LABELS = np.random.default_rng(0).permutation(np.repeat([0, 1, 2], [20, 15, 4]))
IMAGES = np.arange(39, dtype=np.uint8).reshape(-1, 1, 1, 1)
DATA = Dataset('mine', IMAGES, LABELS, IMAGES, LABELS, 3, 0.0, 1.0, np.arange(39) % 7)


def test_a_share_of_each_class_is_held_out_and_nothing_is_lost():
  rest, (images, labels) = validation_split(DATA, 0.1, seed=3)
  # 2, 1.5 and 0.4 examples, rounded.
  assert np.bincount(labels, minlength=3).tolist() == [2, 2, 0]
  assert np.bincount(rest.train_labels).tolist() == [18, 13, 4]
  all_images = np.concatenate([images, rest.train_images]).ravel()
  assert sorted(all_images) == list(range(39))
  # Labels and owners go with their images.
  np.testing.assert_array_equal(labels, LABELS[images.ravel()])
  np.testing.assert_array_equal(rest.train_labels, LABELS[rest.train_images.ravel()])
  np.testing.assert_array_equal(rest.train_clients, rest.train_images.ravel() % 7)
  assert rest.test_images is DATA.test_images


def test_the_seed_decides_which_examples_are_held_out():
  def pixels_of(seed, share=0.3):
    return validation_split(DATA, share, seed)[1][0].ravel().tolist()

  assert pixels_of(3) == pixels_of(3) != pixels_of(4)
  assert validation_split(DATA, 0.0, 3) == (DATA, None)


@pytest.mark.parametrize(
  ('data', 'share', 'words'),
  [
    (DATA, 0.01, 'holds out 0 of 39 training examples.*: raise it'),
    (DATA, 0.99, 'holds out 39 of 39 training examples.*: lower it'),
    (DATA._replace(stored=Stored(None, None, None, None, '')), 0.5, 'stay on disk'),
  ],
)
def test_what_cannot_be_divided_is_one_line(data, share, words):
  with refused(UsageError, words) as caught:
    validation_split(data, share, 0)
  assert f'--config.data.validation={share}' in str(caught.value)


def build(*words):
  tiny = ('data.limit=300', 'partition.min_size=1', *words)
  return experiment.build(cli.parse([f'--config.{word}' for word in tiny]).config)


def test_validation_examples_do_not_train_and_the_statistics_stay():
  whole_data = build()
  divided = build('data.validation=0.2')
  loaded = sources.load('digits', limit=300)
  rest, (images, labels) = validation_split(loaded, 0.2, 0)
  np.testing.assert_array_equal(divided.tests.validation.images, images)
  np.testing.assert_array_equal(divided.tests.validation.labels, labels)
  np.testing.assert_array_equal(divided.data.train.examples.images, rest.train_images)
  assert (
    divided.data.partition.sizes.sum() + len(labels)
    == whole_data.data.partition.sizes.sum()
    == 300
  )
  assert whole_data.tests.validation is None
  for split in (divided.data.train.examples, divided.tests.validation):
    np.testing.assert_array_equal(split.mean, whole_data.tests.examples.mean)
  # Neither the partition nor the validation images depend on the run's seed.
  other = build('data.validation=0.2', 'seed=5', 'partition.seed=0')
  np.testing.assert_array_equal(other.tests.validation.images, images)


def run(changes):
  changes = changes | {'data.validation': 0.2, 'num_rounds': 3, 'eval_every_rounds': 2}
  config = moon_jax.load_config('configs/digits_moon.py', TINY | changes)
  return list(moon_jax.rounds(config))


def accuracy_and_loss(built, variables):
  """The numbers of one model on the validation split, by NumPy."""
  images = built.tests.validation.normalised(
    np.arange(len(built.tests.validation.labels))
  )
  logits = np.asarray(built.network.apply(variables, images).logits, np.float64)
  labels = np.asarray(built.tests.validation.labels)
  logits_of_labels = np.take_along_axis(logits, labels[:, None], 1)[:, 0]
  losses = np.log(np.exp(logits).sum(1)) - logits_of_labels
  return (logits.argmax(1) == labels).mean(), losses.mean()


def test_validation_accuracy_is_recorded_in_each_tested_round():
  rounds = run({'algorithm': 'fedavg'})
  for name in ('validation_accuracy', 'test_accuracy'):
    assert [name in round.metrics for round in rounds] == [False, True, True]
  last = rounds[-1]
  accuracy, loss = accuracy_and_loss(last.experiment, last.global_model)
  assert last.metrics['validation_accuracy'] == pytest.approx(accuracy)
  assert last.metrics['validation_loss'] == pytest.approx(loss, rel=1e-5)


@pytest.mark.slow
def test_validation_accuracy_of_own_models_is_their_mean():
  last = run({'algorithm': 'solo'})[-1]
  client_scores = [
    accuracy_and_loss(last.experiment, of_client(last.state.clients, client))
    for client in range(10)
  ]
  scores = [last.metrics[name] for name in ('validation_accuracy', 'validation_loss')]
  np.testing.assert_allclose(scores, np.mean(client_scores, axis=0), rtol=1e-5)


@pytest.mark.slow
def test_validation_of_own_models_is_the_same_on_every_tier():
  on_device, on_disk = (
    run({'algorithm': 'solo', 'execution.client_store': tier})[-1].metrics
    for tier in ('device', 'disk')
  )
  for name in ('validation_accuracy', 'validation_loss'):
    assert on_disk[name] == on_device[name]
