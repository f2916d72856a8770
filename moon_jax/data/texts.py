"""Texts as numbers of words.

A source gives texts as they are, because it does not know which of them clients will
train on. A vocabulary is made of these alone, kept in the run, and used for every user,
the tests and predictions alike. Hugging Face's package `tokenizers` divides the texts.
"""

import collections
import itertools
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from moon_jax.core import machine_memory
from moon_jax.core.errors import KnobError, UsageError, printable
from moon_jax.core.flags import flag
from moon_jax.core.types import Dataset, Form
from moon_jax.data.data_errors import DataError
from moon_jax.data.example_forms import Reading

UNKNOWN = '[UNK]'  # word 0: whatever is not in the vocabulary, and an empty text
NO_WORD = -1  # fills up short texts
OTHER = 'other'  # the class of a next character that no example of training has
NONE = 'none'
CHARACTERS = 'characters'
# Words that are kept of a text if `data.text_length` is auto, unless all are shorter.
LONGEST_AUTO = 512
_TEXTS_AT_A_TIME = 1000
# A word of training texts that occurs once is not joined from its pieces.
_LEAST_PAIRS = 2


class TextOptions(NamedTuple):
  """The knobs that say how texts become words.

  Attributes:
    tokenizer: 'none', 'characters' or 'wordpiece'.
    vocabulary_size: most words of a vocabulary of word pieces.
    text_length: words that are kept of each text, from its start; 'auto': those of the
      longest text that trains.
  """

  tokenizer: str = NONE
  vocabulary_size: int = 2000
  text_length: int | str = 'auto'

  @property
  def has_texts(self) -> bool:
    """Whether the examples are to be read as texts."""
    return self.tokenizer != NONE


class Vocabulary(NamedTuple):
  """All that is needed to read texts as a model does.

  Attributes:
    tokenizer: 'characters' or 'wordpiece'.
    words: [V] the words in the order of their numbers; the first is UNKNOWN.
    length: words that are kept of each text.
  """

  tokenizer: str
  words: tuple[str, ...]
  length: int

  @property
  def dtype(self) -> np.dtype:
    """The dtype of words in a data set."""
    return np.dtype(np.int16 if len(self.words) < 2**15 else np.int32)

  @property
  def form(self) -> Form:
    """The form of a data set with these words."""
    return Form(
      kind='words',
      axes='T',
      content='words',
      normalize='none',
      dtype=self.dtype.name,
      range=(0.0, len(self.words) - 1.0),
      vocabulary=len(self.words),
    )


def learn(
  data_flag: str, trained_texts: Sequence[str], options: TextOptions
) -> Vocabulary:
  """The vocabulary of some texts.

  Args:
    data_flag: flag of the data, for messages.
    trained_texts: the texts on which clients train, and no others.
    options: the knobs.

  Raises:
    DataError: the package is missing, or there are no characters to train on.
  """
  tokenizers = _package(data_flag)
  trained_texts = list(map(_whole_characters, trained_texts))
  words = _vocabulary(tokenizers, trained_texts, options)
  if len(words) < 2:
    raise DataError(f'{data_flag}: all training texts are empty.')
  length = options.text_length
  if length == 'auto':
    tokenizer = _tokenizer(tokenizers, options.tokenizer, words)
    length = min(max(map(len, _word_numbers(tokenizer, trained_texts))), LONGEST_AUTO)
  return Vocabulary(tokenizer=options.tokenizer, words=words, length=length)


def is_vocabulary(words: Sequence[str], form: Form) -> bool:
  """Whether words that were read from a file can be those of examples of a form.

  >>> form = Vocabulary('characters', (UNKNOWN, 'a'), length=5).form
  >>> [is_vocabulary(words, form) for words in ([UNKNOWN, 'b'], ['a', 'b'], [UNKNOWN])]
  [True, False, False]
  """
  are_different = len(set(words)) == len(words)
  return are_different and words[0] == UNKNOWN and len(words) == form.vocabulary


class InWords(NamedTuple):
  """A data set of words that were texts.

  Attributes:
    dataset: the data set.
    notice: a line that says how many words there are, and how many texts are cut.
  """

  dataset: Dataset
  notice: str


