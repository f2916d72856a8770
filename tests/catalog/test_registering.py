"""Parts that a user's config file registers: they work, or one line says why not."""

import hashlib
import json
import linecache
import pathlib
import re
import shutil

import pytest

import moon_jax
from moon_jax import catalog, config
from moon_jax.__main__ import launch
from moon_jax.catalog import registry
from moon_jax.config import cli
from moon_jax.core.errors import ExitCode, UsageError
from moon_jax.data import sources
from moon_jax.data.data_errors import DataError
from moon_jax.runner.rounds import Rounds
from tests.processes import check_same_records, read_lines

# FedProx with the L1 norm, and a model, data, a partition and an augmentation.
MINE = """
import moon_jax
from moon_jax.config import defaults


def fedprox_l1(*, mu, squared):
  import jax
  import jax.numpy as jnp
  from moon_jax.algorithms import base as algorithms

  def loss(outputs, references, params, task, batch):
    supervised, parts = algorithms.supervised(outputs, references, params, task, batch)
    apart = jax.tree.map(
      lambda w, r: jnp.sum(jnp.abs(w - r)), params, task.received['params']
    )
    pull = sum(jax.tree.leaves(apart))
    parts |= {'l1_loss': pull, 'head_cosine': jnp.float32(0.5)}
    return supervised + task.scalars['mu'] * pull, parts

  assert squared is False
  return moon_jax.Algorithm(hyperparameters={'mu': mu}, loss=loss)


def tiny(*, num_classes, units):
  import flax.linen as nn

  class Tiny(nn.Module):
    @nn.compact
    def __call__(self, images, mask=None):
      x = images.reshape(len(images), -1)
      features = nn.relu(nn.Dense(units)(x))
      z = nn.Dense(4)(features)
      return moon_jax.Outputs(z, nn.Dense(num_classes)(z), features)

  return Tiny()


def stripes(*, size):
  import numpy as np

  images = np.random.default_rng(0).integers(0, 99, (90, size, size), np.uint8)
  labels = np.arange(90) % 3
  images[np.arange(90), labels] = 255
  return images, labels, images[:30] // 2, labels[:30]


def robin(labels, *, num_clients, min_size, seed, shift):
  import numpy as np
  from moon_jax.data import partition

  return partition.grouped((np.arange(len(labels)) + shift) % num_clients, num_clients)


def darker(*, by):
  return lambda key, images, rows: images[rows] // by


knob, count = moon_jax.knob, moon_jax.at_least(1)
moon_jax.register_algorithm(
  'fedprox_l1',
  fedprox_l1,
  title='FedProx-L1',
  knobs={
    'mu': knob(float, 0.25, 'weight of the L1 term', moon_jax.at_least(0)),
    'squared': knob(bool, False, 'not yet'),
  },
)
moon_jax.register_model('tiny', tiny, knobs={'units': knob(int, 5, 'units', count)})
moon_jax.register_data('stripes', stripes, knobs={'size': knob(int, 7, 'px', count)})
moon_jax.register_partition('robin', robin, knobs={'shift': knob(int, 1, 'x', count)})
moon_jax.register_augmentation('darker', darker, knobs={'by': knob(int, 2, 'x', count)})


def get_config():
  config = defaults()
  config.algorithm, config.model, config.data.source = 'fedprox_l1', 'tiny', 'stripes'
  config.partition.name, config.augmentation.name = 'robin', 'darker'
  config.num_clients = 4
  return config
"""
TINY = (
  '--config.data.limit=200',
  '--config.num_rounds=2',
  '--config.local_epochs=1',
  '--config.batch_size=8',
  '--config.execution.devices=1',
)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch, own_parts):
  """A working folder with mine.py; what is registered is forgotten after the test."""
  (tmp_path / 'mine.py').write_text(MINE)
  monkeypatch.chdir(tmp_path)
  return tmp_path


def digest(path):
  return hashlib.sha256(path.read_bytes()).hexdigest()


def complaints(capsys, *words):
  """The lines with which launch refuses the words; nothing is written."""
  assert launch(list(words)) == ExitCode.USAGE
  out, err = capsys.readouterr()
  assert out == ''
  return err.splitlines()


# --- knobs ----------------------------------------------------------------------------


