"""The numerics are those that papers/numerics.json records; the kept skew is right."""

import json
import re
from concurrent import futures

import numpy as np
import pytest

from moon_jax.core.errors import ExitCode
from papers import kept_runs, numerics, partitions
from tests.processes import ROOT, launch


@pytest.mark.slow
@pytest.mark.usefixtures('as_users')
def test_three_rounds_repeat_to_the_bit_or_the_changelog_says_so():
  """Both runs of papers/numerics.py, which say what to do if results change."""
  process = launch(ROOT, program=('-m', 'papers.numerics'))
  assert process.returncode == ExitCode.DONE, process.stderr


def changed(records, run_name, **fields):
  """The records with other numbers in the last line of a run."""
  *lines, last = records.lines[run_name]
  other_line = json.dumps(json.loads(last) | fields)
  return records._replace(lines=dict(records.lines) | {run_name: [*lines, other_line]})


def test_a_change_of_the_last_bit_is_told_where_bits_are_equal_and_allowed_elsewhere():
  kept = numerics.recorded()
  assert numerics.difference(kept, kept) == ''
  loss = json.loads(kept.lines['digits_moon'][-1])['train_loss']
  last_bit = changed(kept, 'digits_moon', train_loss=np.nextafter(loss, 9))
  assert last_bit.fingerprint != kept.fingerprint
  assert numerics.difference(last_bit, kept).startswith('Results change: ')
  assert 'say so in CHANGELOG.md' in numerics.difference(last_bit, kept)
  elsewhere = 'avx2, C++'
  assert numerics.difference(last_bit._replace(arithmetic=elsewhere), kept) == ''
  wrong = changed(kept, 'digits_moon', train_loss=loss * 1.0002)._replace(
    arithmetic=elsewhere
  )
  assert re.search('digits_moon.*more than rounding', numerics.difference(wrong, kept))


def test_processes_that_add_a_partition_at_once_lose_none(tmp_path):
  for number in range(16):
    (tmp_path / f'run{number}').mkdir()
    counts = np.full((2, 2), number)
    np.savez(tmp_path / f'run{number}/partition.npz', class_counts=counts)
  table = tmp_path / 'partitions.jsonl'
  with futures.ThreadPoolExecutor(8) as pool:
    adding = [
      pool.submit(partitions.add, table, tmp_path / f'run{number}')
      for number in range(16)
    ]
  for added in adding:
    added.result()
  counts_of_runs = partitions.read(table)
  assert len(counts_of_runs) == 16
  assert all(name == f'run{counts[0, 0]}' for name, counts in counts_of_runs.items())


def test_every_kept_run_has_its_partition():
  class_counts = partitions.read(partitions.TABLE)
  papers = ROOT / 'papers'
  runs = kept_runs.read_all(papers / 'runs') | kept_runs.read_all(papers / 'frozen')
  dealt = {
    run.name for run in runs.values() if run.knobs['partition.name'] != 'natural'
  }
  assert len(dealt) > 200
  assert class_counts.keys() >= dealt
  for name in ('moon_cvpr21_fedavg_seed0', 'curve_shards_2_moon_seed1'):
    assert class_counts[name].sum() == 50_000
    np.testing.assert_array_equal(class_counts[name].sum(axis=0), 5_000)
  shards = class_counts['curve_shards_2_moon_seed1']
  assert partitions.effective_classes(shards) == pytest.approx(2.0)
