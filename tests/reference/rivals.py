"""What MOON is compared with: terms of the local loss, and steps of the server.

Batches of the losses are of real examples alone. A model is a tree of arrays; what the
server does is computed in float64.
"""

import jax
import jax.numpy as jnp
import numpy as np


def not_true_distillation(logits, teacher, labels, tau):
  """[B, Y] twice, [B] -> [B]: tau^2 KL(q || r) over the classes that are not true.

  FedNTD (arXiv:2106.03097): q and r are the shares exp(z_k / tau) of the teacher and of
  the network among these classes.
  """
  others = 1.0 - jnp.eye(logits.shape[1])[labels]

  def shares(logits):
    powers = jnp.exp((logits - logits.max(axis=1, keepdims=True)) / tau) * others
    return powers / powers.sum(axis=1, keepdims=True) + (1.0 - others)

  q, r = shares(teacher), shares(logits)
  return tau**2 * jnp.sum(others * q * jnp.log(q / r), axis=1)


def decorrelation(z, scale):
  """[N, D] -> []: FedDecorr (arXiv:2210.00226) from the matrix of correlations."""
  count, width = z.shape
  if count == 1:
    return 0.0
  centred = z - jnp.mean(z, axis=0, keepdims=True)
  deviation = jnp.sqrt(jnp.mean(centred**2, axis=0))
  matrix = centred.T @ centred / count / jnp.outer(deviation, deviation)
  if scale == 'equation':
    return jnp.sum(matrix**2) / width**2
  apart = jnp.sum((matrix * (1.0 - jnp.eye(width))) ** 2) / (width * (width - 1))
  return (count - 1) ** 2 / count * apart


def distance(z, z_global, squared):
  """[B, D] twice -> [B]: ||z - z_global||_2, with gradient 0 where they agree."""
  squares = jnp.sum((z - z_global) ** 2, axis=1)
  if squared:
    return squares
  agree = squares == 0
  return jnp.where(agree, 0.0, jnp.sqrt(jnp.where(agree, 1.0, squares)))


def calibrated(logits, labels, counts, tau, least, true_class):
  """[B, Y], [B], [Y] -> [B]: FedLC (arXiv:2209.00189), margins tau m_k^(-1/4)."""
  counts = jnp.maximum(counts, least)
  present = (counts > 0) | (tau == 0)
  margins = jnp.where(present, tau / jnp.where(counts > 0, counts, 1.0) ** 0.25, 0.0)
  shifted = logits - margins[None, :]
  true_logits = jnp.take_along_axis(shifted, labels[:, None], axis=1)
  summed = jnp.broadcast_to(present[None, :], shifted.shape)
  if not true_class:
    summed = summed & ~jnp.eye(logits.shape[1], dtype=bool)[labels]
  # For a client with one class the paper's sum is empty: we take 1.
  empty = ~summed.any(axis=1)
  differences = jnp.where(summed, shifted - true_logits, 0.0)
  powers = jnp.where(summed, jnp.exp(differences), 0.0).sum(axis=1)
  return jnp.where(empty, -true_logits[:, 0], jnp.log(jnp.where(empty, 1.0, powers)))


def restricted(logits, labels, counts, alpha, graded):
  """[B, Y], [B], [Y] -> [B]: FedRS (KDD 2021), cross entropy of scaled logits."""
  factors = jnp.where(counts == 0, alpha, 1.0)
  if graded:
    factors = alpha + (1 - alpha) * (counts / counts.max())
  scaled = logits * factors[None, :]
  true_logits = jnp.take_along_axis(scaled, labels[:, None], axis=1)
  return jnp.log(jnp.exp(scaled - true_logits).sum(axis=1))


