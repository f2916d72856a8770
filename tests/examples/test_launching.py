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
from moon_jax.runner import signals
from tests.processes import ROOT, checkpoint, read_lines
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


class StoppedInTheFirstRound(signals.Stop):
  """SIGTERM arrives as soon as the rounds begin."""

  @contextlib.contextmanager
  def deferred(self):
    with super().deferred():
      self.request(signal.SIGTERM)
      yield


@pytest.fixture(scope='module')
def ended(tmp_path_factory):
  """Example -> the run directory of one that went through; each is run once."""
  folder = tmp_path_factory.mktemp('ended')

  def run(example):
    if not (folder / example).exists():
      words = words_of(example, folder / example)
      assert launch(words) == ExitCode.DONE
    return folder / example

  return run


def words_of(example, workdir):
  flags, _, _ = EXAMPLES[example]
  return [f'--config=examples/{example}.py', f'--workdir={workdir}', *TINY, *flags]


@pytest.mark.parametrize('example', few(['fedcm', 'own_model_and_data'], EXAMPLES))
def test_an_example_is_recorded_and_loaded(example, ended):
  _, knobs, columns = EXAMPLES[example]
  workdir = ended(example)
  about = json.loads((workdir / 'config.json').read_text())
  assert knobs.items() <= about['config'].items()
  assert {part['file'] for part in about['registered']} == {f'{example}.py'}
  records = read_lines(workdir / 'metrics.jsonl')
  assert [record['round'] for record in records] == [1, 2, 3]
  assert all(columns <= record.keys() for record in records)
  trained = moon_jax.load(workdir)
  images, labels = trained.test_data()
  accuracy = np.mean(trained.predict(images).labels == labels)
  assert accuracy == pytest.approx(records[-1]['test_accuracy'], abs=1e-6)


@pytest.mark.parametrize('example', few(['fedcm'], EXAMPLES))
def test_an_example_resumes_to_the_same_bytes(example, ended, tmp_path, capsys):
  words = words_of(example, tmp_path / 'run')
  assert launch(words, StoppedInTheFirstRound()) == ExitCode.PREEMPTED
  assert 'Stopped by SIGTERM after round 1, which is saved.' in capsys.readouterr().err
  assert launch(words) == ExitCode.DONE
  pair = tmp_path / 'run', ended(example)
  mine, whole = ((run / 'metrics.jsonl').read_bytes() for run in pair)
  assert mine == whole
  mine, whole = (checkpoint(run, 3) for run in pair)
  assert mine == whole


@pytest.mark.parametrize(
  ('flags', 'told'),
  [
    ('--config.fedcm.alpha=0', '--config.fedcm.alpha=0.0 must be in (0, 1].'),
    (
      '--config.optimizer.momentum=0.9',
      'fedcm needs --config.optimizer.name=sgd with --config.optimizer.momentum=0.',
    ),
  ],
)
def test_its_mistakes_are_one_line(flags, told, capsys):
  assert launch(['--config=examples/fedcm.py', flags]) == ExitCode.USAGE
  assert capsys.readouterr().err.splitlines() == [told]


def test_the_examples_run_as_their_heads_say():
  for example in EXAMPLES:
    text = (ROOT / f'examples/{example}.py').read_text()
    (command,) = (line for line in text.splitlines() if 'python launch.py' in line)
    asked = cli.parse(command.split()[2:]).config
    assert asked.num_rounds > 3
    assert command.strip() in (ROOT / 'examples/README.md').read_text()
