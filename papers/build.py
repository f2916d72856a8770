"""Writes docs/experiments.md from papers/experiments.in.md and the kept runs.

  python -m papers.build               builds the page
  python -m papers.build add RUN ...   first keeps run directories in papers/runs/

The template is Markdown. These lines of the template are replaced:

  @table FILE: VARIANT ...     the accuracies that a paper reports beside the measured
  @costs FILE: VARIANT ...     the commands of the runs, and what they cost
  @compare FILE: A B ...       the accuracy of A minus that of each other variant,
                               paired by seed
  @personal FILE: VARIANT ...  accuracies of the shared and of the clients' own models
  @unseen FILE: VARIANT ...    accuracies of users who train and of users who do not
  @figure NAME FILE: VARIANT ...      training curves side by side
  @drift NAME FILE: VARIANT ...       curves of MOON's term and of the clients' drift
  @sweep NAME KNOB FILE: VARIANT ...  accuracy over the values of a knob
  @attacks NAME FILE: VARIANT ...     accuracy over the fraction of attackers
  @tsne FILE: VARIANT ...      t-SNE of the global models' representations
  @curve ALGORITHM ROUND       an algorithm's differences to FedAvg (papers/curve.py)
  @means ROUND                 the means of all algorithms' differences to FedAvg
  @differences NAME ALGORITHM ROUND ROUND  those differences over beta, as a picture
  @partitions ROUND            deviations over partitions, and within one partition
  @ablation ROUND              accuracies with one change of the setting each

FILE stands for configs/FILE.py, and NAME for docs/images/experiments/NAME.png. In a
text, {{late RUN}} is the mean of the last five accuracies of a run in papers/runs/, in
per cent, and {{COLUMN@ROUND RUN}} is the mean of a column of its records over the five
rounds that end with ROUND; for the RUN ..._seed0,1,2 there is a number for each of
these seeds. A table names the variants without a run; pictures, costs and comparisons
leave them out. A run has a t-SNE if its directory was reported on
(`python -m moon_jax.report RUN`) before it was added.
"""

import pathlib
import sys
from collections.abc import Sequence

from moon_jax.core import files
from moon_jax.core.errors import ExitCode, UsageError, exit_code_of
from papers import kept_runs
from papers.page import Paths, page

ROOT = pathlib.Path(__file__).parents[1]


def main(argv: Sequence[str], root: pathlib.Path = ROOT) -> int:
  """Runs the program; returns the exit code."""
  paths = Paths.below(root)

  def program():
    command, *run_directories = argv or ['']
    if argv and (command != 'add' or not run_directories):
      raise UsageError('python -m papers.build [add RUN ...]')
    for run in map(pathlib.Path, run_directories):
      print('kept', kept_runs.keep_run(run, paths.runs))
      paths.pictures_of_the_page(redraw=True).draw_tsne(run)
    files.replace(paths.page, page(paths, redraw=True))
    return ExitCode.DONE

  return exit_code_of(program)


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
