"""The reference by PyTorch's numbers, by hand, and by reduction."""

import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import reference
from tests.reference import federation, formulas, losses, networks, optimizers
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
  """The results of each round in that world."""
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
  """Of the global models after the last round."""
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
    # Refused in its first training: the step after the draw keeps T.
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


class TestByHand:
  def test_batch_norm(self):
    # Mean 4, biased variance (9 + 1 + 16) / 3 = 26/3, unbiased 13.
    layer = {'scale': jnp.array([2.0]), 'bias': jnp.array([1.0])}
    running = {'mean': jnp.array([0.0]), 'var': jnp.array([1.0])}
    x = jnp.array([[1.0], [3.0], [8.0]])
    y, after = networks.batch_norm(layer, running, x, training=True)
    np.testing.assert_allclose(y[2, 0], 1 + 2 * 4 / np.sqrt(26 / 3 + 1e-5), rtol=1e-6)
    np.testing.assert_allclose([after['mean'][0], after['var'][0]], [0.4, 2.2])
    y, same = networks.batch_norm(layer, after, x, training=False)
    np.testing.assert_allclose(y[2, 0], 1 + 2 * 7.6 / np.sqrt(2.2 + 1e-5), rtol=1e-6)
    assert same is after

  def test_two_negatives(self):
    # Similarities 1, 0, -1 at tau = 0.5: log(e^2 + 1 + e^-2) - 2.
    z = jnp.array([[3.0, 0.0]])
    negatives = [jnp.array([[0.0, 1.0]]), jnp.array([[-2.0, 0.0]])]
    value = losses.model_contrastive(z, z, negatives, 0.5)[0]
    np.testing.assert_allclose(value, np.log(1 + np.exp(-2) + np.exp(-4)), rtol=1e-6)

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

  def test_effective_steps(self):
    # 1 + (1 + 1/2) + (1 + 1/2 + 1/4)
    assert formulas.effective_steps(3, 0.5) == 4.25
    assert formulas.effective_steps(4, 0.0) == 4

  def test_controls(self):
    # c_i+ = 1 - 3 + (7 - 5) / 0.5 = 2; of two clients of N = 8, changes 1 and 5:
    # c = 3 + (2/8) * (1 + 5) / 2 = 3.75
    one, three = {'w': jnp.array(1.0)}, {'w': jnp.array(3.0)}
    x, y = {'w': jnp.array(7.0)}, {'w': jnp.array(5.0)}
    new = formulas.new_client_control(one, three, x, y, 0.5)
    assert new['w'] == 2
    other = {'w': jnp.array(6.0)}
    assert formulas.new_control(three, [one, one], [new, other], 8)['w'] == 3.75
    assert formulas.corrected(x, one, three)['w'] == 7 - 1 + 3

  @pytest.mark.parametrize(
    ('loss', 'draw', 'expected'),
    [
      # |3 - 2| / 2 = 0.5: candidate 2 (1 - 0.4 * 0.5) = 1.6
      (0.9, 0.999, 1.6),  # better
      (1.0, 0.999, 1.6),  # equal: exp(0) = 1
      (2.0, 0.60, 1.6),  # worse by 1 at T = 2: exp(-0.5) = 0.6065
      (2.0, 0.61, 2.0),
    ],
  )
  def test_metropolis(self, loss, draw, expected):
    new = formulas.annealed(
      2.0, (1.0, loss), (2.0, 3.0), draw, sigma=0.4, minimum=0.1, epsilon=0.0
    )
    np.testing.assert_allclose(new, expected)

  def test_candidate_has_a_floor_and_no_sign(self):
    # Norms 4 -> 1: change 3 / (4 + 2) = 0.5, 1 - 0.5 = 0.5; with sigma 4 negative.
    for sigma, expected in ((1.0, 0.5), (4.0, 0.1)):
      new = formulas.annealed(
        1.0, (1.0, 0.0), (4.0, 1.0), 0.5, sigma=sigma, minimum=0.1, epsilon=2.0
      )
      np.testing.assert_allclose(new, expected)

  def test_coefficients(self):
    # (2 - 0.25) 2 = 3.5 and (1 + 0.25) 2 = 2.5, together 6.
    assert formulas.dynamic_weights(2.0, 0.25, normalise=False) == (3.5, 2.5, 0)
    scaled = formulas.dynamic_weights(2.0, 0.25, normalise=True)
    np.testing.assert_allclose(scaled, [1.75, 1.25, 0])
    assert formulas.fraction_above([0.1, 0.2, 0.3, 0.4], 0.2) == 0.5

  def test_deviation(self):
    # ||(0, 5)|| / ||(3, 4)|| = 1
    received = {'a': jnp.array([3.0]), 'b': jnp.array([4.0])}
    trained = {'a': jnp.array([3.0]), 'b': jnp.array([9.0])}
    np.testing.assert_allclose(formulas.deviation(trained, received), 1.0)

  def test_metropolis_hastings(self):
    third = 1 / 3
    expected = [[2 * third, third, 0], [third, third, third], [0, third, 2 * third]]
    np.testing.assert_allclose(reference.metropolis_hastings(PATH), expected)
    # A star: the hub's degree is 3, so every edge weighs 1/4.
    star = [[0, 1, 1, 1], [1, 0, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0]]
    np.testing.assert_allclose(
      reference.metropolis_hastings(star)[:2], [[0.25] * 4, [0.25, 0.75, 0, 0]]
    )

  def test_absence(self):
    # 2 is away: its 1/3 goes to 1, and it keeps its model.
    mixing = reference.without_absent(reference.metropolis_hastings(PATH), {0, 1})
    third = 1 / 3
    expected = [[2 * third, third, 0], [third, 2 * third, 0], [0, 0, 1]]
    np.testing.assert_allclose(mixing, expected)

  @pytest.mark.parametrize(
    ('kind', 'expected'),
    [
      # v = 1, w = 0.1; v = 0.5 + 1, w = 0.1 + 0.15
      ('sgd', [0.1, 0.25]),
      # m = 0.1, v = 0.99 * 0.25 + 0.01 = 0.2575; m = 0.19, v = 0.264925
      ('adam', [0.01 / (0.2575**0.5 + 0.5), 0.019 / (0.264925**0.5 + 0.5)]),
      # v = 0.25 + 0.01 (v < update^2), then 0.27
      ('yogi', [0.01 / (0.26**0.5 + 0.5), 0.019 / (0.27**0.5 + 0.5)]),
    ],
  )
  def test_server_steps(self, kind, expected):
    options = reference.Options(
      *('fedavg', reference.mlp, 0.1, 0.0, 0.0, 0.0, 1.0),
      server_optimizer=kind,
      server_rate=0.1,
      server_momentum=0.5,
      server_beta1=0.9,
      server_tau=0.5,
    )
    params, update = {'w': jnp.array([0.0])}, {'w': jnp.array([1.0])}
    moments = optimizers.server_zeros(params, options)
    seen = []
    for _ in range(2):
      params, moments = optimizers.server_step(params, moments, update, options)
      seen.append(float(params['w'][0]))
    if kind != 'sgd':
      expected = np.cumsum(expected)
    np.testing.assert_allclose(seen, expected, rtol=1e-5)

  def test_yogi_shrinks_more_slowly_than_adam(self):
    # update^2 = 0.01 < v = 0.25: yogi 0.25 - 0.0001, adam 0.2475 + 0.0001
    params, update = {'w': jnp.array([0.0])}, {'w': jnp.array([0.1])}
    for kind, expected in (('yogi', 0.2499), ('adam', 0.2476)):
      options = reference.Options(
        *('fedavg', reference.mlp, 0.1, 0.0, 0.0, 0.0, 1.0),
        server_optimizer=kind,
        server_tau=0.5,
      )
      moments = optimizers.server_zeros(params, options)
      _, after = optimizers.server_step(params, moments, update, options)
      np.testing.assert_allclose(after.second['w'][0], expected, rtol=1e-6)


