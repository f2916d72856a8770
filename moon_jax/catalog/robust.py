"""The algorithms whose server withstands Byzantine clients: knobs and checks."""

from moon_jax.catalog.parts import Part, at_least, between, counted, knob, number

_TRIM_KNOBS = {'trim': number(0.1, 'fraction cut at each end', between(0, 0.5, '[)'))}
_KRUM_KNOBS = {
  'num_byzantine': knob(int, 1, 'number of Byzantine clients', at_least(0)),
  'num_selected': counted(1, 'number of models averaged; above 1 is multi-Krum'),
}


def _num_uploads(valid):
  """The number of clients that send something in a round."""
  cohort = max(1, int(valid['num_clients'] * valid['participation'] + 0.5))
  if valid['stragglers.send'] == 'nothing':
    cohort -= int(valid['stragglers.fraction'] * cohort + 0.5)
  return cohort


def _untrimmed(valid):
  """The complaint if the fraction of the uploads that is trimmed is none."""
  trim, cohort = valid['trimmed_mean.trim'], _num_uploads(valid)
  if trim and trim * cohort + 1e-3 < 1:  # as in robust.py
    yield (
      f'--config.trimmed_mean.trim={trim} of {cohort} clients in a round is none: '
      'raise it.'
    )


def _outnumbered(valid):
  """The complaint unless 2 f + 2 < n, for which Krum is proven, with n in a round."""
  byzantine, cohort = valid['krum.num_byzantine'], _num_uploads(valid)
  if 2 * byzantine + 2 >= cohort:
    yield (
      f'--config.krum.num_byzantine={byzantine} must be below (n - 2) / 2, with n = '
      f'{cohort} clients in a round.'
    )


def _rule(name, title, **more):
  traits = frozenset({'several_clients', 'served'})
  where = f'moon_jax.algorithms.robust:{name}'
  return Part('algorithm', name, where, title, traits, **more)


ROBUST = (
  _rule('median', 'coordinate-wise median'),
  _rule('trimmed_mean', 'trimmed mean', knobs=_TRIM_KNOBS, check=_untrimmed),
  _rule('krum', 'Krum', knobs=_KRUM_KNOBS, check=_outnumbered),
)
