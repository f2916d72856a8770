"""The algorithms whose clients have personal models, beside or instead of a global one.

Knobs, metrics and traits are as in `algorithms`.
"""

from moon_jax.catalog.parts import (
  COUNT,
  Metric,
  Part,
  Rule,
  above,
  at_least,
  exactly,
  knob,
  number,
  rules,
  word,
)

SERVED = frozenset({'several_clients', 'served', 'weighted'})
_LAYERED = SERVED | {'layered'}

_PER_KNOBS = {
  'layers': word('', "layers that stay with a client; '' is the output layer")
}
_DITTO_KNOBS = {
  'lam': number(1.0, 'weight of the pull to the received model', at_least(0)),
  'epochs': knob(
    int, 'auto', 'epochs of the personal model; auto: local_epochs', COUNT, auto=True
  ),
  'learning_rate': number(
    'auto', "personal model's learning rate; auto: the global one", above(0), auto=True
  ),
}
_PERSONAL = {
  'personal_loss_mean': Metric(
    'Training loss of personal models', 'nats, with the pull'
  )
}


# A client's personal model keeps its batch normalisation in any case.
_averaged = rules(Rule('batch_norm', exactly('averaged'), 'algorithm'))


def _algorithm(name, title, traits=SERVED, **more):
  return Part(
    'algorithm', name, f'moon_jax.algorithms.{name}:{name}', title, traits, **more
  )


PERSONAL = (
  _algorithm('fedper', 'FedPer', _LAYERED, knobs=_PER_KNOBS),
  _algorithm('fedbabu', 'FedBABU', _LAYERED),
  _algorithm('fedbn', 'FedBN', _LAYERED, check=_averaged),
  _algorithm('ditto', 'Ditto', knobs=_DITTO_KNOBS, metrics=_PERSONAL, check=_averaged),
)
