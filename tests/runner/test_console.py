"""The output on a terminal of 80 columns and in a log file."""

import io
import math
import os
import pty
import re
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
import rich.console

from moon_jax.building import programs
from moon_jax.core import activity
from moon_jax.runner import client_file, console
from moon_jax.runner import clock as clock_lib
from moon_jax.runner import rounds as rounds_lib
from moon_jax.runner import screen as screen_lib
from moon_jax.runner.callbacks import Run
from moon_jax.runner.console import (
  Console,
  describe_summary,
  describe_test,
  describe_training,
  duration,
)
from moon_jax.runner.rounds import Round
from moon_jax.runner.screen import Screen
from tests.processes import check_success, launched
from tests.run_directories import words_of

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
  screen = Screen(terminal)
  console = Console(screen)
  console.measured = ('head_cosine',)
  with screen.watching():
    console.begin(Run(None, None, None, [], range(2, 4)))
    clock = clock_lib.Clock()
    clock.seconds['train'] = 1.25
    console.after_round(Round(3, RECORD, None, {}, None, clock, None, None))
  return file.getvalue()


def test_a_terminal_of_80_columns_has_bar_count_time_and_time_left():
  text = output(is_terminal=True)
  assert '3/4' in text
  assert '0:00:00' in text
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
  words = "test accuracy of clients' own models, mean 0.5320 +- 0.0500"
  assert describe_test(several) == words
  # A summary of an older version has a worst tenth, and no worst user.
  users = RECORD | {'user_accuracy_worst_tenth': 0.25}
  expected = 'test accuracy 0.5320, worst tenth of users 0.2500'
  assert describe_test(users) == expected
  assert describe_test(users | {'user_accuracy_min': 0.125}) == expected
  few = RECORD | {'user_accuracy_min': 0.125}
  assert describe_test(few) == 'test accuracy 0.5320, worst user 0.1250'
  named = describe_test(few, {'user_accuracy': 'St. Gallen'})
  assert named == "test accuracy 0.5320, worst user 'St. Gallen' 0.1250"
  # Names do not matter: a part is a term of the loss unless the algorithm only measures
  # it, and columns after the drift are no parts.
  record = {'train_loss': 1.0, 'head_cosine': 0.5, 'l1': 1, 'drift': 2.0, 'p_loss': 3.0}
  assert describe_training(record, ['head_cosine']) == 'train loss 1.000 (l1 1.000)'


SUMMARY = {
  'test_accuracy': 0.9,
  'rounds': 30,
  'best_test_accuracy': 0.95,
  'best_round': 28,
  'target_test_accuracy': 0.9025,
  'target_round': 12,
}


def last_line(workdir, names, rounds, summary):
  """The last line of a run whose file of clients has these rounds."""
  (workdir / client_file.CLIENTS).unlink(missing_ok=True)
  sizes = np.full(len(names), 4)
  columns = client_file.Columns(
    names=names, training_examples=sizes, test_examples=sizes
  )
  with client_file.ClientFile(workdir, columns, tested_rounds=[]) as file:
    for round_number, numbers in rounds.items():
      file.add(round_number, {name: np.array(row) for name, row in numbers.items()})
  return describe_summary(summary, console._clients_with_worst(workdir, summary))


def test_the_one_worst_user_with_a_name_is_named(tmp_path):
  summary = SUMMARY | {'user_accuracy_min': 0.25}
  assert console._clients_with_worst(tmp_path, summary) is None  # there is no file
  for names, accuracy, words in (
    (['rural', 'city'], [0.5, 0.25], "worst user 'city' 0.2500 ("),
    (['rural', 'city'], [math.nan, 0.25], "worst user 'city' 0.2500 ("),
    (['rural', 'city'], [0.25, 0.25], 'worst user 0.2500 ('),
    (['0', '1'], [0.5, 0.25], 'worst user 0.2500 ('),
  ):
    rounds = {
      29: {'user_accuracy': 1 - np.array(accuracy)},
      30: {'user_accuracy': accuracy},
    }
    line = last_line(tmp_path, names, rounds, summary)
    assert words in line
    assert line.endswith('95% of it reached in round 12)')
  of_many = summary | {'user_accuracy_worst_tenth': 0.25}
  assert 'worst tenth of users 0.2500 (' in last_line(tmp_path, names, rounds, of_many)


