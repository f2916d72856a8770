"""The program: `python launch.py`, `moon-jax` and `python -m moon_jax` are the same."""

import sys

from moon_jax.runner import signals, streams


def main() -> None:
  """Runs the command line of this process, and exits with its code."""
  streams.outlive()
  sys.exit(launch(sys.argv[1:], signals.listen()))


def launch(argv: list[str], stop: signals.Stop | None = None) -> int:
  """Returns the exit code; every failure that the user can mend is one clear line.

  Args:
    argv: the words after the program's name.
    stop: what ends the run early; None is nothing.
  """
  # Only now: Ctrl-C is one line from the start, before anything slow is loaded.
  from moon_jax import cli
  from moon_jax.errors import ExitCode, RunError
  from moon_jax.runner import files

  stop = stop or signals.Stop()
  try:
    if text := cli.answer(argv):
      print(text)
      return ExitCode.DONE
    request = cli.parse(argv)
    stop.command = request.command
    files.require_writable(request.workdir)
    # Only now: a mistyped flag is answered before JAX is loaded.
    from moon_jax.runner import loop

    return loop.run(request, stop)
  except RunError as error:
    print(error, file=sys.stderr)
    return error.exit_code
  except MemoryError as error:
    print(f'Not enough memory. {error}', file=sys.stderr)
    return ExitCode.FAILED


if __name__ == '__main__':
  main()