def in_words(data_flag: str, dataset: Dataset, vocabulary: Vocabulary) -> InWords:
  """The data set of texts with the numbers of their words in place of them.

  Args:
    data_flag: flag of the data, for messages.
    dataset: a data set whose examples are texts.
    vocabulary: the words of which they consist.

  Raises:
    DataError: the package is missing, or the memory cannot hold the words.
  """
  tokenizer = _tokenizer(_package(data_flag), vocabulary.tokenizer, vocabulary.words)
  splits = [dataset.train_images, dataset.test_images]
  if dataset.validation_images is not None:
    splits.append(dataset.validation_images)
  numbers = [
    _word_numbers(tokenizer, map(_whole_characters, split_texts))
    for split_texts in splits
  ]
  num_texts = sum(map(len, numbers))
  machine_memory.require_room(
    'data.text_length',
    vocabulary.length,
    num_texts * vocabulary.length * vocabulary.dtype.itemsize,
    f'{num_texts} texts of {vocabulary.length} words',
  )
  train, test, *validation = [
    _filled_up(split_numbers, vocabulary.length, vocabulary.dtype)
    for split_numbers in numbers
  ]
  every_length = [len(text) for split_numbers in numbers for text in split_numbers]
  num_cut = sum(length > vocabulary.length for length in every_length)
  test_numbers = numbers[1]
  noun = CHARACTERS if vocabulary.tokenizer == CHARACTERS else 'words'
  notice = (
    f'{data_flag}: texts are read as {vocabulary.length} {noun} each, of '
    f'{len(vocabulary.words)} in the vocabulary of training; {num_cut} of {num_texts} '
    f'texts are cut to this length, and {sum(text.count(0) for text in test_numbers)} '
    f'of {sum(map(len, test_numbers))} {noun} of the test are unknown.'
  )
  dataset = dataset._replace(
    train_images=train,
    test_images=test,
    validation_images=validation[0] if validation else None,
    mean=np.zeros(vocabulary.length, np.float32),
    std=np.ones(vocabulary.length, np.float32),
    form=vocabulary.form,
    words=vocabulary.words,
  )
  return InWords(dataset=dataset, notice=notice)


def tokenizer_needed(data_flag: str) -> DataError:
  """The error of texts that no knob says how to divide."""
  return DataError(
    f'{data_flag}: the examples are texts; {flag("data.tokenizer", "wordpiece")} '
    'reads them as words and pieces of words, '
    f'{flag("data.tokenizer", CHARACTERS)} as characters.'
  )


def numbers_of(texts: Iterable[str], vocabulary: Vocabulary) -> np.ndarray:
  """[M, length] the texts as a trained model takes them.

  Args:
    texts: M texts.
    vocabulary: that of the model.

  Raises:
    UsageError: the package is missing, or the model was trained on no texts.
  """
  owner = 'The examples are texts'
  if not vocabulary.words:
    raise UsageError(f'{owner}, and this model was trained on numbers.')
  tokenizer = _tokenizer(_package(owner), vocabulary.tokenizer, vocabulary.words)
  numbers = _word_numbers(tokenizer, map(_whole_characters, texts))
  return _filled_up(numbers, vocabulary.length, vocabulary.dtype)


def _whole_characters(text: str) -> str:
  """The text; a half of a character, which JSON may hold, becomes U+FFFD.

  >>> _whole_characters('a\\ud83d')
  'a\ufffd'
  """
  return text.encode('utf-16', 'surrogatepass').decode('utf-16', 'replace')


def is_text(examples: Any) -> bool:
  """Whether examples are texts: an array of text, or a list of them."""
  if isinstance(examples, np.ndarray) and examples.dtype != object:
    return examples.dtype.kind == 'U' and examples.ndim == 1
  if not isinstance(examples, list | tuple | np.ndarray):
    return False
  return len(examples) > 0 and all(isinstance(text, str) for text in examples)


def require_no_other_reading(reading: Reading) -> None:
  """Raises KnobError if knobs of arrays are set for texts."""
  if reading.axes not in ('', 'T'):
    raise KnobError('data.axes', reading.axes, "must be T or '' for texts.")
  if reading.range:
    raise KnobError('data.range', reading.range, 'is for numbers, and these are texts.')
  if reading.normalize not in ('auto', 'none'):
    raise KnobError(
      'data.normalize', reading.normalize, 'is for numbers, and these are texts.'
    )


def require_no_features(features: str, tokenizer: str) -> None:
  """Raises KnobError if `data.features` names numbers where texts are read."""
  if features and tokenizer != NONE:
    raise KnobError('data.features', features, 'is for numbers, and these are texts.')


