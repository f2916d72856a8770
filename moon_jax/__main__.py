"""The program: `python launch.py`, `moon-jax` and `python -m moon_jax` are the same."""

import gc
import sys

from moon_jax.core.errors import ExitCode, exit_code_of
from moon_jax.runner import signals


def main() -> None:
  """Runs the command line of this process, and exits with its code."""
  gc.set_threshold(50_000)  # nearly all that is made at the start, by JAX, stays
  sys.exit(launch(sys.argv[1:], signals.listen()))


def launch(argv: list[str], stop: signals.Stop | None = None) -> int:
  """Returns the exit code; every failure that the user can mend is one clear line.

  Args:
    argv: the words after the program's name.
    stop: what ends the run early; None is nothing.
  """
  return exit_code_of(lambda: _launch(argv, stop or signals.Stop()))


def _launch(argv: list[str], stop: signals.Stop) -> int:
  # Only now: Ctrl-C is one line from the start, before anything slow is loaded.
  from moon_jax.config import cli
  from moon_jax.core import files
  from moon_jax.engine import hosts

  if text := cli.answer(argv):
    print(text)
    return ExitCode.DONE
  request = cli.parse(argv)
  stop.command = request.command
  with hosts.joined(request.config.execution, lambda: cli.fingerprint(request)):
    hosts.decided(lambda: files.require_writable(request.workdir))
    # Only now: a mistyped flag is answered before JAX is loaded.
    from moon_jax.runner import loop

    return loop.run(request, stop)


if __name__ == '__main__':
  main()
