"""The program: `python launch.py`, `moon-jax` and `python -m moon_jax` are the same.

If the first word is sweep, report, predict or export, the program of this name runs:
`moon-jax sweep` is `python -m moon_jax.sweep`.
"""

import contextlib
import functools
import gc
import os
import sys

from moon_jax.core import signals
from moon_jax.core.errors import ExitCode, exit_code_of
from moon_jax.runner.stop_requests import Stop


def main() -> None:
  """Runs the command line of this process, and exits with its code."""
  gc.set_threshold(50_000)  # nearly all objects that JAX makes at the start stay
  program, *words = sys.argv[1:] or ['']
  if program == 'sweep':
    stop = signals.listen(Stop())
    from moon_jax.sweeps import command as sweep

    sys.exit(sweep.main(words, stop))
  elif program == 'report':
    signals.listen(signals.StopAtOnce())
    from moon_jax.report import __main__ as report

    sys.exit(report.main(words))
  elif program == 'predict':
    signals.listen(signals.StopAtOnce())
    from moon_jax.predict import command as predict

    sys.exit(predict.main(words))
  elif program == 'export':
    signals.listen(signals.StopAtOnce())
    from moon_jax import export

    sys.exit(export.main(words))
  sys.exit(launch(sys.argv[1:], signals.listen(Stop())))


def launch(argv: list[str], stop: Stop | None = None) -> int:
  """Runs an experiment; returns the exit code. An error of the user is one clear line.

  Args:
    argv: the words after the program's name.
    stop: what can end the run early; None: nothing can.
  """
  return exit_code_of(lambda: _launch(argv, stop or Stop()))


def _launch(argv: list[str], stop: Stop) -> int:
  # Imported here: Ctrl-C prints one line from the start, before slow imports.
  from moon_jax.config import cli, require_input_files
  from moon_jax.core import files
  from moon_jax.platform import hosts, launchers
  from moon_jax.runner import run_files

  if text := cli.answer(argv):
    print(text)
    return ExitCode.DONE
  request = cli.parse(argv)
  stop.command = request.command
  group = launchers.detect(os.environ)
  with contextlib.ExitStack() as stack:
    if group:
      from moon_jax.platform import joining  # loads JAX

      fingerprint = functools.partial(cli.fingerprint, request)
      execution = request.config.execution
      stack.enter_context(joining.joined(group, execution, fingerprint))
    hosts.decided_by_first(lambda: files.require_writable(request.workdir))
    run_files.require_plain_path(request.workdir)
    # A finished run needs its data no more; of several processes all have to answer.
    if not group and not (request.workdir / run_files.SUMMARY).exists():
      require_input_files([request.config])
    # Imported here: a mistyped flag is answered before JAX is loaded.
    from moon_jax.runner import start

    return start.run(request, stop, may_compile_ahead=True)


if __name__ == '__main__':
  main()
