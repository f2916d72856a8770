"""The file of the clients' numbers: what is in it, and what survives a crash."""

import gzip
import math
from unittest import mock

import numpy as np
import pandas as pd
import pytest

from moon_jax.core.errors import NoCheckpointError, RunError
from moon_jax.runner import callbacks, client_file, plots
from moon_jax.runner.client_file import ClientFile, Columns
from moon_jax.runner.run_files import CLIENTS
from tests.conftest import draw_pictures
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
  # After a power loss a file may end with zeros.
  (tmp_path / CLIENTS).write_bytes(whole + bytes(5000))
  with ClientFile(tmp_path, COLUMNS, tested_rounds=[10, 20, 30]):
    assert (tmp_path / CLIENTS).read_bytes() == whole
  (tmp_path / CLIENTS).write_bytes(whole[:-30] + bytes(5000))
  with ClientFile(tmp_path, COLUMNS, tested_rounds=[10, 20]):
    assert client_file.read(tmp_path).rounds.tolist() == [10, 20]
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
  with ClientFile(tmp_path, COLUMNS, tested_rounds=[10, 20]) as file:
    assert file.num_missing == 2
  assert client_file.read(tmp_path) is None


def test_damage_in_rounds_that_are_run_again_is_none(tmp_path):
  whole = write(tmp_path, 10, 20)
  up_to_10 = write(tmp_path, 10)
  damaged = bytearray(whole + b'the end')
  damaged[len(up_to_10) + 20] ^= 1
  for tested_rounds in ([10], []):
    (tmp_path / CLIENTS).write_bytes(damaged)
    with ClientFile(tmp_path, COLUMNS, tested_rounds) as file:
      for number in (10, 20)[len(tested_rounds) :]:
        file.add(number, numbers_of(number))
    assert (tmp_path / CLIENTS).read_bytes() == whole


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
  with pytest.raises(NoCheckpointError, match='large: a round has more than 10,000 b'):
    client_file.read(tmp_path)


def test_a_run_with_more_numbers_than_are_read_ends_without_their_picture(
  tmp_path, monkeypatch
):
  write(tmp_path, 10, 20)
  monkeypatch.setattr(client_file, '_MOST_BYTES', 100)
  lines, pictures = [], []
  for name in ('curves', 'heat_map', 'clients'):
    monkeypatch.setattr(plots, name, lambda path, *_, **__: pictures.append(path.name))
  experiment = mock.MagicMock()
  run = callbacks.Run(None, tmp_path, experiment, [{'round': 20}], range(0))
  draw_pictures(callbacks.PictureDrawer(run, [], lines.append))
  assert lines == [
    f'clients.png is left out: {tmp_path / CLIENTS} is too large: its text has more '
    'than 100 bytes.'
  ]
  assert pictures == ['curves.png', 'partition.png']


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
