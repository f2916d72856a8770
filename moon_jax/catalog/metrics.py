"""The metrics of algorithms that reports follow over the rounds, by column."""

from moon_jax.catalog.entries import Metric


def _contrastive_share(weight_of):
  """The weighted contrastive term as a fraction of the training loss, in per cent.

  Args:
    weight_of: (the part's knobs, record of a round) -> weight of the contrastive term,
      or None if the record does not tell it.
  """

  def share(knobs, record):
    loss = record.get('train_loss')
    contrastive_loss = record.get('contrastive_loss')
    weight = weight_of(knobs, record)
    if None in (loss, contrastive_loss, weight) or loss <= 0:
      return None
    return 100 * weight * contrastive_loss / loss

  return Metric('Contrastive share of the training loss', 'share, %', value=share)


def _dco_weight(knobs, record):
  """The weight of DCO-MOON's contrastive term, mu + mu_t, which mu may divide."""
  if record.get('mu_t') is None:
    return None
  weight = knobs['mu'] + record['mu_t']
  return weight / knobs['mu'] if knobs['normalise'] else weight


CONTRAST = {
  'contrastive_share': _contrastive_share(lambda knobs, record: knobs['mu']),
  'positive_cosine': Metric('Cosine to the received model', 'cosine'),
  'negative_cosine': Metric("Cosine to the client's last model", 'cosine'),
}
TEMPERATURE = {'temperature_mean': Metric('Temperature tau', 'tau, mean of clients')}
DEVIATION = {
  'contrastive_share': _contrastive_share(_dco_weight),
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
CONSENSUS = {
  'consensus_distance': Metric(
    'Consensus distance ||w_i - mean w||', 'norm, mean of clients'
  )
}
MIXTURE = {
  'alpha_mean': Metric("Share alpha of the clients' own models", 'mean of clients')
}
PERSONAL = {'personal_loss_mean': Metric('Training loss of personal models', 'nats')}
PERSONAL_WITH_PULL = {
  'personal_loss_mean': Metric(
    'Training loss of personal models', 'nats, with the pull'
  )
}
