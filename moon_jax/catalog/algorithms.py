"""The algorithms: name, title, traits, knobs, metrics, and where the code is.

Traits that others ask about:
  several_clients  the training data is divided among clients
  served           the clients send to a server
  weighted         what they send is averaged by `client_weight`
  decentralized    neighbours average, without a server
  contrastive      the loss compares with frozen networks
  moon             takes the knobs of MOON (any group's name is such a trait)
"""

from moon_jax.catalog.parts import (
  COUNT,
  INT32,
  Metric,
  Part,
  above,
  at_least,
  between,
  knob,
  one_of,
)

SERVED = frozenset({'several_clients', 'served', 'weighted'})
_SOME = (at_least(0), INT32)
_ROBUST = frozenset({'several_clients', 'served'})
_PEERS = frozenset({'several_clients', 'decentralized'})
_CONTRASTIVE = frozenset({'contrastive'})
_DECENTRALIZED = 'wrappers.decentralized:decentralized'

_MU = knob(float, 5.0, 'weight of the contrastive term', at_least(0))
_TAU = knob(float, 0.5, 'temperature of the contrastive term', above(0))

_MOON_KNOBS = {
  'mu': _MU,
  'tau': _TAU,
  'negative': knob(
    str,
    'none',
    'without a previous model: none, global or init model',
    one_of('none', 'global', 'init'),
  ),
  'similarity_on': knob(
    str,
    'representation',
    'features: before the head',
    one_of('representation', 'features'),
  ),
  'num_previous': knob(int, 1, "of a client's last models as negatives", COUNT),
  'frozen_mode': knob(
    str, 'evaluation', 'of the models compared with', one_of('evaluation', 'training')
  ),
}


_SA_MOON_KNOBS = {
  'mu': _MU,
  'initial_temperature': knob(float, 1.0, "of a client's first step", above(0)),
  'min_temperature': knob(float, 0.001, 'at most the initial one', above(0)),
  'sigma': knob(
    float, 0.005, 'fall per relative change of the gradient', between(0, 1)
  ),
  'scope': knob(
    str,
    'client',
    "keeps its own; server: averaged over the round's",
    one_of('client', 'server'),
  ),
}

_DCO_MOON_KNOBS = {
  'mu': knob(float, 1.0, 'weight of both terms, so also of a step', at_least(0)),
  'tau': _TAU,
  # About half of the clients stray by 0.1 with mu = 1: docs/algorithms.md.
  'theta': knob(float, 0.1, 'relative deviation that counts as straying', above(0)),
  'normalise': knob(bool, False, 'divide both weights by mu, above 0 then'),
}


def _share(weight):
  """What part of the training loss the weighted contrastive term is, in per cent."""

  def value(knobs, record):
    whole = record.get('train_loss')
    if not whole or whole <= 0 or 'contrastive_loss' not in record:
      return None
    scale = weight(knobs, record)
    return None if scale is None else 100 * scale * record['contrastive_loss'] / whole

  title = 'Contrastive share of the training loss'
  return Metric(title, 'share, %', value=value)


def _dco_weight(knobs, record):
  mu, mu_t = knobs['mu'], record.get('mu_t')
  if mu_t is None:
    return None
  return (mu + mu_t) / (mu if knobs['normalise'] else 1.0)


_CONTRAST = {
  'contrastive_share': _share(lambda knobs, record: knobs['mu']),
  'positive_cosine': Metric('Cosine to the received model', 'cosine'),
  'negative_cosine': Metric("Cosine to the client's last model", 'cosine'),
}
_DEVIATION = {
  'contrastive_share': _share(_dco_weight),
  'deviation_mean': Metric(
    'Relative deviation ||w - w_received|| / ||w_received||', 'ratio, mean of clients'
  ),
  'p_t': Metric('Deviation probability p_t', 'share of clients'),
  'mu_t': Metric('Dynamic weight mu_t', 'weight'),
}
_CONSENSUS = {
  'consensus_distance': Metric(
    'Consensus distance ||w_i - mean w||', 'norm, mean of clients'
  )
}


