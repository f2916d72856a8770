"""The tables of the reference, written from what the package declares.

knobs        every knob of the catalog
parts        every part of the catalog, by kind
columns      every column of the files of a run
exit_codes   every exit code
numbers      how many algorithms, networks, ... there are
"""

import functools
import json
from collections.abc import Iterator

from moon_jax import catalog
from moon_jax.catalog.registry import part
from moon_jax.core import files
from moon_jax.core.errors import ExitCode
from papers.markdown import table

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
  'metric': 'Metrics of tests',
}
_KNOBS = catalog.KINDS | catalog.LISTED_KINDS
_TYPE_NAMES = {float: 'float', int: 'int', bool: 'bool', str: 'text'}
# Texts for parts without a function of their own, and so without a docstring.
_DESCRIPTIONS = {
  ('algorithm', 'centralized'): (
    'One client owns all training examples: the upper bound.'
  ),
  ('server_optimizer', 'adam'): 'FedAdam: Adam on the pseudo-gradient g.',
  ('server_optimizer', 'yogi'): 'FedYogi: Yogi on the pseudo-gradient g.',
  ('attack', 'none'): 'No client attacks.',
  ('attack', 'label_flip'): 'Trains honestly, but on the labels Y - 1 - label.',
}
_FILES_WITH_COLUMNS = ('metrics.jsonl', 'timings.jsonl', 'summary.json')
# Exit code -> its meaning, and what the same command does afterwards.
_MEANINGS = {
  ExitCode.DONE: ('the run is finished, or was finished already', 'says so'),
  ExitCode.FAILED: (
    'the run failed, for example because the disk is full',
    'goes on from the newest checkpoint, once the cause has gone',
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


def knobs() -> str:
  """Every knob, by group: its meaning, type, default and bounds, and what uses it."""
  groups = {}
  for name, knob in catalog.every_knob().items():
    groups.setdefault(name.rpartition('.')[0], []).append(_entry(name, knob))
  blocks = []
  for group, entries in groups.items():
    title = f'`{group}`' if group else 'General'
    blocks += [f'## {title}', *entries]
  return '\n\n'.join(blocks)


def _entry(name, knob):
  meaning = f'{knob.meaning[:1].upper()}{knob.meaning[1:]}'.removesuffix('.')
  sentences = [f'{meaning}.', f'*{_type_and_bounds(knob)}.*']
  users = [_users(kind, trait) for kind, trait in knob.needs]
  if users:
    sentences.append(f'Used by {", together with ".join(users)}.')
  if knob.required:
    sentences.append('It is required there.')
  if knob.may_change:
    sentences.append('A resumed run may change it.')
  anchor = name.replace('.', '-')  # a dot would begin a CSS class
  return f'[`{name}`]{{#{anchor}}}\n: {" ".join(sentences)}'


def _type_and_bounds(knob):
  """'int; default `10`; at least 1'."""
  default = 'empty' if knob.default == '' else f'`{knob.default}`'
  facts = [_TYPE_NAMES[knob.kind], f'default {default}']
  if knob.bound:
    bound, _, choices = knob.bound
    facts.append(f'one of {_in_code(choices)}' if choices else bound)
  if knob.auto:
    facts.append('or `auto`')
  return '; '.join(facts)


def _users(kind, trait):
  """The parts of a kind that use what needs the trait, in words."""
  names = catalog.names(kind)
  users = [name for name in names if part(kind, name).has(trait)]
  others = [name for name in names if name not in users]
  title = KINDS[kind].lower()
  if not others:
    return f'all {title}'
  if len(others) <= len(users) // 2:
    return f'all {title} except {_in_code(others)}'
  if len(users) == 1:
    plural, *of_what = title.split(' of ')  # 'graphs of neighbours'
    title = ' of '.join([f'the {plural.removesuffix("s")}', *of_what])
  return f'{title} {_in_code(users)}'


def _in_code(names):
  return ', '.join(f'`{name}`' for name in names)


def parts() -> str:
  """Every part of the catalog: its name, what it is, its own knobs."""
  blocks = []
  for kind, title in KINDS.items():
    blocks += [
      f'## {title}',
      f'Chosen by `{_KNOBS[kind]}`.',
      '\n'.join(table(('name', 'what it is', 'its knobs'), _parts_of(kind))),
    ]
  return '\n\n'.join(blocks)


def _parts_of(kind) -> Iterator[tuple[str, str, str]]:
  """The name, the description and the knobs of each part of a kind."""
  # Some knobs are not of a part, but in the group of the kind, such as optimizer.decay.
  group = _KNOBS[kind].rpartition('.')[0] or kind
  knobs_of_group = {
    name: knob
    for name, knob in catalog.every_knob().items()
    if name.startswith(f'{group}.')
  }
  for name in catalog.names(kind):
    entry = part(kind, name)
    knob_names = [f'{entry.group or entry.name}.{knob}' for knob in entry.knobs]
    for knob_name, knob in knobs_of_group.items():
      traits = [trait for user_kind, trait in knob.needs if user_kind == kind]
      if any(entry.has(trait) for trait in traits):
        knob_names.append(knob_name)
    description = _DESCRIPTIONS.get((kind, name)) or _first_paragraph(entry)
    yield f'`{name}`', description, _in_code(dict.fromkeys(knob_names))


def _first_paragraph(entry):
  """Of the docstring of the function that makes the part; its name without one."""
  docstring = getattr(entry.function, '__doc__', None) if entry.make else None
  if isinstance(entry.function, functools.partial) or not docstring:
    return entry.name
  paragraph = ' '.join(docstring.partition('\n\n')[0].split())
  if paragraph.endswith(','):  # an equation follows
    paragraph = paragraph.rpartition(';')[0]
  return paragraph.removesuffix(':').replace('*', r'\*')


def columns() -> str:
  """Every column of the files of a run, from the schema that they are checked by."""
  schema = json.loads(files.SCHEMA.read_bytes())
  sections = []
  for name in _FILES_WITH_COLUMNS:
    shape = schema['properties'][name]
    if '$ref' in shape:
      shape = schema['definitions'][shape['$ref'].rpartition('/')[2]]
    declared = shape['properties'] | shape.get('patternProperties', {})
    rows = [
      (_column_names(column, entry), entry['description'])
      for column, entry in declared.items()
    ]
    sections += [f'### {name}', '\n'.join(table(('column', 'meaning'), rows))]
  return '\n\n'.join(sections)


def _column_names(column, entry):
  """The names of the columns that an entry of the schema describes, in code."""
  names = entry.get('title', column).replace(';', ',').split(', ')
  return ', '.join(name if name == '...' else f'`{name}`' for name in names)


def exit_codes() -> str:
  """Every exit code, and what the same command does after it."""
  rows = [(int(code), *_MEANINGS[code]) for code in ExitCode]
  return '\n'.join(table(('code', 'meaning', 'the same command again'), rows))


def numbers() -> str:
  """How many parts of each kind there are, in words."""
  counts = [
    f'{len(catalog.names(kind))} {title.lower()}' for kind, title in KINDS.items()
  ]
  return f'There are {", ".join(counts)}.'


TABLES = {
  'knobs': knobs,
  'parts': parts,
  'columns': columns,
  'exit codes': exit_codes,
  'numbers': numbers,
}
