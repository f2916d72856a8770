"""FedRep: Collins et al., ICML 2021, arXiv:2102.07078: the head, then the body."""

from moon_jax.algorithms import base
from moon_jax.algorithms.private import (
  Paths,
  divided,
  joined,
  keeping,
  output_layer,
  with_private,
  without_gradient,
)
from moon_jax.core.types import Layers, Upload


def fedrep(*, head_epochs: int, network_layers: Layers) -> base.Algorithm:
  """Each client trains its own head on the received body, then the body under it.

  h_i <- h_i - eta grad_h L(b, h_i) for `head_epochs` epochs, b as received; then
  b_i <- b_i - eta grad_b L(b_i, h_i) for `local_epochs` epochs, with the new h_i.

  Only b_i is sent: b <- sum_k (n_k / n) b_k over the cohort. The head is the output
  layer; all clients begin with the same one, and an absent client keeps its own. The
  part that is not trained gets no update at all, and each phase begins with a fresh
  optimizer. Statistics of batch normalisation are those of the second phase.

  Args:
    head_epochs: epochs of the head in a round, at least 1.
    network_layers: the layers of the network.

  Raises:
    KnobError: the output layer of the network is not known.
  """
  head = output_layer(network_layers, 'fedrep', 'trains the output layer by itself')
  return with_head(head, head_epochs)


def with_head(head: Paths, head_epochs: int) -> base.Algorithm:
  """FedRep with the variables at these paths as the head."""

  def keep_body(updated, params, task):
    body_before, _ = divided({'params': params}, head)
    _, trained_head = divided({'params': updated}, head)
    return joined(body_before, trained_head)['params']

  def trained_head(trained, task):
    return Upload(), divided(trained, head)[1]

  head_training = base.Algorithm(
    download=joined,
    correct=without_gradient(keep_body),
    after_update=keep_body,
    upload=trained_head,
  )
  keep_head = keeping(head)
  return with_private(head)._replace(
    correct=without_gradient(keep_head),
    after_update=keep_head,
    second_training=base.SecondTraining(
      algorithm=head_training, epochs=head_epochs, comes_first=True
    ),
  )
