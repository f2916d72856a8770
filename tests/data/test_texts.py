"""Texts become words of one vocabulary, which the run keeps, or are refused."""

import csv
import json
import shutil
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest

import moon_jax
from moon_jax.building import data as building_data
from moon_jax.core import machine_memory
from moon_jax.core.errors import ExitCode, KnobError, NoCheckpointError, UsageError
from moon_jax.data import client_tests, sources, texts
from moon_jax.data.data_errors import DataError
from moon_jax.predict.command import main as predict
from tests.data.federations import load
from tests.refusals import refused

datasets = pytest.importorskip('datasets', reason='datasets is missing')
pandas = pytest.importorskip('pandas', reason='pandas is missing')
pytest.importorskip('tokenizers', reason='tokenizers is missing')

pytestmark = pytest.mark.usefixtures('quick_runs')

GOOD = ['a good day', 'good, very good', 'what a good film!', 'Good.']
BAD = ['a bad day', 'bad, very bad', 'what a bad film!', 'Bad.']
REVIEWS = [*GOOD, *BAD] * 3
MOODS = ['good'] * 4 + ['bad'] * 4
USERS = ['ann'] * 12 + ['bob'] * 12


def review_frame():
  return pandas.DataFrame({'text': REVIEWS, 'mood': MOODS * 3, 'person': USERS})


def table_knobs(path):
  frame = review_frame()
  frame.to_csv(path, index=False)
  return {
    'data.source': 'table',
    'data.path': str(path),
    'data.label': 'mood',
    'data.client': 'person',
    'data.test_fraction': 0.25,
    'data.tokenizer': 'wordpiece',
  }


def write_leaf(folder, users_by_split):
  """Files as LEAF writes them: split -> user -> examples and labels."""
  for split, users in users_by_split.items():
    (folder / split).mkdir(parents=True)
    user_data = {name: {'x': x, 'y': y} for name, (x, y) in users.items()}
    content = {'users': list(users), 'user_data': user_data}
    content['num_samples'] = [len(y) for _, y in users.values()]
    (folder / split / 'all.json').write_text(json.dumps(content))
  return {
    'data.source': 'leaf',
    'data.path': str(folder),
    'data.tokenizer': 'characters',
  }


PLAY = {
  'train': {
    'HAMLET': (['to be', 'o be '], [' ', 'o']),
    'GHOST': (['mark '], ['m']),
  },
  'test': {'HAMLET': (['be to', 'bex t'], ['o', 'z'])},
}


def test_next_characters_of_shakespeare_are_classes(tmp_path, capsys):
  data = load(write_leaf(tmp_path, PLAY))
  words = (texts.UNKNOWN, *sorted(set('to beo be mark ')))
  assert data.words == words
  # The labels of training, and a class for others.
  assert data.class_names == (' ', 'm', 'o', 'other')
  assert data.num_classes == 4

  def read(rows):
    return [''.join(words[n] if n else '?' for n in row) for row in rows.tolist()]

  # Users are numbered in the order of their names.
  assert read(data.train_images) == ['to be', 'o be ', 'mark ']
  assert data.clients[data.train_clients].tolist() == ['HAMLET', 'HAMLET', 'GHOST']
  assert [data.class_names[label] for label in data.train_labels] == [' ', 'o', 'm']
  # x and z occur in the test alone.
  assert read(data.test_images) == ['be to', 'be? t']
  assert data.test_labels.tolist() == [2, 3]
  messages = capsys.readouterr().err
  assert "1 of the labels are no label of training: the class 'other'" in messages
  assert '1 of 10 characters of the test are unknown' in messages
  assert (data.form.kind, data.form.vocabulary) == ('words', len(words))


def test_tweets_of_sent140_are_their_texts(tmp_path):
  def tweets(user_texts):
    return [['1', 'Mon', 'NO_QUERY', 'me', text, 'training'] for text in user_texts]

  users = {'me': (tweets(GOOD + BAD), [1] * 4 + [0] * 4)}
  knobs = write_leaf(tmp_path, {'train': users, 'test': users})
  data = load(knobs, tokenizer='wordpiece', text_length=3)
  assert data.train_images.shape == (8, 3)
  assert data.num_classes == 2
  good = data.words.index('good')
  np.testing.assert_array_equal((data.train_images[:4] == good).any(1), True)
  # 'good.' is shorter than three words.
  assert data.train_images[3].tolist() == [good, data.words.index('.'), -1]


