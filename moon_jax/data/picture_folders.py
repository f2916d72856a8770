"""Finds the folders of a tree of pictures that hold its splits, from their names."""

import pathlib
from collections.abc import Iterable
from typing import NamedTuple

from moon_jax.core.errors import printable
from moon_jax.core.flags import flag
from moon_jax.data import split_names
from moon_jax.data.data_errors import DataError, listed
from moon_jax.data.split_names import TEST, TRAIN, VALIDATION

# File endings that torchvision's ImageFolder takes for images; .jfif is JPEG too.
ENDINGS = ('.jpg', '.jpeg', '.png', '.ppm', '.bmp', '.pgm', '.tif', '.tiff', '.webp')
ENDINGS += ('.jfif',)
ANNOTATIONS = 'val_annotations.txt'  # of Tiny-ImageNet, beside a folder images
_IMAGES = 'images'
_DEPTH = 4  # levels of folders below a split, or around the splits, that are looked at


class SplitFolders(NamedTuple):
  """The folders of the splits.

  Attributes:
    train: the training pictures; all pictures of an undivided tree.
    test: the test pictures; None if the tree is undivided.
    validation: the pictures for validation; None if there are none.
    notice: a sentence about what is not evident; '' if all is.
  """

  train: pathlib.Path
  test: pathlib.Path | None = None
  validation: pathlib.Path | None = None
  notice: str = ''


def find(data_flag: str, root: pathlib.Path) -> SplitFolders:
  """Finds the folders of the splits in a folder, or in a folder around them.

  Args:
    data_flag: flag of the folder, for messages.
    root: the folder.

  Raises:
    DataError: more than one folder stands for a split, or folders may be splits as well
      as classes or domains.
    OSError: the folder cannot be read.
  """
  divided = _divided_folder(data_flag, root, _DEPTH)
  if divided is None:
    return _undivided(data_flag, root)
  named_folders = {TRAIN: [], TEST: [], VALIDATION: []}
  for folder, role in _roles(_labelled_folders(divided)).items():
    named_folders.get(role, []).append(folder)
  chosen_folders = {}
  for role, same_role in named_folders.items():
    if len(same_role) > 1:
      raise DataError(
        f'{data_flag} holds {_names(folders(divided))}: {_quoted(same_role)} would '
        f'each be the {role} split; move all but one of these folders elsewhere.'
      )
    if same_role:
      chosen_folders[role] = same_role[0]
  train, test = chosen_folders[TRAIN], chosen_folders.get(TEST)
  validation = chosen_folders.get(VALIDATION)
  if test is None:
    test, validation = validation, None
  used_folders = [folder for folder in (train, test, validation) if folder]
  return SplitFolders(
    train=_unwrapped(data_flag, train, TRAIN),
    test=_unwrapped(data_flag, test, TEST),
    validation=validation and _unwrapped(data_flag, validation, VALIDATION),
    notice=_notice(divided, used_folders),
  )


def folders(folder: pathlib.Path) -> list[pathlib.Path]:
  """The folders inside, without .git, __MACOSX and the like."""
  return [
    path
    for path in sorted(folder.iterdir())
    if path.is_dir() and may_hold_data(path.name)
  ]


def may_hold_data(folder_name: str) -> bool:
  """Whether a folder is none of .git, __MACOSX and the like."""
  return not folder_name.startswith(('.', '__'))


def images(folder: pathlib.Path) -> list[pathlib.Path]:
  """The files inside that are images by their names."""
  return [path for path in sorted(folder.iterdir()) if _is_image(path)]


def is_annotated(folder: pathlib.Path) -> bool:
  """Whether a file lists the classes of the images, as in Tiny-ImageNet's val/."""
  return (folder / ANNOTATIONS).exists() and (folder / _IMAGES).is_dir()


