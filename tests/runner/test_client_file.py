"""The file of the clients' numbers: what is in it, and what survives a crash."""

import gzip
import math
from types import MappingProxyType

import numpy as np
import pandas as pd
import pytest

import moon_jax
from moon_jax.core.errors import NoCheckpointError, RunError, UsageError
from moon_jax.runner import client_file, round_records
from moon_jax.runner.client_file import ClientFile, Columns
from moon_jax.runner.run_files import CLIENTS
from tests.data import federations
from tests.runner.test_files import fill

COLUMNS = Columns(
  names=['rural,\n"west"', 'city\rof 北京', '2'],
  training_examples=np.array([12, 48, math.nan]),
  test_examples=np.array([4, 16, 3]),
)


def numbers_of(round_number):
  return {
    'user_accuracy': np.array([0.25, 1 / 3, math.nan]) / round_number,
    'personal_accuracy': np.array([math.nan, 0.5, 1.0]) / round_number,
  }


def write(folder, *round_numbers):
  """Writes some tested rounds of a new run; returns the bytes of the file."""
  with ClientFile(folder, COLUMNS, tested_rounds=[]) as file:
    for number in round_numbers:
      file.add(number, numbers_of(number))
  return (folder / CLIENTS).read_bytes()


def test_every_number_is_read_back_exactly(tmp_path):
  write(tmp_path, 10, 20)
  clients = client_file.read(tmp_path)
  assert clients.names == COLUMNS.names
  np.testing.assert_array_equal(clients.training_examples, COLUMNS.training_examples)
  assert clients.test_examples.tolist() == [4, 16, 3]
  assert clients.rounds.tolist() == [10, 20]
  for row, number in enumerate((10, 20)):
    for column, expected in numbers_of(number).items():
      np.testing.assert_array_equal(clients.numbers[column][row], expected)
  frame = clients.to_pandas()
  assert list(frame['client'][:3]) == COLUMNS.names
  assert frame['user_accuracy'].iloc[4] == 1 / 3 / 20


def test_pandas_reads_it_without_our_code(tmp_path):
  write(tmp_path, 10, 20)
  frame = pd.read_csv(tmp_path / CLIENTS)
  assert list(frame.columns) == ['round', 'number', *COLUMNS.names]
  assert frame['round'].tolist() == [0, 0, 10, 10, 20, 20]
  is_accuracy = frame['number'] == 'user_accuracy'
  assert frame[is_accuracy][COLUMNS.names[0]].tolist() == [0.025, 0.0125]


def test_resuming_removes_later_rounds_and_ends_with_the_same_bytes(tmp_path):
  whole = write(tmp_path, 10, 20, 30)
  for cut in (0, 1, 20):  # a crash leaves the last round half written
    (tmp_path / CLIENTS).write_bytes(whole[: len(whole) - cut])
    with ClientFile(tmp_path, COLUMNS, tested_rounds=[10]) as file:
      assert client_file.read(tmp_path).rounds.tolist() == [10]
      for number in (20, 30):
        file.add(number, numbers_of(number))
    assert (tmp_path / CLIENTS).read_bytes() == whole
  with ClientFile(tmp_path, COLUMNS, tested_rounds=[]):
    assert client_file.read(tmp_path) is None


def test_flush_waits_for_the_disk(tmp_path, monkeypatch):
  flushed = []
  monkeypatch.setattr(client_file.files, 'flush_descriptor', flushed.append)
  with ClientFile(tmp_path, COLUMNS, tested_rounds=[]) as file:
    file.add(1, numbers_of(1))
    flushed.clear()  # of the new file and its folder
    file.flush()
  assert len(flushed) == 1


def test_a_run_that_is_older_than_the_file_goes_on(tmp_path):
  with ClientFile(tmp_path, COLUMNS, tested_rounds=[10, 20]) as file:
    assert file.num_missing == 2
    file.add(30, numbers_of(30))
  with ClientFile(tmp_path, COLUMNS, tested_rounds=[10, 20, 30]) as file:
    assert file.num_missing == 2
  assert client_file.read(tmp_path).rounds.tolist() == [30]


def test_a_file_that_is_not_of_this_state_is_refused(tmp_path):
  whole = write(tmp_path, 10, 20)
  with pytest.raises(NoCheckpointError, match='lacks rounds that are in the checkp'):
    ClientFile(tmp_path, COLUMNS, tested_rounds=[10, 20, 30])
  with pytest.raises(NoCheckpointError, match='damaged: it has other clients than'):
    ClientFile(tmp_path, COLUMNS._replace(names=['a', 'b', 'c']), tested_rounds=[])
  assert (tmp_path / CLIENTS).read_bytes() == whole
  flipped = bytearray(whole)
  flipped[60] ^= 1
  (tmp_path / CLIENTS).write_bytes(flipped)
  for read in (client_file.read, lambda folder: ClientFile(folder, COLUMNS, [10])):
    with pytest.raises(NoCheckpointError, match=r'clients\.csv\.gz is damaged'):
      read(tmp_path)