class TestReductions:
  def test_scaffold_with_one_client_is_fedavg(self):
    plain = {'momentum': 0.0, 'num_clients': 1, 'sizes': {0: 3}}
    alone = [run(a, ((0,),) * 3, **plain) for a in ('fedavg', 'scaffold')]
    assert distance(*alone) < NEAR
    assert float(networks.norm(alone[1][-1].control)) > FAR

  def test_scaffold_begins_as_fedavg(self):
    fedavg, scaffold = (run(a, EVERYONE, momentum=0.0) for a in ('fedavg', 'scaffold'))
    assert largest_difference(fedavg[0].params, scaffold[0].params) == 0
    assert largest_difference(fedavg[1].params, scaffold[1].params) > FAR

  def test_scaffolds_control_is_the_mean_of_the_clients(self):
    for result in run('scaffold'):
      mean = networks.combine([1 / 3] * 3, list(result.controls.values()))
      assert largest_difference(mean, result.control) < NEAR

  def test_dco_moon_with_infinite_theta_is_moon(self):
    mu = 0.8
    dco = run('dco_moon', mu=mu)
    # The rate multiplies weight decay too.
    options = {'learning_rate': 0.3 * 2 * mu, 'weight_decay': 0.02 / (2 * mu)}
    assert distance(dco, run('moon', mu=0.5, **options)) < NEAR
    assert distance(dco, run('dco_moon', mu=mu, theta=0.2)) > FAR

  def test_dco_moon_normalised_does_not_know_mu(self):
    options = {'theta': 0.2, 'normalise': True}
    some = run('dco_moon', mu=1.0, theta=0.2)
    assert distance(some, run('dco_moon', mu=5.0, **options)) < NEAR

  def test_annealing_without_sigma_is_moon(self):
    options = {'uniform': uniform, 'initial_temperature': 0.5}
    moon = run('moon')
    assert distance(moon, run('sa_moon', sigma=0.0, **options)) == 0
    assert distance(moon, run('sa_moon', sigma=0.4, **options)) > FAR / 10

  def test_server_scope_averages_the_temperatures(self):
    first, second = run('sa_moon', COHORTS[:2], **ANNEALING, scope='server')
    own = run('sa_moon', COHORTS[:1], **ANNEALING)[0].temperatures
    mean = (3 * own[0] + 5 * own[1]) / 8
    assert own[0] != own[1]
    np.testing.assert_allclose(list(first.temperatures.values()), [mean] * 3)
    assert {t[0] for t in second.temperature_steps.values()} == {first.temperatures[2]}

  @pytest.mark.parametrize('algorithm', ['fedavg', 'moon'])
  def test_complete_graph_is_the_server(self, algorithm):
    sizes = dict.fromkeys(range(3), 4)
    mixing = [reference.metropolis_hastings(np.ones((3, 3)))] * 3
    central = run(algorithm, EVERYONE, sizes=sizes)
    assert distance(central, run(algorithm, EVERYONE, mixing=mixing)) < NEAR
    path = [reference.metropolis_hastings(PATH)] * 3
    assert distance(central, run(algorithm, EVERYONE, mixing=path)) > FAR / 10

  def test_rows_of_the_mixing_matrix_belong_to_the_receiver(self):
    # A directed ring: i starts from the model of i + 1, and keeps it at rate 0.
    ring = [[0, 1, 0], [0, 0, 1], [1, 0, 0]]
    options = {'mixing': [np.eye(3), ring], 'rate_multipliers': [1.0, 0.0]}
    before, after = run('fedavg', EVERYONE[:2], **options)
    for client in range(3):
      neighbour = before.clients[(client + 1) % 3]
      assert largest_difference(after.clients[client], neighbour) == 0

  def test_no_neighbours_is_solo(self):
    solo = run('solo')[-1].clients
    apart = run('fedavg', mixing=[np.eye(3)] * 4)[-1].clients
    assert largest_difference(solo, apart) == 0

  def test_server_sgd_at_rate_1_is_averaging(self):
    average = run('moon')
    assert distance(average, run('moon', server_optimizer='sgd')) < NEAR
    momentum = run('moon', server_optimizer='sgd', server_momentum=0.5)
    assert distance(average, momentum) > FAR

  def test_server_optimizer_steps_along_the_mean_update(self):
    (average,) = run('fedavg', COHORTS[:1])
    (half,) = run('fedavg', COHORTS[:1], server_optimizer='sgd', server_rate=0.5)
    middle = networks.combine([0.5, 0.5], [tree_of('mlp'), average.params])
    assert largest_difference(half.params, middle) < NEAR

  def test_centralised_is_one_client(self):
    rounds = [{0: BATCHES[0] + BATCHES[1]}] * 2
    options = {'rounds': rounds, 'num_clients': 1, 'sizes': {0: 8}}
    central = run('centralised', **options)
    assert distance(central, run('solo', **options)) > FAR  # that reports the initial
    assert largest_difference(central[-1].params, central[-1].clients[0]) == 0
    solo = run('solo', **options)[-1].clients[0]
    assert largest_difference(central[-1].params, solo) == 0

  def test_client_weight(self):
    uniform_weight = run('moon', client_weight='uniform')
    assert distance(uniform_weight, run('moon', sizes=dict.fromkeys(range(3), 7))) == 0
    assert distance(uniform_weight, run('moon')) > FAR

  def test_negative_before_a_previous_model(self):
    first = {
      n: run('moon', COHORTS[:3], negative=n) for n in ('none', 'global', 'init')
    }
    losses_ = {n: [r.contrastive_loss for r in rounds] for n, rounds in first.items()}
    # Positive and negative coincide in the first round: log 2, and no gradient.
    assert losses_['none'][0] == 0
    for name in ('global', 'init'):
      np.testing.assert_allclose(losses_[name][0], np.log(2), rtol=1e-6)
      assert largest_difference(first[name][0].params, first['none'][0].params) < NEAR
    # Then client 2 joins: the received model still cancels, the initial one does not.
    assert largest_difference(first['global'][1].params, first['none'][1].params) < NEAR
    assert largest_difference(first['init'][1].params, first['none'][1].params) > 1e-4

  def test_drop_last(self):
    whole = [{c: [b for b in BATCHES[c] if len(b) == 3] for c in SIZES}] * 2
    dropped = run('moon', EVERYONE[:2], drop_last=True, batch_size=3)
    assert distance(dropped, run('moon', rounds=whole)) == 0

  def test_learning_rate_multipliers(self):
    halved = run('scaffold', rate_multipliers=[0.5] * 4)
    assert distance(halved, run('scaffold', learning_rate=0.15)) == 0
    still = run('moon', EVERYONE, rate_multipliers=[1.0, 0.0, 1.0])
    assert largest_difference(still[0].params, still[1].params) < NEAR
    assert largest_difference(still[1].params, still[2].params) > FAR

  def test_local_batch_norm_keeps_each_clients_statistics(self):
    # At rate 0 all weights stay: three rounds leave the statistics of one that does
    # all their batches.
    still = {'network': 'mlp_bn', 'learning_rate': 0.0, 'batch_norm': 'local'}
    together = run('fedavg', COHORTS, **still)[-1]
    alone = run('fedavg', rounds=[{1: BATCHES[1] * 3}], **still)[-1]
    pair = together.client_stats[1], alone.client_stats[1]
    assert largest_difference(*pair) < NEAR
    mixed = run('fedavg', COHORTS, **(still | {'batch_norm': 'averaged'}))[-1]
    assert largest_difference(mixed.client_stats[1], pair[0]) > FAR
    assert (
      largest_difference(together.stats, networks.first_stats(tree_of('mlp_bn'))) == 0
    )


