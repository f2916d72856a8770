"""Texts as numbers of words.

A vocabulary is made of the training texts, kept in the run, and used for every user,
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
from moon_jax.data.data_errors import DataError
from moon_jax.data.example_forms import Reading

UNKNOWN = '[UNK]'  # word 0: whatever is not in the vocabulary, and an empty text
NO_WORD = -1  # fills up short texts
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
    length: words that are kept of each text, from its start; 'auto': those of the
      longest training text.
    words: [V] the vocabulary of a trained model; (): it is made of the training texts.
  """

  tokenizer: str = NONE
  vocabulary_size: int = 2000
  length: int | str = 'auto'
  words: tuple[str, ...] = ()


class Encoded(NamedTuple):
  """Texts as words.

  Attributes:
    splits: [M, T] integers of each split of texts, NO_WORD where a text has ended.
    words: [V] the vocabulary; its first word is UNKNOWN.
  """

  splits: list[np.ndarray]
  words: tuple[str, ...]

  @property
  def reading(self) -> Reading:
    """How the arrays are read."""
    return Reading(range=f'0,{len(self.words) - 1}', axes='T', normalize='none')


def encode(
  data_flag: str, splits: Sequence[Sequence[str]], options: TextOptions
) -> Encoded:
  """Makes the vocabulary of the first split, and numbers the words of all.

  A line of the output says how many words there are, and how many texts are cut.

  Args:
    data_flag: flag of the data, for messages.
    splits: the texts for training, for the test, and perhaps for validation.
    options: the knobs.

  Raises:
    DataError: the package is missing, or there are no characters to train on.
  """
  if options.tokenizer == NONE:
    raise tokenizer_needed(data_flag)
  tokenizers = _package(data_flag)
  splits = [list(map(_whole_characters, texts)) for texts in splits]
  words = options.words or _vocabulary(tokenizers, splits[0], options)
  if len(words) < 2:
    raise DataError(f'{data_flag}: all training texts are empty.')
  tokenizer = _tokenizer(tokenizers, options.tokenizer, words)
  numbers = [_word_numbers(tokenizer, texts) for texts in splits]
  length = options.length
  if length == 'auto':
    length = min(max(map(len, numbers[0])), LONGEST_AUTO)
  dtype = np.int16 if len(words) < 2**15 else np.int32
  num_texts = sum(map(len, numbers))
  machine_memory.require_room(
    'data.text_length',
    options.length,
    num_texts * length * np.dtype(dtype).itemsize,
    f'{num_texts} texts of {length} words',
  )
  num_cut = sum(len(text) > length for texts in numbers for text in texts)
  test_numbers = numbers[1]
  num_words = sum(map(len, test_numbers))
  num_unknown = sum(text.count(0) for text in test_numbers)
  noun = CHARACTERS if options.tokenizer == CHARACTERS else 'words'
  print(
    f'{data_flag}: texts are read as {length} {noun} each, of {len(words)} in the '
    f'vocabulary of training; {num_cut} of {num_texts} texts are cut to '
    f'this length, and {num_unknown} of {num_words} {noun} of the test are unknown.',
    file=sys.stderr,
  )
  return Encoded(
    splits=[_filled_up(texts, length, dtype) for texts in numbers], words=words
  )


def tokenizer_needed(data_flag: str) -> DataError:
  """The error of texts that no knob says how to divide."""
  return DataError(
    f'{data_flag}: the examples are texts; {flag("data.tokenizer", "wordpiece")} '
    'reads them as words and pieces of words, '
    f'{flag("data.tokenizer", CHARACTERS)} as characters.'
  )


def numbers_of(
  texts: Iterable[str], words: Sequence[str], tokenizer: str, length: int
) -> np.ndarray:
  """[M, length] int32, the texts as a trained model takes them.

  Args:
    texts: M texts.
    words: [V] the vocabulary of the model.
    tokenizer: 'characters' or 'wordpiece'.
    length: words of each text.

  Raises:
    UsageError: the package is missing, or the model was trained on no texts.
  """
  if not words:
    raise UsageError('The examples are texts, and this model was trained on numbers.')
  divides = _tokenizer(_package('The examples are texts'), tokenizer, words)
  numbers = _word_numbers(divides, map(_whole_characters, texts))
  return _filled_up(numbers, length, np.int32)


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


def class_numbers(
  data_flag: str, splits: Sequence[Sequence[str]], words: Sequence[str]
) -> tuple[list[np.ndarray], tuple[str, ...]]:
  """Labels that are words, such as the next character, by their numbers.

  The classes are the words of the vocabulary, and a label that is not among them is
  UNKNOWN, which no model predicts: it counts as wrong. A line tells how many there are.

  Args:
    data_flag: flag of the data, for messages.
    splits: the labels of each split, training first.
    words: [V] the vocabulary.

  Returns:
    [M] int32 of each split, and the names of the classes.
  """
  number_of = {word: number for number, word in enumerate(words)}
  numbers = [
    np.array([number_of.get(label, 0) for label in labels], np.int32)
    for labels in splits
  ]
  num_unknown = sum(np.count_nonzero(labels == 0) for labels in numbers)
  if num_unknown:
    print(
      f'{data_flag}: {num_unknown} labels are not in the vocabulary of training; they '
      f'are the class {UNKNOWN}.',
      file=sys.stderr,
    )
  return numbers, tuple(map(printable, words))


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
