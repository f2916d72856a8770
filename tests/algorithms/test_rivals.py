"""Algorithms that MOON is compared with, by hand-worked numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moon_jax.algorithms.feddecorr import correlation
from moon_jax.algorithms.fedntd import not_true_distillation
from moon_jax.building import experiment
from moon_jax.core.types import Batch, Outputs, Server, Task, Upload
from tests import world

ONE = jnp.array([0])


def batch(labels, mask=None):
  labels = jnp.asarray(labels)
  mask = np.ones(len(labels)) if mask is None else mask
  return Batch(None, labels, np.asarray(mask, np.float32))


def loss_of(algorithm, outputs, references=None, labels=ONE, mask=None, **facts):
  """(total, parts) of a batch in one program, with the algorithm's numbers traced."""

  @jax.jit
  def loss(numbers, facts, outputs, references, examples):
    task = Task((), (), (), numbers, {}, **facts)
    return algorithm.loss(outputs, references, None, task, examples)

  numbers = {
    name: np.float32(number) for name, number in algorithm.hyperparameters.items()
  }
  return loss(numbers, facts, outputs, references, batch(labels, mask))


def outputs(z=None, logits=None):
  z = jnp.zeros((1, 2)) if z is None else jnp.float32(z)
  logits = jnp.zeros((len(z), 2)) if logits is None else jnp.float32(logits)
  return Outputs(representation=z, logits=logits, features=None)


# --- FedNTD ---------------------------------------------------------------------------

# z = (2, 1, 0), the received model's (1, 0, 2); the first class is true.
STUDENT, TEACHER = jnp.array([[2.0, 1.0, 0.0]]), jnp.array([[1.0, 0.0, 2.0]])


@pytest.mark.parametrize(
  ('tau', 'total', 'slope'),
  [
    # q = (0.1192029, 0.8807971), r = (0.7310586, 0.2689414): KL = 0.8287249104, and
    # with CE = 0.4076059644 the loss is 1.2363308749; its slope is tau (r - q).
    (1.0, 1.2363308749, 0.6118556566),
    (3.0, 1.4878326739, 0.7299797257),
  ],
)
def test_fedntd_by_hand(tau, total, slope):
  ntd = world.algorithm_of('fedntd', beta=1.0, tau=tau)
  loss, parts = loss_of(ntd, outputs(logits=STUDENT), {'global': TEACHER})
  np.testing.assert_allclose(loss, total, rtol=1e-6)
  np.testing.assert_allclose(parts['supervised_loss'], 0.4076059644, rtol=1e-6)
  # With twice the weight beta the distillation loss is the same.
  doubled = world.algorithm_of('fedntd', beta=2.0, tau=tau)
  doubled_loss, doubled_parts = loss_of(
    doubled, outputs(logits=STUDENT), {'global': TEACHER}
  )
  np.testing.assert_allclose(doubled_loss - loss, parts['distillation_loss'], rtol=1e-6)
  assert doubled_parts == parts

  def term(logits):
    return not_true_distillation(logits, TEACHER, ONE, jnp.float32(tau))[0]

  np.testing.assert_allclose(
    jax.jit(jax.grad(term))(STUDENT), [[0, slope, -slope]], atol=1e-6
  )


def test_fedntd_is_zero_for_two_classes_and_for_an_equal_teacher():
  labels, tau = jnp.array([0, 1]), jnp.float32(2)
  student = jnp.array([[3.0, -1.0], [0.5, 900.0]])
  teacher = jnp.array([[0.0, 4.0], [-700.0, 2.0]])
  terms = not_true_distillation(student, teacher, labels, tau)
  np.testing.assert_array_equal(terms, 0)
  slope = jax.grad(lambda z: not_true_distillation(z, STUDENT, ONE, tau)[0])(STUDENT)
  np.testing.assert_allclose(slope, 0, atol=1e-7)


# --- FedDecorr ------------------------------------------------------------------------

FOUR = np.array([[1, 1], [1, 2], [3, 2], [3, 5]], np.float32)
correlation_and_slope = jax.jit(
  jax.value_and_grad(correlation), static_argnames='scale'
)


