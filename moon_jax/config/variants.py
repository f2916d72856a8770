"""The experiments of one config file: one for each row of a paper's tables."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import ml_collections


class Variant(NamedTuple):
  """One experiment of a config file, called by `--config=FILE:NAME`.

  Attributes:
    setting: what is run, in a few words.
    reported: the paper's figure, top-1 test accuracy in per cent; '' if it has none.
    changes: dotted knob -> its value, where it differs from the file's common setting.
  """

  setting: str
  reported: str
  changes: Mapping[str, Any]


def choose(
  config: ml_collections.ConfigDict, variants: Mapping[str, Variant], name: str
) -> ml_collections.ConfigDict:
  """The common setting of a config file, with the changes of one variant.

  Raises:
    KeyError: there is no such variant, or no such knob.
  """
  config.update_from_flattened_dict(variants[name].changes)
  return config


def listing(path: str, variants: Mapping[str, Variant]) -> str:
  """One line for each variant: its command, its setting, the paper's figure.

  Args:
    path: of the config file, as the command names it.
    variants: of the file.
  """
  rows = [('command', 'setting', 'reported accuracy, %')]
  for name, variant in variants.items():
    command = f'python launch.py --config={path}:{name}'
    rows.append((command, variant.setting, variant.reported or '-'))
  first, second, _ = (max(map(len, column)) for column in zip(*rows, strict=True))
  return '\n'.join(f'{a:<{first}}  {b:<{second}}  {c}' for a, b, c in rows)
