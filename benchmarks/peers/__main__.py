"""Times the engine beside another simulator, in turn, on one core, and prints the row.

  python -m benchmarks.peers --peer=pfl --python=PATH --data-dir=DIR [--repeats=N]
    [--out=FILE]

PATH is the python of an environment with the requirements-*.txt of that peer.
"""

import argparse
import json
import pathlib
import tempfile

from benchmarks import beside, processes

# The peers' models have no momentum and no weight decay by default.
_PLAIN = ('--config.optimizer.momentum=0', '--config.optimizer.weight_decay=0')
_NETWORK = 'moon_cnn'
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
  given = options.data_dir, 'fedavg', 'none', _NETWORK, beside.MANY_USERS
  words = [*beside.flags(*given), *_PLAIN]
  with (
    tempfile.TemporaryDirectory() as folder,
    processes.Turns(options.repeats, seconds=600) as turns,
  ):
    file = f'{folder}/round.npz'
    turns.add('ours', ['-m', 'benchmarks.engine', f'--out={file}', *words])
    turns.ready()  # the file has its result
    theirs = ['-m', f'benchmarks.peers.{options.peer}_round', f'--workload={file}']
    for form, more in _FORMS[options.peer].items():
      turns.add(form, [*theirs, *more], options.python)
    reports = turns.reports()
  ours = reports['ours']['seconds']
  for name, report in reports.items():
    ratios = sorted(b / a for a, b in zip(ours, report['seconds'], strict=True))
    print(
      f'{name}: {report["samples_per_second"]:,.0f} samples/s; ours is '
      f'{ratios[len(ratios) // 2]:.2f} times as fast ({ratios[0]:.2f} to '
      f'{ratios[-1]:.2f})'
      + (f'; models differ by {report["difference"]:.1e}' if name != 'ours' else '')
    )
  if options.out:
    options.out.write_text(json.dumps(reports, indent=1))


if __name__ == '__main__':
  main()
