"""Tables and figures from run directories: `python -m moon_jax.report`."""

import importlib.util
import sys

from moon_jax.core import signals
from moon_jax.core.errors import ExitCode, UsageError, exit_code_of

# What `pip install 'moon_jax[report]'` adds.
PACKAGES = ('jinja2', 'pandas', 'plotly', 'tabulate')
_INSTALL = "pip install 'moon_jax[report]'"


def require_packages(advice: str) -> None:
  """Raises UsageError if a package of reports is missing; loads none.

  Args:
    advice: what else the user can do.
  """
  missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
  if missing:
    raise UsageError(f'A report needs {", ".join(missing)}: {_INSTALL}; {advice}.')


def main(argv: list[str]) -> ExitCode:
  """Runs the program; returns the exit code. An error of the user is one clear line."""
  return exit_code_of(lambda: _report(argv))


def _report(argv: list[str]) -> ExitCode:
  try:
    # Imported here, after the libraries that these modules need have been found.
    from moon_jax.report import command

    if {'-h', '--help'} & set(argv):
      print(command.__doc__.strip())
      return ExitCode.DONE
    request = command.parse(argv)
    command.check(request)  # before slow imports, and before records are read
    if request.out is None:
      from moon_jax.report import compare

      compare.print_table(request)
    else:
      from moon_jax.report import build

      build.write_report(request)
  except ModuleNotFoundError as error:
    raise UsageError(f'{error}: {_INSTALL}') from None
  return ExitCode.DONE


if __name__ == '__main__':
  signals.listen(signals.StopAtOnce())
  sys.exit(main(sys.argv[1:]))
