"""Tables and figures from run directories: `python -m moon_jax.report`."""

import sys

from moon_jax.errors import ExitCode, RunError
from moon_jax.report import command
from moon_jax.runner import streams


def main(argv: list[str]) -> ExitCode:
  """Returns the exit code; every failure that the user can mend is one clear line."""
  if {'-h', '--help'} & set(argv):
    print(command.__doc__.strip())
    return ExitCode.DONE
  try:
    request = command.parse(argv)
    # Only now: the libraries that these need are there.
    if request.out is None:
      from moon_jax.report import compare

      compare.show(request)
    else:
      from moon_jax.report import build

      build.make(request)
  except RunError as error:
    print(error, file=sys.stderr)
    return error.exit_code
  except ModuleNotFoundError as error:
    print(f"{error}: pip install 'moon_jax[report]'", file=sys.stderr)
    return ExitCode.USAGE
  except KeyboardInterrupt:
    print('Interrupted.', file=sys.stderr)
    return ExitCode.INTERRUPTED
  return ExitCode.DONE


if __name__ == '__main__':
  streams.outlive()
  sys.exit(main(sys.argv[1:]))
