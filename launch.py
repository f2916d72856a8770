"""Trains one federated-learning experiment: flags -> config -> simulation.run."""

import sys

from moon_jax import command_line, storage
from moon_jax.errors import ExitCode, RunError


def main(argv: list[str]) -> ExitCode:
  """Returns the exit code; every failure that the user can mend is one clear line."""
  try:
    if text := command_line.answer(argv):
      print(text)
      return ExitCode.DONE
    request = command_line.parse(argv)
    storage.require_writable(request.workdir)
    # Only now: a mistyped flag is answered before JAX is loaded.
    from moon_jax import simulation

    return simulation.run(request)
  except RunError as error:
    print(error, file=sys.stderr)
    return error.exit_code
  except KeyboardInterrupt:
    message = 'Interrupted; the same command goes on from the last save, if any.'
    print(message, file=sys.stderr)
    return ExitCode.INTERRUPTED


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
