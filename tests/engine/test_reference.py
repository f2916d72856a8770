"""The reference by PyTorch's numbers, and by reduction where PyTorch has none."""

import functools
import pathlib

import numpy as np
import pytest

from tests import reference
from tests.reference import federation, losses, networks
from tests.world import largest_difference

GOLDEN = pathlib.Path(__file__).parents[1] / 'golden' / 'reference.npz'
# The world of golden/make_reference_golden.py.
BATCHES = {
  0: [[0, 1, 2], [2, 0]],
  1: [[3, 4, 5], [6, 7], [7, 3, 5]],
  2: [[8, 9], [10, 11, 8]],
}
COHORTS = ((0, 1), (0, 1, 2), (0, 2), (0, 1, 2))
EVERYONE = ((0, 1, 2),) * 3
SIZES = {0: 3, 1: 5, 2: 4}
# 0 - 1 - 2: degrees 1, 2, 1.
PATH = [[0, 1, 0], [1, 0, 1], [0, 1, 0]]
FAR = 1e-3
NEAR = 2e-6


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


def distance(a, b):
  """The difference of the global models after the last round."""
  return largest_difference(a[-1].params, b[-1].params)


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

  def test_cases_differ(self):
    cases = ('Simulation', 'Proximal', 'Moon', 'MoonBuffer', 'MoonFeatures')
    cases += ('Nesterov', 'Adam', 'AdamW', 'Decentralised', 'Scaffold', 'Annealed')
    models = [tree_of(case) for case in (*cases, 'Dynamic')]
    for i, model in enumerate(models):
      for other in models[:i]:
        assert largest_difference(model, other) > FAR

  def test_scaffold_controls(self):
    result = run('scaffold')[-1]
    controls = [result.control, *(result.controls[client] for client in range(3))]
    norms = [float(networks.norm(control)) for control in controls]
    np.testing.assert_allclose(norms, golden()['Scaffold.control_norms'], rtol=1e-5)

  def test_temperatures(self):
    results = run('sa_moon', **ANNEALING)
    kept = [results[-1].temperatures[client] for client in range(3)]
    np.testing.assert_allclose(kept, golden()['Annealed.temperatures'], rtol=1e-5)
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


class TestReductions:
  def test_cosines_are_over_the_examples_with_a_negative(self):
    # Two examples with a negative, and three without: 2 of 5.
    def losses_(positive, negative):
      return losses.Losses(1.0, 1.0, 0.5, 0.0, positive, negative, 0.25)

    nan = float('nan')
    first = federation.Trained(None, [], [(losses_(0.5, -1.0), 2)])
    second = federation.Trained(None, [], [(losses_(nan, nan), 3)])
    means = federation.mean_losses([first, second])
    assert means['positive_cosine'] == 0.5
    assert means['negative_cosine'] == -1.0
    assert means['contrasted_fraction'] == 0.4
    assert means['train_loss'] == 1.0
    assert federation.mean_losses([second])['positive_cosine'] is None

  def test_dco_moon_normalised_does_not_know_mu(self):
    options = {'theta': 0.2, 'normalise': True}
    some = run('dco_moon', mu=1.0, theta=0.2)
    assert distance(some, run('dco_moon', mu=5.0, **options)) < NEAR

  def test_server_scope_averages_the_temperatures(self):
    first, second = run('sa_moon', COHORTS[:2], **ANNEALING, scope='server')
    own = run('sa_moon', COHORTS[:1], **ANNEALING)[0].temperatures
    mean = (3 * own[0] + 5 * own[1]) / 8
    assert own[0] != own[1]
    np.testing.assert_allclose(list(first.temperatures.values()), [mean] * 3)
    assert {t[0] for t in second.temperature_steps.values()} == {first.temperatures[2]}

  def test_server_optimizer_steps_along_the_mean_update(self):
    (average,) = run('fedavg', COHORTS[:1])
    (half,) = run('fedavg', COHORTS[:1], server_optimizer='sgd', server_rate=0.5)
    middle = networks.combine([0.5, 0.5], [tree_of('mlp'), average.params])
    assert largest_difference(half.params, middle) < NEAR

  def test_client_weight(self):
    uniform_weight = run('moon', client_weight='uniform')
    assert distance(uniform_weight, run('moon', sizes=dict.fromkeys(range(3), 7))) == 0
    assert distance(uniform_weight, run('moon')) > FAR

  def test_negative_before_a_previous_model(self):
    names = ('none', 'global', 'init')
    first = {n: run('moon', COHORTS[:3], negative=n) for n in names}
    losses_ = {n: [r.contrastive_loss for r in rounds] for n, rounds in first.items()}
    # Positive and negative coincide in the first round: log 2, and no gradient.
    assert losses_['none'][0] == 0
    for name in ('global', 'init'):
      np.testing.assert_allclose(losses_[name][0], np.log(2), rtol=1e-6)
      assert largest_difference(first[name][0].params, first['none'][0].params) < NEAR
    # Then client 2 joins: the received model still cancels as negative, and the initial
    # one does not.
    assert largest_difference(first['global'][1].params, first['none'][1].params) < NEAR
    assert largest_difference(first['init'][1].params, first['none'][1].params) > 1e-4

  def test_local_batch_norm_keeps_each_clients_statistics(self):
    # At rate 0 the weights stay: three rounds leave the same statistics as one round
    # with all their batches.
    still = {'network': 'mlp_bn', 'learning_rate': 0.0, 'batch_norm': 'local'}
    together = run('fedavg', COHORTS, **still)[-1]
    alone = run('fedavg', rounds=[{1: BATCHES[1] * 3}], **still)[-1]
    pair = together.client_stats[1], alone.client_stats[1]
    assert largest_difference(*pair) < NEAR
    mixed = run('fedavg', COHORTS, **(still | {'batch_norm': 'averaged'}))[-1]
    assert largest_difference(mixed.client_stats[1], pair[0]) > FAR
    first = networks.first_stats(tree_of('mlp_bn'))
    assert largest_difference(together.stats, first) == 0
