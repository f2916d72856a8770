"""Trains one federated-learning experiment: flags -> config -> simulation.run."""

import sys

from moon_jax import command_line
from moon_jax.errors import ExitCode, RunError


def main(argv: list[str]) -> ExitCode:
  """Returns the exit code; every failure that the user can mend is one clear line."""
  try:
    if text := command_line.answer(argv):
      print(text)
      return ExitCode.DONE
    request = command_line.parse(argv)
    # Only now: a mistyped flag is answered before JAX is loaded.
    from moon_jax import simulation

    return simulation.run(request)
  except RunError as error:
    print(error, file=sys.stderr)
    return error.exit_code
  except MemoryError as error:
    print(f'Not enough memory. {error}', file=sys.stderr)
    return ExitCode.FAILED
  except KeyboardInterrupt:
    message = 'Interrupted; the same command goes on from the last save, if any.'
    print(message, file=sys.stderr)
    return ExitCode.INTERRUPTED


if __name__ == '__main__':
  # A folder's name may have characters that the terminal has not.
  sys.stdout.reconfigure(errors='backslashreplace')
  sys.exit(main(sys.argv[1:]))