def test_knobs_of_a_registered_algorithm_are_flags_with_defaults(folder):
  assert 'fedprox_l1.mu' not in catalog.every_knob()  # builds and keeps the list
  chosen = cli.parse(['--config=mine.py']).config
  assert (chosen.algorithm, chosen.fedprox_l1.mu) == ('fedprox_l1', 0.25)
  chosen = cli.parse(['--config=mine.py', '--config.fedprox_l1.mu=2']).config
  assert type(chosen.fedprox_l1.mu) is float
  assert chosen.fedprox_l1.mu == 2
  options = catalog.options('algorithm', config.flatten(chosen))
  assert options == {'mu': 2.0, 'squared': False}


def test_help_lists_them():
  text = cli.answer(['--config=mine.py', '--help'])
  assert '--config.fedprox_l1.mu=0.25 ' in text
  assert 'centralized, fedprox_l1' in ' '.join(text.split())


def test_a_run_of_another_algorithm_has_none_of_its_knobs():
  chosen = cli.parse(['--config=mine.py', '--config.algorithm=fedavg']).config
  assert 'fedprox_l1' not in config.ordered(chosen)
  assert cli.parse([]).config == cli.parse(['--config=configs/digits_moon.py']).config


# --- a run ----------------------------------------------------------------------------


@pytest.mark.usefixtures('quick_runs')
def test_a_run_is_recorded_resumed_loaded_and_needs_its_file(folder, capsys):
  words = ['--config=mine.py', '--workdir=run', *TINY]
  assert launch([*words, '--config.num_rounds=1']) == ExitCode.DONE
  saved = json.loads((folder / 'run/config.json').read_text())
  kinds = ['algorithm', 'model', 'data', 'partition', 'augmentation']
  assert [part['kind'] for part in saved['registered']] == kinds
  for part in saved['registered']:
    assert (part['file'], part['sha256']) == ('mine.py', digest(folder / 'mine.py'))
  assert saved['config']['fedprox_l1'] == {'mu': 0.25, 'squared': False}
  assert saved['config']['robin'] == {'shift': 1}
  assert saved['images']['shape'] == [7, 7, 1]
  # The run is resumed, and a line says that the file has changed; so it does when the
  # run is finished.
  for remark in ('# A remark.', '# Another.', ''):  # at the end as at the beginning
    (folder / 'mine.py').write_text(f'{MINE}\n{remark}\n' if remark else MINE)
    capsys.readouterr()
    assert launch(words) == ExitCode.DONE
    out = capsys.readouterr().out
    notice = "mine.py, the algorithm 'fedprox_l1', has changed since the run began"
    assert sum(notice in line for line in out.splitlines()) == 1
    assert 'so it has rounds of another version' in out
  assert 'nothing to do: the run has 2 rounds; 2 were asked for' in out
  records = read_lines(folder / 'run/metrics.jsonl')
  assert [record['round'] for record in records] == [1, 2]
  assert all(record['l1_loss'] > 0 for record in records)
  # A part is a mean over all examples, whatever its name.
  assert [record['head_cosine'] for record in records] == [0.5, 0.5]
  assert records[0]['train_loss'] == pytest.approx(
    records[0]['supervised_loss'] + 0.25 * records[0]['l1_loss']
  )
  with pytest.warns(UserWarning, match='^mine.py, the .* has changed'):
    trained = moon_jax.load('run')
  assert trained.round == 2
  assert trained.variables['params']['Dense_0']['kernel'].shape == (49, 5)
  images, labels = trained.test_data()
  assert (images.shape, labels.shape) == ((30, 7, 7, 1), (30,))
  # Example i belongs to client (i + 1) mod 4, and 90 = 4 * 22 + 2.
  assert trained.class_counts.sum(1).tolist() == [22, 23, 23, 22]
  assert launch([*words, '--workdir=whole']) == ExitCode.DONE
  check_same_records(folder / 'run', folder / 'whole')


