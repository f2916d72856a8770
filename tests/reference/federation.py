"""Rounds of federated training: one client at a time, one batch at a time."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tests.reference import attacks, formulas, optimizers, rivals, rules
from tests.reference.losses import Losses, Weights, cross_entropy, gradient_and_losses
from tests.reference.networks import Model, combine, first_stats, norm, squared_distance
from tests.reference.options import Options

FEW_PIXELS = 20_000  # of a batch: computing these costs less than compiling


class RoundResult(NamedTuple):
  """The state and the metrics after one communication round."""

  params: dict  # the global model; SOLO: the first; mixing: the clients' mean
  clients: dict  # client id -> model it trained when it last took part
  train_loss: float  # the four losses are means over all examples processed
  supervised_loss: float
  contrastive_loss: float
  proximal_loss: float
  train_accuracy: float  # correct among all examples, each with the weights of its step
  positive_cosine: float | None  # mean over the examples whose client has a negative
  negative_cosine: float | None  # same; None if there is no such example
  contrasted_fraction: float  # fraction of examples with a negative, in [0, 1]
  drift: dict  # client id -> ||w_trained - w_received||_2, this round's clients
  stats: dict  # the global running statistics; local BatchNorm: the first
  client_stats: dict  # client id -> running statistics of its model
  control: dict  # SCAFFOLD: the server's c; FedDyn: h; zeros elsewhere
  controls: dict  # SCAFFOLD: client id -> c_i, all N clients; FedDyn: g_i
  temperatures: dict  # SA-MOON: client id -> T it starts its next training with, all N
  temperature_steps: dict  # SA-MOON: client id -> T of each step, this round's clients
  deviation: dict  # client id -> ||w_trained - w_received|| / ||w_received||
  last_change: dict  # MoFedSAM: the server's G; zeros elsewhere
  exceeding: float  # DCO-MOON: p, for the next round's coefficients; 0 elsewhere
  rival_loss: float  # term of FedNTD, FedDecorr or MOON with l2: a mean like train_loss
  prototypes: dict  # FedProc, FedProto: class -> vector, if any client had one
  prototype_accuracy: float | None  # FedProto: in training, by the nearest prototype
  prototyped_fraction: float  # fraction of examples that this accuracy covers
  pace: float  # FedExP: eta_g; FedNova: tau_eff; 1 elsewhere


class Trained(NamedTuple):
  """The result of a client's local training."""

  model: Model
  temperatures: list  # T of each step, then the T that the client keeps
  steps: list  # per step: (Losses, number of examples)