class TestRefusals:
  @pytest.mark.parametrize(
    ('algorithm', 'options', 'message'),
    [
      ('fedsgd', {}, 'algorithm='),
      ('moon', {'negative': 'random'}, 'negative='),
      ('scaffold', {'optimizer': 'adam'}, 'effective steps'),
      ('sa_moon', {}, 'uniform'),
      ('centralised', {}, 'one client'),
      ('solo', {'server_optimizer': 'adam'}, 'needs a server'),
      ('scaffold', {'mixing': MIXING}, 'decentralised'),
      ('moon', {'mixing': MIXING[1:2] * 4}, r'mixing\[0\] gives weight to absent'),
      ('moon', {'num_previous': 0}, 'at least 1'),
      ('moon', {'rate_multipliers': [1.0]}, 'one entry for each of 4'),
      ('moon', {'drop_last': True}, 'needs batch_size'),
      ('moon', {'drop_last': True, 'batch_size': 4}, 'client 0 owns 3 .* batch of 4'),
      ('moon', {'num_clients': 2}, r'must be in 0\.\.1'),
    ],
  )
  def test_what_does_not_go_together(self, algorithm, options, message):
    with pytest.raises(ValueError, match=message):
      run(algorithm, **options)

  def test_unknown_options(self):
    with pytest.raises(TypeError, match='temperature'):
      run('moon', temperature=1.0)


def test_every_case_starts_from_the_same_model():
  params = jax.tree.map(jnp.asarray, tree_of('mlp'))
  assert largest_difference(run('solo')[-1].params, params) == 0