@pytest.mark.usefixtures('quick_runs')
def test_a_run_whose_part_is_not_registered(folder, capsys):
  """Another process has not registered the part that config.json names."""
  assert launch(['--config=mine.py', '--workdir=run', *TINY]) == ExitCode.DONE
  registry._parts.pop(('algorithm', 'fedprox_l1'))
  registry.every_knob.cache_clear()
  capsys.readouterr()
  (line,) = complaints(capsys, '--workdir=run')
  for text in ("algorithm 'fedprox_l1' of mine.py", 'not registered', '--config'):
    assert text in line
  with pytest.raises(UsageError) as caught:
    moon_jax.load('run')
  assert str(caught.value) == line
  # Loading registers nothing: the name is still free for the right file.
  assert launch(['--config=mine.py', '--workdir=run', *TINY]) == ExitCode.DONE
  assert moon_jax.load('run').round == 2


# --- bad registrations ----------------------------------------------------------------

HEAD = 'import jax, moon_jax\nfrom moon_jax.config import defaults as get_config\n\n'
TABLE = pathlib.Path(__file__).with_name('bad_registrations.txt').read_text()
BAD_REGISTRATIONS = dict(re.findall(r'^\$ (.*)\n(.+)$', TABLE, re.M))


def test_a_bad_registration_is_one_line(folder, capsys):
  assert len(BAD_REGISTRATIONS) == TABLE.count('$ ') > 0
  faults = []
  for code, message in BAD_REGISTRATIONS.items():
    (folder / 'bad.py').write_text(HEAD + code + '\n')
    # A wrong default is reported when a run begins, and has no line.
    is_of_default = message.startswith('--config.')
    prefix = '' if is_of_default else "--config='bad.py' failed, line 4: "
    lines = complaints(capsys, '--config=bad.py')
    if lines != [prefix + message]:
      faults.append(f'{code}: {lines}')
  assert not faults, '\n'.join(faults)
  assert sorted(path.name for path in folder.iterdir()) == ['bad.py', 'mine.py']


AGGREGATE = 'moon_jax.Algorithm(aggregate=lambda s, mean, *more: mean.weighted)'
# The code of a check -> the end of its message.
FAILING_CHECKS = {
  '1 / 0': "The algorithm 'mine' failed, line 4: ZeroDivisionError: division by zero",
  'values["bta"]': "The algorithm 'mine' failed, line 4: KeyError: 'bta'",
  '"too large"': (
    "The check of the algorithm 'mine' must return a list of lines, not the text 'too "
    "large'."
  ),
  # The run does not use this knob.
  '[values["topology.name"]]': '',
  '["one", "two"]': 'one\ntwo',
}


@pytest.mark.parametrize('code', FAILING_CHECKS)
def test_a_check_complains_in_lines_and_its_own_faults_are_one_line(
  code, folder, capsys
):
  check = f'lambda values: {code}'
  text = f'moon_jax.register_algorithm("mine", lambda: None, check={check})\n'
  (folder / 'bad.py').write_text(HEAD + text)
  words = ['--config=bad.py', '--config.algorithm=mine']
  if FAILING_CHECKS[code]:
    assert '\n'.join(complaints(capsys, *words)) == FAILING_CHECKS[code]
  else:
    assert cli.parse(words).config.algorithm == 'mine'


def test_an_algorithm_with_neighbours_has_the_knobs_of_their_graph(folder):
  (folder / 'own.py').write_text(
    f'{HEAD}traits = {{"several_clients", "decentralized"}}\n'
    'moon_jax.register_algorithm("mine", lambda: None, traits=traits)\n'
  )
  words = ['--config=own.py', '--config.algorithm=mine']
  chosen = cli.parse([*words, '--config.topology.name=complete']).config
  identity = config.validation.identity(config.flatten(chosen))
  assert identity['topology.name'] == 'complete'


