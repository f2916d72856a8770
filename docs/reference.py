"""The tables of the reference, written from what the package declares.

knobs        every knob of the catalog
parts        every part of the catalog, by kind
columns      every column of the files of a run
exit_codes   every exit code
numbers      how many algorithms, networks, ... there are
"""

import functools
import json
from collections.abc import Iterable, Iterator

from moon_jax import catalog
from moon_jax.catalog.registry import part
from moon_jax.core import files
from moon_jax.core.errors import ExitCode

# Title of each kind, in the order of the page.
KINDS = {
  'algorithm': 'Algorithms',
  'model': 'Networks',
  'data': 'Data sources',
  'partition': 'Partitions',
  'augmentation': 'Augmentations',
  'optimizer': 'Local optimizers',
  'schedule': 'Learning-rate schedules',
  'server_optimizer': 'Server optimizers',
  'topology': 'Graphs of neighbours',
  'availability': 'Rules of availability',
  'attack': 'Attacks',
}
_TYPES = {float: 'float', int: 'int', bool: 'bool', str: 'text'}
# Texts for parts without a function of their own, and so without a docstring.
_TOLD = {
  (
    'algorithm',
    'centralized',
  ): 'One client owns all training examples: the upper bound.',
  ('server_optimizer', 'adam'): 'FedAdam: Adam on the pseudo-gradient g.',
  ('server_optimizer', 'yogi'): 'FedYogi: Yogi on the pseudo-gradient g.',
  ('attack', 'none'): 'No client attacks.',
  ('attack', 'label_flip'): 'Trains honestly, but on the labels Y - 1 - label.',
}
_FILES = ('metrics.jsonl', 'timings.jsonl', 'summary.json')
_MEANINGS = {
  ExitCode.DONE: ('the run is finished, or was finished already', 'says so'),
  ExitCode.FAILED: (
    'the run failed, for example because the disk is full',
    'goes on from the newest checkpoint',
  ),
  ExitCode.USAGE: (
    'the configuration, the data or the command line is wrong; nothing saved is lost',
    'fails again',
  ),
  ExitCode.NO_CHECKPOINT: (
    'the run directory holds no checkpoint that can be used',
    'fails again',
  ),
  ExitCode.DIVERGED: ('a number became NaN or infinite', 'diverges again'),
  ExitCode.PREEMPTED: (
    'SIGTERM or SIGHUP stopped the run, which saved its state unless it had to end at '
    'once',
    'goes on from the newest checkpoint',
  ),
  ExitCode.INTERRUPTED: (
    'Ctrl-C stopped the run, which saved its state unless it had to end at once',
    'goes on from the newest checkpoint',
  ),
}


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
  """A table in Markdown; a `|` in a cell is escaped."""
  heads = list(heads)
  lines = [heads, ['---'] * len(heads), *rows]
  cells = [[str(cell).replace('|', r'\|') for cell in line] for line in lines]
  return '\n'.join(f'| {" | ".join(line)} |' for line in cells)


def knobs() -> str:
  """Every knob, by group: its meaning, type, default and bounds, and what uses it."""
  groups = {}
  for name, knob in catalog.every_knob().items():
    groups.setdefault(name.rpartition('.')[0], []).append(_entry(name, knob))
  titles = {'': 'General'}
  return '\n\n'.join(
    '\n\n'.join([f'## {titles.get(group, f"`{group}`")}', *entries])
    for group, entries in groups.items()
  )


def _entry(name, knob):
  wanted, _, words = knob.bound or ('', None, ())
  values = ', '.join(f'`{word}`' for word in words)
  told = [_TYPES[knob.kind], f'default {_shown(knob.default)}']
  told += [f'one of {values}' if words else wanted] if wanted else []
  if knob.auto:
    told.append('or `auto`')
  more = [_users(kind, trait) for kind, trait in knob.needs]
  meaning = f'{knob.meaning[:1].upper()}{knob.meaning[1:]}'.removesuffix('.')
  lines = [f'{meaning}.', f'*{"; ".join(told)}.*']
  if more:
    lines.append(f'Used by {", together with ".join(more)}.')
  if knob.required:
    lines.append('It is required there.')
  if knob.may_change:
    lines.append('A resumed run may change it.')
  anchor = name.replace('.', '-')  # a dot would begin a CSS class
  return f'[`{name}`]{{#{anchor}}}\n: {" ".join(lines)}'


