"""Command lines, good and bad; a bad one is answered with one line for each mistake."""

import ast
import pathlib
import re
import shlex

import pytest
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from configs import base
from moon_jax import command_line, config

ROOT = pathlib.Path(__file__).parents[1]
CONFIGS = sorted(path.name for path in (ROOT / 'configs').glob('*.py'))


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
  """Relative paths must not lead into the repository by chance."""
  monkeypatch.chdir(tmp_path)


def problems(argv):
  with pytest.raises(config.ConfigError) as caught:
    command_line.parse(argv)
  return list(caught.value.problems)


# --- bad command lines ----------------------------------------------------------------

LANES = "must be 'auto' or a count of at least 1."
MODELS = (
  'must be one of mlp, moon_cnn, tutorial_cnn, dco_cnn, cnn_transformer, resnet18, '
  'resnet50.'
)
ALGORITHMS = (
  'must be one of fedavg, fedprox, scaffold, moon, sa_moon, dco_moon, '
  'decentralized_fedavg, decentralized_moon, solo, centralized.'
)
SERVED = 'fedavg or fedprox or scaffold or moon or sa_moon or dco_moon'
SEVERAL = f'{SERVED} or decentralized_fedavg or decentralized_moon or solo'
MOON = (
  'moon.mu, moon.tau, moon.negative, moon.similarity_on, moon.num_previous, '
  'moon.frozen_mode'
)
MISSING = MOON.split(', ')[1:]  # without moon.mu, which is given
SEED = 'must be in [0, 2147483647].'
FRACTION = 'must be a fraction of the clients in (0, 1], not a count.'

