"""Federated training as the papers write it: plain loops, for checking the engine.

Slow on purpose. Every batch has its own size, so there is no filler and no mask. It
shares no code with the package. Notation: client i owns n_i examples, w is a model,
w_received the model local training starts from, z the output of the projection head.

Algorithms, keyword `algorithm` of `run` (every option is a field of `Options`):

  fedavg, fedprox, moon, solo
  scaffold     option II (arXiv:1910.06378). The optimizer sees grad - c_i + c; weight
               decay is added to that, and momentum acts on the sum, so that both are
               part of the drift (x - y_i) / (eta a(K)) that c_i+ measures. The model
               is averaged by weight, c over the cohort uniformly.
  sa_moon      MOON whose temperature is annealed. Per step, loss is the total loss at
               the current T and g the norm of its gradient, before weight decay. The
               first step of a local training only records them; from the second on
               T may change after the step, for the next one. `uniform(round, client,
               step)` is asked at each of these. This goes on while a client has no
               negative. scope='server' averages T with the weights of the models;
               acceptance='temperatures' compares the step's own losses at T and T'.
  dco_moon     MOON with dynamic coefficients: `theta`, `normalise`, `initial`.
  fedsam       the gradient is that at y + e, on the batch of the step; the losses and
               the running statistics are those at y.
  mofedsam     fedsam that mixes the last round's change of the server, by weight, over
               the rate times a(K) of SCAFFOLD, its mean by weight, into each gradient.
  fedproc, fedproto
               after its training each client shows all its examples to its network;
               class means over the cohort's examples are the next round's prototypes.
               fedproto keeps models as solo does.
  median, trimmed_mean, krum
               FedAvg with another rule than the mean on the server; clients count
               alike, and running statistics have no part in Krum's distances.
  fedntd, feddecorr, moon_l2
               FedAvg with a term of `rivals.rival_term` in the loss.
  fedlc, fedrs FedAvg with a loss of `rivals.scored`, from the counts of a client's
               classes.
  feddyn       `rivals.dynamic` on the server; -<g_i, y> + alpha_i / 2 ||y - w||^2 added
               to the local loss.
  fednova      `rivals.normalised` on the server; a pull of weight mu, which has no part
               in the momentum.
  fedexp       FedAvg whose server goes eta_g times as far: `rivals.extrapolated`.
  centralised  one client with all the data: rounds of {0: batches}, num_clients=1.

`mixing` makes fedavg, fedprox and moon decentralised: a client starts from the average
of its neighbours' models at the end of the last round, and keeps what it trains.
RoundResult.params is then the uniform mean over all N clients.
"""

# ruff: noqa: F401, named here for all tests
from tests.reference.federation import RoundResult, accuracy_and_loss, run
from tests.reference.formulas import metropolis_hastings, without_absent
from tests.reference.networks import (
  Model,
  max_pool,
  mlp,
  mlp_bn,
  moon_cnn,
  signal,
  signal_bn,
  table,
  volume,
  words,
)
from tests.reference.options import Options