def test_texts_of_leaf_need_a_tokenizer_and_nothing_else(tmp_path):
  knobs = write_leaf(tmp_path, PLAY)
  with refused(DataError, 'has texts. If they are to be read'):
    load(knobs, tokenizer='none')
  with refused(KnobError, 'is for numbers, and these are texts'):
    load(knobs, range='0,9')
  for user in ([[1.0, 2.0]], [['a'], ['b', 'c']]):
    folder = tmp_path / f'of_{len(user)}'
    users = {'one': (user, [0] * len(user))}
    knobs = write_leaf(folder, {'train': users, 'test': users})
    with refused(DataError, "client 'one' has examples that are no texts"):
      load(knobs)


def hub(folder, **splits):
  datasets.DatasetDict(splits).save_to_disk(folder)
  return {'data.source': 'huggingface', 'data.path': str(folder), 'data.client': ''}


def of_reviews(rows=slice(None), labels=None):
  content = {'sentence': REVIEWS[rows], 'label': labels or (MOODS * 3)[rows]}
  return datasets.Dataset.from_dict(content | {'person': USERS[rows]})


def test_a_column_of_texts_is_read_with_and_without_users(tmp_path):
  training = of_reviews()
  knobs = hub(tmp_path / 'it', train=training, test=of_reviews(slice(0, 8)))
  with refused(DataError, 'name its image by --config.data.image'):
    load(knobs)
  with refused(DataError, "the column 'sentence' has texts; --config.data.tokenizer="):
    load(knobs, image='sentence')
  data = load(knobs, tokenizer='wordpiece')
  with_users = load(knobs, tokenizer='wordpiece', client='person')
  assert data.class_names == with_users.class_names == ('bad', 'good')
  assert data.words == with_users.words
  np.testing.assert_array_equal(data.train_images, with_users.train_images)
  np.testing.assert_array_equal(data.train_labels, with_users.train_labels)
  assert with_users.clients.tolist() == ['ann', 'bob']


def test_a_long_text_does_not_take_its_space_in_every_row(tmp_path):
  training = datasets.Dataset.from_dict(
    {'text': ['a' * 20_000, *'ab' * 1000], 'label': [0, *[0, 1] * 1000]}
  )
  knobs = hub(tmp_path / 'it', train=training, test=training)
  load(knobs, tokenizer='characters')  # imports
  tracemalloc.start()
  load(knobs, tokenizer='characters')
  _, peak = tracemalloc.get_traced_memory()
  tracemalloc.stop()
  assert peak < 100e6  # [2001] of 20,000 letters of 4 bytes are 160 MB


def test_a_row_without_a_text_and_a_split_without_rows_are_named(tmp_path):
  def training_of(rows):
    return datasets.Dataset.from_dict({'text': rows, 'label': [0] * len(rows)})

  empty = datasets.Dataset.from_dict({'text': ['a', None], 'label': [0, 1]})
  knobs = hub(tmp_path / 'gap', train=empty, test=empty)
  with refused(DataError, 'row 1 of train cannot be used: .*it has no text'):
    load(knobs, tokenizer='characters')
  without_rows = training_of([])
  knobs = hub(tmp_path / 'no_test', train=training_of(['a']), test=without_rows)
  with refused(DataError, r"its split 'test' has no rows; remove or fill it\."):
    load(knobs, tokenizer='characters')
  users = {'u': (['ab', 'ba'], ['a', 'b'])}
  knobs = write_leaf(tmp_path / 'nobody', {'train': users, 'test': {}})
  with refused(DataError, 'has no user with test examples'):
    load(knobs)
  for number, wrong in enumerate((None, 'ab')):
    users_by_split = {'train': {'u': (wrong, ['a', 'b'])}, 'test': users}
    with refused(DataError, "client 'u' has no list of texts"):
      load(write_leaf(tmp_path / str(number), users_by_split))


def test_equal_texts_in_parquet_files_are_compared_with_the_memory(
  tmp_path, monkeypatch
):
  split = datasets.Dataset.from_dict({'text': ['good'] * 30_000, 'label': [0] * 30_000})
  for name in ('train', 'test'):
    split.to_parquet(tmp_path / f'{name}.parquet')
  knobs = {
    'data.source': 'huggingface',
    'data.path': str(tmp_path),
    'data.client': '',
  }
  assert (tmp_path / 'train.parquet').stat().st_size < 100_000
  monkeypatch.setattr(machine_memory, 'total_bytes', lambda: 100_000)
  with refused(DataError, 'Its content takes'):
    load(knobs, tokenizer='characters')


