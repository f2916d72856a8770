"""The metrics of algorithms that reports follow over the rounds, by column."""

from moon_jax.catalog.parts import Metric


def _share(weight):
  """The weighted contrastive term as a fraction of the training loss, in per cent."""

  def value(knobs, record):
    whole, term = record.get('train_loss'), record.get('contrastive_loss')
    scale = weight(knobs, record)
    if None in (whole, term, scale) or whole <= 0:
      return None
    return 100 * scale * term / whole

  title = 'Contrastive share of the training loss'
  return Metric(title, 'share, %', value=value)


def _dco_weight(knobs, record):
  if record.get('mu_t') is None:
    return None
  return (knobs['mu'] + record['mu_t']) / (knobs['mu'] if knobs['normalise'] else 1.0)


CONTRAST = {
  'contrastive_share': _share(lambda knobs, record: knobs['mu']),
  'positive_cosine': Metric('Cosine to the received model', 'cosine'),
  'negative_cosine': Metric("Cosine to the client's last model", 'cosine'),
}
TEMPERATURE = {'temperature_mean': Metric('Temperature tau', 'tau, mean of clients')}
DEVIATION = {
  'contrastive_share': _share(_dco_weight),
  'deviation_mean': Metric(
    'Relative deviation ||w - w_received|| / ||w_received||', 'ratio, mean of clients'
  ),
  'p_t': Metric('Deviation probability p_t', 'share of clients'),
  'mu_t': Metric('Dynamic weight mu_t', 'weight'),
}
STEPS = {'tau_eff': Metric('Effective steps of the round before', 'steps')}
PROTOTYPES = {
  'prototype_loss': Metric('Term of the prototypes', 'mean over examples'),
  'prototype_accuracy': Metric(
    'Training accuracy of the nearest prototype', 'training accuracy, %', 100.0
  ),
}
PACE = {'eta_g': Metric("Server's step of the round before", 'multiple of the mean')}
_DISTANCE = Metric('Consensus distance ||w_i - mean w||', 'norm, mean of clients')
CONSENSUS = {'consensus_distance': _DISTANCE}
_PULLED = Metric('Training loss of personal models', 'nats, with the pull')
PERSONAL = {'personal_loss_mean': _PULLED}