# A command line -> every line of the answer.
BAD = {
  # Names.
  '--config.sed=1': ["--config.sed is not a knob. Did you mean 'seed'?"],
  '--config.moon.m=1': ["--config.moon.m is not a knob. Did you mean 'moon.mu'?"],
  '--config.mooon.mu=1': ["--config.mooon.mu is not a knob. Did you mean 'moon.mu'?"],
  '--config.beta=1': ["--config.beta is not a knob. Did you mean 'partition.beta'?"],
  '--config.mu=1': [
    "--config.mu is not a knob. Did you mean 'moon.mu' or 'sa_moon.mu' or "
    "'dco_moon.mu' or 'fedprox.mu'?"
  ],
  '--config.zzz=1': ['--config.zzz is not a knob.'],
  '--config.moon=5': [f'--config.moon is a group; set one of its knobs: {MOON}.'],
  '--config.moon=5 --config.algorithm=fedavg': [
    f'--config.moon is a group; set one of its knobs: {MOON}.'
  ],
  # Words that are no knob.
  'hello': ["'hello' is a stray word; see --help."],
  'config.seed=1': [
    "'config.seed=1' is a stray word; see --help. Did you mean '--config.seed'?"
  ],
  '--seed=1': [
    "'--seed=1' is an unknown flag; see --help. Did you mean '--config.seed'?"
  ],
  '--wordkir=a': [
    "'--wordkir=a' is an unknown flag; see --help. Did you mean '--workdir'?"
  ],
  '--zzz': ["'--zzz' is an unknown flag; see --help."],
  '-- --config.seed=1 x': [
    "'--' is an unknown flag; see --help.",
    "'x' is a stray word; see --help.",
  ],
  # Twice, empty, missing.
  '--config.seed=1 --config.seed 1': ['--config.seed is given twice.'],
  '--config.seed=1 -config.seed=2': ['--config.seed is given twice.'],
  '--workdir=a --workdir b': ['--workdir is given twice.'],
  '--config=configs/digits_moon.py --config=configs/digits_moon.py': [
    '--config is given twice.'
  ],
  '--config.seed=': ["--config.seed='' must be a whole number."],
  '--config.algorithm=': [f"--config.algorithm='' {ALGORITHMS}"],
  '--config.seed': ['--config.seed needs a value.'],
  '--config.seed --workdir=a': ['--config.seed needs a value.'],
  '--workdir=': ['--workdir needs a value.'],
  '--workdir': ['Missing value for flag --workdir'],
  '--config=': ["--config='' is not a file."],
  '--config': ['Missing value for flag --config'],
  # Numbers.
  '--config.moon.mu=nan': ['--config.moon.mu=nan must be a finite number.'],
  '--config.optimizer.learning_rate=inf': [
    '--config.optimizer.learning_rate=inf must be a finite number.'
  ],
  '--config.optimizer.learning_rate=0': [
    '--config.optimizer.learning_rate=0.0 must be above 0.'
  ],
  '--config.optimizer.weight_decay=-1e-3': [
    '--config.optimizer.weight_decay=-0.001 must be at least 0.'
  ],
  '--config.moon.mu -1 --config.optimizer.momentum -1': [
    '--config.optimizer.momentum=-1.0 must be in [0, 1).',
    '--config.moon.mu=-1.0 must be at least 0.',
  ],
  '--config.moon.tau=0': ['--config.moon.tau=0.0 must be above 0.'],
  '--config.moon.mu=big': ["--config.moon.mu='big' must be a number."],
  '--config.num_rounds=1e3': ["--config.num_rounds='1e3' must be a whole number."],
  '--config.num_rounds=2.0': ["--config.num_rounds='2.0' must be a whole number."],
  '--config.num_rounds=0': ['--config.num_rounds=0 must be at least 1.'],
  '--config.num_clients=-3': ['--config.num_clients=-3 must be at least 1.'],
  '--config.batch_size=0': ['--config.batch_size=0 must be at least 1.'],
  '--config.local_epochs=0': ['--config.local_epochs=0 must be at least 1.'],
  '--config.eval_every_rounds=0': ['--config.eval_every_rounds=0 must be at least 1.'],
  '--config.checkpoint_every_rounds=0': [
    '--config.checkpoint_every_rounds=0 must be at least 1.'
  ],
  '--config.partition.min_size=0': [
    '--config.partition.min_size=0 must be at least 1.'
  ],
  '--config.data.limit=-1': ['--config.data.limit=-1 must be at least 0.'],
  '--config.model=cnn_transformer --config.cnn_transformer.heads=7': [
    '--config.cnn_transformer.heads=7 must be a divisor of 256.'
  ],
  '--config.model=cnn_transformer --config.cnn_transformer.dropout=1': [
    '--config.cnn_transformer.dropout=1.0 must be in [0, 1).'
  ],
  '--config.participation=10': [f'--config.participation=10.0 {FRACTION}'],
  '--config.participation=0': [f'--config.participation=0.0 {FRACTION}'],
  '--config.seed=-1': [f'--config.seed=-1 {SEED}'],
  '--config.seed=2147483648': [f'--config.seed=2147483648 {SEED}'],
  '--config.execution.lanes=0': [f"--config.execution.lanes='0' {LANES}"],
  '--config.execution.lanes=many': [f"--config.execution.lanes='many' {LANES}"],
  '--config.execution.convolution=banded': [
    '--config.execution.convolution is not used with --config.model=mlp; '
    'it belongs to moon_cnn or tutorial_cnn or dco_cnn or cnn_transformer or resnet18 '
    'or resnet50.'
  ],
  '--config.execution.cache_mib=1 --config.algorithm=solo': [
    '--config.execution.cache_mib is not used with --config.algorithm=solo; '
    'it belongs to moon or sa_moon or dco_moon or decentralized_moon.'
  ],
  '--config.execution.cache_mib=-1': [
    '--config.execution.cache_mib=-1 must be at least 0.'
  ],
  '--config.moon.num_previous=0': ['--config.moon.num_previous=0 must be at least 1.'],
  '--config.algorithm=sa_moon --config.sa_moon.sigma=-1': [
    '--config.sa_moon.sigma=-1.0 must be in [0, 1].'
  ],
  '--config.algorithm=sa_moon --config.sa_moon.min_temperature=0': [
    '--config.sa_moon.min_temperature=0.0 must be above 0.'
  ],
  '--config.algorithm=sa_moon --config.sa_moon.min_temperature=1.5': [
    '--config.sa_moon.min_temperature=1.5 must be at most '
    '--config.sa_moon.initial_temperature=1.0.'
  ],
  '--config.algorithm=dco_moon --config.dco_moon.theta=0': [
    '--config.dco_moon.theta=0.0 must be above 0.'
  ],
  '--config.algorithm=dco_moon --config.dco_moon.theta=inf': [
    '--config.dco_moon.theta=inf must be a finite number.'
  ],
  '--config.algorithm=dco_moon --config.dco_moon.normalise=true '
  '--config.dco_moon.mu=0': [
    '--config.dco_moon.mu=0.0 must be above 0 with --config.dco_moon.normalise=true, '
    'which divides by it.'
  ],
  # Choices.
  '--config.moon.negative=noise': [
    "--config.moon.negative='noise' must be one of none, global, init. "
    "Did you mean 'none'?"
  ],
  '--config.algorithm=mon': [
    f"--config.algorithm='mon' {ALGORITHMS} Did you mean 'moon'?"
  ],
  '--config.model=vit': [f"--config.model='vit' {MODELS}"],
  '--config.model=moon-cnn': [
    f"--config.model='moon-cnn' {MODELS} Did you mean 'moon_cnn'?"
  ],
  '--config.partition.name=dirchlet': [
    "--config.partition.name='dirchlet' must be one of iid, dirichlet, "
    "shards, quantity, noise. Did you mean 'dirichlet'?"
  ],
  '--config.data.source=digit': [
    "--config.data.source='digit' must be one of digits, tfds, npz. "
    "Did you mean 'digits'?"
  ],
  # Knobs that do not belong together.
  '--config.fedprox.mu=1': [
    '--config.fedprox.mu is not used with --config.algorithm=moon; '
    'it belongs to fedprox.'
  ],
  '--config.algorithm=solo --config.moon.tau=1': [
    '--config.moon.tau is not used with --config.algorithm=solo; '
    'it belongs to moon or decentralized_moon.'
  ],
  '--config=configs/mnist_moon.py --config.mlp.width=8': [
    '--config.mlp.width is not used with --config.model=moon_cnn; it belongs to mlp.'
  ],
  '--config.cnn_transformer.layers=2': [
    '--config.cnn_transformer.layers is not used with --config.model=mlp; '
    'it belongs to cnn_transformer.'
  ],
  '--config.partition.name=iid --config.partition.beta=1': [
    '--config.partition.beta is not used with --config.partition.name=iid; '
    'it belongs to dirichlet or quantity.'
  ],
  '--config.partition.classes_per_client=3': [
    '--config.partition.classes_per_client is not used with '
    '--config.partition.name=dirichlet; it belongs to shards.'
  ],
  '--config.partition.name=quantity --config.partition.noise_sigma=0.2': [
    '--config.partition.noise_sigma is not used with '
    '--config.partition.name=quantity; it belongs to noise.'
  ],
  '--config.partition.name=noise --config.partition.noise_sigma=1.5': [
    '--config.partition.noise_sigma=1.5 must be in [0, 1].'
  ],
  '--config.partition.name=shards --config.partition.classes_per_client=0': [
    '--config.partition.classes_per_client=0 must be at least 1.'
  ],
  '--config.augmentation.name=crop': [
    "--config.augmentation.name='crop' must be one of none, flip, crop_flip. "
    "Did you mean 'crop_flip'?"
  ],
  '--config.augmentation.name=crop_flip --config.augmentation.padding=edge': [
    "--config.augmentation.padding='edge' must be one of reflect, zero."
  ],
  '--config.augmentation.name=flip --config.augmentation.padding=zero': [
    '--config.augmentation.padding is not used with --config.augmentation.name=flip; '
    'it belongs to crop_flip.'
  ],
  '--config.data.name=mnist': [
    '--config.data.name is not used with --config.data.source=digits; '
    'it belongs to tfds.'
  ],
  '--config.data.path=a.npz': [
    '--config.data.path is not used with --config.data.source=digits; '
    'it belongs to npz.'
  ],
  '--config.data.source=npz': [
    '--config.data.path is needed with --config.data.source=npz.'
  ],
  '--config.data.source=tfds': [
    '--config.data.name is needed with --config.data.source=tfds.'
  ],
  # Without a server, or with one client.
  '--config.algorithm=decentralized_moon --config.server_optimizer.name=adam': [
    '--config.server_optimizer.name is not used with '
    f'--config.algorithm=decentralized_moon; it belongs to {SERVED}.'
  ],
  '--config.algorithm=solo --config.server_optimizer.learning_rate=0.1': [
    '--config.server_optimizer.learning_rate is not used with '
    f'--config.algorithm=solo; it belongs to {SERVED}.'
  ],
  '--config.algorithm=centralized --config.client_weight=uniform': [
    '--config.client_weight is not used with --config.algorithm=centralized; '
    f'it belongs to {SERVED}.'
  ],
  '--config.algorithm=centralized --config.num_clients=5 --config.partition.beta=1': [
    '--config.num_clients is not used with --config.algorithm=centralized; '
    f'it belongs to {SEVERAL}.',
    '--config.partition.beta is not used with --config.algorithm=centralized; '
    f'it belongs to {SEVERAL}.',
  ],
  '--config.topology.name=grid': [
    '--config.topology.name is not used with --config.algorithm=moon; '
    'it belongs to decentralized_fedavg or decentralized_moon.'
  ],
  # Graphs.
  '--config.algorithm=decentralized_moon --config.topology.name=rnig': [
    "--config.topology.name='rnig' must be one of ring, grid, complete, erdos_renyi. "
    "Did you mean 'ring'?"
  ],
  '--config.algorithm=decentralized_moon --config.topology.degree=3': [
    '--config.topology.degree=3 must be even, at least 2.'
  ],
  '--config.algorithm=decentralized_moon --config.topology.degree=10': [
    '--config.topology.degree=10 must be below --config.num_clients=10.'
  ],
  '--config.algorithm=decentralized_moon --config.topology.name=grid '
  '--config.topology.degree=4': [
    '--config.topology.degree is not used with --config.topology.name=grid; '
    'it belongs to ring.'
  ],
  '--config.algorithm=decentralized_moon --config.topology.name=erdos_renyi '
  '--config.topology.edge_probability=1.5': [
    '--config.topology.edge_probability=1.5 must be in (0, 1].'
  ],
  # Optimizers and other options.
  '--config.optimizer.name=adam --config.optimizer.momentum=0.5': [
    '--config.optimizer.momentum is not used with --config.optimizer.name=adam; '
    'it belongs to sgd.'
  ],
  '--config.optimizer.name=adamw --config.optimizer.nesterov=true': [
    '--config.optimizer.nesterov is not used with --config.optimizer.name=adamw; '
    'it belongs to sgd.'
  ],
  '--config.optimizer.decay=0.5': [
    '--config.optimizer.decay is not used with --config.optimizer.schedule=constant; '
    'it belongs to exponential or step.'
  ],
  '--config.optimizer.schedule=cosin': [
    "--config.optimizer.schedule='cosin' must be one of constant, cosine, exponential, "
    "step. Did you mean 'cosine'?"
  ],
  '--config.server_optimizer.name=yogi --config.server_optimizer.momentum=0.5': [
    '--config.server_optimizer.momentum is not used with '
    '--config.server_optimizer.name=yogi; it belongs to sgd.'
  ],
  '--config.server_optimizer.learning_rate=0': [
    '--config.server_optimizer.learning_rate=0.0 must be above 0.'
  ],
  '--config.client_weight=examples': [
    "--config.client_weight='examples' must be one of samples, uniform. "
    "Did you mean 'samples'?"
  ],
  '--config.batch_norm=local': [
    '--config.batch_norm is not used with --config.model=mlp; '
    'it belongs to cnn_transformer or resnet18 or resnet50.'
  ],
  '--config.drop_last=yes': ["--config.drop_last='yes' must be true or false."],
  # Config files.
  '--config=configs/digits_mon.py': [
    "--config='configs/digits_mon.py' is not a file. "
    "Did you mean 'configs/digits_moon.py'?"
  ],
  '--config=nowhere.py': ["--config='nowhere.py' is not a file."],
  '--config=.': ["--config='.' is not a file."],
  '--config=README.md': ["--config='README.md' is not a Python file, *.py."],
  f'--config={"long" * 100}.py': [f"--config='{'long' * 100}.py' is not a file."],
  '--config=~absentee/a.py': [
    "--config='~absentee/a.py' names the home folder of nobody."
  ],
  '--workdir=~absentee/a': ["--workdir='~absentee/a' names the home folder of nobody."],
  '--config=raises.py': ["--config='raises.py' failed: ValueError: no luck"],
  '--config=broken.py --config.sed=1 hello': [
    "'hello' is a stray word; see --help.",
    "--config='broken.py' failed: SyntaxError: invalid syntax (broken.py, line 1)",
    "--config.sed is not a knob. Did you mean 'seed'?",
  ],
  '--config=empty.py': [
    "--config='empty.py' failed: AttributeError: "
    "module 'config_empty' has no attribute 'get_config'"
  ],
  '--config=misspelt.py': ["--config.sed is not a knob. Did you mean 'seed'?"],
  '--config=lacking.py': ['--config.seed is missing from the config file.'],
  '--config=wrong.py': [f'--config.seed=-1 {SEED}'],
  '--config=scalar.py --config.moon.mu=1': [
    f'--config.moon is a group; set one of its knobs: {MOON}.',
    *(f'--config.{name} is missing from the config file.' for name in MISSING),
  ],
  # Everything at once, in one answer.
  'hello --zzz --workdir= --config.sed=1 --config.seed=-1 --config.moon.mu=nan '
  '--config.model=mpl --config.fedprox.mu=1 --config.seed=3': [
    "'hello' is a stray word; see --help.",
    "'--zzz' is an unknown flag; see --help.",
    '--config.seed is given twice.',
    '--workdir needs a value.',
    "--config.sed is not a knob. Did you mean 'seed'?",
    f"--config.model='mpl' {MODELS} Did you mean 'mlp'?",
    f'--config.seed=-1 {SEED}',
    '--config.moon.mu=nan must be a finite number.',
    '--config.fedprox.mu is not used with --config.algorithm=moon; '
    'it belongs to fedprox.',
  ],
}