def test_texts_of_a_damaged_parquet_file_are_one_line(tmp_path):
  path = tmp_path / 'it.parquet'
  frame = pandas.DataFrame({'text': ['a good day'] * 8, 'label': [0, 1] * 4})
  frame.to_parquet(path, compression='none', use_dictionary=False)
  path.write_bytes(path.read_bytes().replace(b'a good day', b'a g\xffod day'))
  knobs = {'data.source': 'table', 'data.path': str(path), 'data.client': ''}
  with refused(DataError, 'it.parquet cannot be read: ArrowInvalid'):
    load(knobs, tokenizer='characters', test_fraction=0.25)


def test_words_for_nothing_are_texts_of_a_csv_file(tmp_path):
  texts_of_rows = ['None', 'N/A', 'good', 'nan'] * 3
  frame = pandas.DataFrame({'text': texts_of_rows, 'label': ['NA', 'no'] * 6})
  frame.to_csv(tmp_path / 'it.csv', index=False)
  knobs = {
    'data.source': 'table',
    'data.path': str(tmp_path / 'it.csv'),
    'data.client': '',
  }
  data = load(knobs, tokenizer='characters', test_fraction=0.25)
  assert data.class_names == ('NA', 'no')
  assert set('None/Agoda') < set(data.words)
  with refused(DataError, 'holds? no numbers|missing entr'):
    load(knobs, test_fraction=0.25)


def test_words_are_those_of_the_package(tmp_path):
  """The numbers are what the package itself gives with the vocabulary that is kept."""
  import tokenizers

  data = load(
    hub(tmp_path / 'it', train=of_reviews(), test=of_reviews()),
    tokenizer='wordpiece',
    vocabulary_size=30,
  )
  assert len(data.words) == 30
  every_word = (*data.words, '[SEP]', '[CLS]')  # the package wants these two
  vocabulary = {word: number for number, word in enumerate(every_word)}
  plain = tokenizers.BertWordPieceTokenizer(vocabulary, unk_token=texts.UNKNOWN)
  for row, text in zip(data.train_images, REVIEWS, strict=True):
    ids = plain.encode(text, add_special_tokens=False).ids
    np.testing.assert_array_equal(row[row >= 0], ids)


@pytest.mark.parametrize('tokenizer', ['characters', 'wordpiece'])
def test_a_half_of_a_character_is_an_unknown_one(tokenizer, tmp_path):
  """JSON may hold such halves, of a tweet that was cut; UTF-8 may not."""
  users = {'me': (['a \ud83d', 'a \ufffd'] * 4, [0, 1] * 4)}
  data = load(
    write_leaf(tmp_path, {'train': users, 'test': users}), tokenizer=tokenizer
  )
  np.testing.assert_array_equal(data.train_images[0], data.train_images[1])
  length = data.train_images.shape[1]
  vocabulary = texts.Vocabulary(tokenizer, data.words, length)
  words = texts.numbers_of(['a \ud83d'], vocabulary)
  np.testing.assert_array_equal(words, data.train_images[:1])


def test_equal_texts_give_equal_vocabularies_in_every_process(tmp_path):
  """The package numbers letters in a random order, unless it is told which."""
  program = (
    'from moon_jax.data import texts\n'
    'import tokenizers\n'
    "words = [f'{a}{b}{c}' for a in 'klmnop' for b in 'aeiou' for c in 'stuvw']\n"
    "options = texts.TextOptions('wordpiece', vocabulary_size=60)\n"
    'print(texts._vocabulary(tokenizers, words, options))\n'
  )
  printed = {
    subprocess.run(
      [sys.executable, '-c', program], capture_output=True, text=True, check=True
    ).stdout
    for _ in range(3)
  }
  assert len(printed) == 1


