"""Command lines that can be run, and random ones; bad ones: test_bad_input.py."""

import os
import pathlib
import re
import shlex

import pytest
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from moon_jax import catalog, config
from moon_jax.catalog import hints
from moon_jax.config import cli
from moon_jax.core import errors
from tests.processes import check_success, launch

ROOT = pathlib.Path(__file__).parents[1]
CONFIGS = sorted(path.name for path in (ROOT / 'configs').glob('[!_]*.py'))


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
  """Relative paths must not lead into the repository by chance."""
  monkeypatch.chdir(tmp_path)


# --- good command lines ---------------------------------------------------------------


@pytest.mark.parametrize('name', CONFIGS)
def test_every_config_file_is_valid(name):
  request = cli.parse([f'--config=configs/{name}'])
  algorithm = request.config.algorithm
  assert request.workdir == pathlib.Path(f'runs/{name[:-3]}-{algorithm}-s0')


# Settings of each single-run file that are not the defaults.
SINGLE = {
  f'{name}_moon': {'model': 'moon_cnn', 'data.source': 'tfds', 'data.name': name}
  for name in ('mnist', 'fashion_mnist', 'cifar10')
}
SINGLE['cifar10_moon']['augmentation.name'] = 'crop_flip'
SINGLE['digits_moon'] = {'num_rounds': 30, 'local_epochs': 5, 'batch_size': 32}
SINGLE['digits_moon'] |= {'moon.mu': 1.0, 'sa_moon.mu': 1.0}


@pytest.mark.parametrize('name', SINGLE)
def test_the_settings_of_a_single_run(name):
  defaults = config.load('configs/base.py')
  settings = config.load(f'configs/{name}.py')
  changes = {knob: value for knob, value in settings.items() if value != defaults[knob]}
  assert changes == SINGLE[name]


@pytest.mark.parametrize(
  ('words', 'name'),
  [
    ('moon.mu=1', 'moon-s0'),  # as in the file
    ('moon.mu=5', 'moon-moon.mu=5.0-s0'),
    ('moon.mu=5.00 seed=2', 'moon-moon.mu=5.0-s2'),
    ('moon.tau=0.1 moon.mu=5', 'moon-moon.mu=5.0-moon.tau=0.1-s0'),
    ('moon.mu=5 moon.tau=0.1', 'moon-moon.mu=5.0-moon.tau=0.1-s0'),
    ('algorithm=fedavg batch_size=8', 'fedavg-batch_size=8-s0'),
    # Knobs that a resumed run may change are left out, but the cosine needs num_rounds.
    ('num_rounds=4 execution.lanes=1 logger=', 'moon-s0'),
    (
      'num_rounds=4 optimizer.schedule=cosine',
      'moon-num_rounds=4-optimizer.schedule=cosine-s0',
    ),
    ('data.source=npz data.path=/ü.npz', 'moon-data.path=_ü.npz-data.source=npz-s0'),
  ],
)
def test_a_changed_knob_gives_another_run_directory(words, name):
  workdir = cli.parse([f'--config.{word}' for word in words.split()]).workdir
  assert workdir == pathlib.Path(f'runs/digits_moon-{name}')


def test_a_long_name_ends_in_a_digest():
  requests = [
    cli.parse(['--config.data.source=npz', f'--config.data.path={"ü" * 150}{end}'])
    for end in 'ab'
  ]
  first, second = (request.workdir.name for request in requests)
  assert first != second
  assert len(first.encode()) < 230


def test_flags_change_the_config_file(tmp_path):
  changes = '  config.moon.mu, config.num_rounds = 2, 3\n  return config\n'
  (tmp_path / 'mine.py').write_text(MINE + changes)
  line = (
    '--config mine.py --config.moon.tau 0.25 -config.seed=7 --config.num_rounds=5 '
    '--config.algorithm=moon'
  )
  request = cli.parse(line.split())
  assert (request.config.moon.mu, request.config.moon.tau) == (2.0, 0.25)
  assert (request.config.seed, request.config.num_rounds) == (7, 5)
  assert request.workdir == pathlib.Path('runs/mine-moon-moon.tau=0.25-s7')
  # The algorithm was given, but it is the one of configs/base.py.
  changed = {'moon.mu': 2.0, 'moon.tau': 0.25, 'seed': 7, 'num_rounds': 5}
  assert request.changed == changed