def inner_images(folder: pathlib.Path) -> pathlib.Path | None:
  """The folder CLASS/images, if a class keeps its images there; otherwise None."""
  if any(map(_is_image, folder.iterdir())):
    return None
  inner_folders = folders(folder)
  if [inner.name for inner in inner_folders] != [_IMAGES]:
    return None
  return inner_folders[0]


def has_pictures(folder: pathlib.Path, depth: int = _DEPTH) -> bool:
  """Whether the folder, or one in so many levels below it, holds images."""
  if _is_class(folder):
    return True
  inner_folders = folders(folder) if depth else []
  return any(has_pictures(inner, depth - 1) for inner in inner_folders)


def _is_image(path):
  return path.suffix.lower() in ENDINGS and not path.name.startswith('.')


def _is_class(folder):
  """CLASS/* or CLASS/images/*; so are pictures that have no classes."""
  return any(map(_is_image, (inner_images(folder) or folder).iterdir()))


def _roles(siblings):
  role_by_name = split_names.roles(folder.name for folder in siblings)
  return {folder: role_by_name[folder.name] for folder in siblings}


def _labelled_folders(folder):
  """The folders inside that hold pictures in folders by class."""
  return [
    inner
    for inner in folders(folder)
    if is_annotated(inner) or (not _is_class(inner) and has_pictures(inner))
  ]


def _divided_folder(data_flag, folder, depth):
  """The folder in which a training and a test folder lie; None if there is none."""
  labelled = _labelled_folders(folder)
  roles = set(_roles(labelled).values())
  if TRAIN in roles and roles & {TEST, VALIDATION}:
    return folder
  if not depth:
    return None
  divided_by_wrapper = {}
  for inner in labelled:
    divided = _divided_folder(data_flag, inner, depth - 1)
    if divided:
      divided_by_wrapper[inner] = divided
  with_pictures = [inner for inner in folders(folder) if has_pictures(inner)]
  if len(divided_by_wrapper) == len(with_pictures) == 1:
    return next(iter(divided_by_wrapper.values()))
  if divided_by_wrapper:
    paths = [flag('data.path', str(divided)) for divided in divided_by_wrapper.values()]
    as_users = ''
    if len(divided_by_wrapper) > 1:
      as_users = (
        '. If they are sites that shall be users, arrange them all as '
        'train/SITE/CLASS/* and test/SITE/CLASS/*'
      )
    raise DataError(
      f'{data_flag}: {folder.name!r} holds {_names(folders(folder))}, with a training '
      f'and a test set inside: choose {" or ".join(paths)}{as_users}.'
    )
  return None


def _undivided(data_flag, root):
  """A tree without a test split, perhaps in a folder train/."""
  inner_folders, labelled = folders(root), _labelled_folders(root)
  roles = _roles(labelled)
  suspects = [folder for folder in labelled if roles[folder]]
  if [roles[folder] for folder in suspects] == [TRAIN]:
    train = suspects[0]
    others = [folder for folder in inner_folders if folder != train]
    if not any(map(_may_be_class, others)):
      tree = _unwrapped(data_flag, train, TRAIN)
      _require_no_splits(data_flag, folders(tree))
      return SplitFolders(tree, notice=_notice(root, [train]))
  if suspects:
    raise _ambiguous(data_flag, inner_folders, suspects)
  _require_no_splits(data_flag, inner_folders)
  for domain in labelled:
    _require_no_splits(data_flag, folders(domain))
  tree = _only_tree_below(root)
  if tree and (tree.parent != root or _labelled_folders(tree)):
    _undivided(data_flag, tree)  # the advice must lead to no other error
    raise DataError(
      f'{data_flag} has no images in folders by class: it holds '
      f'{_names(sorted(root.iterdir()))}; {flag("data.path", str(tree))} has.'
    )
  return SplitFolders(root)


