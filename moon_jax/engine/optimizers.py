"""How does a client turn gradients into weights? Built from optax.

A local optimizer starts anew each round. Its numbers arrive traced, inside the compiled
step, so that changing one compiles nothing.
"""

import math

import jax
import optax


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
  """Adam of g + weight_decay w (Kingma, Ba 2015, arXiv:1412.6980).

  Beta 0.9 and 0.999, epsilon 1e-8. Weight decay is coupled and acts on all parameters,
  as in torch.optim.Adam.
  """
  return optax.chain(
    optax.add_decayed_weights(weight_decay),
    _scale_by_adam(),
    optax.scale_by_learning_rate(learning_rate),
  )


def adamw(
  *, learning_rate: jax.Array, weight_decay: jax.Array
) -> optax.GradientTransformation:
  """Adam of g, and w <- w - learning_rate weight_decay w beside it.

  (Loshchilov, Hutter 2019, arXiv:1711.05101.) Numbers as in `adam`; weight decay is
  decoupled and acts on all parameters, as in torch.optim.AdamW.
  """
  return optax.chain(
    _scale_by_adam(),
    optax.add_decayed_weights(weight_decay),
    optax.scale_by_learning_rate(learning_rate),
  )


def _scale_by_adam() -> optax.GradientTransformation:
  inner = optax.scale_by_adam(b1=0.9, b2=0.999, eps=1e-8)

  def update(updates, state, params=None):
    # optax raises a float to the integer step count, which strict promotion refuses.
    with jax.numpy_dtype_promotion('standard'):
      return inner.update(updates, state, params)

  return optax.GradientTransformation(inner.init, update)


# Config name -> function of the traced numbers that it needs.
OPTIMIZERS = {'sgd': sgd, 'adam': adam, 'adamw': adamw}

# Config name -> the numbers that it needs.
NUMBERS = {
  'sgd': ('learning_rate', 'momentum', 'weight_decay'),
  'adam': ('learning_rate', 'weight_decay'),
  'adamw': ('learning_rate', 'weight_decay'),
}


def schedule(
  name: str, round_index: int, *, num_rounds: int, decay: float, decay_every: int
) -> float:
  """The factor of the learning rate in a round; 1 in the first one.

  Args:
    name: a key of SCHEDULES: `constant` is 1; `cosine` is (1 + cos(pi t / T)) / 2
      (Loshchilov, Hutter 2017, arXiv:1608.03983, one cycle down to 0); `exponential` is
      decay^(t / decay_every); `step` is the same with t / decay_every rounded down.
    round_index: t, 0-based, below T.
    num_rounds: T; of `cosine` only.
    decay: in (0, 1]; of `exponential` and `step` only.
    decay_every: rounds, at least 1; of `exponential` and `step` only.

  Returns:
    In [0, 1].
  """
  return SCHEDULES[name](round_index, num_rounds, decay, decay_every)


# Config name -> function of (t, T, decay, decay_every).
SCHEDULES = {
  'constant': lambda t, total, decay, every: 1.0,
  'cosine': lambda t, total, decay, every: 0.5 * (1.0 + math.cos(math.pi * t / total)),
  'exponential': lambda t, total, decay, every: decay ** (t / every),
  'step': lambda t, total, decay, every: decay ** (t // every),
}
