"""The algorithms: name, title, traits, knobs, metrics, and where the code is.

Traits that rules and reports ask about:
  several_clients  the training data are divided among clients
  served           the clients send to a server
  weighted         the server averages by `client_weight`
  decentralized    neighbours average, without a server
  contrastive      the loss compares with frozen networks
  layered          `make` takes the network's layers, `network_layers`
  moon             it has the knobs of MOON (the name of any group is such a trait)
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from moon_jax.catalog import metrics
from moon_jax.catalog.entries import (
  COUNT,
  Knob,
  Metric,
  Part,
  Rule,
  above,
  at_least,
  between,
  check_of,
  counted,
  exactly,
  knob,
  number,
  one_of,
  switch,
  word,
)
from moon_jax.core import shares
from moon_jax.core.flags import flag

SERVED = frozenset({'several_clients', 'served', 'weighted'})
_CONTRASTIVE = SERVED | {'contrastive'}
_LAYERED = SERVED | {'layered'}
_ALIKE = frozenset({'several_clients', 'served'})
_PEERS = frozenset({'several_clients', 'decentralized'})
_ALONE = frozenset({'several_clients'})

_MU = number(5.0, 'weight of the contrastive term', at_least(0))
_TAU = number(0.5, 'temperature of the contrastive term', above(0))

_NEGATIVES = one_of('none', 'global', 'init')
_OUTPUTS = one_of('representation', 'features')
_FROZEN_MODES = one_of('evaluation', 'training')
_SCOPES = one_of('client', 'server')
_ACCEPTANCES = one_of('steps', 'temperatures')
_INITIALS = one_of('plain', 'mu')
_DYN_MODELS = one_of('server', 'mean')
_EXP_MODELS = one_of('last', 'mean_of_two')
_TAU_EFFS = one_of('norm', 'steps')
_HESSIANS = one_of('none', 'difference')
_ALA_MODELS = one_of('blend', 'trained')
_DECORR_SCALES = one_of('code', 'equation')

_MOON_KNOBS = {
  'mu': _MU,
  'tau': _TAU,
  'negative': word('none', 'negative of a client without a previous model', _NEGATIVES),
  'similarity_on': word('representation', 'output that is compared', _OUTPUTS),
  # Each of these models is a network of its own in the compiled step.
  'num_previous': knob(
    int, 1, "number of a client's last models that are negatives", between(1, 100)
  ),
  'frozen_mode': word('evaluation', 'mode of the frozen networks', _FROZEN_MODES),
}
_SA_MOON_KNOBS = {
  'mu': _MU,
  'initial_temperature': number(1.0, "temperature of a client's first step", above(0)),
  'min_temperature': number(0.001, 'lowest temperature of the annealing', above(0)),
  'sigma': number(0.005, 'cooling rate of the temperature', between(0, 1)),
  'scope': word('client', 'owner of the temperature: client or server', _SCOPES),
  'acceptance': word(
    'steps',
    'losses compared: of two steps, or at two temperatures',
    _ACCEPTANCES,
    used_if=('sigma', above(0)),
  ),
}
_DCO_MOON_KNOBS = {
  'mu': number(1.0, 'factor of the whole loss, and so of a step', at_least(0)),
  'tau': _TAU,
  'theta': number(0.1, 'relative deviation above which a client strays', above(0)),
  'normalise': switch(False, 'whether both weights are divided by mu (above 0)'),
  'initial': word(
    'plain', 'value of mu_t in the first round: 0 (plain) or mu', _INITIALS
  ),
}
_PROX_KNOBS = {'mu': number(0.01, 'weight of the proximal term', at_least(0))}
_SAM_KNOBS = {
  'rho': number(0.1, 'length of the move uphill before the gradient', at_least(0)),
  'adaptive': switch(
    False, 'whether larger weights move further (FedASAM)', used_if=('rho', above(0))
  ),
  'xi': number(
    0.2,
    'number added to the size of a weight, if adaptive',
    at_least(0),
    used_if=('adaptive', exactly(True)),
  ),
}
_PROC_KNOBS = {
  'tau': number(1.0, 'temperature of the prototype term', above(0)),
  'rise': number(100.0, 'number of rounds until only cross entropy is left', above(0)),
}
_PROTO_KNOBS = {
  'lam': number(1.0, 'weight of the distance to the prototype', at_least(0)),
  'distance': word(
    'mean', 'squared distance: mean or sum over dimensions', one_of('mean', 'sum')
  ),
}
_BETA = number(0.1, "weight of the client's own gradient", between(0, 1, '(]'))
_NTD_KNOBS = {
  'beta': number(1.0, 'weight of the distillation', at_least(0)),
  'tau': number(1.0, 'temperature of the distillation', above(0)),
}
_DECORR_KNOBS = {
  'beta': number(0.1, 'weight of the penalty on correlations', at_least(0)),
  'scale': word(
    'code', 'scale of the penalty: of the code, or of the paper', _DECORR_SCALES
  ),
}
_L2_KNOBS = {
  'mu': number(0.1, 'weight of the distance of representations', at_least(0)),
  'squared': switch(False, 'whether the distance is squared'),
}
_DYN_KNOBS = {
  'alpha': number(0.01, 'weight of the dynamic regularisation', above(0)),
  'by_size': switch(False, 'whether alpha is divided by the relative size of a client'),
  'evaluate': word(
    'server', "tested model: the server's or the clients' mean", _DYN_MODELS
  ),
}
_NOVA_KNOBS = {
  'mu': number(0.0, 'weight of the pull to the received model', at_least(0)),
  'tau_eff': word('norm', 'mean effective steps, or mean number of steps', _TAU_EFFS),
}
_LC_KNOBS = {
  'tau': number(1.0, 'weight of the margins of rare classes', at_least(0)),
  'least_count': number(
    0.0,
    'lowest count of a class; 0 leaves missing classes out',
    at_least(0),
    used_if=('tau', above(0)),
  ),
  'true_class': switch(True, 'whether the true class is in the denominator'),
}
_RS_KNOBS = {
  'alpha': number(0.5, 'factor of the logits of missing classes', between(0, 1)),
  'graded': switch(False, "whether factors follow class shares (the authors' code)"),
}
_EXP_KNOBS = {
  'eps': number(0.001, "guard of the server's step against a division by 0", above(0)),
  'eps_decay': number(1.0, 'factor of eps after each round', between(0, 1, '(]')),
  'evaluate': word(
    'last', 'model that is tested: the last, or the mean of two', _EXP_MODELS
  ),
}
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
_REP_KNOBS = {
  'head_epochs': counted(10, 'epochs of the head, before local_epochs of the body')
}
_APFL_KNOBS = {
  'alpha': number(0.5, "first share of a client's own model", between(0, 1)),
  'adaptive': switch(False, 'whether each client learns its alpha'),
}
_ME_KNOBS = {
  'lam': number(15.0, 'weight of the pull between theta and w', at_least(0)),
  'inner_steps': counted(5, 'number of steps of theta on a batch'),
  'inner_learning_rate': number(0.09, 'learning rate of theta', above(0)),
  'beta': number(1.0, "length of the server's step; above 1 goes beyond", at_least(0)),
  'warm': switch(False, 'whether theta goes on from the batch before'),
}
_PER_FEDAVG_KNOBS = {
  'alpha': number(0.01, 'learning rate of the inner step', at_least(0)),
  'hessian': word(
    'none', 'second derivatives: none (FO) or a difference (HF)', _HESSIANS
  ),
  'delta': number(
    0.001,
    'length of the difference',
    above(0),
    used_if=('hessian', exactly('difference')),
  ),
}
_ALA_KNOBS = {
  'layers': word('', "layers that are blended; '' is the output layer"),
  'eta': number(1.0, 'learning rate of the blend', at_least(0)),
  'example_share': number(
    0.8, 'fraction of the examples that the blend learns from', between(0, 1, '(]')
  ),
  'threshold': number(
    0.1, 'deviation of losses at which the first learning ends', at_least(0)
  ),
  'start_epochs': counted(20, 'number of epochs of the first learning, at most'),
  'evaluate': word(
    'blend', "client's tested model: next start, or last trained", _ALA_MODELS
  ),
}
_TRIM_KNOBS = {'trim': number(0.1, 'fraction cut at each end', between(0, 0.5, '[)'))}
_KRUM_KNOBS = {
  'num_byzantine': knob(int, 1, 'number of Byzantine clients', at_least(0)),
  'num_selected': counted(1, 'number of models averaged; above 1 is multi-Krum'),
}


# A client's personal model keeps its batch normalisation in any case.
_AVERAGED_STATISTICS = Rule('batch_norm', exactly('averaged'), 'algorithm')
_averaged_statistics = check_of([_AVERAGED_STATISTICS])
# SCAFFOLD, MoFedSAM and FedNova divide by the length of the steps of SGD, which is one
# for all layers. The equations of APFL and Per-FedAvg have steps of SGD.
_SGD = (
  Rule('optimizer.name', exactly('sgd'), 'algorithm'),
  Rule('optimizer.nesterov', exactly(False), 'algorithm'),
  Rule('optimizer.body_learning_rate', exactly('auto'), 'algorithm'),
)
# tau_eff=steps belongs to FedNova's proximal variant.
_PROXIMAL = Rule('fednova.mu', above(0), 'fednova.tau_eff', 'steps')
_DIVISIBLE = Rule('dco_moon.mu', above(0), 'dco_moon.normalise', True)
# A difference of gradients over a short way is rounding noise in bfloat16.
_DIFFERENCE_IN_FLOAT32 = Rule(
  'execution.dtype', exactly('float32'), 'per_fedavg.hessian', 'difference'
)


def _cools_down(values):
  """The complaint if the lowest temperature is above the first."""
  initial = values['sa_moon.initial_temperature']
  lowest = values['sa_moon.min_temperature']
  if lowest > initial:
    yield (
      f'{flag("sa_moon.min_temperature", lowest)} must be at most '
      f'{flag("sa_moon.initial_temperature", initial)}.'
    )


def _num_sending(values):
  """Number of clients that send their model in a round."""
  num_drawn = shares.num_drawn(values['num_clients'], values['participation'])
  num_stragglers = shares.num_stragglers(num_drawn, values['stragglers.fraction'])
  if not num_stragglers:
    return num_drawn
  return shares.num_sending(
    num_drawn,
    num_stragglers,
    stragglers_send_partial_work=values['stragglers.send'] == 'partial',
  )


def _trims_somebody(values):
  """The complaint if the rule of a run with a trim would be the plain mean."""
  trim = values['trimmed_mean.trim']
  num_sending = _num_sending(values)
  if not num_sending:
    return  # all are stragglers, which is refused in any case
  if trim and int(trim * num_sending + 1e-3) == 0:
    yield (
      f'{flag("trimmed_mean.trim", trim)} of {num_sending} clients is none: raise one.'
    )


def _outnumber_byzantine(values):
  """The complaint unless 2 f + 2 < n, for which Krum is proven, with n in a round."""
  num_byzantine = values['krum.num_byzantine']
  num_selected = values['krum.num_selected']
  num_sending = _num_sending(values)
  if not num_sending:
    return  # as above
  if num_selected > num_sending:
    yield (
      f'{flag("krum.num_selected", num_selected)} must be at most {num_sending}, the '
      'number of clients that send in a round.'
    )
  if 2 * num_byzantine + 2 >= num_sending:
    yield (
      f'{flag("krum.num_byzantine", num_byzantine)} must be below (n - 2) / 2, '
      f'with n = {num_sending} clients in a round.'
    )


def _algorithm(
  name: str,
  title: str,
  traits: frozenset[str] = SERVED,
  code: str = '',
  *,
  knobs: Mapping[str, Knob] | None = None,
  group: str = '',
  metrics: Mapping[str, Metric] | None = None,
  check: Callable[[Mapping[str, Any]], Iterable[str]] | None = None,
) -> Part:
  """The entry of an algorithm.

  Args:
    name: value of the knob `algorithm`.
    title: its name in reports.
    traits: see the head of this file.
    code: 'module:function' in moon_jax/algorithms/; '' if both have the name.
    knobs: see `Part`, as for the others.
    group: group of the knobs; '': the name.
    metrics: columns that reports follow.
    check: complaints about the values of its knobs.
  """
  return Part(
    kind='algorithm',
    name=name,
    make=f'moon_jax.algorithms.{code or f"{name}:{name}"}',
    title=title,
    traits=traits,
    knobs=knobs or {},
    group=group,
    metrics=metrics or {},
    check=check,
  )


ALGORITHMS = (
  _algorithm('fedavg', 'FedAvg'),
  _algorithm('fedprox', 'FedProx', knobs=_PROX_KNOBS),
  _algorithm('scaffold', 'SCAFFOLD', check=check_of(_SGD)),
  _algorithm('fedsam', 'FedSAM', knobs=_SAM_KNOBS),
  _algorithm(
    'mofedsam',
    'MoFedSAM',
    code='fedsam:mofedsam',
    knobs=_SAM_KNOBS | {'beta': _BETA},
    check=check_of(_SGD),
  ),
  _algorithm('moon', 'MOON', _CONTRASTIVE, knobs=_MOON_KNOBS, metrics=metrics.CONTRAST),
  _algorithm(
    'sa_moon',
    'SA-MOON',
    _CONTRASTIVE,
    knobs=_SA_MOON_KNOBS,
    metrics=metrics.CONTRAST | metrics.TEMPERATURE,
    check=_cools_down,
  ),
  _algorithm(
    'dco_moon',
    'DCO-MOON',
    _CONTRASTIVE,
    knobs=_DCO_MOON_KNOBS,
    metrics=metrics.CONTRAST | metrics.DEVIATION,
    check=check_of([_DIVISIBLE]),
  ),
  _algorithm('moon_l2', 'MOON with l2', _CONTRASTIVE, knobs=_L2_KNOBS),
  _algorithm('fedntd', 'FedNTD', _CONTRASTIVE, knobs=_NTD_KNOBS),
  _algorithm('feddecorr', 'FedDecorr', knobs=_DECORR_KNOBS),
  _algorithm('fedlc', 'FedLC', knobs=_LC_KNOBS),
  _algorithm('fedrs', 'FedRS', knobs=_RS_KNOBS),
  _algorithm('feddyn', 'FedDyn', _ALIKE, knobs=_DYN_KNOBS),
  _algorithm(
    'fednova',
    'FedNova',
    knobs=_NOVA_KNOBS,
    metrics=metrics.STEPS,
    check=check_of([*_SGD, _PROXIMAL]),
  ),
  _algorithm('fedexp', 'FedExP', knobs=_EXP_KNOBS, metrics=metrics.PACE),
  _algorithm('fedproc', 'FedProc', knobs=_PROC_KNOBS, metrics=metrics.PROTOTYPES),
  _algorithm(
    'fedproto', 'FedProto', _ALONE, knobs=_PROTO_KNOBS, metrics=metrics.PROTOTYPES
  ),
  _algorithm('fedper', 'FedPer', _LAYERED, knobs=_PER_KNOBS),
  _algorithm('fedbabu', 'FedBABU', _LAYERED),
  _algorithm('fedbn', 'FedBN', _LAYERED, check=_averaged_statistics),
  _algorithm(
    'ditto',
    'Ditto',
    knobs=_DITTO_KNOBS,
    metrics=metrics.PERSONAL_WITH_PULL,
    check=_averaged_statistics,
  ),
  _algorithm(
    'fedrep',
    'FedRep',
    _LAYERED,
    knobs=_REP_KNOBS,
    metrics=metrics.PERSONAL,
    check=_averaged_statistics,
  ),
  _algorithm(
    'apfl',
    'APFL',
    knobs=_APFL_KNOBS,
    metrics=metrics.MIXTURE,
    check=check_of([*_SGD, _AVERAGED_STATISTICS]),
  ),
  _algorithm('pfedme', 'pFedMe', knobs=_ME_KNOBS, check=_averaged_statistics),
  _algorithm(
    'per_fedavg',
    'Per-FedAvg',
    knobs=_PER_FEDAVG_KNOBS,
    check=check_of([*_SGD, _AVERAGED_STATISTICS, _DIFFERENCE_IN_FLOAT32]),
  ),
  _algorithm(
    'fedala',
    'FedALA',
    _LAYERED,
    knobs=_ALA_KNOBS,
    metrics=metrics.PERSONAL,
    check=_averaged_statistics,
  ),
  _algorithm('median', 'coordinate-wise median', _ALIKE, 'robust:median'),
  _algorithm(
    'trimmed_mean',
    'trimmed mean',
    _ALIKE,
    'robust:trimmed_mean',
    knobs=_TRIM_KNOBS,
    check=_trims_somebody,
  ),
  _algorithm(
    'krum', 'Krum', _ALIKE, 'robust:krum', knobs=_KRUM_KNOBS, check=_outnumber_byzantine
  ),
  _algorithm(
    'decentralized_fedavg',
    'decentralized FedAvg',
    _PEERS,
    'wrappers.decentralized:decentralized_fedavg',
    metrics=metrics.CONSENSUS,
  ),
  _algorithm(
    'decentralized_moon',
    'decentralized MOON',
    _PEERS | {'contrastive'},
    'wrappers.decentralized:decentralized_moon',
    knobs=_MOON_KNOBS,
    group='moon',
    metrics=metrics.CONTRAST | metrics.CONSENSUS,
  ),
  _algorithm('solo', 'SOLO', _ALONE),
  _algorithm('centralized', 'centralized', frozenset(), 'solo:solo'),
)