FILES = {
  'README.md': 'Not a config.',
  'raises.py': "raise ValueError('no luck\\nat all')",
  'broken.py': 'def get_config(:',
  'empty.py': '',
}
# What a config file does to the settings of configs/base.py.
CHANGES = {
  'misspelt.py': 'config.sed = 1',
  'lacking.py': 'del config.seed',
  'wrong.py': 'config.seed = -1',
  'scalar.py': 'del config.moon; config.moon = 5.0',
}


def write_config(path, change):
  path.write_text(
    'from configs import base\n'
    'def get_config():\n'
    f'  config = base.get_config()\n  {change}\n  return config\n'
  )


@pytest.mark.parametrize('line', BAD)
def test_bad_command_line(line, tmp_path):
  for name, text in FILES.items():
    (tmp_path / name).write_text(text)
  for name, change in CHANGES.items():
    write_config(tmp_path / name, change)
  assert problems(shlex.split(line)) == BAD[line]


def test_line_breaks_stay_inside_their_line():
  argv = ['--config.a\nb=1', '--config.seed=1\n2', 'x\ny', '--config=a\rb']
  assert problems(argv) == [
    r"'x\ny' is a stray word; see --help.",
    r"--config='a\rb' is not a file.",
    '--config.a b is not a knob.',
  ]
  assert problems(argv[1:2]) == [r"--config.seed='1\n2' must be a whole number."]