class Federation:
  """Everything that outlives a round."""

  def __init__(self, options, params, images, labels, sizes, num_clients, common):
    self.options, self.common = options, common
    self.images = np.asarray(images, np.float32)
    self.labels = np.asarray(labels, np.int32)
    self.sizes = sizes
    self.everyone = range(num_clients)
    params = jax.tree.map(np.asarray, params)
    self.initial = Model(params, first_stats(params))
    self.server = self.initial
    self.server_moments = optimizers.server_zeros(params, options)
    self.trained = {}  # client id -> [Model], one for each time it took part
    zeros = jax.tree.map(np.zeros_like, params)
    self.control = zeros
    self.last_change = zeros
    self.controls = {client: zeros for client in self.everyone}
    start = options.initial_temperature
    self.temperatures = {client: start for client in self.everyone}
    self.exceeding = 1.0 if options.initial == 'mu' else 0.0
    self.pace = 1.0
    self.prototypes, self.done = {}, 0
    self.width = self.represented(self.initial, [0]).shape[1]

  def own_model(self, client):
    """The model that a client trained last; before that, the initial one."""
    return self.trained[client][-1] if client in self.trained else self.initial

  def received(self, client, mixing):
    """The Model that a client starts from, and MOON's global model for it."""
    last_model = self.own_model(client)
    if self.options.algorithm in ('solo', 'fedproto'):
      return last_model
    model = self.server
    if mixing is not None:
      neighbours = [self.own_model(other) for other in self.everyone]
      model = combine(mixing[client], neighbours)
    if self.options.batch_norm == 'local':
      model = model._replace(stats=last_model.stats)
    return model

  def negatives(self, client, received):
    """The Models that MOON's representation is pushed away from."""
    if not self.options.algorithm.endswith('moon'):
      return []
    if client in self.trained:
      return self.trained[client][-self.options.num_previous :]
    substitutes = {'none': [], 'global': [received], 'init': [self.initial]}
    return substitutes[self.options.negative]

  def alpha(self, client):
    """FedDyn's alpha_i."""
    options, sizes = self.options, self.sizes
    mean = sum(sizes.values()) / len(sizes)
    return options.alpha * (mean / sizes[client] if options.by_size else 1.0)

  def loss_weights(self, client):
    """The coefficients of the local objective this round."""
    algorithm, mu = self.options.algorithm, self.options.mu
    if algorithm == 'dco_moon':
      normalise = self.options.normalise
      return formulas.dynamic_weights(mu, self.exceeding, normalise=normalise)
    if algorithm == 'feddyn':
      return Weights(1.0, 0.0, self.alpha(client), 1.0)
    if algorithm == 'fedproc':
      share = min(self.done / self.options.rise, 1.0) if self.done else 1.0
      return Weights(share, 0.0, 0.0, 1.0 - share)
    contrastive = mu if algorithm in ('moon', 'sa_moon') else 0.0
    rival_weights = {'moon_l2': mu, 'fedproto': self.options.lam}
    return Weights(
      supervised=1.0,
      contrastive=contrastive,
      proximal=mu if algorithm == 'fedprox' else 0.0,
      rival=rival_weights.get(algorithm, self.options.beta),
    )

  def train(self, client, batches, received, rate, draw):
    """Local training of one client; draw(step) is uniform in [0, 1)."""
    options = self.options
    annealing = options.algorithm == 'sa_moon'
    params, stats = received
    negatives = self.negatives(client, received)
    moments = optimizers.zeros(params)
    temperature = self.temperatures[client] if annealing else options.tau
    temperatures, steps, last = [temperature], [], None
    # Every epoch covers all examples, so the batches hold all that the client owns.
    owned = np.unique(np.concatenate(batches))
    classes = np.bincount(self.labels[owned], minlength=1 + max(self.labels))
    numbers = {'counts': np.float32(classes), 'alpha': options.alpha}
    numbers['least_count'] = options.least_count
    if options.algorithm == 'feddyn':
      numbers['gradient'] = self.controls[client]
    numbers['prototypes'], numbers['exists'] = rivals.stacked(
      self.prototypes, 1 + max(self.labels), self.width
    )

    for step, batch in enumerate(batches):
      indices = self.repeated(batch)

      def at(tau, weights=(params, stats), indices=indices):
        return gradient_and_losses(
          *weights,
          received,
          negatives,
          self.images[indices],
          self.labels[indices],
          self.loss_weights(client),
          numbers | {'tau': tau},
          network=options.network,
          similarity_on=options.similarity_on,
          rival=rivals.chosen(options),
        )

      def loss_at(tau, at=at):
        return float(at(tau)[1][0].total)

      stats_before = stats
      gradient, (losses, stats) = at(temperature)
      now = float(losses.total), float(norm(gradient))
      if annealing and last is not None:
        temperature = formulas.annealed(
          temperature,
          (last[0], now[0]),
          (last[1], now[1]),
          draw(step),
          sigma=options.sigma,
          minimum=options.min_temperature,
          epsilon=options.annealing_epsilon,
          loss_at=loss_at if options.acceptance == 'temperatures' else None,
        )
      last = now
      if options.algorithm in ('fedsam', 'mofedsam'):
        up = formulas.uphill(gradient, params, options)
        uphill = jax.tree.map(np.add, params, up), stats_before
        gradient, _ = at(temperature, uphill)
      if options.algorithm == 'mofedsam':
        shares = [options.beta, 1 - options.beta]
        gradient = combine(shares, [gradient, self.last_change])
      if options.algorithm == 'scaffold':
        gradient = formulas.corrected(gradient, self.controls[client], self.control)
      before = params
      params, moments = optimizers.local_step(
        params, moments, gradient, step + 1, rate, options
      )
      if options.algorithm == 'fednova':
        pull = rate * options.mu
        params = jax.tree.map(
          lambda new, y, w, pull=pull: new - pull * (y - w),
          params,
          before,
          received.params,
        )
      temperatures.append(temperature)
      steps.append((losses, len(batch)))
    return Trained(Model(params, stats), temperatures, steps)

  def repeated(self, batch):
    """The batch over and over, which changes no mean: one program serves all sizes.

    But FedDecorr and the running variance depend on the number of examples.
    """
    counted = self.options.algorithm == 'feddecorr' or self.initial.stats
    if counted or self.common * self.images[0].size > FEW_PIXELS:
      return batch
    return np.tile(batch, self.common // len(batch))

  def represented(self, model, indices):
    """[n, D] of some images by a model, in evaluation mode."""
    images = self.images[indices]
    return self.options.network.forward(model, images, training=False)[1]

  def average(self, index, received, trained):
    """The server's part: a new global model from those of the cohort."""
    options = self.options
    shares = {client: 1.0 for client in trained}
    if options.client_weight == 'samples':
      shares = {client: self.sizes[client] for client in trained}
    total = sum(shares.values())
    shares = [shares[client] / total for client in trained]
    models = [trained[client].model for client in trained]
    if options.attack:
      attackers = [i for i, client in enumerate(trained) if client in options.attackers]
      sent_params = [model.params for model in models]
      if attackers:
        sent_params = attacks.sent(
          sent_params,
          self.server.params,
          attackers,
          options.attack,
          **dict(options.attack_numbers),
        )
      pairs = zip(models, sent_params, strict=True)
      models = [model._replace(params=params) for model, params in pairs]

    if options.algorithm == 'sa_moon' and options.scope == 'server':
      ends = [trained[client].temperatures[-1] for client in trained]
      mean = sum(share * end for share, end in zip(shares, ends, strict=True))
      self.temperatures = {client: mean for client in self.everyone}
    mean = combine(shares, models)
    if options.algorithm in rules.RULES:
      mean = rules.combined(models, options)
    if options.algorithm == 'fedexp':
      eps = options.eps * options.eps_decay**index
      ends = [model.params for model in models]
      params, self.pace = rivals.extrapolated(self.server.params, ends, shares, eps)
      mean = mean._replace(params=params)
    if options.algorithm == 'fednova':
      counts = [len(trained[client].steps) for client in trained]
      pull = options.learning_rate * options.mu
      norms = [rivals.normaliser(count, options.momentum, pull) for count in counts]
      paces = counts if options.tau_eff == 'steps' else norms
      ends = [model.params for model in models]
      params, self.pace = rivals.normalised(
        self.server.params, ends, shares, norms, paces
      )
      mean = mean._replace(params=params)
    if options.algorithm == 'feddyn':
      mean = combine([1 / len(models)] * len(models), models)
      ends, start = [model.params for model in models], self.server.params
      params, self.control = rivals.dynamic(
        start, ends, self.control, options.alpha, len(self.everyone)
      )
      mean = mean._replace(params=params)
      for client, end in zip(trained, ends, strict=True):
        self.controls[client] = rivals.slope_after(
          self.controls[client], end, start, self.alpha(client)
        )
    if options.server_optimizer != 'average':
      updates = [
        jax.tree.map(lambda y, x: y - x, trained[c].model.params, received[c].params)
        for c in trained
      ]
      params, self.server_moments = optimizers.server_step(
        self.server.params, self.server_moments, combine(shares, updates), options
      )
      mean = mean._replace(params=params)
    if options.batch_norm == 'local':
      mean = mean._replace(stats=self.initial.stats)
    return mean

  def update_controls(self, received, trained, rate):
    """SCAFFOLD's c_i of the cohort, and c."""
    old = {client: self.controls[client] for client in trained}
    for client, result in trained.items():
      steps = formulas.effective_steps(len(result.steps), self.options.momentum)
      self.controls[client] = formulas.new_client_control(
        old[client],
        self.control,
        received[client].params,
        result.model.params,
        rate * steps,
      )
    new = [self.controls[client] for client in trained]
    self.control = formulas.new_control(
      self.control, list(old.values()), new, len(self.everyone)
    )

  def update_last_change(self, before, trained, rate):
    """MoFedSAM's G: the change of the round / the length that its steps could reach."""
    total = sum(self.sizes[client] for client in trained)
    length = 0.0
    for client, result in trained.items():
      steps = formulas.effective_steps(len(result.steps), self.options.momentum)
      length += self.sizes[client] / total * rate * steps
    self.last_change = jax.tree.map(
      lambda old, new: (old - new) / length, before.params, self.server.params
    )

  def round(self, index, batches, mixing):
    """One communication round; batches: {client id: [[B] indices, ...]}."""
    options = self.options
    rate = options.learning_rate
    cohort = sorted(batches)
    received = {client: self.received(client, mixing) for client in cohort}
    trained = {}
    for client in cohort:

      def draw(step, client=client):
        return options.uniform(index, client, step)

      trained[client] = self.train(
        client, batches[client], received[client], rate, draw
      )
    if options.skipped is not None:
      cohort = [client for client in cohort if client not in options.skipped[index]]
      trained = {client: trained[client] for client in cohort}

    ends = {client: result.model.params for client, result in trained.items()}
    starts = {client: model.params for client, model in received.items()}
    deviation = {c: formulas.deviation(ends[c], starts[c]) for c in cohort}
    if options.algorithm == 'scaffold':
      self.update_controls(received, trained, rate)
    if options.algorithm == 'dco_moon':
      above = formulas.fraction_above(deviation.values(), options.theta)
      self.exceeding = above
    for client, result in trained.items():
      self.trained[client] = [*self.trained.get(client, []), result.model]
      self.temperatures[client] = result.temperatures[-1]
    if mixing is not None:
      models = [self.own_model(client) for client in self.everyone]
      self.server = combine([1 / len(models)] * len(models), models)
    elif options.algorithm not in ('solo', 'fedproto'):
      before, self.server = self.server, self.average(index, received, trained)
      if options.algorithm == 'mofedsam':
        self.update_last_change(before, trained, rate)

    self.done += 1
    if options.algorithm in ('fedproc', 'fedproto'):
      owned = {c: np.unique(np.concatenate(batches[c])) for c in trained}
      examples = [
        (self.represented(result.model, owned[c]), self.labels[owned[c]])
        for c, result in trained.items()
      ]
      normalised = options.algorithm == 'fedproc'
      self.prototypes = rivals.new_prototypes(self.prototypes, examples, normalised)

    return RoundResult(
      params=self.server.params,
      clients={client: models[-1].params for client, models in self.trained.items()},
      **mean_losses(trained.values()),
      drift={c: float(np.sqrt(squared_distance(ends[c], starts[c]))) for c in cohort},
      stats=self.server.stats,
      client_stats={
        client: models[-1].stats for client, models in self.trained.items()
      },
      control=self.control,
      controls=dict(self.controls),
      temperatures=dict(self.temperatures),
      temperature_steps={c: trained[c].temperatures[:-1] for c in cohort},
      deviation=deviation,
      last_change=self.last_change,
      exceeding=self.exceeding,
      prototypes=self.prototypes,
      pace=self.pace,
    )


def mean_losses(trained):
  """The means of the losses, and of MOON's cosines, over the examples processed."""
  steps = [step for result in trained for step in result.steps]
  contrasted = [step for step in steps if not np.isnan(step[0].positive_cosine)]
  prototyped = [step for step in steps if not np.isnan(step[0].nearest)]

  def share(chosen_steps):
    return sum(count for _, count in chosen_steps) / sum(count for _, count in steps)

  def mean(field, steps):
    examples = sum(count for _, count in steps)
    total = sum(float(getattr(losses, field)) * count for losses, count in steps)
    return total / examples if examples else None

  names = {'train': 'total'} | {name: name for name in (*Losses._fields[1:4], 'rival')}
  cosines = ('positive_cosine', 'negative_cosine')
  return {
    **{f'{name}_loss': mean(field, steps) for name, field in names.items()},
    **{name: mean(name, contrasted) for name in cosines},
    'train_accuracy': mean('accuracy', steps),
    'prototype_accuracy': mean('nearest', prototyped),
    'prototyped_fraction': share(prototyped),
    'contrasted_fraction': share(contrasted),
  }


def run(*, params, images, labels, sizes, rounds, num_clients, **options):
  """Federated training: every round, train each participant, then average.

  w^{t+1} = sum_i n_i w_i^{t+1} / sum_i n_i over the round's participants, unless an
  option says otherwise. SOLO does not average: each client starts from the model it
  trained last. A local optimizer starts afresh every round.

  Args:
    params: the initial model.
    images: [M, H, W, C] normalised pixels of all clients together.
    labels: [M] class indices.
    sizes: {client id: n_i}, the number of examples the client owns.
    rounds: per round, {client id: [[B] indices into images, ...]}: the batches in
      order, all local epochs. A client that is not a key is absent.
    num_clients: N; ids are 0..N-1.
    **options: fields of Options.

  Returns:
    One RoundResult per round.
  """
  options = Options(**options)
  lengths = {
    len(batch) for cohort in rounds for batches in cohort.values() for batch in batches
  }
  common = np.lcm.reduce(list(lengths))
  federation = Federation(options, params, images, labels, sizes, num_clients, common)
  return [
    federation.round(
      index, batches, None if options.mixing is None else options.mixing[index]
    )
    for index, batches in enumerate(rounds)
  ]


def accuracy_and_loss(network, params, images, labels):
  """One forward pass over everything.

  Args:
    network: mlp or moon_cnn.
    params: its weights.
    images: [M, H, W, C] normalised pixels.
    labels: [M] class indices.

  Returns:
    Accuracy in [0, 1], mean cross entropy in nats.
  """
  labels = np.asarray(labels, np.int32)
  _, logits = network(params, jnp.asarray(images, jnp.float32))
  correct = np.argmax(np.asarray(logits), axis=1) == labels
  return float(np.mean(correct)), float(jnp.mean(cross_entropy(logits, labels)))