def test_the_worst_of_the_clients_own_models_is_named(tmp_path):
  summary = SUMMARY | {
    'test_accuracy_std': 0.05,
    'personal_accuracy_weighted_mean': 0.75,
    'personal_accuracy_min': 0.5,
  }
  # City is the worst on the whole test set, rural on its own tests.
  rounds = {
    30: {'test_accuracy': [0.9, 0.8], 'personal_accuracy': [0.5, 1.0]},
  }
  expected = "own models on all own tests 0.7500, worst client 'rural' 0.5000 ("
  assert expected in last_line(tmp_path, ['rural', 'city'], rounds, summary)
  nameless = last_line(tmp_path, ['0', '1'], rounds, summary)
  assert 'own models on all own tests 0.7500 (' in nameless
  # Where there is a global model, too, both have a worst one.
  both = summary | {'user_accuracy_min': 0.25}
  rounds[30]['user_accuracy'] = [0.5, 0.25]
  line = last_line(tmp_path, ['rural', 'city'], rounds, both)
  assert "worst user 'city' 0.2500, own models" in line
  assert expected in line


def test_the_worst_client_of_the_best_round_is_named(tmp_path):
  names = ['rural', 'city']
  for kind, word in (('user', 'user'), ('personal', 'client')):
    summary = SUMMARY | {f'{kind}_accuracy_min': 0.25}
    column = f'{kind}_accuracy'
    rounds = {28: {column: [0.75, 1.0]}, 30: {column: [0.5, 0.25]}}
    line = last_line(tmp_path, names, rounds, summary)
    assert line.endswith(
      '(best 0.9500 in round 28, 95% of it reached in round 12; worst '
      f"{word} in round 28 'rural' 0.7500)"
    )
    # The last round is not told twice, and an older file may lack the best one.
    is_last = last_line(tmp_path, names, rounds, summary | {'best_round': 30})
    is_absent = last_line(tmp_path, names, {30: rounds[30]}, summary)
    assert is_last.endswith('in round 12)')
    assert is_absent.endswith('in round 12)')


def test_the_last_line_has_the_last_test_the_best_and_the_first_near_it():
  assert describe_summary(SUMMARY) == (
    'finished after round 30: test accuracy 0.9000 (best 0.9500 in round 28, '
    '95% of it reached in round 12)'
  )
  chosen = describe_summary(SUMMARY | {'best_validation_accuracy': 0.97})
  assert '(test accuracy 0.9500 in round 28, which validation chose, 95%' in chosen


def slowly(function):
  """A function that takes a second more."""

  def call(*arguments, **options):
    time.sleep(1)
    return function(*arguments, **options)

  return call


@pytest.mark.slow
def test_a_file_has_a_line_whenever_nothing_was_said_for_a_while(tmp_path, monkeypatch):
  class SlowJax:
    device_get = staticmethod(slowly(jax.device_get))

    def __getattr__(self, name):
      return getattr(jax, name)

  monkeypatch.setattr(screen_lib, 'SILENT_SECONDS', 0.3)
  monkeypatch.setattr(rounds_lib, 'jax', SlowJax())
  monkeypatch.setattr(programs, 'compile_programs', slowly(programs.compile_programs))
  completed = launched(tmp_path, [*words_of(num_rounds=1), '--workdir=run'])
  check_success(completed)
  lines = completed.stdout.splitlines()
  assert re.search(r'one test \.\.\. (\d+ s \.\.\. )+[\d.]+ s\n', completed.stdout)
  assert 'training round 1/1, 1 s' in lines
  assert lines.index('training round 1/1, 1 s') < lines.index('testing round 1/1, 1 s')
  # What a run prints besides is what it was.
  assert lines[-1] == 'results: run'