FLAGS = ['--config', '--workdir', *(f'--config.{knob}' for knob in config.knobs())]


@hypothesis_settings(deadline=None)
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
@example(words=['--config.data.path=\n', '--config.data.source=digits\n'])
def test_any_text_is_understood_or_refused_in_whole_lines(words):
  complaint = None
  try:
    command_line.parse(words)
  except config.ConfigError as error:
    complaint = error
  if complaint:
    assert complaint.problems
    assert all(len(problem.splitlines()) == 1 for problem in complaint.problems)


# --- good command lines ---------------------------------------------------------------


@pytest.mark.parametrize('name', CONFIGS)
def test_every_config_file_is_valid(name):
  request = command_line.parse([f'--config=configs/{name}'])
  algorithm = request.config.algorithm
  assert request.workdir == pathlib.Path(f'runs/{name[:-3]}-{algorithm}-s0')


def test_default_is_a_config_file():
  assert command_line.DEFAULT_CONFIG.removeprefix('configs/') in CONFIGS


def test_flags_change_the_config_file(tmp_path):
  write_config(tmp_path / 'mine.py', 'config.moon.mu = 2; config.num_rounds = 3')
  line = (
    '--config mine.py --config.moon.tau 0.25 -config.seed=7 --config.num_rounds=5 '
    '--config.algorithm=moon'
  )
  request = command_line.parse(line.split())
  assert (request.config.moon.mu, request.config.moon.tau) == (2.0, 0.25)
  assert (request.config.seed, request.config.num_rounds) == (7, 5)
  assert request.workdir == pathlib.Path('runs/mine-moon-s7')
  # The algorithm was given, but is that of configs/base.py.
  assert request.changed == {
    'moon.mu': 2.0,
    'moon.tau': 0.25,
    'seed': 7,
    'num_rounds': 5,
  }


