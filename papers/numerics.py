"""The fingerprint of the numerics: three rounds of two small runs, to the last bit.

  python -m papers.numerics          computes them again, and compares; exit code 0 if
                                     they are as recorded, otherwise 1
  python -m papers.numerics record   makes what this commit computes the record

The version number does not say which figures a commit gives: a kernel that adds in
another order changes the last bits, and after some rounds the first digits. So
papers/numerics.json keeps the records (`metrics.jsonl`) of three rounds of two runs.
Both are MOON on scikit-learn's digits, on one CPU with one lane: one with `mlp`, by
`configs/digits_moon.py`; the other with `moon_cnn` and crops, on the digits enlarged
to 32 x 32 pixels, which runs the kernels in C++. A commit with another fingerprint
gives other results, and says so in the changelog.

On a processor of the recorded model, with a C++ compiler and the recorded version of
JAX, the bits must be equal. Elsewhere they need not be, since XLA compiles for the
model at hand; then losses must agree within one part in ten thousand.
"""

import functools
import hashlib
import json
import math
import os
import pathlib
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from moon_jax.core import files
from moon_jax.core.errors import ExitCode, UsageError, exit_code_of

TABLE = pathlib.Path(__file__).parent / 'numerics.json'
_ONE_LANE = {'num_rounds': 3, 'execution.devices': 1, 'execution.lanes': 1}
_TOLERANCE = 1e-4  # of a loss, where the bits may differ
_NUM_ENLARGED = 1_000  # digits, of 1,797


class Records(NamedTuple):
  """What the runs recorded, and where.

  Attributes:
    lines: name of a run -> the lines of its metrics.jsonl.
    jax: version of JAX.
    arithmetic: what else decides the bits: the processor, and whether C++ was there.
  """

  lines: Mapping[str, Sequence[str]]
  jax: str
  arithmetic: str

  @property
  def fingerprint(self) -> str:
    """The first twelve digits of the SHA-256 of all lines."""
    return hashlib.sha256(json.dumps(dict(self.lines)).encode()).hexdigest()[:12]


@functools.cache
def recorded() -> Records:
  """The records of papers/numerics.json.

  Raises:
    UsageError: the file is missing or damaged.
  """
  content = files.read_json(TABLE)
  if not content:
    raise UsageError(f'{TABLE} is missing or damaged: python -m papers.numerics record')
  return Records(
    lines=content['lines'], jax=content['jax'], arithmetic=content['arithmetic']
  )


def difference(computed: Records, reference: Records) -> str:
  """How records differ from those that are kept, in one line; '' if they may."""
  if computed.lines == reference.lines:
    return ''
  circumstances = (computed.jax, computed.arithmetic)
  if circumstances == (reference.jax, reference.arithmetic):
    return (
      f'Results change: the fingerprint is {computed.fingerprint} and was '
      f'{reference.fingerprint}. If that is meant, say so in CHANGELOG.md and run '
      'python -m papers.numerics record.'
    )
  for name, lines in reference.lines.items():
    for kept, line in zip(lines, computed.lines[name], strict=True):
      loss, kept_loss = (json.loads(words)['train_loss'] for words in (line, kept))
      if not math.isclose(loss, kept_loss, rel_tol=_TOLERANCE):
        return (
          f'{name}: a training loss is {loss} and was {kept_loss} with '
          f'{" and ".join(circumstances)}: more than rounding.'
        )
  return ''


# --- computing ------------------------------------------------------------------------


def compute() -> Records:
  """Runs both runs in this process, which must be fresh: JAX keeps its settings."""
  os.environ['JAX_PLATFORMS'] = 'cpu'
  import jax

  import moon_jax

  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    _write_enlarged_digits(folder / 'digits.npz')
    changes_of_runs = {
      'digits_moon': {},
      'enlarged_digits_moon_cnn': {
        'model': 'moon_cnn',
        'augmentation.name': 'crop_flip',
        'data.source': 'npz',
        'data.path': str(folder / 'digits.npz'),
      },
    }
    lines = {}
    for run_name, changes in changes_of_runs.items():
      config = moon_jax.load_config('configs/digits_moon.py', _ONE_LANE | changes)
      moon_jax.run(config, workdir=folder / run_name)
      text = (folder / run_name / 'metrics.jsonl').read_text()
      lines[run_name] = text.splitlines()
  return Records(lines, jax.__version__, arithmetic())


def arithmetic() -> str:
  """What decides the bits, besides JAX: the processor, and whether C++ is there."""
  from moon_jax.models import cpu_kernels

  kernels = 'without C++' if cpu_kernels.fault() else 'C++'
  return f'{_processor()}, {kernels}'


def _write_enlarged_digits(path: pathlib.Path) -> None:
  """Writes digits of 32 x 32 pixels: each pixel of 8 x 8 becomes a square of 16."""
  from sklearn import datasets

  images, labels = datasets.load_digits(return_X_y=True)
  grey_levels = (images[:_NUM_ENLARGED].reshape(-1, 8, 8) * 15).astype(np.uint8)
  enlarged = grey_levels.repeat(4, axis=1).repeat(4, axis=2)[..., None]
  labels = labels[:_NUM_ENLARGED].astype(np.int32)
  num_train = _NUM_ENLARGED * 4 // 5
  np.savez(
    path,
    train_x=enlarged[:num_train],
    train_y=labels[:num_train],
    test_x=enlarged[num_train:],
    test_y=labels[num_train:],
  )


def _processor() -> str:
  """Maker, family and model of the processor, and its widest vectors, as Linux tells.

  XLA compiles for the model at hand: bits may differ between two that have AVX-512.
  """
  path = pathlib.Path('/proc/cpuinfo')
  text = path.read_text() if path.exists() else ''
  fields = dict(re.findall(r'^(.+?)\s*: (.*)$', text, re.MULTILINE))
  numbers = [fields.get(name, '') for name in ('vendor_id', 'cpu family', 'model')]
  flags = fields.get('flags', '').split()
  vectors = next((name for name in ('avx512f', 'avx2') if name in flags), 'other')
  return f'{" ".join(numbers)}, {vectors}'


def main(argv: Sequence[str]) -> int:
  """Runs the program; returns the exit code."""

  def program() -> ExitCode:
    if list(argv) not in ([], ['record']):
      raise UsageError('python -m papers.numerics [record]')
    computed = compute()
    if argv:
      content: dict[str, Any] = {'fingerprint': computed.fingerprint}
      files.write_json(TABLE, content | computed._asdict())
    elif words := difference(computed, recorded()):
      print(words, file=sys.stderr)
      return ExitCode.FAILED
    print(
      f'fingerprint {computed.fingerprint}, {computed.arithmetic}, JAX {computed.jax}'
    )
    return ExitCode.DONE

  return exit_code_of(program)


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