# What a part returns -> the message.
FAILING = {
  'None': "The algorithm 'mine' must return ",
  '1 / 0': "The algorithm 'mine' failed, line 4: ZeroDivisionError: division by zero",
  # As JAX tells it, with the types on the line after a colon.
  'exec("raise ValueError(\\"first:\\\\n\\\\n second\\\\nthird\\")")': (
    "The algorithm 'mine' failed, line 4: ValueError: first: second"
  ),
  'moon_jax.Algorithm(init_client=lambda v: v[0])': "The algorithm 'mine' failed, line",
  'moon_jax.Algorithm(hyperparameters={"mu": "high"})': (
    "The algorithm 'mine' failed at `algorithm_scalars, optimizer_scalars = "
  ),
  'moon_jax.Algorithm(loss=lambda *given: None)': (
    "The algorithm 'mine' failed at `loss, parts = self.algorithm.loss(outputs, "
  ),
  AGGREGATE: 'aggregate must return a Server, not dict.',
  'moon_jax.Algorithm(loss=lambda o, *more: (0.0, {"train_loss": 0.0}))': (
    "'train_loss' cannot be a part of a loss: every run has it."
  ),
  # What they return has another form than it should; some of it would be cast silently.
  'moon_jax.Algorithm(loss=lambda o, *more: (0.0, {"x": o.logits}))': (
    'loss: x must be float32[], not float32[8, 10].'
  ),
  'moon_jax.Algorithm(init_client=lambda v: {"n": 0}, upload=lambda v, task: '
  '(moon_jax.Upload(v), {"n": task.memory["n"] + 0.6}))': (
    "upload's memory: n must be int32[], not float32[]."
  ),
  'moon_jax.Algorithm(upload=lambda v, task: moon_jax.Upload(v))': (
    "upload must return an Upload and the client's memory."
  ),
  'moon_jax.Algorithm(report=lambda v, task: {"x": jax.numpy.ones(2)})': (
    'report: x must be float32[], not float32[2].'
  ),
  'moon_jax.Algorithm(correct=lambda g, task: jax.tree.map(jax.numpy.sum, g))': (
    'correct: classifier.bias must be float32[10], not float32[].'
  ),
  'moon_jax.Algorithm(after_update=lambda u, *more: jax.tree.map(jax.numpy.sum, u))': (
    'after_update: classifier.bias must be float32[10], not float32[].'
  ),
  'moon_jax.Algorithm(perturb=lambda g, p, task: jax.tree.map(jax.numpy.sum, p))': (
    'perturb: classifier.bias must be float32[10], not float32[].'
  ),
  'moon_jax.Algorithm(init_client=lambda v: (0.0,), '
  'upload=lambda v, task: (moon_jax.Upload(v), [0.0]))': (
    "upload's memory must have the structure PyTreeDef((*,)), not PyTreeDef([*])."
  ),
  'moon_jax.Algorithm(upload=lambda v, task: (moon_jax.Upload(v), (), 0))': (
    "upload must return an Upload and the client's memory."
  ),
  'moon_jax.Algorithm(upload=lambda v, task: None)': (
    "upload must return an Upload and the client's memory."
  ),
  'moon_jax.Algorithm(begin=lambda *given: 0, after_step=lambda *given: 0.5)': (
    'after_step: it must be int32[], not float32[].'
  ),
  'moon_jax.Algorithm(aggregate=lambda s, *more: s._replace(memory=s.variables))': (
    'aggregate: memory.params.classifier.bias must be nothing, not float32['
  ),
  'moon_jax.Algorithm(scalars=lambda h, memory: {"x": jax.numpy.ones(2)})': (
    'scalars: x must be float32[], not float32[2].'
  ),
  # The gradient of `descent` would be broadcast.
  'moon_jax.Algorithm(descent=lambda g, at, v, task: (jax.tree.map(jax.numpy.sum, g), '
  'task.local))': (
    "descent's gradient: classifier.bias must be float32[10], not float32[]."
  ),
  'moon_jax.Algorithm(descent=lambda g, at, v, task: (g, 0.0))': "descent's local: it ",
  'moon_jax.Algorithm(init_client=lambda v: v, share=lambda memory: memory, '
  'mixed=lambda memory, mean: mean)': (
    "The algorithm 'mine' must have both or neither: the function `share`, and the "
    "trait 'decentralized'"
  ),
  'moon_jax.Algorithm(measured={"gap"})': (
    "The algorithm 'mine': measured must be a dict, name -> name of the part with "
  ),
  # What is wrong with the columns is told before a round is trained.
  'moon_jax.Algorithm(loss=lambda o, *more: (0.0, {"x": 0.0}), measured={"x": "y"})': (
    "measured: 'x' cannot cover the fraction 'y' of the examples, which is no part of"
  ),
  'moon_jax.Algorithm(loss=lambda o, *more: (0.0, {"drift": 0.0}))': (
    "'drift' is another column of the records: give this number of "
  ),
  'moon_jax.Algorithm(needs={"class_count"})': (
    "needs: there is no 'class_count', only class_counts, relative_size and "
    'epoch_steps.'
  ),
}