def next_characters(
  data_flag: str, splits: Sequence[Sequence[str]]
) -> tuple[list[np.ndarray], tuple[str, ...]]:
  """Labels that are single characters, such as the next one of a text, by number.

  The classes are the characters that training has as labels, in ascending order, and
  last OTHER, which every other character is. No example of training has it, so no model
  predicts it, and these examples count as wrong. A line tells how many there are.

  Args:
    data_flag: flag of the data, for messages.
    splits: the labels of each split, training first.

  Returns:
    [M] int32 of each split, and the names of the classes.

  >>> numbers, class_names = next_characters('', [['b', 'a'], ['a', 'a']])
  >>> numbers[0].tolist(), numbers[1].tolist(), class_names
  ([1, 0], [0, 0], ('a', 'b', 'other'))
  """
  characters = sorted(set(splits[0]))
  number_of = {character: number for number, character in enumerate(characters)}
  other = len(characters)
  numbers = [
    np.array([number_of.get(label, other) for label in labels], np.int32)
    for labels in splits
  ]
  num_other = sum(np.count_nonzero(labels == other) for labels in numbers)
  if num_other:
    print(
      f'{data_flag}: {num_other:,} of the labels are no label of training: the class '
      f'{OTHER!r}, which no model learns, so their examples count as wrong.',
      file=sys.stderr,
    )
  return numbers, (*map(printable, characters), OTHER)


def _package(owner: str) -> Any:
  """The package, without its threads, which would print a line at every fork."""
  os.environ.setdefault('TOKENIZERS_PARALLELISM', 'false')
  try:
    import tokenizers
  except ImportError:
    raise DataError(
      f"{owner}: texts need the package tokenizers: pip install '.[texts]'"
    ) from None
  return tokenizers


def _vocabulary(tokenizers, texts, options) -> tuple[str, ...]:
  """The words of the training texts, UNKNOWN first; equal texts give equal words."""
  if options.tokenizer == CHARACTERS:
    characters = set(itertools.chain.from_iterable(texts))
    return UNKNOWN, *sorted(characters)
  tokenizer = _tokenizer(tokenizers, options.tokenizer, (UNKNOWN,))
  counts = collections.Counter()
  for text in texts:
    normal = tokenizer.normalizer.normalize_str(text)
    for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(normal):
      counts.update(word)
  most_frequent = sorted(counts, key=lambda letter: (-counts[letter], letter))
  # At most half of the vocabulary, because each letter also stands inside of words.
  alphabet = sorted(most_frequent[: max((options.vocabulary_size - 1) // 2, 1)])
  # The trainer numbers what it is told in this order, and all else in a random one, on
  # which the choice among equally frequent pairs depends.
  inside_words = [f'##{letter}' for letter in alphabet]
  trainer = tokenizers.trainers.WordPieceTrainer(
    vocab_size=options.vocabulary_size,
    min_frequency=_LEAST_PAIRS,
    special_tokens=[UNKNOWN, *inside_words],
    initial_alphabet=alphabet,
    limit_alphabet=len(alphabet),
    show_progress=False,
  )
  tokenizer.train_from_iterator(texts, trainer)
  number_of = tokenizer.get_vocab(with_added_tokens=False)
  return tuple(sorted(number_of, key=number_of.get))


def _tokenizer(tokenizers, kind, words):
  """A tokenizer of the package with this vocabulary."""
  number_of = {_whole_characters(word): number for number, word in enumerate(words)}
  before = tokenizers.pre_tokenizers
  if kind == CHARACTERS:
    tokenizer = tokenizers.Tokenizer(
      tokenizers.models.WordLevel(number_of, unk_token=UNKNOWN)
    )
    tokenizer.pre_tokenizer = before.Split(tokenizers.Regex(r'[\s\S]'), 'isolated')
    return tokenizer
  tokenizer = tokenizers.Tokenizer(
    tokenizers.models.WordPiece(number_of, unk_token=UNKNOWN)
  )
  tokenizer.normalizer = tokenizers.normalizers.BertNormalizer()  # small letters
  tokenizer.pre_tokenizer = before.BertPreTokenizer()
  return tokenizer


def _word_numbers(tokenizer, texts) -> list[list[int]]:
  """The numbers of each text's words; an empty text is one unknown word."""
  texts, numbers = list(texts), []
  for first in range(0, len(texts), _TEXTS_AT_A_TIME):
    chunk = texts[first : first + _TEXTS_AT_A_TIME]
    numbers += [encoding.ids or [0] for encoding in tokenizer.encode_batch(chunk)]
  return numbers


def _filled_up(numbers, length, dtype) -> np.ndarray:
  """[M, length], the first words of each text, and NO_WORD after its end."""
  rows = np.full((len(numbers), length), NO_WORD, dtype)
  for row, text in zip(rows, numbers, strict=True):
    row[: len(text)] = text[:length]
  return rows