def _shown(value):
  return f'`{value}`' if value != '' else 'empty'


def _users(kind, trait):
  """The parts of a kind that use what needs the trait, in words."""
  names = catalog.names(kind)
  users = [name for name in names if part(kind, name).has(trait)]
  others = [name for name in names if name not in users]
  what = KINDS[kind].lower()
  if len(others) <= len(users) // 2:
    less = f' except {_listed(others)}' if others else ''
    return f'all {what}{less}'
  if len(users) == 1:
    word, *rest = what.split(' of ')
    what = ' of '.join([f'the {word.removesuffix("s")}', *rest])
  return f'{what} {_listed(users)}'


def _listed(names):
  return ', '.join(f'`{name}`' for name in names)


def parts() -> str:
  """Every part of the catalog: its name, what it is, its own knobs."""
  return '\n\n'.join(
    f'## {title}\n\nChosen by `{catalog.KINDS[kind]}`.\n\n'
    + table(('name', 'what it is', 'its knobs'), _parts_of(kind))
    for kind, title in KINDS.items()
  )


def _parts_of(kind) -> Iterator[tuple[str, str, str]]:
  for name in catalog.names(kind):
    one = part(kind, name)
    own = [f'{one.group or one.name}.{knob}' for knob in one.knobs]
    # Knobs in the group of the kind that this part uses.
    group = catalog.KINDS[kind].rpartition('.')[0] or kind
    for knob_name, knob in catalog.every_knob().items():
      uses = any(of == kind and one.has(trait) for of, trait in knob.needs)
      own += [knob_name] if uses and knob_name.startswith(f'{group}.') else []
    yield (
      f'`{name}`',
      _TOLD.get((kind, name)) or _told(one),
      _listed(dict.fromkeys(own)),
    )


def _told(one):
  """The first paragraph of the function that makes the part; its name without one."""
  text = getattr(one.function, '__doc__', None) if one.make else None
  if isinstance(one.function, functools.partial) or not text:
    return one.name
  told = ' '.join(text.partition('\n\n')[0].split())
  if told.endswith(','):  # an equation follows
    told = told.rpartition(';')[0]
  return told.removesuffix(':').replace('*', r'\*')


def columns() -> str:
  """Every column of the files of a run, from the schema that they are checked by."""
  schema = json.loads(files.SCHEMA.read_bytes())
  sections = []
  for name in _FILES:
    shape = schema['properties'][name]
    if '$ref' in shape:
      shape = schema['definitions'][shape['$ref'].rpartition('/')[2]]
    declared = shape['properties'] | shape.get('patternProperties', {})
    rows = (
      (_titled(column, told), told['description']) for column, told in declared.items()
    )
    sections.append(f'### {name}\n\n' + table(('column', 'meaning'), rows))
  return '\n\n'.join(sections)


def _titled(column, told):
  words = told.get('title', column).replace(';', ',').split(', ')
  return ', '.join(word if word == '...' else f'`{word}`' for word in words)


def exit_codes() -> str:
  """Every exit code, and what the same command does after it."""
  rows = ((int(code), *_MEANINGS[code]) for code in ExitCode)
  return table(('code', 'meaning', 'the same command again'), rows)


def numbers() -> str:
  """How many parts of each kind there are, in words."""
  found = (f'{len(catalog.names(kind))} {title}' for kind, title in KINDS.items())
  return f'There are {", ".join(one.lower() for one in found)}.'


TABLES = {
  'knobs': knobs,
  'parts': parts,
  'columns': columns,
  'exit codes': exit_codes,
  'numbers': numbers,
}