def test_every_flag_of_the_help_is_taken_as_it_is_printed():
  lines = re.findall(r'^  (--config\.\S+)', cli.answer(['--help']), re.M)
  flags = [shlex.split(line)[0].removeprefix('--config.') for line in lines]
  shown_defaults = dict(text.split('=', 1) for text in flags)
  assert shown_defaults.keys() == catalog.every_knob().keys()
  for name, value in config.flatten(config.defaults().to_dict()).items():
    converted = config.convert(name, config.from_word(name, shown_defaults[name]))
    assert (converted, type(converted)) == (value, type(value))
  request = cli.parse(['--config.drop_last=False', '--config.optimizer.nesterov=true'])
  assert (request.config.drop_last, request.config.optimizer.nesterov) == (False, True)


def test_the_rate_that_the_server_got_is_shown():
  request = cli.parse(['--config.server_optimizer.name=yogi'])
  assert request.changed['server_optimizer.learning_rate'] == 0.01
  assert 'server_optimizer.learning_rate' not in cli.parse([]).changed


MINE = (
  'from moon_jax.config import defaults\ndef get_config():\n  config = defaults()\n'
)


def test_a_config_file_is_read_anew_and_nothing_is_written(tmp_path):
  # The file keeps its length and time, so Python's own cache would not see the change.
  path = tmp_path / 'mine.py'
  for seed in (1, 2):
    path.write_text(f'{MINE}  config.seed = {seed}\n  return config\n')
    os.utime(path, (10**9, 10**9))
    assert cli.parse(['--config=mine.py']).config.seed == seed
  assert [path.name for path in tmp_path.iterdir()] == ['mine.py']


def test_flags_may_stand_in_a_file_and_the_last_wins(tmp_path, monkeypatch):
  (tmp_path / 'flags.txt').write_text(
    '# of all runs\n--config.seed=1\n--workdir=a\n--config=configs/mnist_moon.py\n'
  )
  monkeypatch.setenv('HOME', '/home/someone')
  argv = ['--flagfile=flags.txt', '-config.seed', '2', '--workdir=~/a b']
  request = cli.parse(argv)
  assert request.workdir == pathlib.Path('/home/someone/a b')
  assert (request.config.seed, request.config.data.name) == (2, 'mnist')
  assert shlex.split(request.command) == ['python', 'launch.py', *argv]


def test_a_file_of_flags_that_is_no_text(tmp_path):
  (tmp_path / 'flags.txt').write_bytes(b'\xff')
  with pytest.raises(errors.UsageError, match='decode byte 0xff'):
    cli.parse([f'--flagfile={tmp_path / "flags.txt"}'])


def test_aliases_mean_knobs_parts_and_flags_that_exist():
  kinds = (*catalog.KINDS, 'metric')
  part_names = {name for kind in kinds for name in catalog.names(kind)}
  assert set(hints._KNOB_ALIASES.values()) <= catalog.every_knob().keys()
  for alias in hints._PART_ALIASES.values():
    assert alias.name in part_names
    _, complaints = cli._read_overrides(shlex.split(alias.extra_flag))
    assert complaints == []


# --- the programs of moon-jax ---------------------------------------------------------


@pytest.mark.parametrize('name', ['sweep', 'report', 'predict', 'export'])
def test_a_first_word_chooses_the_program(name, tmp_path):
  help_of_command = launch(tmp_path, name, '--help', program=('-m', 'moon_jax'))
  help_of_module = launch(tmp_path, '--help', program=('-m', f'moon_jax.{name}'))
  check_success(help_of_command)
  assert help_of_command.stdout == help_of_module.stdout != ''


# --- any command line -----------------------------------------------------------------

FLAGS = [f'--config.{knob}' for knob in catalog.every_knob()]
FLAGS += ['--config', '--workdir']


@hypothesis_settings(max_examples=40, deadline=None)
@given(
  words=st.lists(
    st.text(alphabet=st.characters(exclude_characters='\0'))
    | st.builds('{}={}'.format, st.sampled_from(FLAGS), st.text())
    | st.builds('--config.{}=1'.format, st.text()),
    max_size=4,
  )
)
@example(words=['--config.execution.lanes=' + '9' * 5000])
@example(words=['--config.seed=' + '9' * 5000])
@example(words=['--config.optimizer.learning_rate=' + '9' * 5000])
@example(words=['--workdir=\0'])
@example(words=['--config.a\nb=1', 'x\ny', '--config=a\rb'])
@example(words=['--config.data.path=\n', '--config.data.source=digits\n'])
def test_any_text_is_understood_or_refused_in_whole_lines(words):
  complaint = None
  try:
    cli.parse(words)
  except errors.UsageError as error:
    complaint = error
  if complaint:
    lines = getattr(complaint, 'problems', [str(complaint)])
    assert lines
    assert all(len(line.splitlines()) == 1 for line in lines)
