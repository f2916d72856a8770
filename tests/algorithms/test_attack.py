"""Attackers by hand, against plain numpy, and through rounds against the reference."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moon_jax.algorithms.fedavg import fedavg
from moon_jax.algorithms.wrappers import attack
from moon_jax.core.errors import UsageError
from moon_jax.core.types import Server, Upload, Uploads
from tests import world
from tests.reference import attacks
from tests.round.test_round import assert_equal_to_reference, reference_run
from tests.selection import few

NOBODY = -1


def knowledge(values, attackers=(), received=1.0):
  """What attackers may use, for models of one number each."""
  attacking = np.isin(np.arange(len(values)), attackers)
  return attack.AttackerKnowledge(
    received={'w': jnp.float32([received])},
    trained={'w': jnp.float32(values)[:, None]},
    honest=~attacking,
    attacking=attacking,
    draws=jnp.int32(np.where(attacking, 7, NOBODY)),
  )


def test_sign_flip_by_hand():
  # w = 1, y = 4: 1 - 2 (4 - 1) = -5.
  sent = attack.sign_flip(knowledge([4, 1]), scale=2.0)
  np.testing.assert_allclose(sent['w'].ravel(), [-5, 1])


def test_ipm_by_hand():
  # The honest 2 and 4 have mean 3: 1 - 0.5 (3 - 1) = 0, whatever the attacker trained.
  sent = attack.ipm(knowledge([2, 4, 100], [2]), epsilon=0.5)
  np.testing.assert_allclose(sent['w'].ravel(), [0] * 3, atol=1e-6)


def test_alie_by_hand():
  # Of n = 10, f = 3 attack: t = floor(10 / 2 + 1) - 3 = 3, Phi(z) = (7 - 3) / 7, so
  # z = 0.180012. The honest 0 to 6 have mean 3 and deviation 2.
  sent = attack.alie(knowledge([0, 1, 2, 3, 4, 5, 6, 9, 9, 9], [7, 8, 9]))
  np.testing.assert_allclose(sent['w'].ravel(), [3 - 0.180012 * 2] * 10, rtol=1e-5)
  # One of 10 would need z < 0: it sends the mean.
  sent = attack.alie(knowledge([*range(9), 50], [9]))
  np.testing.assert_allclose(sent['w'].ravel(), [4] * 10, rtol=1e-6)


def test_gaussian_draws_are_each_attackers_own():
  received = {'a': jnp.full((40, 50), 3.0), 'b': jnp.zeros(2000)}
  trained = jax.tree.map(lambda leaf: jnp.stack([leaf] * 3), received)
  everyone_attacks = attack.AttackerKnowledge(
    received=received,
    trained=trained,
    honest=jnp.zeros(3, bool),
    attacking=jnp.ones(3, bool),
    draws=jnp.int32([5, 6, 5]),
  )
  sent = attack.gaussian(everyone_attacks, sigma=0.5)
  noise = np.concatenate([np.ravel(sent['a'][0]) - 3, np.ravel(sent['b'][0])])
  assert abs(noise.mean()) < 4 * 0.5 / 4000**0.5
  assert abs(noise.std() - 0.5) < 0.03
  np.testing.assert_array_equal(sent['a'][0], sent['a'][2])
  assert np.abs(np.subtract(sent['a'][0], sent['a'][1])).max() > 0.1
  assert np.abs(noise[:2000] - noise[2000:]).max() > 0.1


def uploads(draws, left_out=()):
  """Seven random models with a number each; clients that are left out sent NaN."""
  rng = np.random.default_rng(0)
  params = {'a': rng.normal(size=(7, 3, 2)), 'b': rng.normal(size=(7, 4))}
  model = {'params': params, 'batch_stats': {'mean': rng.normal(size=(7, 2))}}
  sent = Upload(model, rng.normal(size=7))
  sent = jax.tree.map(np.float32, sent)
  for leaf in jax.tree.leaves(sent):
    leaf[list(left_out)] = np.nan
  counted = ~np.isin(np.arange(7), left_out)
  weights = np.arange(1, 8, dtype=np.float32)
  return Uploads(sent, weights, counted, np.int32(draws))


def means_as_server(server, mean, participation, scalars):
  """An `aggregate` that returns the two means that it receives."""
  return server._replace(variables=mean.weighted, memory=mean.uniform)


def aggregated(name, sent, broadcast=None, frozen=frozenset(), **changes):
  inner = fedavg()._replace(aggregate=means_as_server)
  if broadcast:
    inner = inner._replace(broadcast=broadcast)
  wrapped = attack.with_attack(inner, name, changes, frozen=frozen)
  start = {'params': {'a': np.ones((3, 2)), 'b': np.zeros(4)}, 'batch_stats': {}}
  server = Server(jax.tree.map(np.float32, start), ())
  scalars = wrapped.scalars(dict(wrapped.hyperparameters), ())
  return server, jax.jit(wrapped.aggregate)(server, sent, np.float32(1), scalars)


@pytest.mark.parametrize(
  # An honest client and an attacker are left out, or the attacker alone. Then ALIE's z
  # is 0.43 and 0; if it counted the attacker that is left out, it would be 0.43 and
  # 0.67.
  ('name', 'left_out'),
  [('sign_flip', (0, 6)), ('ipm', (0, 6)), ('alie', (0, 6)), ('alie', (6,))],
)
def test_the_server_gets_the_mean_of_what_the_reference_sends(name, left_out):
  draws = [NOBODY, 0, NOBODY, NOBODY, 4, NOBODY, 5]
  sent = uploads(draws, left_out)
  numbers = world.ATTACKS[name]
  server, means = aggregated(name, sent, **numbers)
  counted = [client for client in range(7) if client not in left_out]
  models = [jax.tree.map(lambda x, k=k: x[k], sent.stacked.weighted) for k in counted]
  attacked = attacks.sent(
    [model['params'] for model in models],
    server.variables['params'],
    [counted.index(1), counted.index(4)],
    getattr(attacks, name),
    **numbers,
  )
  weights = sent.weights[counted] / sent.weights[counted].sum()

  def mean(trees):
    return jax.tree.map(lambda *x: np.tensordot(weights, np.stack(x), 1), *trees)

  assert world.largest_difference(means.variables['params'], mean(attacked)) < 1e-5
  stats = mean([model['batch_stats'] for model in models])
  assert world.largest_difference(means.variables['batch_stats'], stats) < 1e-6
  uniform = sent.stacked.uniform[counted].mean()
  np.testing.assert_allclose(means.memory, uniform, rtol=1e-5)


def test_without_attackers_the_mean_is_that_of_the_trained_models():
  sent = uploads([NOBODY] * 7, left_out=(2,))
  _, means = aggregated('ipm', sent, epsilon=0.5)
  counted = sent.counted
  weights = sent.weights[counted] / sent.weights[counted].sum()
  for name, leaf in sent.stacked.weighted['params'].items():
    mean = np.tensordot(weights, leaf[counted], 1)
    np.testing.assert_allclose(means.variables['params'][name], mean, atol=1e-6)


def test_a_mean_over_no_client_is_not_finite_as_without_an_attack():
  _, means = aggregated('ipm', uploads([3, *[NOBODY] * 6], range(7)), epsilon=0.5)
  assert all(np.isnan(leaf).all() for leaf in jax.tree.leaves(means))


@pytest.mark.parametrize(('name', 'scale'), [('alie', None), ('sign_flip', 3.0)])
def test_if_all_clients_attack_who_needs_honest_ones_sends_what_it_trained(name, scale):
  numbers = {} if scale is None else {'scale': scale}
  server, attacked = aggregated(name, uploads([3] * 7), **numbers)
  _, honest = aggregated(name, uploads([NOBODY] * 7), **numbers)
  start, mean = server.variables['params'], honest.variables['params']
  sent = mean
  if scale:
    sent = jax.tree.map(lambda w, m: w - scale * (m - w), start, mean)
  assert world.largest_difference(attacked.variables['params'], sent) < 1e-5


def test_attackers_start_from_the_model_that_was_sent():
  # An algorithm may send clients another model than the server's.
  def one_ahead(server):
    return jax.tree.map(lambda w: w + 1.0, server.variables)

  _, plain = aggregated('sign_flip', uploads([3] * 7), scale=3.0)
  _, ahead = aggregated('sign_flip', uploads([3] * 7), broadcast=one_ahead, scale=3.0)
  expected = jax.tree.map(lambda w: w + 4.0, plain.variables['params'])
  assert world.largest_difference(ahead.variables['params'], expected) < 1e-5


def test_a_layer_that_nobody_sends_is_not_attacked():
  # FedPer and FedBABU do not send their head.
  sent = uploads([NOBODY, 3, NOBODY, NOBODY, 4, NOBODY, 5])
  _, with_head = aggregated('alie', sent)
  del sent.stacked.weighted['params']['b']
  _, without_head = aggregated('alie', sent)
  params = without_head.variables['params']
  assert list(params) == ['a']
  np.testing.assert_array_equal(params['a'], with_head.variables['params']['a'])


def test_a_frozen_layer_is_not_attacked():
  frozen = frozenset({('params', 'b')})
  sent = uploads([NOBODY, 3, NOBODY, NOBODY, 4, NOBODY, 5])
  _, honest = aggregated('gaussian', uploads([NOBODY] * 7), sigma=0.1)
  _, attacked = aggregated('gaussian', sent, frozen=frozen, sigma=0.1)
  honest, attacked = honest.variables['params'], attacked.variables['params']
  np.testing.assert_array_equal(attacked['b'], honest['b'])
  assert np.abs(attacked['a'] - honest['a']).max() > 1e-3


def test_algorithms_that_send_no_model_cannot_be_attacked():
  sent = uploads([3] * 7)
  sent = sent._replace(stacked=Upload(uniform=sent.stacked.uniform))
  wrapped = attack.with_attack(fedavg(), 'alie', {})
  with pytest.raises(UsageError, match='send none: use'):
    wrapped.aggregate(Server({'params': {}}, ()), sent, 1.0, {})


def test_an_algorithm_schedules_its_own_numbers_and_not_the_attacks():
  inner = fedavg()._replace(
    hyperparameters={'rate': 4.0},
    scalars=lambda numbers, memory: {k: v / 2 for k, v in numbers.items()},
  )
  wrapped = attack.with_attack(inner, 'ipm', {'epsilon': 2.0})
  scalars = wrapped.scalars(dict(wrapped.hyperparameters), ())
  assert sorted(scalars.values()) == [2.0, 2.0]


ROUNDS = (('median', 'alie'),)
MORE = (('fedavg', 'ipm'), ('scaffold', 'sign_flip'), ('moon', 'alie'), ('krum', 'ipm'))


@pytest.mark.parametrize(('algorithm', 'name'), few(ROUNDS, MORE))
def test_rounds_equal_the_reference(algorithm, name):
  plans = world.planner(attackers=np.array([0, 2]))
  history = world.run(algorithm, 3, plans=plans, attack=name)
  numbers = tuple(world.ATTACKS[name].items())
  changes = {'attack': getattr(attacks, name), 'attack_numbers': numbers}
  expected = reference_run(algorithm, 3, plans=plans, attackers=(0, 2), **changes)
  assert_equal_to_reference(algorithm, history, expected)
  honest = reference_run(algorithm, 3, plans=plans)
  assert world.largest_difference(honest[-1].params, expected[-1].params) > 1e-3