def test_columns_of_numbers_are_an_example_together(tmp_path, capsys):
  columns = {'age': [1, 2, 3, 4], 'smokes': [True, False] * 2, 'dose': [0.5, 1.5] * 2}
  columns |= {'note': ['x'] * 4, 'label': [0, 1] * 2}
  split = datasets.Dataset.from_dict(columns)
  knobs = hub(tmp_path / 'it', train=split, test=split)
  data = load(knobs, features='*')
  assert 'features: age, smokes, dose; not used: note' in capsys.readouterr().err
  expected = [[1, 1, 0.5], [2, 0, 1.5], [3, 1, 0.5], [4, 0, 1.5]]
  np.testing.assert_array_equal(data.train_images, expected)
  assert data.feature_names == ('age', 'smokes', 'dose')
  assert data.form.kind == 'table'
  with refused(DataError, 'age of train is int64 of shape .4,., and not texts'):
    load(knobs, tokenizer='wordpiece', text='age')
  chosen = load(knobs, features='dose,age')
  np.testing.assert_array_equal(chosen.train_images, np.array(expected)[:, [2, 0]])
  for features, words in (
    ('aeg', "no column 'aeg' of .*Did you mean 'age'"),
    ('note', "'note' of .* holds no numbers"),
    ('age,label', "has 'label', which is the label"),
  ):
    with refused(DataError, words):
      load(knobs, features=features)


def test_lists_of_words_are_filled_up_and_other_lists_are_refused(tmp_path):
  content = {'x': [[3, 1], [2], [5, 6, 7], [0]], 'label': [0, 1, 0, 1]}
  split = datasets.Dataset.from_dict(content)
  knobs = hub(tmp_path / 'words', train=split, test=split)
  data = load(knobs, axes='T')
  assert data.train_images.tolist() == [[3, 1, -1], [2, -1, -1], [5, 6, 7], [0, -1, -1]]
  with refused(DataError, r"several lengths, \[1\] and \[3\].*data.axes='T'"):
    load(knobs)
  split = datasets.Dataset.from_dict({'x': [[0.5], [0.5, 1]], 'label': [0, 1]})
  knobs = hub(tmp_path / 'numbers', train=split, test=split)
  with refused(DataError, 'several lengths'):
    load(knobs, axes='T')


def test_splits_are_chosen_by_their_names(tmp_path):
  def split(labels):
    return datasets.Dataset.from_dict({'x': [[i] for i in labels], 'label': labels})

  knobs = hub(
    tmp_path / 'it',
    train=split([0, 1]),
    train_clean=split([0, 1, 1]),
    test=split([0]),
    test_other=split([1]),
  )
  chosen = load(knobs, axes='D', train_split='train_clean', test_split='test_other')
  assert (len(chosen.train_labels), chosen.test_labels.tolist()) == (3, [1])
  usual = load(knobs, axes='D')
  assert (len(usual.train_labels), usual.test_labels.tolist()) == (2, [0])
  with refused(DataError, "no split 'tests' of --config.data.test_split.*'test'"):
    load(knobs, axes='D', test_split='tests')


HELD_OUT = {
  'data.validation': 0.25,
  'data.local_test': 0.25,
  'data.limit': 20,
  'partition.min_size': 4,
}


@pytest.mark.parametrize('knob', ['', *HELD_OUT])
def test_a_vocabulary_is_of_what_is_trained_on(knob, tmp_path):
  """Each text has a character of its own: the vocabulary says who was seen."""
  own_characters = [chr(ord('一') + row) for row in range(40)]
  frame = pandas.DataFrame(
    {
      'text': [character * (row + 1) for row, character in enumerate(own_characters)],
      'label': [0, 1] * 20,
      'person': [0] * 3 + [1] * 17 + [2] * 20,
    }
  )
  frame.to_csv(tmp_path / 'it.csv', index=False)
  knobs = {
    'data.source': 'table',
    'data.path': str(tmp_path / 'it.csv'),
    'data.test_fraction': 0.1,
    'data.client': 'person',
    'data.tokenizer': 'characters',
    'partition.name': 'natural',
    'partition.min_size': 1,
  }
  if knob == 'data.local_test':  # users with test examples have their own tests
    knobs |= {'data.client': '', 'partition.name': 'iid', 'num_clients': 3}
  knobs |= {knob: HELD_OUT[knob]} if knob else {}
  config = moon_jax.config.validate(knobs)
  options = building_data.DataOptions(config)
  loaded = building_data.load_data(options)
  divided = building_data.divide(loaded, options)
  trained = divided.partition
  if knob == 'data.local_test':
    trained, tests = client_tests.hold_out(trained, 0.25, options.seed)
    assert len(tests.rows)
  trained_texts = divided.dataset.train_images[trained.indices]
  in_words = building_data.with_words(divided, options)
  assert in_words.dataset.words == (
    texts.UNKNOWN,
    *sorted({text[0] for text in trained_texts}),
  )
  assert in_words.dataset.train_images.shape[1] == max(map(len, trained_texts))
  held_out = {*own_characters} - {*in_words.dataset.words}
  assert len(held_out) > (4 if knob in HELD_OUT else 3)  # the test alone has four
  if knob == 'data.validation':
    images, _ = in_words.validation
    assert (images.max(1) == 0).all()  # unknown, every one
  # Another vocabulary is another digest, and the same data are the same.
  assert sources.digest(loaded) == sources.digest(building_data.load_data(options))
  fewer = in_words.dataset._replace(words=in_words.dataset.words[:-1])
  assert sources.digest(fewer) != sources.digest(in_words.dataset)


