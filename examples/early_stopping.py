"""A callback that ends a run when its test accuracy has not risen in ten tests.

  python launch.py --config=examples/early_stopping.py --config.num_rounds=200

The callback counts the tests in the records of the run, so a run that is stopped and
resumed ends in the same round.
"""

import moon_jax
from moon_jax.config import import_config

PATIENCE = 10


class EarlyStopping(moon_jax.Callback):
  """Ends the run once `PATIENCE` tests have passed since the best one."""

  def begin(self, run):
    self._history = run.history

  def wants_state(self, number):
    return True  # so that the run can end after any round

  def after_round(self, round):
    tested = [line for line in self._history if 'test_accuracy' in line]
    accuracies = [line['test_accuracy'] for line in tested]
    if tested and len(accuracies) - accuracies.index(max(accuracies)) > PATIENCE:
      round.stop(f'no better accuracy in {PATIENCE} tests')


moon_jax.register_callback(EarlyStopping)
get_config = import_config('configs/digits_moon.py').get_config