@pytest.mark.parametrize(
  # The squared correlation is 4/9: R = (2 + 2 * 4/9) / 4; the code, 9/4 * 4/9.
  ('scale', 'expected'),
  [('equation', 13 / 18), ('code', 1.0)],
)
def test_feddecorr_by_hand(scale, expected):
  decorr = world.algorithm_of('feddecorr', beta=0.5, scale=scale)
  total, parts = loss_of(decorr, outputs(FOUR), labels=[0] * 4)
  np.testing.assert_allclose(parts['correlation_loss'], expected, rtol=1e-5)
  np.testing.assert_allclose(total, np.log(2) + 0.5 * expected, rtol=1e-5)
  # Filler has no part in mean, variance or count.
  padded = np.float32([*FOUR, [70.0, -9.0], [np.nan, 0.0]])
  mask = np.float32([1, 1, 1, 1, 0, 0])
  value, _ = correlation_and_slope(padded, mask, scale)
  np.testing.assert_allclose(value, expected, rtol=1e-5)


@pytest.mark.parametrize('scale', ['equation', 'code'])
@pytest.mark.parametrize('count', [0.0, 1.0])
def test_feddecorr_of_one_example_is_0_with_gradient_0(scale, count):
  mask = np.array([count, 0.0], np.float32)
  value, slope = correlation_and_slope(FOUR[1:3], mask, scale)
  assert value == 0
  np.testing.assert_array_equal(slope, 0)


def test_feddecorr_takes_dimensions_that_do_not_vary():
  with_constant = np.insert(FOUR, 2, 7.0, axis=1)
  value, slope = correlation_and_slope(with_constant, np.ones(4, np.float32), 'code')
  # One of three pairs correlates fully: the mean is 1/3.
  np.testing.assert_allclose(value, 1 / 3, rtol=1e-5)
  assert np.isfinite(slope).all()


# --- MOON with l2 ---------------------------------------------------------------------


@pytest.mark.parametrize(
  ('squared', 'value', 'slope'),
  [(False, 5.0, [0.6, 0.8]), (True, 25.0, [6.0, 8.0])],
)
def test_the_l2_term_by_hand(squared, value, slope):
  l2 = world.algorithm_of('moon_l2', mu=2.0, squared=squared)

  def total(z, z_global, mask=None):
    references = {'global': jnp.float32(z_global)}
    labels = [0] * len(z)
    return loss_of(l2, outputs(z), references, labels, mask)[0]

  ours, theirs = jnp.array([[3.0, 4.0]]), [[0.0, 0.0]]
  loss, gradient = jax.jit(jax.value_and_grad(total))(ours, theirs)
  np.testing.assert_allclose(loss, np.log(2) + 2 * value, rtol=1e-6)
  np.testing.assert_allclose(gradient, 2 * np.array([slope]), rtol=1e-6)
  # In the first step of a round both models are equal: 0 / 0 must not give a NaN.
  assert jax.jit(jax.grad(total))(ours, ours).tolist() == [[0.0, 0.0]]
  # The term is a mean over the real examples.
  with_filler = total(jnp.array([[3.0, 4.0], [100.0, 0.0]]), theirs * 2, mask=[1, 0])
  np.testing.assert_allclose(with_filler, loss, rtol=1e-6)


# --- FedLC ----------------------------------------------------------------------------


def lc_losses(logits, counts, **options):
  """The loss of an example of each class, and the slopes of the first loss."""
  options = {'tau': 1.0} | options
  lc = world.algorithm_of('fedlc', **options)
  counts = jnp.float32(counts)

  def loss(logits, label):
    total, _ = loss_of(
      lc,
      outputs(logits=logits[None]),
      labels=jnp.array([label]),
      class_counts=counts,
    )
    return total

  logits = jnp.float32(logits)
  losses = [float(loss(logits, label)) for label in (0, 1)]
  return losses, jax.jit(jax.grad(loss))(logits, 0)


@pytest.mark.parametrize(
  ('counts', 'options', 'expected'),
  [
    # Margins 9^(-1/4) = 0.5773502692 and 1.
    ((9, 1), {}, (0.5039871711, 0.9266369019)),
    ((9, 1), {'true_class': False}, (-0.4226497308, 0.4226497308)),
    ((9, 1, 0), {}, (0.5039871711, 0.9266369019)),
    ((9, 1, 0), {'least_count': 1.0}, (0.8375142657, 1.2601639965)),
    ((9, 1, 0), {'tau': 0.0}, (1.0986122887, 1.0986122887)),
    ((5, 5, 5), {'tau': 3.0}, (1.0986122887, 1.0986122887)),
  ],
)
def test_fedlc_by_hand(counts, options, expected):
  losses, slope = lc_losses(np.zeros(len(counts)), counts, **options)
  np.testing.assert_allclose(losses, expected, rtol=1e-6)
  assert np.isfinite(slope).all()
  if counts[-1] == 0 and not options:
    assert slope[2] == 0


