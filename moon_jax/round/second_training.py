"""A further local training of a cohort: Ditto's personal models, fine-tuning. Pure."""

from collections.abc import Callable

from moon_jax.algorithms.base import SecondTraining
from moon_jax.core.device_keys import seed_for
from moon_jax.round.client_training import Finished, Work


def make_second_training(
  second: SecondTraining, train: Callable[[Work], Finished]
) -> Callable[[Work], Finished]:
  """Builds the function that trains a cohort with the scalars and draws of `second`.

  Args:
    second: the training.
    train: trains a cohort by `second.algorithm`; see `make_cohort_training`.
  """

  def train_again(work: Work) -> Finished:
    scalars = work.scalars._replace(
      optimizer=second.optimizer_scalars(
        work.scalars.algorithm, work.scalars.optimizer
      ),
      seed=seed_for(work.scalars.seed, second.purpose),
    )
    return train(work._replace(scalars=scalars))

  return train_again