def _plain_sgd(valid):
  """SCAFFOLD divides by how far SGD comes in so many steps."""
  name, nesterov = valid.get('optimizer.name'), valid.get('optimizer.nesterov')
  if name is None or (name == 'sgd' and not nesterov):
    return []
  return [
    '--config.algorithm=scaffold needs --config.optimizer.name=sgd without nesterov: '
    'it divides by how far SGD comes in so many steps.'
  ]


def _cooling(valid):
  """The lowest temperature is not above the first."""
  start, low = (
    valid.get(f'sa_moon.{name}') for name in ('initial_temperature', 'min_temperature')
  )
  if None in (start, low) or low <= start:
    return []
  return [
    f'--config.sa_moon.min_temperature={low} must be at most '
    f'--config.sa_moon.initial_temperature={start}.'
  ]


def _divisible(valid):
  """DCO-MOON normalises by mu."""
  if not valid.get('dco_moon.normalise') or valid.get('dco_moon.mu') != 0:
    return []
  return [
    f'--config.dco_moon.mu={valid["dco_moon.mu"]} must be above 0 with '
    '--config.dco_moon.normalise=true, which divides by it.'
  ]


def _outnumbered(valid):
  """Krum is proven for 2 f + 2 < n of the n clients of a round."""
  byzantine, clients = valid.get('krum.num_byzantine'), valid.get('num_clients')
  if None in (byzantine, clients, valid.get('participation')):
    return []
  cohort = max(1, int(clients * valid['participation'] + 0.5))
  if 2 * byzantine + 2 < cohort:
    return []
  return [
    f'--config.krum.num_byzantine={byzantine} must be below (n - 2) / 2, with n = '
    f'{cohort} clients in a round.'
  ]


def _algorithm(name, title, traits=SERVED, where='', **more):
  where = where or f'{name}:{name}'
  return Part('algorithm', name, f'moon_jax.algorithms.{where}', title, traits, **more)


ALGORITHMS = (
  _algorithm('fedavg', 'FedAvg'),
  _algorithm(
    'fedprox',
    'FedProx',
    knobs={'mu': knob(float, 0.01, 'weight of the proximal term', at_least(0))},
  ),
  _algorithm('scaffold', 'SCAFFOLD', check=_plain_sgd),
  _algorithm(
    'moon', 'MOON', SERVED | _CONTRASTIVE, knobs=_MOON_KNOBS, metrics=_CONTRAST
  ),
  _algorithm(
    'sa_moon',
    'SA-MOON',
    SERVED | _CONTRASTIVE,
    knobs=_SA_MOON_KNOBS,
    metrics=_CONTRAST
    | {'temperature_mean': Metric('Temperature tau', 'tau, mean of clients')},
    check=_cooling,
  ),
  _algorithm(
    'dco_moon',
    'DCO-MOON',
    SERVED | _CONTRASTIVE,
    knobs=_DCO_MOON_KNOBS,
    metrics=_CONTRAST | _DEVIATION,
    check=_divisible,
  ),
  _algorithm('median', 'coordinate-wise median', _ROBUST, 'robust:median'),
  _algorithm(
    'trimmed_mean',
    'trimmed mean',
    _ROBUST,
    'robust:trimmed_mean',
    knobs={
      'trim': knob(float, 0.1, 'share left out at each end', between(0, 0.5, '[)'))
    },
  ),
  _algorithm(
    'krum',
    'Krum',
    _ROBUST,
    'robust:krum',
    knobs={
      'num_byzantine': knob(int, 1, 'clients that may send anything', _SOME),
      'num_selected': knob(int, 1, 'models averaged; above 1: multi-Krum', COUNT),
    },
    check=_outnumbered,
  ),
  _algorithm(
    'decentralized_fedavg',
    'decentralized FedAvg',
    _PEERS,
    f'{_DECENTRALIZED}_fedavg',
    metrics=_CONSENSUS,
  ),
  _algorithm(
    'decentralized_moon',
    'decentralized MOON',
    _PEERS | _CONTRASTIVE,
    f'{_DECENTRALIZED}_moon',
    knobs=_MOON_KNOBS,
    group='moon',
    metrics=_CONTRAST | _CONSENSUS,
  ),
  _algorithm('solo', 'SOLO', frozenset({'several_clients'})),
  _algorithm('centralized', 'centralized', frozenset()),
)