def to_prototypes(z, labels, prototypes, exists, tau):
  """[B, D], [B], [Y, D], [Y] bool -> [B]: FedProc (arXiv:2109.12273), in nats."""
  lengths = jnp.linalg.norm(prototypes, axis=1)
  units = prototypes / jnp.where(exists, lengths, 1.0)[:, None]
  cosines = z @ units.T / jnp.linalg.norm(z, axis=1, keepdims=True)
  powers = jnp.where(exists[None, :], jnp.exp(cosines / tau), 0.0)
  has_prototype = exists[labels]
  power = jnp.take_along_axis(powers, labels[:, None], axis=1)[:, 0]
  total = jnp.where(has_prototype, powers.sum(axis=1), 1.0)
  return -jnp.log(jnp.where(has_prototype, power, 1.0) / total)


def from_prototypes(z, labels, prototypes, exists, distance):
  """The same -> [B]: FedProto (arXiv:2105.00243), squared distances to one's class."""
  squares = (z - prototypes[labels]) ** 2
  distances = squares.mean(axis=1) if distance == 'mean' else squares.sum(axis=1)
  return jnp.where(exists[labels], distances, 0.0)


def nearest_share(chosen, z, labels, numbers):
  """[] FedProto: of how many the nearest prototype is their class's; else NaN."""
  if chosen[0] != 'fedproto':
    return jnp.nan
  apart = z[:, None, :] - numbers['prototypes'][None, :, :]
  squares = jnp.where(numbers['exists'][None, :], (apart**2).sum(axis=2), jnp.inf)
  right = jnp.argmin(squares, axis=1) == labels
  return jnp.where(
    numbers['exists'].any(), jnp.mean(jnp.where(right, 1.0, 0.0)), jnp.nan
  )


def scored(chosen, logits, labels, numbers):
  """[B] FedLC's or FedRS's loss in place of the cross entropy; None for the others."""
  algorithm, kind = chosen
  counts = numbers['counts']
  if algorithm == 'fedlc':
    tau, least_count = numbers['tau'], numbers['least_count']
    return calibrated(logits, labels, counts, tau, least_count, kind)
  if algorithm == 'fedrs':
    return restricted(logits, labels, counts, numbers['alpha'], kind)
  return None


def rival_term(chosen, outputs, frozen, labels, numbers, params):
  """[] the algorithm's own term of the loss, before its weight; 0 if it has none.

  Args:
    chosen: (algorithm, what else is chosen and no number).
    outputs: ([B, D] representation, [B, Y] logits) under the weights being trained.
    frozen: the same under the received ones.
    labels: [B].
    numbers: tau, the temperature; FedDyn's g_i.
    params: y, which FedDyn's term is about.
  """
  algorithm, kind = chosen
  if algorithm == 'fedntd':
    return jnp.mean(
      not_true_distillation(outputs[1], frozen[1], labels, numbers['tau'])
    )
  prototypes, exists = numbers['prototypes'], numbers['exists']
  if algorithm == 'fedproc':
    tau = numbers['tau']
    return jnp.mean(to_prototypes(outputs[0], labels, prototypes, exists, tau))
  if algorithm == 'fedproto':
    return jnp.mean(from_prototypes(outputs[0], labels, prototypes, exists, kind))
  if algorithm == 'feddecorr':
    return decorrelation(outputs[0], kind)
  if algorithm == 'moon_l2':
    return jnp.mean(distance(outputs[0], frozen[0], kind))
  if algorithm == 'feddyn':
    pairs = jax.tree.map(jnp.vdot, numbers['gradient'], params)
    return -jax.tree.reduce(jnp.add, pairs)
  return 0.0


# Algorithms with a term or a loss of their own, some of more than one kind.
OWN_LOSSES = (
  'fedntd',
  'feddecorr',
  'moon_l2',
  'fedlc',
  'fedrs',
  'feddyn',
  'fedproc',
  'fedproto',
)
KINDS = {
  'feddecorr': 'scale',
  'moon_l2': 'squared',
  'fedlc': 'true_class',
  'fedrs': 'graded',
  'fedproto': 'distance',
}


def chosen(options):
  """(algorithm, what else is chosen and no number) of the Options; '' for the others.

  So all algorithms without an own loss share the programs.
  """
  if options.algorithm not in OWN_LOSSES:
    return '', None
  kind = KINDS.get(options.algorithm)
  return options.algorithm, kind and getattr(options, kind)


