"""What can end a run, and the exit code that says so."""

import enum


class ExitCode(enum.IntEnum):
  """What `python launch.py` tells the shell."""

  DONE = 0
  FAILED = 1
  USAGE = 2
  NO_CHECKPOINT = 3
  DIVERGED = 4
  PREEMPTED = 75
  INTERRUPTED = 130


class RunError(Exception):
  """Ends a run with one clear message; subclasses choose the exit code."""

  exit_code = ExitCode.FAILED


class UsageError(RunError, ValueError):
  """The configuration, the data or the command line is wrong."""

  exit_code = ExitCode.USAGE


class NoCheckpointError(RunError):
  """The run directory holds no checkpoint that can be used."""

  exit_code = ExitCode.NO_CHECKPOINT


class DivergedError(RunError):
  """A loss became NaN or infinite."""

  exit_code = ExitCode.DIVERGED