def refused(folder, capsys, text, words):
  """The one line with which a run of this config file is refused."""
  (folder / 'bad.py').write_text(text)
  assert launch(['--config=bad.py', '--workdir=run', *words]) == ExitCode.USAGE
  (line,) = capsys.readouterr().err.splitlines()
  return line


@pytest.mark.parametrize('algorithm', FAILING)
def test_a_part_that_fails_when_it_is_used_is_one_line(
  algorithm, folder, capsys, monkeypatch
):
  monkeypatch.setattr(Rounds, 'run', None)  # no round is trained before it is told
  text = f'{HEAD}moon_jax.register_algorithm("mine", lambda: {algorithm})\n'
  line = refused(folder, capsys, text, ['--config.algorithm=mine', *TINY])
  assert line.startswith(FAILING[algorithm])


@pytest.mark.slow
@pytest.mark.parametrize('store', ['disk', 'device'])
def test_a_memory_may_have_python_s_numbers(store, folder, capsys):
  algorithm = (
    'moon_jax.Algorithm(init_client=lambda v: {"n": 0}, '
    'upload=lambda v, task: (moon_jax.Upload(v), {"n": task.memory["n"] + 1}), '
    'report=lambda v, task: {"n": task.memory["n"]})'
  )
  text = f'{HEAD}moon_jax.register_algorithm("mine", lambda: {algorithm})\n'
  (folder / 'good.py').write_text(text)
  words = ['--config=good.py', '--workdir=run', '--config.algorithm=mine', *TINY]
  assert launch([*words, f'--config.execution.client_store={store}']) == ExitCode.DONE
  lines = (folder / 'run/metrics.jsonl').read_text().splitlines()
  assert [json.loads(line)['n_mean'] for line in lines] == [0.0, 1.0]


def test_a_part_that_fails_in_another_file_of_the_users_names_it(folder, capsys):
  (folder / 'helper_x.py').write_text('def loss(outputs, *more):\n  return outputs.x\n')
  text = f'{HEAD}import sys\nsys.path.append({str(folder)!r})\nimport helper_x\n'
  make = 'lambda: moon_jax.Algorithm(loss=helper_x.loss)'
  text += f'moon_jax.register_algorithm("mine", {make})\n'
  line = refused(folder, capsys, text, ['--config.algorithm=mine', *TINY])
  assert line.startswith("The algorithm 'mine' failed in helper_x.py, line 2: Attrib")


def test_the_title_of_another_algorithm_is_refused(folder, capsys):
  make = 'lambda: moon_jax.Algorithm()'
  text = f'{HEAD}moon_jax.register_algorithm("my_moon", {make}, title="MOON")\n'
  line = refused(folder, capsys, text, ['--config.algorithm=my_moon', *TINY])
  assert line.endswith(
    "register_algorithm('my_moon'): the title 'MOON' is that of 'moon'."
  )


def test_a_name_that_another_file_registered_is_refused(folder, capsys):
  assert cli.parse(['--config=mine.py'])
  shutil.copy(folder / 'mine.py', folder / 'yours.py')
  assert cli.parse(['--config=mine.py'])  # the same file twice is fine
  (line,) = complaints(capsys, '--config=yours.py')
  number = MINE.splitlines().index('moon_jax.register_algorithm(') + 1
  assert line == (
    f"--config='yours.py' failed, line {number}: register_algorithm('fedprox_l1'): the "
    'name is taken.'
  )


# --- models, data, partitions, augmentations ------------------------------------------


def test_a_knob_of_an_own_source_that_is_called_path_is_not_the_packages(folder):
  (folder / 'set.csv').write_text('a,b\n1,2\n')  # which `table` reads

  def load_nothing(*, path):
    return 0, 0

  knobs = {'path': moon_jax.knob(str, '', 'a folder')}
  moon_jax.register_data('own', load_nothing, knobs=knobs)
  data_flag = "--config.data.source='own'"
  assert sources.data_flag_of('own', {'path': 'set.csv'}) == data_flag
  with pytest.raises(DataError) as caught:
    sources.load('own', limit=0, path='set.csv')
  assert str(caught.value).startswith(f'{data_flag} must return')
  assert 'data.path' not in str(caught.value)
  assert 'is read by' not in str(caught.value)


