"""Counts the CPU cores of a process."""

# Joblib comes with scikit-learn. The standard library knows the cores to which a
# process is bound, but not the CPU quota of its container (`docker run --cpus=2`, a
# limit of Kubernetes). There a run would compute with a thread for each core of the
# host, and the kernel would stop all of them for most of the time.
import joblib


def count_usable() -> int:
  """The cores to which this process is bound, or fewer if its container has a quota."""
  return joblib.cpu_count()