# A round that takes 1.2 s, and waits that are short: a program of its own.
WAITING = """
import sys, time
from moon_jax.__main__ import launch
from moon_jax.runner import rounds, screen
screen.SILENT_SECONDS = screen._BRIEF_SECONDS = 0.4
read = rounds.jax.device_get
def read_slowly(arrays):
  time.sleep(1.2)
  return read(arrays)
rounds.jax = type('Slow', (), vars(rounds.jax) | {
  'device_get': staticmethod(read_slowly)
})
sys.exit(launch(sys.argv[1:]))
"""
WORDS = ('--config.num_rounds=1', '--config.mlp.width=8', '--config.logger=')


@pytest.mark.slow
def test_a_terminal_shows_what_takes_long_and_for_how_long(tmp_path):
  words = [sys.executable, '-c', WAITING, *WORDS, f'--workdir={tmp_path / "run"}']
  words.append('--config.execution.compile_cache=off')
  reader, terminal = pty.openpty()
  environment = os.environ | {'COLUMNS': '80', 'TERM': 'xterm'}
  with subprocess.Popen(
    words, stdin=terminal, stdout=terminal, stderr=terminal, env=environment
  ) as process:
    os.close(terminal)
    output = b''
    try:
      while block := os.read(reader, 4096):
        output += block
    except OSError:  # as Linux ends a terminal
      pass
  os.close(reader)
  assert process.returncode == 0
  text = output.decode()
  for doing in (
    '(tracing|compiling) the .*',
    'training round 1/1',
    'testing round 1/1',
  ):
    assert re.search(rf'\n{doing}, \d+ s', text), doing
  assert re.search(r'compiling one round and one test \.\.\. [\d.]+ s\r\n', text)
  # When the run has ended, only its bar stays.
  *_, last = text.split('\x1b[2K')
  assert '1/1' in last
  assert 'testing round' not in last


@pytest.fixture
def printed():
  """A console for a file, and what it has printed."""
  file = io.StringIO()
  terminal = rich.console.Console(file=file, width=200, markup=False, highlight=False)
  console = Console(
    Screen(terminal),
    describe_sweep=lambda seconds: f'a round: {seconds:.0f} s' if seconds > 1 else '',
  )
  return console, file.getvalue


def test_how_long_a_run_takes_by_its_first_steps_and_its_first_round(printed):
  console, text = printed
  console.begin(Run(None, None, None, [], range(0, 40)))
  console.expect(None)
  console.expect(0.2)  # 8 s in all
  assert text() == ''
  console.expect(30.0)
  assert text() == (
    'about 20 min for 40 rounds, by the first steps; tests are not counted\n'
    'a round: 30 s\n'
  )
  clock = clock_lib.Clock()
  clock.seconds |= {'train': 50.0, 'evaluate': 5.0, 'save': 5.0}
  for number in (1, 2):
    console.after_round(Round(number, RECORD, None, {}, None, clock, None, None))
  # 39 rounds of a minute.
  assert [line for line in text().splitlines() if 'left' in line] == [
    'about 39 min left for 39 rounds, by the first one'
  ]


def test_what_a_process_is_doing_is_the_innermost(monkeypatch):
  monkeypatch.setattr(time, 'monotonic', lambda: 100.0)
  assert activity.current() is None
  with activity.doing('testing'), activity.doing('reading'):
    monkeypatch.setattr(time, 'monotonic', lambda: 123.4)
    assert activity.current().describe() == 'reading, 23 s'
  assert activity.current() is None


def test_durations():
  assert [duration(s) for s in (45, 750, 9000)] == ['45 s', '12 min', '2.5 h']