CELL = """
import functools
import moon_jax

class Cell:
  def __init__(self, *, num_classes, units):
    pass

count = moon_jax.at_least(1)
knobs = {'units': moon_jax.knob(int, 8, 'units', count)}
moon_jax.register_model('whole', Cell, knobs=knobs)
moon_jax.register_model('partly', functools.partial(Cell, units=3))
"""


def test_classes_and_partials_of_a_notebook_s_cell():
  lines = CELL.splitlines(keepends=True)
  linecache.cache['<cell 1>'] = (len(CELL), None, lines, '<cell 1>')
  exec(compile(CELL, '<cell 1>', 'exec'), {'__name__': '__main__'})
  method = ''.join(lines[5:7])
  for name in ('whole', 'partly'):
    source = catalog.part('model', name).registered
    assert source['file'] == '__main__'
    assert source['sha256'] == hashlib.sha256(method.encode()).hexdigest()


HEAVY = """
import moon_jax
from moon_jax.config import defaults


def heavy(*, learning_rate, weight_decay, beta):
  import optax
  decay = optax.add_decayed_weights(weight_decay)
  return optax.chain(decay, optax.sgd(learning_rate, momentum=beta))


knobs = {'beta': moon_jax.knob(float, 0.9, 'momentum', moon_jax.between(0, 1))}
moon_jax.register_optimizer('heavy', heavy, knobs=knobs)
moon_jax.register_schedule('halved', lambda t, num_rounds: 0.5**t)
get_config = defaults
"""


@pytest.mark.usefixtures('quick_runs')
def test_an_optimizer_and_a_schedule(folder, capsys):
  (folder / 'heavy.py').write_text(HEAVY)
  words = ['--config=heavy.py', '--config.algorithm=fedavg', *TINY]
  words += ['--config.optimizer.weight_decay=0.1']
  heavy = [*words, '--config.optimizer.name=heavy', '--config.heavy.beta=0.5']
  heavy += ['--config.optimizer.schedule=halved', '--workdir=heavy']
  assert launch(heavy) == ExitCode.DONE
  sgd = [*words, '--config.optimizer.momentum=0.5', '--config.optimizer.schedule=step']
  sgd += ['--config.optimizer.decay=0.5', '--config.optimizer.decay_every=1']
  assert launch([*sgd, '--workdir=sgd']) == ExitCode.DONE
  check_same_records(folder / 'heavy', folder / 'sgd')
  # The schedule may depend on the number of rounds.
  capsys.readouterr()
  assert launch([*heavy, '--config.num_rounds=3']) == ExitCode.USAGE
  assert 'num_rounds: 2 -> 3' in capsys.readouterr().err


@pytest.mark.parametrize(
  ('text', 'replacement', 'flag', 'message'),
  [
    ('optax.chain(', 'print(', 'name=heavy', "optimizer 'heavy' must return Gradient"),
    ('0.5**t', '[t]', 'schedule=halved', "'halved' must return int or float, not list"),
    ('0.5**t', '1 / t', 'schedule=halved', "'halved' failed, line 14: ZeroDivision"),
  ],
)
def test_a_wrong_optimizer_or_schedule_is_one_line(
  text, replacement, flag, message, folder, capsys
):
  assert text in HEAVY
  changed = HEAVY.replace(text, replacement)
  line = refused(folder, capsys, changed, [f'--config.optimizer.{flag}', *TINY])
  assert message in line


@pytest.mark.parametrize('factor', ['-1', 'inf', 'nan'])
def test_a_rate_that_no_round_can_have_is_refused_before_training(
  factor, folder, capsys
):
  changed = HEAVY.replace('0.5**t', f'[1.0, float("{factor}")][t]')
  flag = '--config.optimizer.schedule=halved'
  line = refused(folder, capsys, changed, [flag, *TINY])
  assert f"The schedule 'halved' gives {float(factor)} in round 2: it must" in line
  assert not (folder / 'run/metrics.jsonl').exists()