def test_fedlc_of_a_client_with_one_class():
  # There are no classes to tell apart. In the paper's form the loss falls without end,
  # with slope -1.
  (loss, _), slope = lc_losses([2.0, -1.0], (16, 0))
  assert loss == 0
  assert slope.tolist() == [0, 0]
  (loss, _), slope = lc_losses([2.0, -1.0], (16, 0), true_class=False)
  assert loss == -(2.0 - 0.5)
  assert slope.tolist() == [-1, 0]


# --- FedRS ----------------------------------------------------------------------------


@pytest.mark.parametrize(
  ('graded', 'expected', 'slope'),
  [
    # The scaled logits are (2, 1, -0.5), and graded (2, 0.625, -0.5).
    (False, 0.3715390319, (-0.3103279139, 0.2537161816, 0.0283058661)),
    (True, 0.2888748067, (-0.2508940174, 0.1183772837, 0.0307451818)),
  ],
)
def test_fedrs_by_hand(graded, expected, slope):
  rs = world.algorithm_of('fedrs', alpha=0.5, graded=graded)
  counts = jnp.array([8.0, 2.0, 0.0])

  def loss(logits):
    total, parts = loss_of(rs, outputs(logits=logits), class_counts=counts)
    return total, parts

  differentiate = jax.value_and_grad(loss, has_aux=True)
  (total, parts), gradient = differentiate(jnp.array([[2.0, 1.0, -1.0]]))
  np.testing.assert_allclose(total, expected, rtol=1e-6)
  assert parts == {'supervised_loss': total}
  np.testing.assert_allclose(gradient, [slope], rtol=1e-5)


# --- FedDyn ---------------------------------------------------------------------------

# L_1 = y^2 / 2 and L_2 = 3 (y - 4)^2 / 2, as (curvature, minimum).
BOWLS = ((1.0, 0.0), (3.0, 4.0))


def weight(value):
  return {'params': {'w': jnp.float32(value)}}


def dynamic_rounds(cohorts, sizes=(1, 1), **options):
  """(w, h, the cohort's y) of rounds in which each client finds its exact minimum."""
  dyn = world.algorithm_of('feddyn', alpha=1.0, **options)
  numbers = {'alpha': jnp.float32(1)}
  server = Server(weight(0), dyn.init_server(weight(0)))
  memories = [dyn.init_client(weight(0)) for _ in BOWLS]
  history = []
  for cohort in cohorts:
    received, ends = dyn.broadcast(server), []
    for client in cohort:
      relative = jnp.float32(2 * sizes[client] / sum(sizes))
      task = Task(received, memories[client], (), numbers, {}, relative_size=relative)

      def slope(y, task=task):
        def loss(y):
          return dyn.loss(outputs(), None, {'w': y}, task, batch(ONE))[0]

        return jax.grad(loss)(y)

      # The slope of a parabola is a line, given by its value at 0 and its rise.
      curvature, minimum = BOWLS[client]
      at_0 = slope(jnp.float32(0)) - curvature * minimum
      rise = slope(jnp.float32(1)) - slope(jnp.float32(0)) + curvature
      ends.append(-at_0 / rise)
      memories[client] = dyn.upload(weight(ends[-1]), task)[1]
    mean = Upload(uniform=weight(sum(ends) / len(ends)))
    participation = jnp.float32(len(cohort) / len(BOWLS))
    server = dyn.aggregate(server, mean, participation, numbers)
    w, h = server.variables['params']['w'], server.memory.h['w']
    history.append([float(number) for number in (w, h, *ends)])
  return dyn, server, history


