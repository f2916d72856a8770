"""What a user may have meant: names that other programs and papers use."""

from collections.abc import Iterable
from typing import NamedTuple

from moon_jax.core.errors import nearest_name_hint
from moon_jax.core.flags import flag

# A name used elsewhere -> the knob here.
_KNOB_ALIASES = {
  'lr': 'optimizer.learning_rate',
  'learning_rate': 'optimizer.learning_rate',
  'momentum': 'optimizer.momentum',
  'wd': 'optimizer.weight_decay',
  'bs': 'batch_size',
  'rounds': 'num_rounds',
  'epochs': 'local_epochs',
  'num_epochs': 'local_epochs',
  'clients': 'num_clients',
  'fraction': 'participation',
  'alpha': 'partition.beta',
  'temperature': 'moon.tau',
  'dataset': 'data.name',
  'gpus': 'execution.devices',
}


class _PartAlias(NamedTuple):
  """The part here that a name used elsewhere means, and the flag that goes with it."""

  name: str
  extra_flag: str = ''


_PART_ALIASES = {
  'cifar10': _PartAlias('tfds', flag('data.name', 'cifar10')),
  'mnist': _PartAlias('tfds', flag('data.name', 'mnist')),
  'local': _PartAlias('solo'),
  **dict.fromkeys(('csv', 'parquet', 'pandas', 'dataframe'), _PartAlias('table')),
  **dict.fromkeys(('f1', 'f1_score', 'f1_macro'), _PartAlias('macro_f1')),
  **dict.fromkeys(('roc_auc', 'auroc'), _PartAlias('auc')),
  'fedavgm': _PartAlias('fedavg', flag('server_optimizer.momentum', 0.9)),
  'fedadam': _PartAlias('fedavg', flag('server_optimizer.name', 'adam')),
  'fedyogi': _PartAlias('fedavg', flag('server_optimizer.name', 'yogi')),
}


def did_you_mean(word: str, names: Iterable[str]) -> str:
  """' Did you mean X?' for an alias or the nearest name, '' if none is near.

  >>> did_you_mean('lr', ['seed', 'optimizer.learning_rate'])
  " Did you mean 'optimizer.learning_rate'?"

  Args:
    word: a knob, a part or a flag that does not exist.
    names: those that exist. If they are flags, `--lr` and `lr` mean the flag of
      'optimizer.learning_rate'.
  """
  names = list(names)
  plain_word = _without_dashes(word.lower())
  alias = _PART_ALIASES.get(plain_word)
  if alias is None:
    alias = _PartAlias(_KNOB_ALIASES.get(plain_word, plain_word))
  for name in names:
    if _without_dashes(name) == alias.name:
      extra = f' with {alias.extra_flag}' if alias.extra_flag else ''
      return f' Did you mean {name!r}{extra}?'
  return nearest_name_hint(word, names)


def _without_dashes(name: str) -> str:
  """'--config.seed', '--seed' and 'seed' -> 'seed'."""
  return name.lstrip('-').removeprefix('config.')
