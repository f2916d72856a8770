"""The output on a terminal of 80 columns and in a log file."""

import io

import rich.console

from moon_jax.runner import clock as clock_lib
from moon_jax.runner.callbacks import Run
from moon_jax.runner.console import (
  Console,
  describe_summary,
  describe_test,
  describe_training,
)
from moon_jax.runner.rounds import Round

RECORD = {
  'round': 3,
  'train_loss': 2.9456,
  'contrastive_loss': 0.1666,
  'head_cosine': 0.5,
  'supervised_loss': 2.1128,
  'drift': 1.0,
  'test_accuracy': 0.5320,
  'test_loss': 1.9,
}


def output(is_terminal):
  """The output of a run of four rounds after the third one."""
  file = io.StringIO()
  terminal = rich.console.Console(
    file=file,
    force_terminal=is_terminal,
    width=80 if is_terminal else 200,
    markup=False,
    highlight=False,
  )
  console = Console(terminal)
  console.measured = ('head_cosine',)
  console.begin(Run(None, None, None, [], range(2, 4)))
  clock = clock_lib.Clock()
  clock.seconds['train'] = 1.25
  console.after_round(Round(3, RECORD, None, {}, None, clock, None, None))
  console.close()
  return file.getvalue()


def test_a_terminal_of_80_columns_has_bar_count_and_time_left():
  text = output(is_terminal=True)
  assert '3/4' in text
  assert '━' in text
  assert '-:--:--' in text or '0:00:00' in text
  assert 'test accuracy 0.5320' in text
  assert '…' not in text


def test_a_log_has_a_line_a_round():
  assert output(is_terminal=False) == (
    'round 3/4  test accuracy 0.5320  '
    'train loss 2.946 (contrastive 0.167, supervised 2.113)  1.25 s\n'
  )


def test_an_untested_round_and_the_spread_over_models():
  assert describe_test({'train_loss': 1.0}) == ''
  several = RECORD | {'test_accuracy_std': 0.05}
  assert describe_test(several) == 'test accuracy 0.5320 +- 0.0500'
  # Names do not matter: a part is a term of the loss unless the algorithm only measures
  # it, and columns after the drift are no parts.
  record = {'train_loss': 1.0, 'head_cosine': 0.5, 'l1': 1, 'drift': 2.0, 'p_loss': 3.0}
  assert describe_training(record, ['head_cosine']) == 'train loss 1.000 (l1 1.000)'


def test_the_last_line_has_the_last_test_the_best_and_the_first_near_it():
  summary = {
    'test_accuracy': 0.9,
    'rounds': 30,
    'best_test_accuracy': 0.95,
    'best_round': 28,
    'target_test_accuracy': 0.9025,
    'target_round': 12,
  }
  assert describe_summary(summary) == (
    'finished after round 30: test accuracy 0.9000 (best 0.9500 in round 28, '
    '95% of it reached in round 12)'
  )
  chosen = describe_summary(summary | {'best_validation_accuracy': 0.97})
  assert '(test accuracy 0.9500 in round 28, which validation chose, 95%' in chosen