@pytest.fixture(scope='module')
def run(tmp_path_factory, quick_runs):
  """A run on texts of a table with users."""
  folder = tmp_path_factory.mktemp('texts')
  knobs = table_knobs(folder / 'reviews.csv') | {
    'partition.name': 'natural',
    'partition.min_size': 1,
    'model': 'gru',
    'algorithm': 'fedavg',
    'num_rounds': 2,
    'logger': '',
    'execution.devices': 1,
  }
  moon_jax.run(moon_jax.load_config('configs/base.py', knobs), folder / 'run')
  return folder / 'run'


def test_a_run_keeps_its_vocabulary_for_predictions(run, tmp_path, capsys):
  trained = moon_jax.load(run)
  words, labels = trained.test_data()
  # With other texts a vocabulary that is made anew would have other numbers.
  new_texts = ['what a good day', 'zebra', '']
  logits = trained.predict(new_texts).logits
  number = {word: place for place, word in enumerate(trained.words)}
  rows = np.full((3, words.shape[1]), -1)
  rows[0, :4] = [number[word] for word in new_texts[0].split()]
  rows[1:, 0] = 0
  np.testing.assert_array_equal(trained.predict(rows).logits, logits)
  trained.save(tmp_path / 'it.safetensors')
  of_file = moon_jax.load(tmp_path / 'it.safetensors').predict(new_texts)
  np.testing.assert_array_equal(of_file.logits, logits)

  frame = pandas.DataFrame({'note': [1, 2, 3], 'text': new_texts})
  frame['text'] = frame['text'].replace('', 'day good a what')
  path = tmp_path / 'new.csv'
  frame.to_csv(path, index=False)
  assert predict([f'--workdir={run}', f'--input={path}']) == ExitCode.DONE
  with open(tmp_path / 'new_predictions.csv', newline='') as file:
    predicted = [row['predicted'] for row in csv.DictReader(file)]
  classes = np.array(['bad', 'good'])[trained.predict(frame.text.tolist()).labels]
  assert predicted == classes.tolist()

  # Of another table, whose own vocabulary would be another.
  other = review_frame().head(12)
  other.text = [f'zebra {text}' for text in other.text]
  other.to_csv(tmp_path / 'other.csv', index=False)
  words = [f'--workdir={run}', '--source=table', f'--input={tmp_path}/other.csv']
  output = tmp_path / 'predicted.csv'
  assert predict([*words, '--split=train', f'--output={output}']) == ExitCode.DONE
  with open(output, newline='') as file:
    rows = list(csv.DictReader(file))
  assert len(rows) == 9
  every_logit = trained.predict(other.text.tolist()).logits
  powers = np.exp(every_logit)
  possible = {f'{p:.5f}' for p in (powers / powers.sum(1, keepdims=True))[:, 1]}
  assert {f'{float(row["probability of good"]):.5f}' for row in rows} <= possible
  del labels
  capsys.readouterr()


def test_a_forged_vocabulary_is_one_line(run, tmp_path):
  saved = json.loads((run / 'config.json').read_text())
  words = saved['images']['words']
  shutil.copytree(run, tmp_path / 'run')
  for forged in (words[1:], ['a', *words[1:]], [*words[:-1], words[1]]):
    saved['images']['words'] = forged
    (tmp_path / 'run/config.json').write_text(json.dumps(saved))
    with refused(NoCheckpointError, 'its words are no vocabulary of'):
      moon_jax.load(tmp_path / 'run')


def test_a_model_of_numbers_takes_no_texts(run, tmp_path):
  with refused(UsageError, r'needs \[M, 5\]|is float64'):
    moon_jax.load(run).predict(np.zeros((2, 2)))


def test_without_the_package_one_line_says_how_to_install_it(tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, 'tokenizers', None)
  with refused(DataError, r"need the package tokenizers: pip install '\.\[texts\]'"):
    load(table_knobs(tmp_path / 'reviews.csv'))