def test_parts_of_one_name_are_registered_again_by_the_same_file(folder):
  (folder / 'two.py').write_text(
    f'{HEAD}alpha = moon_jax.knob(float, 0.5, "x", moon_jax.at_least(0))\n'
    'make = lambda alpha: moon_jax.Algorithm()\n'
    'moon_jax.register_algorithm("both", make, knobs={"alpha": alpha})\n'
    'moon_jax.register_model("both", lambda num_classes: None)\n'
  )
  for _ in range(2):
    chosen = cli.parse(['--config=two.py', '--config.algorithm=both']).config
    assert chosen.both.alpha == 0.5


def test_a_part_without_knobs_hides_no_group_of_its_name():
  moon_jax.register_augmentation('server_optimizer', lambda: None)
  chosen = cli.parse(['--config.algorithm=solo']).config
  assert chosen.server_optimizer.name == 'sgd'


OUTPUTS = 'return moon_jax.Outputs(z, nn.Dense(num_classes)(z), features)'
HALF = '(num_classes, dtype="float32", param_dtype="float16")'
WIDE = OUTPUTS.replace('num_classes', 'num_classes + 2')
OF = 'of 2 images and 3 classes are'
DARKER = 'return lambda key, images, rows: images[rows] // by'
RETURN = 'return images, labels, images[:30] // 2, labels[:30]'
GROUPED = (
  'return partition.grouped((np.arange(len(labels)) + shift) % num_clients, '
  'num_clients)'
)
ROBIN = "--config.partition.name='robin'"
LOST = "--config.partition.name='robin' must give each of 90 examples to one of 4 clien"


# Text of MINE -> the text in its place, and the message.
@pytest.mark.parametrize(
  ('text', 'replacement', 'message'),
  [
    (RETURN, 'return 0, 0', "--config.data.source='stripes' must return"),
    (RETURN, 'return images, labels, 0, 1', "--config.data.source='stripes': "),
    (
      GROUPED,
      'return partition.Partition([*range(90)], np.array([0, 30, 60, 80, 90]))',
      f'{ROBIN} must give `indices` as a NumPy array of integers with one axis, not li',
    ),
    (
      GROUPED,
      'return partition.Partition(np.arange(90), np.linspace(0, 90, 5))',
      f'{ROBIN} must give `offsets` as a NumPy array of integers with one axis, not fl',
    ),
    (
      GROUPED,
      'return partition.Partition(np.arange(90), np.zeros(0, int))',
      "The partition 'robin' failed at `first, last = partition.offsets[[0, -1]]`: ",
    ),
    (
      "config.partition.name, config.augmentation.name = 'robin'",
      "config.partition.name, config.augmentation.name = 'natural'",
      "--config.partition.name='natural' needs data with user ids: return train_client",
    ),
    ('(np.arange(len(labels))', '(labels[:9]', LOST),
    (
      OUTPUTS,
      WIDE,
      f"The model 'tiny' failed: TypeError: the logits {OF} float32 of shape",
    ),
    (
      OUTPUTS,
      OUTPUTS.replace('(z,', '(z[0],'),
      f'the representation {OF} float32 of shape (4,)',
    ),
    (OUTPUTS, OUTPUTS.replace('features', 'features > 0'), f'the features {OF} bool'),
    (OUTPUTS, 'return z', f'the logits {OF} float32 of shape (2, 4)'),
    (
      OUTPUTS,
      OUTPUTS.replace('(num_classes)', HALF),
      'TypeError: its params must be float32',
    ),
    (DARKER, DARKER.replace('//', '/'), 'TypeError: it returns float32 of shape (8, 7'),
    (DARKER, DARKER.replace('rows]', 'rows, 1:]'), 'returns uint8 of shape (8, 6'),
    (
      DARKER,
      'return lambda *given: None',
      "The augmentation 'darker' failed at `if augmented",
    ),
  ],
)
def test_data_and_partitions_that_are_none_are_one_line(
  text, replacement, message, folder, capsys
):
  assert text in MINE
  changed = MINE.replace(text, replacement)
  assert message in refused(folder, capsys, changed, TINY[1:])
  assert not any(path.read_bytes() for path in folder.glob('run/metrics.jsonl'))
