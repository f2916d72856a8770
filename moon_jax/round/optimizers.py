"""Local optimizers, built from optax.

A local optimizer is reset every round. Its scalars arrive traced, inside the compiled
step, so a change compiles nothing.
"""

from collections.abc import Callable

import jax
import optax

from moon_jax.core import tree


def sgd(
  *,
  learning_rate: jax.Array,
  momentum: jax.Array,
  weight_decay: jax.Array,
  nesterov: bool = False,
) -> optax.GradientTransformation:
  """v <- momentum v + (g + weight_decay w);  w <- w - learning_rate v.

  With `nesterov`, w <- w - learning_rate (g + weight_decay w + momentum v) with the new
  v. Weight decay is coupled and acts on all parameters, as in torch.optim.SGD.
  """
  return optax.chain(
    optax.add_decayed_weights(weight_decay),
    optax.sgd(learning_rate, momentum=momentum, nesterov=nesterov),
  )


def adam(
  *, learning_rate: jax.Array, weight_decay: jax.Array
) -> optax.GradientTransformation:
  """Adam on g + weight_decay w (Kingma, Ba 2015, arXiv:1412.6980).

  Beta 0.9 and 0.999, epsilon 1e-8. Weight decay is coupled and acts on all parameters,
  as in torch.optim.Adam.
  """
  return optax.chain(optax.add_decayed_weights(weight_decay), optax.adam(learning_rate))


def adamw(
  *, learning_rate: jax.Array, weight_decay: jax.Array
) -> optax.GradientTransformation:
  """Adam on g, and in each step also w <- w - learning_rate weight_decay w.

  (Loshchilov, Hutter 2019, arXiv:1711.05101.) Numbers as in `adam`; weight decay is
  decoupled and acts on all parameters, as in torch.optim.AdamW.
  """
  return optax.adamw(learning_rate, weight_decay=weight_decay)


def with_body_rate(make_optimizer: Callable, body: frozenset) -> Callable:
  """The function with one more number, `body_factor`: that of the body's updates.

  Every optimizer here takes steps in proportion to the learning rate, so a body with
  this factor has the learning rate of the head times the factor, in every round.

  Args:
    make_optimizer: numbers -> optimizer.
    body: paths of the variables before the head.
  """

  def make_scaled(*, body_factor=None, **numbers):
    optimizer = make_optimizer(**numbers)
    if body_factor is None:
      return optimizer

    def scaled(updates, params):
      factors = {'params': jax.tree.map(lambda update: body_factor * update, updates)}
      return tree.kept_at(body, {'params': updates}, factors)['params']

    return optax.chain(optimizer, optax.stateless(scaled))

  return make_scaled


def with_clipping(make_optimizer: Callable) -> Callable:
  """The function with one more number, `clip_norm`; without it nothing is clipped.

  The optimizer then gets g min(1, clip_norm / ||g||), with the norm over all parameters
  (Pascanu et al. 2013, algorithm 1, arXiv:1211.5063). g is what the algorithm hands to
  the optimizer in a step of one client, without weight decay.
  """

  def make_clipped(*, clip_norm=None, **numbers):
    optimizer = make_optimizer(**numbers)
    if clip_norm is None:
      return optimizer
    return optax.chain(optax.clip_by_global_norm(clip_norm), optimizer)

  return make_clipped