@pytest.mark.parametrize(
  'text',
  [
    'nonsense',
    'round,number,a\n0,training_examples,1\n',
    'round,number,a\n0,training_examples,1\n0,test_examples,1,2\n',
    'round,number,a\n0,training_examples,1\n0,test_examples,many\n',
    'round,number,a\n0,training_examples,1\n0,test_examples,inf\n',
    b'\xff\xfe',
  ],
)
def test_other_content_is_one_line(tmp_path, text):
  data = text if isinstance(text, bytes) else text.encode()
  rounds = gzip.compress(data) + gzip.compress(b'1,user_accuracy,0.5\n')
  (tmp_path / CLIENTS).write_bytes(rounds)
  with pytest.raises(NoCheckpointError, match=r'clients\.csv\.gz is damaged: '):
    client_file.read(tmp_path)


def write_rounds(folder, *rounds):
  """Writes the file of one client."""
  head = 'round,number,a\n0,training_examples,1\n0,test_examples,1\n'
  members = [gzip.compress(text.encode()) for text in (head, *rounds)]
  (folder / CLIENTS).write_bytes(b''.join(members))


def test_an_accuracy_that_no_client_has_in_every_round_is_damage(tmp_path):
  """A chart has a line for each client with an accuracy in every round."""
  write_rounds(tmp_path, '1,user_accuracy,0.5\n', '2,user_accuracy,\n')
  with pytest.raises(NoCheckpointError, match='damaged: no client has a number'):
    client_file.read(tmp_path)


def test_a_metric_may_be_new_in_a_later_round_and_undefined(tmp_path):
  write_rounds(
    tmp_path,
    '1,local_accuracy,0.5\n',
    '2,local_accuracy,0.5\n2,local_balanced_accuracy,0.4\n2,rare_accuracy,\n',
  )
  numbers = client_file.read(tmp_path).numbers
  np.testing.assert_array_equal(numbers['local_balanced_accuracy'], [[np.nan], [0.4]])
  assert np.isnan(numbers['rare_accuracy']).all()


def test_a_round_that_grows_beyond_all_measure_is_not_unpacked(tmp_path, monkeypatch):
  monkeypatch.setattr(client_file.files, 'MOST_TEXT_BYTES', 10_000)
  (tmp_path / CLIENTS).write_bytes(gzip.compress(bytes(10**6)))
  with pytest.raises(NoCheckpointError, match='a round has more than 10,000 bytes'):
    client_file.read(tmp_path)


def test_a_full_disk_is_one_line_and_loses_no_round(disk):
  folder = disk('small', '128k')
  many = [str(client) for client in range(300)]
  sizes = np.ones(len(many), np.int64)
  columns = Columns(names=many, training_examples=sizes, test_examples=sizes)
  rng = np.random.default_rng(0)

  def add_many(file):
    for number in range(2, 100):
      file.add(number, {'user_accuracy': rng.random(len(many))})

  with ClientFile(folder, columns, tested_rounds=[]) as file:
    file.add(1, {'user_accuracy': rng.random(len(many))})
    fill(folder)
    with pytest.raises(RunError, match=r'clients\.csv\.gz cannot be written: No spa'):
      add_many(file)
  rounds = client_file.read(folder).rounds.tolist()
  assert rounds == list(range(1, len(rounds) + 1))


def test_ten_thousand_clients_over_a_hundred_rounds_take_a_few_megabytes(tmp_path):
  rng = np.random.default_rng(0)
  sizes = rng.integers(5, 80, 10_000)
  skill = rng.uniform(0.5, 0.95, len(sizes))
  names = [f'f{number:04d}_{number % 89:02d}' for number in range(len(sizes))]
  columns = Columns(names=names, training_examples=sizes, test_examples=sizes)
  with ClientFile(tmp_path, columns, tested_rounds=[]) as file:
    for number in range(1, 11):
      file.add(number, {'user_accuracy': rng.binomial(sizes, skill) / sizes})
  # A tenth of the rounds.
  assert (tmp_path / CLIENTS).stat().st_size < 0.35e6


# --- runs -----------------------------------------------------------------------------

NATURAL = {
  'algorithm': 'fedavg',
  'model': 'mlp',
  'partition.name': 'natural',
  'partition.min_size': 5,
  'batch_size': 8,
  'local_epochs': 1,
  'num_rounds': 2,
  'eval_every_rounds': 2,
}


