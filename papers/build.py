"""Writes docs/experiments.md from papers/experiments.in.md and the kept runs.

  python -m papers.build               builds the page
  python -m papers.build add RUN ...   first keeps run directories in papers/runs/; one
                                       that diverged, in its folder diverged/
  python -m papers.build add-frozen RUN ...
                                       the same in papers/frozen/
  python -m papers.build publish DIR   writes the records, with partitions and skew, as
                                       one Parquet file with a data card, and the answer
                                       as a PDF of two pages (needs Chromium)

The template is Markdown with expressions of Jinja; `Evidence` in papers/page.py has the
numbers, tables and pictures that they may name.
"""

import pathlib
import sys
from collections.abc import Sequence

from moon_jax.core import files
from moon_jax.core.errors import ExitCode, UsageError, exit_code_of
from papers import kept_runs, partitions
from papers.page import Paths, page

ROOT = pathlib.Path(__file__).parents[1]
_USAGE = 'python -m papers.build [add RUN ... | add-frozen RUN ... | publish DIR]'


def main(argv: Sequence[str], root: pathlib.Path = ROOT) -> int:
  """Runs the program; returns the exit code."""
  paths = Paths.below(root)

  def program() -> ExitCode:
    match list(argv):
      case []:
        pass
      case ['add' | 'add-frozen' as word, first, *others]:
        folder = paths.runs if word == 'add' else paths.frozen
        for run in map(pathlib.Path, [first, *others]):
          print('kept', kept_runs.keep_run(run, folder))
          partitions.add(paths.partitions, run)
      case ['publish', folder]:
        from papers import publish  # needs more packages than the page does

        publish.publish(paths, pathlib.Path(folder))
        return ExitCode.DONE
      case _:
        raise UsageError(_USAGE)
    files.replace(paths.page, page(paths, redraw=True))
    return ExitCode.DONE

  return exit_code_of(program)


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
