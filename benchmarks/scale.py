"""The rows of the scale suite: does a run grow with the number of clients?"""

import functools
from collections.abc import Callable

from benchmarks import processes
from benchmarks.rows import Row

_ALGORITHMS = ('fedavg', 'moon', 'scaffold')
_CLIENTS = (10**3, 10**4, 10**5, 10**6)


def tasks(quick: bool, details: dict) -> dict[str, Callable[[], list[Row]]]:
  """Name -> function that returns its rows; quick leaves out 10^4 and 10^5 clients."""
  sizes = (_CLIENTS[0], _CLIENTS[-1]) if quick else _CLIENTS
  return {name: functools.partial(_rows, name, sizes, details) for name in _ALGORITHMS}


def _rows(algorithm, sizes, details):
  words = ['-m', 'benchmarks.federation', f'--algorithm={algorithm}']
  rows, first = [], None
  for size in sizes:
    found = processes.run([*words, f'--clients={size}'])
    first = first or found
    name = f'{algorithm}, {size:,} clients'
    details[name] = found
    bars = {'': '', 'memory': ''}
    if size == 10**6:
      bars = {'': 'start 30 s, store 20 ms, round 1.2 times', 'memory': '2.5 GB'}
    rows += [
      Row(name, _told(found, first), bars['']),
      Row(f'{name}: peak of memory', _memory(found), bars['memory']),
    ]
  return rows


def _told(found, first):
  milliseconds = {name: 1000 * found[f'{name}_seconds'] for name in ('plan', 'store')}
  ratio = found['round_seconds'] / first['round_seconds']
  idle = found['idle_seconds'] / found['round_seconds']
  return (
    f'start {found["start_seconds"]:.1f} s, plan {milliseconds["plan"]:.1f} ms, '
    f'store {milliseconds["store"]:.1f} ms, round {ratio:.2f} times the first '
    f'({idle:.0%} idle), save {found["save_seconds"]:.2f} s, '
    f'restore {found["resumed"]["restore_seconds"]:.2f} s'
  )


def _memory(found):
  peaks = (found['peak_memory_bytes'], found['resumed']['peak_memory_bytes'])
  return '{:.2f} GB, resumed {:.2f} GB'.format(*(peak / 1e9 for peak in peaks))
