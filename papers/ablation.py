"""What one change of MOON's setting does: another partition, or another choice."""

from collections.abc import Mapping

import pandas as pd

from moon_jax.report.statistics import estimate
from papers.curve import runs_of
from papers.estimates import NOT_RUN, endpoints, text
from papers.kept_runs import KeptRun
from papers.markdown import Section, table

# Words -> config file and variant; `{}` stands for the algorithm.
_PARTITIONS = {
  'each seed its own partition': ('moon_cvpr21', '{}'),
  'the partition of seed 0': ('curve', 'same_partition_{}'),
}
_CHANGES = {
  'none': ('moon_cvpr21', '{}'),
  'no projection head': ('ablation', 'no_head_{}'),
  'partition not balanced': ('ablation', 'no_balance_{}'),
  'equal weights of clients': ('ablation', 'equal_weights_{}'),
  'partial batches kept': ('ablation', 'all_batches_{}'),
}
# Algorithm in the name of a variant -> its title; the first is the one to compare with.
_TITLES = {
  'fedavg': 'FedAvg',
  'fedprox': 'FedProx, mu 0.01',
  'scaffold': 'SCAFFOLD',
  'moon': 'MOON, mu 5',
  'mu_1': 'MOON, mu 1',
}


def partition_table(end: int, kept_runs: Mapping[str, KeptRun]) -> Section:
  """'@partitions ROUND': deviations over partitions, and within one partition.

  They compare the deviation over seeds that each have a partition of their own with the
  deviation over seeds that share one partition.
  """
  rows = []
  run_names = set()
  for partition, (file, variant) in _PARTITIONS.items():
    fedavg = runs_of(file, variant.format('fedavg'), kept_runs)
    moon = runs_of(file, variant.format('moon'), kept_runs)
    run_names |= fedavg.names | moon.names
    ends = pd.DataFrame(
      {
        'fedavg': _ends(fedavg.by_sample, end),
        'moon': _ends(moon.by_sample, end),
      }
    )
    pairs = ends.dropna().sort_index()
    seeds = ', '.join(str(seed) for seed, _ in pairs.index)
    cells = [NOT_RUN, '', '']
    if len(pairs):
      columns = (pairs['fedavg'], pairs['moon'], pairs['moon'] - pairs['fedavg'])
      cells = [text(estimate(column), decimals=2) for column in columns]
    rows.append([partition, seeds, *cells])
  head = ('beta 0.5', 'seeds', 'FedAvg', 'MOON, mu 5', 'difference')
  return Section(table(head, rows), run_names)


def _ends(runs: Mapping[tuple[int, str], KeptRun], end: int) -> dict:
  """(Seed, digest of the data) -> endpoint of a run; without runs that have none."""
  by_sample = {sample: _endpoint(run, end) for sample, run in runs.items()}
  return {sample: number for sample, number in by_sample.items() if number is not None}


def _endpoint(run: KeptRun | None, end: int) -> float | None:
  """The endpoint of a run, in per cent; None without the run or the round."""
  return None if run is None else endpoints(run.accuracy()).get(end)


def ablation_table(end: int, kept_runs: Mapping[str, KeptRun]) -> Section:
  """'@ablation ROUND': accuracies with one change of the setting each.

  A cell has the endpoint of seed 0, and in brackets how much it is above FedAvg's.
  """
  rows = []
  run_names = set()
  for change, (file, variant) in _CHANGES.items():
    runs_of_algorithms = [
      runs_of(file, variant.format(algorithm), kept_runs).by_sample
      for algorithm in _TITLES
    ]
    samples = [s for runs in runs_of_algorithms for s in sorted(runs) if s[0] == 0]
    sample = samples[0] if samples else None
    runs = [runs_by_sample.get(sample) for runs_by_sample in runs_of_algorithms]
    run_names |= {run.name for run in runs if run}
    fedavg, *others = [_endpoint(run, end) for run in runs]
    cells = [_cell(accuracy, fedavg) for accuracy in others]
    rows.append([change, _cell(fedavg, None), *cells])
  return Section(table(['change', *_TITLES.values()], rows), run_names)


def _cell(accuracy: float | None, fedavg: float | None) -> str:
  if accuracy is None:
    return NOT_RUN
  if fedavg is None:
    return f'{accuracy:.1f}'
  return f'{accuracy:.1f} ({accuracy - fedavg:+.1f})'
