"""The examples as users run them: flags, records, resumption, loading, reports."""

import contextlib
import json
import signal

import numpy as np
import pytest

import moon_jax
from moon_jax.__main__ import launch
from moon_jax.config import cli
from moon_jax.core.errors import ExitCode
from moon_jax.runner import stop_requests
from tests.processes import ROOT, check_same_records, checkpoint, read_lines
from tests.selection import few

pytestmark = pytest.mark.usefixtures('own_parts_of_the_file', 'quick_runs')

TINY = (
  *('--config.data.limit=100', '--config.partition.min_size=1'),
  *('--config.num_rounds=3', '--config.num_clients=4', '--config.local_epochs=1'),
  *('--config.batch_size=16', '--config.participation=0.5'),
  '--config.execution.devices=1',
)
# Example -> flags, what config.json has of them, columns of metrics.jsonl.
EXAMPLES = {
  'fedcm': (
    ('--config.fedcm.alpha=0.2',),
    {'fedcm': {'alpha': 0.2}},
    {'direction_norm'},
  ),
  'fedvarp': (('--config.fedvarp.rate=0.8',), {'fedvarp': {'rate': 0.8}}, set()),
  'own_model_and_data': (
    ('--config.ring_net.channels=4', '--config.rings.noise=0.2'),
    {'ring_net': {'channels': 4}, 'rings': {'noise': 0.2}},
    {'contrastive_loss'},
  ),
}


class StoppedInTheFirstRound(stop_requests.Stop):
  """SIGTERM arrives as soon as the rounds begin."""

  @contextlib.contextmanager
  def deferred(self):
    with super().deferred():
      self.request(signal.SIGTERM)
      yield


@pytest.fixture(scope='module')
def run_directory_of(tmp_path_factory):
  """Example -> the run directory of its finished run; each example is run once."""
  folder = tmp_path_factory.mktemp('finished')

  def run(example):
    if not (folder / example).exists():
      words = words_of(example, folder / example)
      assert launch(words) == ExitCode.DONE
    return folder / example

  return run


def words_of(example, workdir):
  flags, _, _ = EXAMPLES[example]
  return [f'--config=examples/{example}.py', f'--workdir={workdir}', *TINY, *flags]


@pytest.mark.parametrize('example', few(['fedcm'], EXAMPLES))
def test_an_example_is_recorded_and_loaded(example, run_directory_of):
  _, knobs, columns = EXAMPLES[example]
  workdir = run_directory_of(example)
  saved = json.loads((workdir / 'config.json').read_text())
  assert knobs.items() <= saved['config'].items()
  assert {part['file'] for part in saved['registered']} == {f'{example}.py'}
  records = read_lines(workdir / 'metrics.jsonl')
  assert [record['round'] for record in records] == [1, 2, 3]
  assert all(columns <= record.keys() for record in records)
  trained = moon_jax.load(workdir)
  images, labels = trained.test_data()
  accuracy = np.mean(trained.predict(images).labels == labels)
  assert accuracy == pytest.approx(records[-1]['test_accuracy'], abs=1e-6)


@pytest.mark.parametrize('example', few(['fedcm'], EXAMPLES))
def test_an_example_resumes_to_the_same_bytes(
  example, run_directory_of, tmp_path, capsys
):
  words = words_of(example, tmp_path / 'run')
  assert launch(words, StoppedInTheFirstRound()) == ExitCode.PREEMPTED
  assert 'Stopped by SIGTERM after round 1, which is saved.' in capsys.readouterr().err
  assert launch(words) == ExitCode.DONE
  resumed, uninterrupted = tmp_path / 'run', run_directory_of(example)
  check_same_records(resumed, uninterrupted)
  assert checkpoint(resumed, 3) == checkpoint(uninterrupted, 3)


@pytest.mark.parametrize(
  ('word', 'message'),
  [
    ('--config.fedcm.alpha=0', '--config.fedcm.alpha=0.0 must be in (0, 1].'),
    (
      '--config.optimizer.momentum=0.9',
      'fedcm needs --config.optimizer.name=sgd with --config.optimizer.momentum=0.',
    ),
  ],
)
def test_mistakes_in_the_knobs_of_an_example_are_one_line(word, message, capsys):
  assert launch(['--config=examples/fedcm.py', word]) == ExitCode.USAGE
  assert capsys.readouterr().err.splitlines() == [message]


def test_the_examples_run_as_their_heads_say():
  for example in EXAMPLES:
    text = (ROOT / f'examples/{example}.py').read_text()
    (command,) = (line for line in text.splitlines() if 'python launch.py' in line)
    config = cli.parse(command.split()[2:]).config
    assert config.num_rounds > 3
    assert command.strip() in (ROOT / 'examples/README.md').read_text()
