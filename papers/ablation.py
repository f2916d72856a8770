"""What one change of MOON's setting does: another partition, or another choice."""

from moon_jax.report.statistics import estimate
from papers.curve import TITLES, endpoint
from papers.differences import KeptRuns, paired, runs_of
from papers.estimates import NOT_RUN, text
from papers.markdown import table

# Words -> 'FILE:VARIANT'; `{}` stands for the algorithm.
_PARTITIONS = {
  'each seed its own partition': 'moon_cvpr21:{}',
  'the partition of seed 0': 'curve:same_partition_{}',
}
_CHANGES = {
  'none': 'moon_cvpr21:{}',
  'no projection head': 'ablation:no_head_{}',
  'partition not balanced': 'ablation:no_balance_{}',
  'equal weights of clients': 'ablation:equal_weights_{}',
  'partial batches kept': 'ablation:all_batches_{}',
}
# Algorithm in the name of a variant -> its title; the first is the one to compare with.
_TITLES = {'fedavg': 'FedAvg'} | TITLES


def partition_table(end: int, kept_runs: KeptRuns) -> list[str]:
  """Endpoints over partitions, and over runs on one: mean and deviation over seeds."""
  rows = []
  for partition, choice in _PARTITIONS.items():
    pairs = paired(
      choice.format('moon'),
      choice.format('fedavg'),
      kept_runs,
      lambda run: endpoint(run, end),
    )
    seeds = ', '.join(map(str, pairs['seed']))
    columns = (pairs['second'], pairs['first'], pairs['difference'])
    cells = [text(estimate(column), decimals=2) or NOT_RUN for column in columns]
    rows.append([partition, seeds, *cells])
  return table(('beta 0.5', 'seeds', 'FedAvg', 'MOON, mu 5', 'difference'), rows)


def ablation_table(end: int, kept_runs: KeptRuns) -> list[str]:
  """Endpoints of seed 0 with one change each, and in brackets those minus FedAvg's."""
  rows = []
  for change, choice in _CHANGES.items():
    ends = [
      _end_of_seed_0(choice.format(algorithm), end, kept_runs) for algorithm in _TITLES
    ]
    fedavg, *others = ends
    cells = [_cell(accuracy, fedavg) for accuracy in others]
    rows.append([change, _cell(fedavg, None), *cells])
  return table(['change', *_TITLES.values()], rows)


def _end_of_seed_0(choice: str, end: int, kept_runs: KeptRuns) -> float | None:
  """The endpoint of a variant's run with seed 0; None without the run or the round."""
  runs = [run for run in runs_of(choice, kept_runs).values() if run.seed == 0]
  return endpoint(runs[0], end) if runs else None


def _cell(accuracy: float | None, fedavg: float | None) -> str:
  if accuracy is None:
    return NOT_RUN
  if fedavg is None:
    return f'{accuracy:.1f}'
  return f'{accuracy:.1f} ({accuracy - fedavg:+.1f})'
