"""Tables of pandas: columns become numbers, users and labels, or are refused."""

import csv
import os
import shutil
from types import MappingProxyType

import numpy as np
import pytest

import moon_jax
from moon_jax.building import experiment
from moon_jax.core import machine_memory
from moon_jax.core.errors import ExitCode, KnobError
from moon_jax.data import layouts, table
from moon_jax.data.data_errors import DataError
from moon_jax.predict.command import main as predict
from tests.data.federations import load
from tests.refusals import refused
from tests.run_directories import edit_json
from tests.test_untrusted import no_files
from tests.watching import within

pandas = pytest.importorskip('pandas', reason='pandas is missing')


def frame_of(num_rows=24):
  numbers = np.arange(num_rows)
  return pandas.DataFrame(
    {
      'age': numbers + 0.5,
      'smokes': numbers % 3 == 0,
      'job': np.where(numbers % 4 < 2, 'clerk', 'nurse'),
      'outcome': np.where(numbers % 2, 'ill', 'well'),
      'hospital': np.array(['a', 'b', 'c'])[numbers // 8 % 3],
    }
  )


def knobs_of(path, changes=MappingProxyType({})):
  knobs = {'client': 'hospital', 'label': 'outcome', 'categories': 'job'}
  knobs |= {'test_fraction': 0.25} | changes
  options = {f'data.{name}': value for name, value in knobs.items()}
  return {'data.source': 'table', 'data.path': str(path)} | options


def write(frame, path):
  path.parent.mkdir(exist_ok=True)
  if path.suffix == '.csv':
    frame.to_csv(path, index=False)
  else:
    pytest.importorskip('pyarrow', reason='pyarrow is missing')
    frame.to_parquet(path)
  return path


@pytest.mark.parametrize('suffix', ['.csv', '.parquet'])
def test_columns_are_numbers_users_and_labels(suffix, tmp_path, capsys):
  frame = frame_of()
  data = load(knobs_of(write(frame, tmp_path / f'patients{suffix}')))
  assert 'features: age, smokes, job=clerk, job=nurse' in capsys.readouterr().err
  assert (data.form.kind, data.train_images.shape) == ('table', (18, 4))
  assert data.class_names == ('ill', 'well')
  assert data.clients.tolist() == ['a', 'b', 'c']
  # A quarter of each hospital's 8 rows is drawn, and no row is in both splits.
  assert np.bincount(data.test_clients).tolist() == [2, 2, 2]
  ages = np.concatenate([data.train_images[:, 0], data.test_images[:, 0]])
  assert sorted(ages) == frame.age.tolist()
  for images, labels, owners in (
    (data.train_images, data.train_labels, data.train_clients),
    (data.test_images, data.test_labels, data.test_clients),
  ):
    row = (images[:, 0] - 0.5).astype(int)
    np.testing.assert_array_equal(images[:, 1], row % 3 == 0)
    np.testing.assert_array_equal(images[:, 2], row % 4 < 2)
    np.testing.assert_array_equal(images[:, 3], row % 4 >= 2)
    np.testing.assert_array_equal(labels, 1 - row % 2)
    np.testing.assert_array_equal(owners, row // 8)


def test_two_files_share_columns_and_categories(tmp_path, capsys):
  frame = frame_of().drop(columns='hospital')
  write(frame[::-1], tmp_path / 'set/train.csv')
  # In another order, and without nurses.
  test = frame[frame.job == 'clerk'][frame.columns[::-1]]
  write(test, tmp_path / 'set/test.csv')
  write(frame, tmp_path / 'set/val.csv')
  data = load(knobs_of(tmp_path / 'set', {'test_fraction': 0.0, 'client': ''}))
  assert ': not used: val.csv.\n' in capsys.readouterr().err
  assert data.clients is None
  np.testing.assert_array_equal(data.test_images[:, 0], test.age)
  np.testing.assert_array_equal(data.test_images[:, 3], 0)


@pytest.mark.parametrize(
  ('change', 'knobs', 'words'),
  [
    ({}, {'categories': ''}, "job holds no numbers; --config.data.categories='job'"),
    ({}, {'client': 'ward'}, "no column 'ward' of --config.data.client"),
    ({}, {'label': ''}, 'name its label by --config.data.label'),
    (
      {},
      {'label': 'outcom'},
      "no column 'outcom' of --config.data.label; it has age, smokes, job, outcome, "
      "hospital. Did you mean 'outcome'?",
    ),
    ({}, {'categories': 'job,outcome'}, "has 'outcome', which is the label: leave"),
    ({}, {'categories': 'job,hospital'}, "has 'hospital', which is the user: leave"),
    ({}, {'client': 'outcome'}, "client='outcome' is the label, too: every client"),
    ({}, {'test_fraction': 0.0}, 'test_fraction=0.2 draws a fifth'),
    ({'age': np.nan}, {}, "'age' has 1 missing entry, in row 5 "),
    ({'job': None}, {}, "'job' has 1 missing entry, in row 5 "),
    (
      {'outcome': None},
      {},
      r"patients\.csv': the (training|test) rows: 'outcome' has 1 missing entry, in ",
    ),
  ],
)
def test_a_table_that_cannot_be_used_is_refused(change, knobs, words, tmp_path):
  frame = frame_of()
  for name, entry in change.items():
    frame.loc[5, name] = entry
  path = write(frame, tmp_path / 'patients.csv')
  with refused(DataError, words):
    load(knobs_of(path, knobs))


@pytest.mark.parametrize(
  ('change', 'words'),
  [
    (
      lambda text: text.replace(',', ';').encode(),
      'one column, age;smokes;job;outcome',
    ),
    (lambda text: text.replace(',', '\t').encode(), 'columns by commas, not by semic'),
    (
      lambda text: text.replace('nurse', 'Ärztin').encode('latin-1'),
      r'patients\.csv is not UTF-8: save the file as UTF-8\.',
    ),
  ],
)
def test_a_csv_file_of_another_program_is_told_its_remedy(change, words, tmp_path):
  path = write(frame_of(), tmp_path / 'patients.csv')
  path.write_bytes(change(path.read_text()))
  with refused(DataError, words):
    load(knobs_of(path))


def test_labels_that_pandas_has_made_floats_are_integers(tmp_path):
  frame = frame_of()
  classes = np.arange(len(frame)) % 2
  data = load(knobs_of(write(frame.assign(outcome=classes + 0.0), tmp_path / 'a.csv')))
  same = load(knobs_of(write(frame.assign(outcome=classes), tmp_path / 'b.csv')))
  np.testing.assert_array_equal(data.train_labels, same.train_labels)
  np.testing.assert_array_equal(data.test_labels, same.test_labels)
  for change in (0.5, np.inf):
    path = write(frame.assign(outcome=classes + change), tmp_path / 'c.csv')
    with refused(DataError, 'the training outcome is float64, not integer'):
      load(knobs_of(path))


def test_floats_of_users_and_categories_are_integers(tmp_path):
  """pandas writes 1.0 for 1 if a row without the entry was left out."""
  (tmp_path / 'train.csv').write_text(
    'age,ward,outcome,hospital\n' + '30,1,0,7\n40,2,1,8\n' * 2
  )
  (tmp_path / 'test.csv').write_text('age,ward,outcome,hospital\n50,2.0,1.0,7.0\n')
  knobs = {'test_fraction': 0.0, 'categories': 'ward'}
  data = load(knobs_of(tmp_path, knobs))
  assert data.feature_names == ('age', 'ward=1', 'ward=2')
  assert data.test_images.tolist() == [[50, 0, 1]]
  assert (data.clients.tolist(), data.test_clients.tolist()) == ([7, 8], [0])
  (tmp_path / 'test.csv').write_text('age,ward,outcome,hospital\n50,2,1,7.5\n')
  with refused(DataError, "the test rows: 'hospital' is float64, neither integers nor"):
    load(knobs_of(tmp_path, knobs))


def test_a_user_has_one_name_in_all_parts_of_a_large_file(tmp_path):
  """Pandas can give each part of a file types of its own; 007 would be 7 in one."""
  names = ['label', 'client', *(f'x{column}' for column in range(98))]
  zeros = ',0' * 98
  rows = [f'{row % 2},007{zeros}' for row in range(9000)]
  rows += [f'{row % 2},{client}{zeros}' for client in ('007', 'a') for row in range(4)]
  path = tmp_path / 'large.csv'
  path.write_text('\n'.join([','.join(names), *rows]))
  knobs = {'label': 'label', 'client': 'client', 'categories': ''}
  assert load(knobs_of(path, knobs)).clients.tolist() == ['007', 'a']


@pytest.mark.parametrize('has_job', [True, False])
def test_a_column_of_texts_is_proposed_as_texts_first(has_job, tmp_path):
  frame = frame_of().drop(columns=[] if has_job else 'job')
  frame['note'] = [f'note {row}' for row in range(len(frame))]
  columns = 'job, note hold' if has_job else 'note holds'
  with refused(
    DataError,
    f"{columns} no numbers; --config.data.tokenizer='wordpiece' "
    "--config.data.text='note' --config.model='gru' reads texts, --config.data.cat",
  ):
    load(knobs_of(write(frame, tmp_path / 'notes.csv'), {'categories': ''}))


def test_an_unseen_category_of_a_test_file_is_refused(tmp_path):
  frame = frame_of()
  write(frame[frame.job == 'clerk'], tmp_path / 'set/train.csv')
  write(frame, tmp_path / 'set/test.csv')
  with refused(
    DataError,
    "'job' holds 'nurse' in 12 rows, first in row 2 .counted from 0.; training has "
    'clerk. Remove these rows.',
  ):
    load(knobs_of(tmp_path / 'set', {'test_fraction': 0.0}))


def test_a_test_file_of_digits_alone_has_the_texts_of_training(tmp_path):
  (tmp_path / 'train.csv').write_text(
    'age,job,outcome,hospital\n' + '30,01234,01,007\n40,A9,ill,b\n' * 2
  )
  (tmp_path / 'test.csv').write_text('hospital,outcome,job,age\n007,01,01234,50\n')
  data = load(knobs_of(tmp_path, {'test_fraction': 0.0}))
  assert data.feature_names == ('age', 'job=01234', 'job=A9')
  assert data.test_images.tolist() == [[50, 1, 0]]
  assert (data.class_names, data.test_labels.tolist()) == (('01', 'ill'), [0])
  assert (data.clients.tolist(), data.test_clients.tolist()) == (['007', 'b'], [0])


@pytest.mark.parametrize('name', ['age', 'outcome', 'hospital'])
def test_a_column_that_a_test_file_lacks_is_refused(name, tmp_path):
  write(frame_of(), tmp_path / 'set/train.csv')
  write(frame_of().drop(columns=name), tmp_path / 'set/test.csv')
  with refused(DataError, f'the test rows lack the columns {name}'):
    load(knobs_of(tmp_path / 'set', {'test_fraction': 0.0}))


@pytest.mark.parametrize(
  ('text', 'words'),
  [
    # pandas would call the second one label.1, and take it for a feature.
    ('age,label,label\n63,1,1\n41,0,0\n', 'several columns of one name: label'),
    # The numbers of the rows, as pandas writes them.
    (',age,label\n0,63,1\n1,41,0\n', 'has a column without a name: name it, or'),
    # It would shift each row by one.
    (
      'age,dose,label\n61,3,1,0\n45,2,0,1\n',
      'csv has rows with more fields than its first',
    ),
  ],
)
def test_a_first_line_that_does_not_name_each_column_is_refused(text, words, tmp_path):
  path = tmp_path / 'patients.csv'
  path.write_text(text)
  knobs = {'label': 'label', 'client': '', 'categories': '', 'test_fraction': 0.5}
  with refused(DataError, words):
    load(knobs_of(path, knobs))
  # A comma at the end of each row is no field.
  path.write_text('age,dose,label\n61,3,1,\n45,2,0,\n30,1,1,\n20,4,0,\n')
  data = load(knobs_of(path, knobs))
  numbers = np.concatenate([data.train_images, data.test_images])
  assert sorted(numbers.tolist()) == [[20, 4], [30, 1], [45, 2], [61, 3]]


def of_lists(frame):
  return frame.assign(age=[[1, 2]] * len(frame))


def of_structures(frame):
  return frame.assign(job=[{'a': 1}] * len(frame))


@pytest.mark.parametrize(
  ('change', 'knobs', 'words'),
  [
    (of_lists, {}, "the column 'age' holds a ndarray in a row"),
    (of_lists, {'label': 'age'}, "the column 'age' holds a ndarray in a row"),
    (
      of_lists,
      {'label': 'age', 'tokenizer': 'characters', 'text': 'job', 'categories': ''},
      "the column 'age' holds a ndarray in a row",
    ),
    (of_structures, {}, "the column 'job' holds a dict in a row"),
    (
      lambda frame: frame.rename(columns={'age': 'job=clerk'}),
      {},
      'the column job=clerk is called as a category of a column of',
    ),
    (
      lambda frame: frame.assign(job='cle=rk').rename(columns={'age': 'job=cle'}),
      {'categories': 'job,job=cle'},
      'the column job=cle is called as a category',
    ),
    (lambda frame: frame[:0], {}, 'has no rows'),
    (
      lambda frame: frame[:2],
      {'client': '', 'categories': 'job,hospital'},
      'test_fraction=0.25 draws nothing: each of the 2 classes, or users, has a',
    ),
  ],
)
def test_a_table_of_a_stranger_is_refused(change, knobs, words, tmp_path):
  path = write(change(frame_of()), tmp_path / 'patients.parquet')
  with refused((DataError, KnobError), words):
    load(knobs_of(path, knobs))


def test_a_table_that_the_memory_cannot_hold_is_refused(tmp_path, monkeypatch):
  """A file of holes; equal numbers, which take no space in a file; many categories."""
  frame = frame_of(2000).assign(age=1.0)
  path = write(frame, tmp_path / 'equal.parquet')
  # Less than 2000 rows of 4 features and a label of 8 bytes each, more than the file.
  monkeypatch.setattr(machine_memory, 'total_bytes', lambda: 75_000)
  assert path.stat().st_size < machine_memory.total_bytes()
  (tmp_path / 'holes.csv').touch()
  os.truncate(tmp_path / 'holes.csv', 75_001)
  for larger in (path, tmp_path / 'holes.csv'):
    with refused(DataError, 'Its content takes'):
      load(knobs_of(larger))
  path = write(frame_of(500), tmp_path / 'words.csv')
  diverse = frame_of(500).assign(job=[f'w{row}' for row in range(500)])
  assert (
    write(diverse, tmp_path / 'many.csv').stat().st_size < machine_memory.total_bytes()
  )
  load(knobs_of(path))
  with refused(DataError, "'job' of --config.data.categories has 500 categories"):
    load(knobs_of(tmp_path / 'many.csv'))


def test_users_of_a_table_are_in_a_column(tmp_path):
  frame = frame_of().drop(columns='hospital')
  knobs = knobs_of(write(frame, tmp_path / 'patients.csv'), {'client': ''})
  knobs |= {'partition.name': 'natural', 'model': 'mlp', 'algorithm': 'fedavg'}
  config = moon_jax.load_config('configs/base.py', knobs)
  with refused(DataError, 'name the column of the users by --config.data.client=COL'):
    experiment.build(config)


def test_names_of_features_are_printed_in_one_line(tmp_path, capsys):
  frame = frame_of().rename(columns={'age': 'a\nge\x1b[31m'})
  load(knobs_of(write(frame, tmp_path / 'patients.csv')))
  (line,) = capsys.readouterr().err.splitlines()
  assert 'smokes' in line
  assert '\x1b' not in line


@pytest.fixture(scope='module')
def run(tmp_path_factory, quick_runs):
  """A run on a table."""
  folder = tmp_path_factory.mktemp('table')
  path = write(frame_of(), folder / 'patients.csv')
  knobs = knobs_of(path) | {'partition.name': 'natural', 'model': 'mlp'}
  knobs |= {'algorithm': 'fedavg', 'num_rounds': 1, 'logger': ''}
  knobs |= {'execution.devices': 1, 'partition.min_size': 1}
  moon_jax.run(moon_jax.load_config('configs/base.py', knobs), folder / 'run')
  return folder / 'run'


@pytest.mark.slow
def test_a_table_in_another_order_is_predicted_alike(run, tmp_path, capsys):
  def predicted(frame):
    write(frame, tmp_path / 'other.csv')
    target = tmp_path / 'predicted.csv'
    words = ['--source=table', '--split=test', f'--input={tmp_path / "other.csv"}']
    code = predict([f'--workdir={run}', f'--output={target}', *words])
    return code, target.read_text(), capsys.readouterr()

  frame = frame_of()
  code, expected, _ = predicted(frame)
  assert code == ExitCode.DONE
  code, text, _ = predicted(frame[frame.columns[::-1]])
  assert (code, text) == (ExitCode.DONE, expected)
  # 'abbot' would take the place of 'clerk'.
  code, _, printed = predicted(frame.replace({'job': {'nurse': 'abbot'}}))
  assert code == ExitCode.USAGE
  assert 'only one of them has job=abbot, job=nurse' in printed.err + printed.out


@pytest.mark.parametrize('neighbour', ['', '60,A9,1.5,dead\n'])
def test_a_row_is_read_alike_beside_any_other(neighbour, tmp_path):
  path = tmp_path / 'new.csv'
  path.write_text(f'age,zip,dose,label\n50,01234,2,01\n{neighbour}')
  rows = table.read_rows(
    '--input',
    path,
    ('age', 'zip=01234', 'zip=A9', 'dose=1.5', 'dose=2.0'),
    label='',
    client='',
    categories='zip,dose',
    class_names=('01', 'dead'),
  )
  assert rows.features[0].tolist() == [50, 1, 0, 0, 1]
  assert rows.labels[0] == '01'


def test_a_text_of_digits_alone_is_a_text(tmp_path):
  path = tmp_path / 'new.csv'
  path.write_text('text,label\n2024,01\n')
  _, texts, labels = table.read_texts(
    '--input', path, text='', label='', class_names=('01', 'dead')
  )
  assert (texts.tolist(), labels.tolist()) == (['2024'], ['01'])


@pytest.mark.parametrize('source', [[], ['--source=table']])
def test_every_row_of_a_new_table_is_scored(source, run, tmp_path, capsys):
  # 29 clerks and columns in another order: no row is drawn, and job=nurse is 0.
  frame = frame_of(58)
  frame = frame[frame.job == 'clerk'][::-1].head(29)
  path = write(frame[frame.columns[::-1]], tmp_path / 'new.csv')
  words = [f'--workdir={run}', f'--input={path}', f'--output={tmp_path}/out.csv']
  assert predict(words + source) == ExitCode.DONE
  printed = capsys.readouterr().out
  assert 'out.csv: 29 rows, by the global model' in printed
  with open(tmp_path / 'out.csv', newline='') as file:
    rows = list(csv.DictReader(file))
  assert [row['name'] for row in rows] == [str(number) for number in range(29)]
  assert [row['label'] for row in rows] == frame.outcome.tolist()
  features = frame[['age', 'smokes']].assign(clerk=1, nurse=0).to_numpy(np.float64)
  predictions = moon_jax.load(run).predict(features)
  classes = np.array(['ill', 'well'])[predictions.labels]
  assert [row['predicted'] for row in rows] == classes.tolist()
  powers = np.exp(predictions.logits)
  probabilities = [float(row['probability of ill']) for row in rows]
  np.testing.assert_allclose(probabilities, powers[:, 0] / powers.sum(1), rtol=1e-4)
  assert f'accuracy {np.mean(classes == frame.outcome):.4f}' in printed
  assert (tmp_path / 'out_confusion.csv').exists()


def test_a_model_of_integers_takes_a_table_of_integers(tmp_path, capsys):
  numbers = np.arange(48).reshape(24, 2)
  labels = np.arange(24) // 12
  np.savez(
    tmp_path / 'set.npz',
    train_x=numbers,
    train_y=labels,
    test_x=numbers,
    test_y=labels,
    feature_names=np.array(['age', 'dose']),
  )
  knobs = {
    'data.source': 'npz',
    'data.path': str(tmp_path / 'set.npz'),
    'data.axes': 'D',
    'partition.name': 'iid',
    'partition.min_size': 1,
    'num_clients': 2,
    'model': 'mlp',
    'mlp.width': 8,
    'algorithm': 'fedavg',
    'num_rounds': 1,
    'logger': '',
    'execution.devices': 1,
  }
  run = moon_jax.run(moon_jax.load_config('configs/base.py', knobs), tmp_path / 'run')
  (tmp_path / 'new.csv').write_text('dose,age\n1,0\n47,46\n')
  words = [f'--workdir={run.workdir}', f'--input={tmp_path}/new.csv']
  assert predict(words) == ExitCode.DONE, capsys.readouterr().err
  with open(tmp_path / 'new_predictions.csv', newline='') as file:
    predicted = [row['predicted'] for row in csv.DictReader(file)]
  expected = run.model.predict(numbers[[0, -1]]).labels
  assert predicted == list(map(str, expected))


def test_a_table_without_labels_is_predicted(run, tmp_path, capsys):
  frame = (
    frame_of().drop(columns=['outcome', 'hospital']).set_index(np.arange(24) + 100)
  )
  path = write(frame, tmp_path / 'new.parquet')
  assert predict([f'--workdir={run}', f'--input={path}']) == ExitCode.DONE
  printed = capsys.readouterr().out
  assert '24 rows' in printed
  assert 'accuracy' not in printed
  with open(tmp_path / 'new_predictions.csv', newline='') as file:
    rows = list(csv.DictReader(file))
  assert [row['name'] for row in rows] == [str(number) for number in frame.index]
  assert 'label' not in rows[0]
  assert not (tmp_path / 'new_predictions_confusion.csv').exists()


@pytest.mark.parametrize(
  ('change', 'words'),
  [
    (lambda frame: frame.head(0), 'has no rows'),
    (lambda frame: frame.drop(columns='age'), 'the rows lack the columns age'),
    (
      lambda frame: frame.rename(columns={'outcome': 'y'}),
      'not trained on the columns y',
    ),
    (lambda frame: frame.replace('well', 'dead'), 'does not know the classes dead'),
    (lambda frame: frame.assign(outcome=0), 'does not know the classes 0'),
    (lambda frame: frame.assign(job='abbot'), "'job' holds 'abbot'"),
  ],
)
def test_a_table_that_the_model_does_not_know_is_refused(
  change, words, run, tmp_path, capsys
):
  path = write(change(frame_of()), tmp_path / 'new.csv')
  assert predict([f'--workdir={run}', f'--input={path}']) == ExitCode.USAGE
  (line,) = capsys.readouterr().err.splitlines()
  assert f'--input={str(path)!r}' in line
  assert words in line


def test_a_picture_for_a_model_of_tables_is_refused(run, tmp_path, capsys):
  (tmp_path / 'it.png').write_bytes(b'')
  assert predict([f'--workdir={run}', f'--input={tmp_path}']) == ExitCode.USAGE
  (line,) = capsys.readouterr().err.splitlines()
  assert line.endswith('but a file that ends in .npz, .csv or .parquet.')


@pytest.mark.parametrize('ending', ['.csv', '.parquet'])
def test_predict_waits_for_no_table_that_is_no_file(run, ending, tmp_path, capsys):
  for path in no_files(tmp_path):
    table = path.with_name(f'{path.name}{ending}')
    table.symlink_to(path)
    with within(10):
      code = predict([f'--workdir={run}', f'--input={table}'])
    assert code == ExitCode.USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith('--input=')


@pytest.mark.parametrize(
  'names', [['', 'x'], ['age', 'age'], ['=', 'job='], ['x' * 10**6, 'a\n\x1b[31m']]
)
def test_names_of_features_of_a_stranger(run, names, tmp_path, capsys):
  """Whatever names config.json has, one short line says what the table lacks."""
  shutil.copytree(run, tmp_path / 'run')
  edit_json(
    tmp_path / 'run/config.json', lambda s: s['images'].update(feature_names=names)
  )
  path = write(frame_of(), tmp_path / 'new.csv')
  capsys.readouterr()
  code = predict([f'--workdir={tmp_path / "run"}', f'--input={path}'])
  assert code == ExitCode.USAGE
  (line,) = capsys.readouterr().err.splitlines()
  assert len(line) < 1000
  assert '\x1b' not in line


def test_the_source_of_a_table_is_proposed(tmp_path):
  path = write(frame_of(), tmp_path / 'set/train.csv')
  assert layouts.source_of(str(path))[0] == 'table'
  assert layouts.source_of(str(path.parent))[0] == 'table'