def _only_tree_below(root: pathlib.Path) -> pathlib.Path | None:
  """The folder below that has folders by class, if there is exactly one."""
  folder = root
  while True:
    with_pictures = [inner for inner in folders(folder) if has_pictures(inner)]
    if any(map(_is_class, with_pictures)) or len(with_pictures) > 1:
      return None if folder == root else folder
    if not with_pictures:
      return None
    folder = with_pictures[0]


def _may_be_class(folder):
  """Whether a folder beside train/ has pictures and is not called after a split."""
  role = split_names.parse(folder.name).role
  return role not in (TEST, VALIDATION) and has_pictures(folder)


def _require_no_splits(data_flag, inner_folders):
  """Raises DataError if folders of an undivided tree may be splits."""
  with_pictures = [folder for folder in inner_folders if has_pictures(folder)]
  if all(split_names.names_no_class(folder.name) for folder in with_pictures):
    return  # reading the classes says what is wrong
  suspicious_names = set(split_names.paired(folder.name for folder in with_pictures))
  for folder in with_pictures:
    role = split_names.parse(folder.name).role
    if role != TRAIN and split_names.says_nothing_else(folder.name):
      suspicious_names.add(folder.name)
  suspects = [folder for folder in inner_folders if folder.name in suspicious_names]
  if suspects:
    raise _ambiguous(data_flag, inner_folders, suspects)


def _ambiguous(data_flag, inner_folders, suspects):
  """The error of folders that may be splits, but also classes or domains."""
  subject, splits, classes = 'they', 'are splits', 'are classes or domains'
  if len(suspects) == 1:
    subject, splits, classes = 'it', 'is a split', 'is a class or a domain'
  alone = ''
  if [split_names.parse(folder.name).role for folder in suspects] == [TRAIN]:
    alone = f', or give {flag("data.path", str(suspects[0]))} alone'
  return DataError(
    f'{data_flag}: {inner_folders[0].parent.name!r} holds {_names(inner_folders)}. If '
    f'{_quoted(suspects)} {splits}, call the folder of training images {TRAIN!r} and '
    f'that of test images {TEST!r}, each with folders by class inside{alone}; if '
    f'{subject} {classes}, rename without a word such as train or test.'
  )


def _unwrapped(data_flag, split_folder, role):
  """The folder itself, or seg_train/seg_train and the like.

  Raises:
    DataError: it holds splits.
  """
  folder = split_folder
  while not is_annotated(folder):
    with_pictures = [inner for inner in folders(folder) if has_pictures(inner)]
    labelled = [inner for inner in with_pictures if not _is_class(inner)]
    suspects = [
      inner for inner in labelled if split_names.says_nothing_else(inner.name)
    ]
    is_wrapper = len(with_pictures) == len(labelled) == 1 and (
      labelled[0].name.lower() == folder.name.lower()
      or (suspects and split_names.parse(suspects[0].name).role == role)
    )
    if is_wrapper:
      folder = labelled[0]
      continue
    if suspects:
      raise _ambiguous(data_flag, folders(folder), suspects)
    break
  return folder


def _notice(folder, used_folders):
  """Says which folders are not used, and which are unless their names tell it."""
  left_out = [inner for inner in folders(folder) if inner not in used_folders]
  used_names = [used.name for used in used_folders]
  different_names = {split_names.parse(name).other_words for name in used_names}
  test_is_evident = all(map(split_names.is_called_test, used_names[1:2]))
  if not left_out and len(different_names) == 1 and test_is_evident:
    return ''
  roles = ['training', 'test', 'validation']
  words = [
    f'{printable(name)!r} for {role}'
    for name, role in zip(used_names, roles, strict=False)
  ]
  rest = f'; not used: {_names(left_out)}' if left_out else ''
  return f'{", ".join(words)}{rest}.'


def _names(paths: Iterable[pathlib.Path]) -> str:
  return listed(path.name for path in paths)


def _quoted(paths: Iterable[pathlib.Path]) -> str:
  return ' and '.join(repr(printable(path.name)) for path in paths)
