"""The reference by PyTorch's numbers."""

import functools
import pathlib

import numpy as np
import pytest

from tests import reference
from tests.reference import networks
from tests.world import largest_difference

GOLDEN = pathlib.Path(__file__).parents[1] / 'golden' / 'reference.npz'
# The world of golden/make_reference_golden.py.
BATCHES = {
  0: [[0, 1, 2], [2, 0]],
  1: [[3, 4, 5], [6, 7], [7, 3, 5]],
  2: [[8, 9], [10, 11, 8]],
}
COHORTS = ((0, 1), (0, 1, 2), (0, 2), (0, 1, 2))
SIZES = {0: 3, 1: 5, 2: 4}
# 0 - 1 - 2: degrees 1, 2, 1.
PATH = [[0, 1, 0], [1, 0, 1], [0, 1, 0]]


@functools.cache
def golden():
  with np.load(GOLDEN) as arrays:
    return dict(arrays)


def tree_of(case, network='mlp'):
  """The parameters of a case of the golden file."""
  params = {}
  for name, value in golden().items():
    if name.startswith(f'{case}/'):
      _, layer, leaf = name.split('/')
      params.setdefault(layer, {})[leaf] = value.astype(np.float32)
  return params


def run(algorithm, cohorts=COHORTS, network='mlp', **options):
  """The results of each round of the golden file's federation."""
  defaults = {
    'learning_rate': 0.3,
    'momentum': 0.5,
    'weight_decay': 0.02,
    'mu': 2.0,
    'tau': 0.5,
    'sizes': SIZES,
    'num_clients': 3,
    'rounds': [{client: BATCHES[client] for client in c} for c in cohorts],
  }
  return reference.run(
    algorithm=algorithm,
    network=getattr(reference, network),
    params=tree_of(network),
    images=golden()['images'].reshape(12, 2, 2, 1),
    labels=golden()['labels'],
    **(defaults | options),
  )


def uniform(round_index, client, step):
  return golden()['uniform'][round_index, client, step]


ANNEALING = {'uniform': uniform, 'sigma': 0.1, 'min_temperature': 0.7}
MIXING = [
  reference.without_absent(reference.metropolis_hastings(PATH), c) for c in COHORTS
]


class TestPyTorch:
  """Four rounds with absence and a late joiner."""

  @pytest.mark.parametrize(
    ('case', 'algorithm', 'options'),
    [
      ('Simulation', 'fedavg', {}),
      ('Proximal', 'fedprox', {'mu': 0.6}),
      ('Moon', 'moon', {}),
      ('MoonBuffer', 'moon', {'num_previous': 2}),
      ('MoonFeatures', 'moon', {'similarity_on': 'features'}),
      ('Nesterov', 'fedavg', {'optimizer': 'nesterov'}),
      (
        'Adam',
        'fedavg',
        {'optimizer': 'adam', 'learning_rate': 0.05, 'adam_epsilon': 1e-2},
      ),
      (
        'AdamW',
        'fedavg',
        {'optimizer': 'adamw', 'learning_rate': 0.05, 'weight_decay': 0.2},
      ),
      ('Decentralised', 'moon', {'mixing': MIXING}),
      ('Scaffold', 'scaffold', {}),
      ('Annealed', 'sa_moon', ANNEALING),
      ('Dynamic', 'dco_moon', {'mu': 0.7, 'theta': 0.2}),
    ],
  )
  def test_global_model(self, case, algorithm, options):
    result = run(algorithm, **options)[-1]
    assert largest_difference(result.params, tree_of(case)) < 1e-5

  def test_scaffold_controls(self):
    result = run('scaffold')[-1]
    controls = [result.control, *(result.controls[client] for client in range(3))]
    norms = [float(networks.norm(control)) for control in controls]
    np.testing.assert_allclose(norms, golden()['Scaffold.control_norms'], rtol=1e-5)

  def test_temperatures(self):
    results = run('sa_moon', **ANNEALING)
    temperatures = [results[-1].temperatures[client] for client in range(3)]
    np.testing.assert_allclose(
      temperatures, golden()['Annealed.temperatures'], rtol=1e-5
    )
    # The proposal is refused in its first training: T stays.
    assert results[1].temperature_steps[2] == [1.0, 1.0]
    assert results[1].temperatures[2] == 1.0
    assert results[2].temperatures[2] < 1.0

  def test_fractions_above_theta(self):
    results = run('dco_moon', mu=0.7, theta=0.2)
    fractions = [result.exceeding for result in results]
    np.testing.assert_allclose(fractions, golden()['Dynamic.fractions'])

  def test_batch_norm_averaged(self):
    result = run('moon', network='mlp_bn')[-1]
    assert largest_difference(result.params, tree_of('MoonNorm')) < 1e-4
    stats = [result.stats['norm'][name] for name in ('mean', 'var')]
    np.testing.assert_allclose(stats, golden()['MoonNorm.stats'], atol=1e-5)