def test_the_rate_that_the_server_got_is_shown():
  request = command_line.parse(['--config.server_optimizer.name=yogi'])
  assert request.changed['server_optimizer.learning_rate'] == 0.01
  assert 'server_optimizer.learning_rate' not in command_line.parse([]).changed


def test_command_repeats_the_command_line():
  argv = ['--workdir=a b', '--config.seed=3']
  request = command_line.parse(argv)
  assert request.workdir == pathlib.Path('a b')
  assert shlex.split(request.command) == ['python', 'launch.py', *argv]


def test_home_folder(monkeypatch):
  monkeypatch.setenv('HOME', '/home/someone')
  request = command_line.parse(['--workdir=~/runs/a'])
  assert request.workdir == pathlib.Path('/home/someone/runs/a')


def test_parse_writes_nothing(tmp_path):
  command_line.parse([])
  assert list(tmp_path.iterdir()) == []


def test_help_lists_every_knob_with_its_default():
  text = command_line.answer(['--help'])
  lines = re.findall(r'^  --config\.([\w.]+)=(\S+) +(\S.*)$', text, re.MULTILINE)
  shown = {name: ast.literal_eval(value) for name, value, _ in lines}
  assert shown == config.flatten(base.get_config().to_dict())
  assert [name for name, *_ in lines] == list(config.knobs())