@pytest.mark.parametrize(
  ('cohorts', 'options', 'expected'),
  [
    # w, h, and y of the cohort; 3 is the minimum of the mean of both.
    ([(0, 1)] * 2, {}, [(3, -3 / 2, 0, 3), (3, -3 / 4, 3 / 2, 3)]),
    (
      [(0,), (1,), (0, 1)],
      {},
      [(0, 0, 0), (9 / 2, -3 / 2, 3), (21 / 8, 3 / 16, 9 / 4, 27 / 8)],
    ),
    # With sizes 3 and 1 alpha_i is 2/3 and 2; the limit is 2, weighted by examples.
    (
      [(0, 1)] * 2,
      {'sizes': (3, 1), 'by_size': True},
      [(12 / 5, -6 / 5, 0, 12 / 5), (54 / 25, -12 / 25, 24 / 25, 12 / 5)],
    ),
  ],
)
def test_feddyn_of_two_parabolas(cohorts, options, expected):
  _, _, history = dynamic_rounds(cohorts, **options)
  for numbers, true_numbers in zip(history, expected, strict=True):
    np.testing.assert_allclose(numbers, true_numbers, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(('evaluate', 'tested'), [('server', 3.0), ('mean', 1.5)])
def test_the_model_of_feddyn_that_is_tested(evaluate, tested):
  dyn, server, _ = dynamic_rounds([(0, 1)], evaluate=evaluate)
  assert dyn.evaluated(server, ())['params']['w'].tolist() == [tested]
  leaves = jax.tree.leaves(experiment.make_initial_state(dyn, server.variables, 2))
  assert len({leaf.unsafe_buffer_pointer() for leaf in leaves}) == len(leaves)


# --- FedNova --------------------------------------------------------------------------


def nova_round(rho, eta_mu, tau_eff='norm'):
  """(w, a_i of both) after a round of slopes 1 and -2, steps 8 and 2, p 0.8 and 0.2."""
  rate = 0.1
  nova = world.algorithm_of('fednova', mu=eta_mu / rate, tau_eff=tau_eff)
  numbers = {'mu': jnp.float32(eta_mu / rate)}
  optimizer = {'learning_rate': jnp.float32(rate), 'momentum': jnp.float32(rho)}
  server = Server(weight(0), nova.init_server(weight(0)))
  received, sent, norms = nova.broadcast(server), [], []
  for slope, steps in ((1.0, 8), (-2.0, 2)):
    task = Task(received, (), nova.begin(received, ()), numbers, optimizer)
    y, velocity = jnp.float32(0), 0.0
    for _ in range(steps):
      velocity = rho * velocity + slope
      y = nova.after_update({'w': y - rate * velocity}, {'w': y}, task)['w']
      task = task._replace(local=nova.after_step(task, None, None, None))
    norms.append(float(task.local.length))
    sent.append(nova.upload(weight(y), task)[0].weighted)
  mean = jax.tree.map(lambda x, y: 0.8 * x + 0.2 * y, *sent)
  new = nova.aggregate(server, Upload(weighted=mean), 1.0, numbers)
  assert new.memory == mean[1]
  return float(new.variables['params']['w']), norms


@pytest.mark.parametrize(
  ('rho', 'eta_mu', 'tau_eff', 'end', 'norms'),
  [
    (0.0, 0.0, 'norm', -0.272, (8, 2)),
    (0.5, 0.0, 'norm', -0.46825, (1793 / 128, 5 / 2)),
    (0.0, 0.1, 'steps', -0.272, (5.6953279, 1.9)),
    (0.0, 0.1, 'norm', -0.1974504928, (5.6953279, 1.9)),
  ],
)
def test_fednova_by_hand(rho, eta_mu, tau_eff, end, norms):
  w, lengths = nova_round(rho, eta_mu, tau_eff)
  np.testing.assert_allclose(w, end, rtol=1e-5)
  np.testing.assert_allclose(lengths, norms, rtol=1e-6)


@pytest.mark.slow  # tests/round/test_round.py compares FedNova with the reference
def test_fednova_of_clients_with_equal_steps_is_fedavg_and_fedprox():
  equal_steps = world.planner(cohort_size=3, sizes=(18, 20, 29, 25))
  no_momentum = {'momentum': 0.0}

  def model_of(name, plans=None, **options):
    return world.run(name, 2, plans=plans, **options)[-1][0].server.variables

  nova = model_of('fednova', equal_steps, mu=0.0)
  assert world.largest_difference(nova, model_of('fedavg', equal_steps)) < 1e-6
  nova = model_of('fednova', equal_steps, mu=0.4, optimizer=no_momentum)
  prox = model_of('fedprox', equal_steps, mu=0.4, optimizer=no_momentum)
  assert world.largest_difference(nova, prox) < 1e-6
  # With unequal numbers of steps FedNova and FedAvg differ.
  nova = model_of('fednova', mu=0.0)
  assert world.largest_difference(nova, model_of('fedavg')) > 1e-3


# --- FedExP ---------------------------------------------------------------------------


def exp_step(updates, shares, start=0.0, **options):
  """The server's variables and memory after a round with these client updates."""
  options = {'eps': 1e-30} | options
  algorithm = world.algorithm_of('fedexp', **options)
  numbers = jax.tree.map(jnp.float32, dict(algorithm.hyperparameters))

  def model(params, mean):
    return {'params': {'w': params}, 'batch_stats': {'mean': jnp.float32(mean)}}

  first = model(jnp.full(len(updates[0]), start), 0)
  server = Server(first, algorithm.init_server(first))
  task = Task(algorithm.broadcast(server), (), (), numbers, {})
  ends = [
    model(start + jnp.float32(update), 10 * i) for i, update in enumerate(updates)
  ]
  sent = [algorithm.upload(end, task)[0].weighted for end in ends]
  shares = jnp.float32(shares)
  stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *sent)
  mean = jax.tree.map(lambda leaf: jnp.tensordot(shares, leaf, 1), stacked)
  return algorithm, algorithm.aggregate(server, Upload(mean), 1.0, numbers)


