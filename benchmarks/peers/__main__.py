"""Times the engine and another simulator, in turn, on one core, and prints a row.

  python -m benchmarks.peers --peer=pfl --python=PATH --data-dir=DIR [--repeats=N]
    [--out=FILE]

PATH is the python of an environment with the requirements-*.txt of that peer.
"""

import argparse
import json
import pathlib
import tempfile

import numpy as np

from benchmarks import against_pytorch, processes

# The peers' models have no momentum and no weight decay by default.
_PLAIN = ('--config.optimizer.momentum=0', '--config.optimizer.weight_decay=0')
# For each peer: the name of a row -> the arguments of its script.
_FORMS = {
  'pfl': {'pfl': [], 'pfl, compiled': ['--compile']},
  'fedjax': {'fedjax': []},
  'flower': {'flower': []},
}


def main() -> None:
  """Prints samples a second of each, and their ratios."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--peer', choices=_FORMS, default='pfl')
  parser.add_argument('--python', required=True)
  parser.add_argument('--data-dir', required=True)
  parser.add_argument('--repeats', type=int, default=7)
  parser.add_argument('--out', type=pathlib.Path)
  options = parser.parse_args()
  flags = against_pytorch.flags(
    options.data_dir, 'fedavg', setting=against_pytorch.MANY_USERS
  )
  with (
    tempfile.TemporaryDirectory() as folder,
    processes.Turns(options.repeats, seconds=600) as turns,
  ):
    file = f'{folder}/round.npz'
    turns.add('ours', ['-m', 'benchmarks.engine', f'--out={file}', *flags, *_PLAIN])
    turns.ready()  # the file has its result
    script = f'benchmarks.peers.{options.peer}_round'
    for form, arguments in _FORMS[options.peer].items():
      words = ['-m', script, f'--workload={file}', *arguments]
      turns.add(form, words, python=options.python)
    reports = turns.reports()
  # What other programs take counts for neither side; Flower has processes of its own.
  clock = 'seconds' if options.peer == 'flower' else 'cpu_seconds'
  ours = reports['ours']
  for name, report in reports.items():
    ratios = np.divide(report[clock], ours[clock])
    samples_per_second = ours['samples'] / float(np.median(report[clock]))
    line = (
      f'{name}: {samples_per_second:,.0f} samples/s; ours is '
      f'{np.median(ratios):.2f} times as fast ({min(ratios):.2f} to {max(ratios):.2f})'
    )
    if name != 'ours':
      line += f'; models differ by {report["difference"]:.1e}'
    print(line)
  if options.out:
    options.out.write_text(json.dumps(reports, indent=1))


if __name__ == '__main__':
  main()
