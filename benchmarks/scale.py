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
  rows = []
  report_of_first_size = None
  for size in sizes:
    report = processes.run([*words, f'--clients={size}'])
    report_of_first_size = report_of_first_size or report
    name = f'{algorithm}, {size:,} clients'
    details[name] = report
    is_largest = size == _CLIENTS[-1]
    rows += [
      Row(
        measured=name,
        value=_seconds(report, report_of_first_size),
        bar='start 30 s, store 20 ms, round 1.2 times' if is_largest else '',
      ),
      Row(
        measured=f'{name}: peak of memory',
        value=_memory(report),
        bar='2.5 GB' if is_largest else '',
      ),
    ]
  return rows


def _seconds(report, report_of_first_size):
  ratio = report['round_seconds'] / report_of_first_size['round_seconds']
  idle = report['idle_seconds'] / report['round_seconds']
  return (
    f'start {report["start_seconds"]:.1f} s, plan {1000 * report["plan_seconds"]:.1f} '
    f'ms, store {1000 * report["store_seconds"]:.1f} ms, round {ratio:.2f} times the '
    f'first ({idle:.0%} idle), save {report["save_seconds"]:.2f} s, '
    f'restore {report["resumed"]["restore_seconds"]:.2f} s'
  )


def _memory(report):
  peak = report['peak_memory_bytes'] / 1e9
  peak_of_resumed = report['resumed']['peak_memory_bytes'] / 1e9
  return f'{peak:.2f} GB, resumed {peak_of_resumed:.2f} GB'