@pytest.mark.parametrize(
  ('updates', 'shares', 'eps', 'eta'),
  [
    ([(3, 1), (3, -1)], (0.5, 0.5), 1e-30, 1.0),  # 20 / (4 * 9) = 0.5556
    ([(3, 0), (0, 4)], (0.5, 0.5), 1e-30, 1.0),
    # Four orthogonal updates of length 4: 16 / (2 * 4), and with eps = 1 16 / (2 * 5).
    (4 * np.eye(4), [0.25] * 4, 1e-30, 2.0),
    (4 * np.eye(4), [0.25] * 4, 1.0, 1.6),
    (4 * np.eye(4), [0.25] * 4, 1e30, 1.0),
    # p (9, 16) = 10.75; ||(9/4, 1)||^2 = 6.0625: 0.8866, and opposed updates 1.0750.
    ([(3, 0), (-4, 0)], (0.75, 0.25), 1e-30, 10.75 / (2 * 1.25**2)),
  ],
)
def test_fedexp_by_hand(updates, shares, eps, eta):
  _, server = exp_step(np.float32(updates), shares, start=5.0, eps=eps)
  np.testing.assert_allclose(server.memory.eta_g, eta, rtol=1e-6)
  mean = np.tensordot(np.float32(shares), np.float32(updates), 1)
  w = server.variables['params']['w']
  np.testing.assert_allclose(w, 5 + eta * mean, rtol=1e-5)
  # Running statistics 0, 10, ... are averaged with weights p.
  mean_statistics = 10 * np.dot(shares, np.arange(len(shares)))
  np.testing.assert_allclose(server.variables['batch_stats']['mean'], mean_statistics)


def test_the_guard_of_fedexp_decays():
  algorithm, server = exp_step(4 * np.eye(4), [0.25] * 4, eps=1.0, eps_decay=0.5)
  assert server.memory.decayed == 0.5
  assert algorithm.scalars({}, server.memory) == {'eta_g': server.memory.eta_g}
  start = server.variables['params']['w']
  mean = server.variables | {'params': {'w': start + 1.0}}
  numbers = jax.tree.map(jnp.float32, dict(algorithm.hyperparameters))
  sent = Upload((mean, jnp.float32(18)))
  # 18 / (2 (4 + 0.5)) = 2
  next_server = algorithm.aggregate(server, sent, 1.0, numbers)
  np.testing.assert_allclose(next_server.memory.eta_g, 2.0, rtol=1e-6)
  assert next_server.memory.decayed == 0.25


@pytest.mark.parametrize(
  ('evaluate', 'tested'), [('last', [7.0, 5.0]), ('mean_of_two', [6.0, 5.0])]
)
def test_the_model_of_fedexp_that_is_tested(evaluate, tested):
  # The two weights start from 5; the update is 2 and 0, and eta is 1.
  algorithm, server = exp_step([(2, 0)], [1.0], start=5.0, evaluate=evaluate)
  (w,) = algorithm.evaluated(server, ())['params']['w']
  assert w.tolist() == tested
  state = experiment.make_initial_state(algorithm, server.variables, 2)
  leaves = jax.tree.leaves(state)
  # A round donates its state, so no buffer may be in the state twice.
  assert len({leaf.unsafe_buffer_pointer() for leaf in leaves}) == len(leaves)
