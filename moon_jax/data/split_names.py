"""Which split the name of a folder or a file stands for: the test of 'seg_test-32'."""

import re
from collections.abc import Iterable
from typing import NamedTuple

TRAIN, TEST, VALIDATION = 'train', 'test', 'validation'
# A name that has words of two splits, such as 'train_val'.
SEVERAL = 'several'
_WORDS = {
  'train': TRAIN,
  'training': TRAIN,
  'trn': TRAIN,
  'test': TEST,
  'tests': TEST,
  'testing': TEST,
  'tst': TEST,
  'eval': TEST,
  'evaluation': TEST,
  'holdout': TEST,
  'heldout': TEST,
  'val': VALIDATION,
  'valid': VALIDATION,
  'validation': VALIDATION,
  'dev': VALIDATION,
  'development': VALIDATION,
}
# Words that say neither a split nor a class, as in 'train_images' and 'testset'.
_FILLERS = ('data', 'dataset', 'set', 'split', 'folder', 'files', 'examples', 'samples')
_FILLERS += ('image', 'images', 'img', 'imgs', 'pics', 'picture', 'pictures')
_NO_CLASSES = ('images', 'masks', 'labels', 'annotations')
_LONGEST_FIRST = sorted({*_WORDS, *_FILLERS}, key=len, reverse=True)
_WORD = re.compile('|'.join(_LONGEST_FIRST))
_JOINED_WORDS = re.compile(f'(?:{_WORD.pattern})+')


class SplitName(NamedTuple):
  """What a name says about a split.

  Attributes:
    role: TRAIN, TEST, VALIDATION or SEVERAL; '' if no word of the name is a split's.
    other_words: the words that say something else: ('seg',) of 'seg_train-32'.
  """

  role: str
  other_words: tuple[str, ...]


def parse(name: str) -> SplitName:
  """Reads a name word by word; case, digits and separators do not matter.

  >>> parse('Training_Data-32')
  SplitName(role='train', other_words=())
  >>> parse('latest')
  SplitName(role='', other_words=('latest',))
  """
  roles, other_words = set(), []
  for word in _words(name):
    if not _JOINED_WORDS.fullmatch(word):
      other_words.append(word)
      continue
    parts = _WORD.findall(word)
    roles.update(_WORDS[part] for part in parts if part in _WORDS)
  role = SEVERAL if len(roles) > 1 else ''.join(roles)
  return SplitName(role, tuple(other_words))


def _words(name):
  """The words of a name in lower case: 'seg', 'train' of 'seg_train' and 'segTrain'."""
  name = re.sub(r'(hold|held)[\W_]*(out)', r'\1\2', name, flags=re.IGNORECASE)
  for word in re.findall(r'[^\W\d_]+', name):
    if _JOINED_WORDS.fullmatch(word.lower()):
      yield word.lower()
    else:
      yield from re.sub('([a-z])([A-Z])', r'\1 \2', word).lower().split()


def says_nothing_else(name: str) -> bool:
  """Whether a name is a split's and no more: 'train', 'test_images', 'VAL-2'."""
  role, other_words = parse(name)
  return bool(role) and not other_words


def is_called_test(name: str) -> bool:
  """Whether a name has the word test: 'testset' has, 'val' and 'eval' have not."""
  return 'test' in name.lower() or 'tst' in name.lower()


def names_no_class(name: str) -> bool:
  """Whether folders of such a name are no class: 'train', 'test_images', 'masks2'."""
  return name.lower().rstrip('0123456789') in _NO_CLASSES or says_nothing_else(name)


def roles(names: Iterable[str]) -> dict[str, str]:
  """The role of each name among its neighbours.

  A split need not be a word of its own in names that are alike but for it.

  >>> roles(['mytrain', 'mytest', 'strain'])
  {'mytrain': 'train', 'mytest': 'test', 'strain': ''}
  """
  role_by_name = {name: parse(name).role for name in names}
  for roles_by_name in _alike(role_by_name):
    for name, role in roles_by_name.items():
      role_by_name[name] = role_by_name[name] or role
  return role_by_name


def paired(names: Iterable[str]) -> list[str]:
  """The names that are alike but for their split, as 'traincat' and 'testcat' are."""
  return sorted({name for alike in _alike(names) for name in alike})


def _alike(names):
  """Names with a role each, alike but for it; one of the roles is TRAIN."""
  roles_by_rest = {}  # rest -> name -> role
  for name in names:
    for role, rest in _readings(name):
      roles_by_rest.setdefault(rest, {})[name] = role
  for roles_by_name in roles_by_rest.values():
    different_roles = set(roles_by_name.values())
    if TRAIN in different_roles and len(different_roles) > 1:
      yield roles_by_name


def _readings(name):
  """Each role that a name may have, with the letters that remain."""
  role, other_words = parse(name)
  if role:
    yield role, ''.join(other_words)
  letters = ''.join(re.findall(r'[^\W\d_]', name.lower()))
  for word, word_role in _WORDS.items():
    for found in re.finditer(word, letters):
      yield word_role, letters[: found.start()] + letters[found.end() :]