# --- the server -----------------------------------------------------------------------


def wide(model):
  """The model in float64."""
  return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), model)


def new_prototypes(old, examples_of_clients, normalised):
  """FedProc's and FedProto's: of each class the mean over all examples of the cohort.

  Args:
    old: class -> vector, of those that somebody had.
    examples_of_clients: for each client, representations [n, D] by its trained model,
      and labels [n].
    normalised: whether each representation is divided by its length.
  """
  by_class = {}
  for vectors, labels in examples_of_clients:
    for vector, label in zip(np.asarray(vectors, np.float64), labels, strict=True):
      length = np.sqrt(np.sum(vector**2)) if normalised else 1.0
      by_class.setdefault(int(label), []).append(vector / length)
  return old | {label: np.mean(vectors, axis=0) for label, vectors in by_class.items()}


def stacked(prototypes, num_classes, width):
  """class -> vector, as [Y, D] and [Y] bool."""
  exists = np.array([label in prototypes for label in range(num_classes)])
  zeros = np.zeros(width)
  rows = [prototypes.get(label, zeros) for label in range(num_classes)]
  return np.float32(rows), exists


def norm_squared(tree):
  """[] of all leaves together."""
  return sum(float(np.sum(np.square(leaf))) for leaf in jax.tree.leaves(tree))


def extrapolated(params, ends, shares, eps):
  """FedExP (arXiv:2301.09604): the server's next parameters, and eta_g.

  Args:
    params: w.
    ends: list of y_i.
    shares: list of p_i, which sum to 1.
    eps: of this round.
  """
  params = wide(params)
  moves = [jax.tree.map(np.subtract, wide(end), params) for end in ends]
  scaled = [
    jax.tree.map(lambda leaf, share=share: share * leaf, move)
    for share, move in zip(shares, moves, strict=True)
  ]
  mean = jax.tree.map(lambda *leaves: sum(leaves), *scaled)
  spread = sum(s * norm_squared(d) for s, d in zip(shares, moves, strict=True))
  eta = max(1.0, spread / (2 * (norm_squared(mean) + eps)))
  return jax.tree.map(lambda w, d: np.float32(w + eta * d), params, mean), eta


def normaliser(num_steps, rho, eta_mu):
  """FedNova's a_i: step k's gradient, grown by momentum, shrinks by the later pulls."""
  return sum(
    (1 - eta_mu) ** (num_steps - k) * sum(rho**age for age in range(k))
    for k in range(1, num_steps + 1)
  )


def normalised(params, ends, shares, norms, paces):
  """FedNova (arXiv:2007.07481): the server's next parameters, and tau_eff.

  Args:
    params: w.
    ends: list of y_i.
    shares: list of p_i, which sum to 1.
    norms: list of a_i.
    paces: list of a_i or s_i, whose mean is tau_eff.
  """
  params = wide(params)
  tau = sum(share * pace for share, pace in zip(shares, paces, strict=True))

  def stepped(w, *leaves):
    parts = zip(shares, norms, leaves, strict=True)
    return np.float32(w - tau * sum(p * (w - y) / a for p, a, y in parts))

  return jax.tree.map(stepped, params, *map(wide, ends)), tau


def dynamic(params, ends, h, alpha, num_clients):
  """FedDyn (arXiv:2111.04263): the server's next parameters, and h.

  Args:
    params: w.
    ends: list of y_i.
    h: like the parameters.
    alpha: number.
    num_clients: N.
  """
  params, ends = wide(params), [wide(end) for end in ends]
  h = jax.tree.map(
    lambda h, w, *ys: h - alpha / num_clients * sum(y - w for y in ys),
    wide(h),
    params,
    *ends,
  )
  means = jax.tree.map(lambda *ys: sum(ys) / len(ys), *ends)
  return jax.tree.map(lambda y, h: np.float32(y - h / alpha), means, h), h


def slope_after(gradient, end, start, alpha):
  """FedDyn's g_i - alpha_i (y_i - w)."""
  return jax.tree.map(lambda g, y, w: g - alpha * (y - w), gradient, end, start)