def clients_of(folder, changes=MappingProxyType({})):
  """The file of a finished run on a federation with five users, and its records."""
  knobs = federations.npz(folder, federations.make_federation())
  config = moon_jax.load_config('configs/base.py', NATURAL | knobs | changes)
  run = moon_jax.run(config, folder / 'run')
  return client_file.read(run.workdir), run


def spread(clients, column):
  """What metrics.jsonl has of a column, from the clients' numbers in the last round."""
  accuracy = clients.numbers[column][-1]
  is_tested = ~np.isnan(accuracy)
  sizes = clients.test_examples[is_tested]
  num_correct = np.rint(accuracy[is_tested] * sizes)
  return round_records.over_clients(num_correct, sizes, column)


def test_the_users_of_a_federation_by_name(tmp_path):
  clients, run = clients_of(tmp_path)
  assert clients.rounds.tolist() == [2]
  assert moon_jax.load(run.workdir).clients.names == run.clients.names == clients.names
  federation = federations.make_federation()
  trained = {
    name: len(labels)
    for name, (_, labels) in federation['train'].items()
    if len(labels) >= 5
  }
  tested = {name: len(labels) for name, (_, labels) in federation['test'].items()}
  names = [*sorted(trained.keys() & tested.keys()), *sorted(tested.keys() - trained)]
  assert clients.names == names
  assert clients.training_examples.tolist() == [trained.get(name, 0) for name in names]
  assert clients.test_examples.tolist() == [tested[name] for name in names]
  assert clients.numbers.keys() == {'user_accuracy'}
  last = run.metrics[-1]
  for column, number in spread(clients, 'user_accuracy').items():
    assert last[column] == number
  assert last['user_accuracy_min'] == clients.numbers['user_accuracy'].min()


def test_the_clients_own_models_by_name(tmp_path):
  clients, run = clients_of(tmp_path, {'algorithm': 'ditto'})
  last = run.metrics[-1]
  # Two users do not train: they have no models of their own.
  has_model = clients.training_examples > 0
  assert has_model.sum() == len(has_model) - 2
  for column in ('user_accuracy', 'local_accuracy', 'personal_accuracy'):
    for name, number in spread(clients, column).items():
      assert last[name] == number
  user, local, personal = (
    clients.numbers[f'{model}_accuracy'][-1] for model in ('user', 'local', 'personal')
  )
  assert np.isnan(personal).tolist() == (~has_model).tolist()
  np.testing.assert_array_equal(local[has_model], user[has_model])


def test_models_of_clients_on_the_whole_test_set(tmp_path):
  clients, run = clients_of(tmp_path, {'algorithm': 'solo'})
  accuracy = clients.numbers['test_accuracy'][-1]
  assert accuracy.min() == run.metrics[-1]['test_accuracy_worst']
  assert accuracy.mean() == run.metrics[-1]['test_accuracy']
  assert (clients.test_examples > 0).any()


def test_clients_without_names_are_numbered(tmp_path):
  changes = {'num_clients': 4, 'data.limit': 200, 'data.local_test': 0.25}
  config = moon_jax.load_config(
    'configs/base.py', {'algorithm': 'fedavg', 'num_rounds': 1, **changes}
  )
  run = moon_jax.run(config, tmp_path / 'run')
  clients = client_file.read(run.workdir)
  assert clients.names == ['0', '1', '2', '3']
  assert clients.test_examples.sum() + clients.training_examples.sum() == 200
  assert (
    spread(clients, 'local_accuracy')['local_accuracy_mean']
    == (run.metrics[-1]['local_accuracy_mean'])
  )


def test_a_resumed_run_ends_with_the_same_file(tmp_path):
  (tmp_path / 'undisturbed').mkdir()
  every_round = {'eval_every_rounds': 1, 'checkpoint_every_rounds': 5, 'num_rounds': 3}
  _, undisturbed = clients_of(tmp_path / 'undisturbed', every_round)
  knobs = federations.npz(tmp_path, federations.make_federation())
  config = moon_jax.load_config('configs/base.py', NATURAL | knobs | every_round)

  class Interruption(moon_jax.Callback):
    def after_round(self, round):
      if round.number == 3:  # two rounds are recorded, and no state is saved
        raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt):
    moon_jax.run(config, tmp_path / 'run', callbacks=[Interruption()])
  assert client_file.read(tmp_path / 'run').rounds.tolist() == [1, 2]
  moon_jax.run(config, tmp_path / 'run')
  expected = (undisturbed.workdir / CLIENTS).read_bytes()
  assert (tmp_path / 'run' / CLIENTS).read_bytes() == expected


def test_a_run_without_tests_of_clients_has_no_such_file(workdir):
  assert not (workdir / CLIENTS).exists()
  with pytest.raises(UsageError, match=r'has no numbers of single clients'):
    _ = moon_jax.load(workdir).clients
