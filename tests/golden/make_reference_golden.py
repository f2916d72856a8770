"""Writes reference.npz: numbers by PyTorch, for tests/building/test_reference.py.

  python tests/golden/make_reference_golden.py

Needs torch, which the tests do not. Runs in float64, with torch.optim, torch.nn and
autograd; it shares no code with the reference.
"""

import copy
import pathlib

import numpy as np
import torch
from torch import nn
from torch.nn import functional

TARGET = pathlib.Path(__file__).with_name('reference.npz')
LAYERS = ('encoder', 'head_hidden', 'head_output', 'classifier')
# Client 2 joins late, client 1 is away in round 2; batches of 3 and 2.
BATCHES = {
  0: [[0, 1, 2], [2, 0]],
  1: [[3, 4, 5], [6, 7], [7, 3, 5]],
  2: [[8, 9], [10, 11, 8]],
}
COHORTS = ((0, 1), (0, 1, 2), (0, 2), (0, 1, 2))
SIZES = (3, 5, 4)
MIXING = ([2 / 3, 1 / 3, 0], [1 / 3, 1 / 3, 1 / 3], [0, 1 / 3, 2 / 3])
UNIFORM = np.random.default_rng(5).random((4, 3, 3))
# Client 2's loss rises twice: 0.97 refuses P = 0.962 and accepts P = 0.985.
UNIFORM[:, 2] = 0.97
SGD = {'lr': 0.3, 'momentum': 0.5, 'weight_decay': 0.02}


class Net(nn.Module):
  """Four pixels, BatchNorm or not, projection head, two classes."""

  def __init__(self, norm):
    super().__init__()
    self.encoder = nn.Linear(4, 6)
    self.norm = nn.BatchNorm1d(6) if norm else nn.Identity()
    self.head_hidden = nn.Linear(6, 5)
    self.head_output = nn.Linear(5, 3)
    self.classifier = nn.Linear(3, 2)

  def forward(self, x):
    features = torch.relu(self.norm(self.encoder(x)))
    z = self.head_output(torch.relu(self.head_hidden(features)))
    return features, z, self.classifier(z)


def total_loss(net, anchor, negatives, x, y, weights, tau, compare=1):
  """supervised * cross entropy + contrastive * MOON; compare: 0 features, 1 head."""
  outputs = net(x)
  loss = weights[0] * functional.cross_entropy(outputs[2], y)
  if negatives:
    with torch.no_grad():
      others = [model.eval()(x)[compare] for model in (anchor, *negatives)]
    similar = [functional.cosine_similarity(outputs[compare], o) for o in others]
    logits = torch.stack(similar, dim=1) / tau
    target = torch.zeros(len(x), dtype=torch.long)
    loss = loss + weights[1] * functional.cross_entropy(logits, target)
  return loss


def mean_of(models, weights):
  """The weighted mean of parameters and buffers, as a new network."""
  mean = copy.deepcopy(models[0])
  states = [model.state_dict() for model in models]
  shares = [weight / sum(weights) for weight in weights]
  mean.load_state_dict(
    {
      name: sum(s * state[name] for s, state in zip(shares, states, strict=True))
      if value.is_floating_point()
      else value
      for name, value in states[0].items()
    }
  )
  return mean


def flat(tensors):
  return torch.cat([tensor.reshape(-1) for tensor in tensors]).detach()


def exported(net):
  """{'layer/leaf': array} with the reference's names and kernels [in, out]."""
  arrays = {}
  for layer in LAYERS:
    linear = getattr(net, layer)
    arrays[f'{layer}/kernel'] = linear.weight.detach().numpy().T
    arrays[f'{layer}/bias'] = linear.bias.detach().numpy()
  if isinstance(net.norm, nn.BatchNorm1d):
    arrays['norm/scale'] = net.norm.weight.detach().numpy()
    arrays['norm/bias'] = net.norm.bias.detach().numpy()
  return arrays


def statistics(net):
  return np.stack([net.norm.running_mean.numpy(), net.norm.running_var.numpy()])


class Simulation:
  """Rounds in which a subclass changes what its algorithm changes."""

  weights = (1.0, 0.0)
  compare = 1
  buffer = 1
  optimizer = staticmethod(lambda p: torch.optim.SGD(p, **SGD))

  def __init__(self, net, images, labels):
    self.net, self.images, self.labels = net, images, labels
    self.previous = {}
    self.setup()
    for index, cohort in enumerate(COHORTS):
      starts = {c: self.start(c, cohort) for c in cohort}
      ends = {c: self.train(index, c, copy.deepcopy(starts[c])) for c in cohort}
      self.after(starts, ends)
      for client, end in ends.items():
        self.previous[client] = [*self.previous.get(client, []), end]
      weights = [SIZES[client] for client in cohort]
      self.net = mean_of(list(ends.values()), weights)

  def setup(self):
    pass

  def start(self, client, cohort):
    return self.net

  def tau(self, client):
    return 0.5

  def train(self, index, client, net):
    anchor = self.anchor = copy.deepcopy(net)
    negatives = self.previous.get(client, [])[-self.buffer :] if self.weights[1] else []
    optimizer = self.optimizer(net.parameters())
    self.last = None
    for step, batch in enumerate(BATCHES[client]):
      net.train()
      optimizer.zero_grad()
      loss = total_loss(
        net,
        anchor,
        negatives,
        self.images[batch],
        self.labels[batch],
        self.weights,
        self.tau(client),
        self.compare,
      )
      loss.backward()
      self.before_step(index, client, step, loss.item(), net)
      optimizer.step()
    return net

  def before_step(self, index, client, step, loss, net):
    pass

  def after(self, starts, ends):
    pass


class Proximal(Simulation):
  def before_step(self, index, client, step, loss, net):
    for w, received in zip(net.parameters(), self.anchor.parameters(), strict=True):
      w.grad += 0.6 * (w.detach() - received.detach())


class Moon(Simulation):
  weights = (1.0, 2.0)


class MoonBuffer(Moon):
  buffer = 2


class MoonFeatures(Moon):
  compare = 0


class Nesterov(Simulation):
  optimizer = staticmethod(lambda p: torch.optim.SGD(p, nesterov=True, **SGD))


class Adam(Simulation):
  # A first step is sign(g) without epsilon: float32 and float64 may differ in it.
  optimizer = staticmethod(
    lambda p: torch.optim.Adam(p, lr=0.05, weight_decay=0.02, eps=1e-2)
  )


class AdamW(Simulation):
  optimizer = staticmethod(lambda p: torch.optim.AdamW(p, lr=0.05, weight_decay=0.2))


class Decentralised(Moon):
  def start(self, client, cohort):
    row = list(MIXING[client])
    for other in range(3):
      if other not in cohort:
        row[client] += row[other]
        row[other] = 0
    if not self.previous:
      self.initial = self.net
    models = [self.previous.get(c, [self.initial])[-1] for c in range(3)]
    return mean_of(models, row)


class Scaffold(Simulation):
  def setup(self):
    self.c = torch.zeros_like(flat(self.net.parameters()))
    self.own = {client: torch.zeros_like(self.c) for client in range(3)}

  def before_step(self, index, client, step, loss, net):
    correction = self.c - self.own[client]
    for parameter in net.parameters():
      count = parameter.numel()
      parameter.grad += correction[:count].reshape(parameter.shape)
      correction = correction[count:]

  def after(self, starts, ends):
    old = dict(self.own)
    for client, end in ends.items():
      # K = 2: 1 + 1.5; K = 3: 1 + 1.5 + 1.75, at momentum 0.5.
      steps = {2: 2.5, 3: 4.25}[len(BATCHES[client])]
      moved = flat(starts[client].parameters()) - flat(end.parameters())
      self.own[client] = old[client] - self.c + moved / (SGD['lr'] * steps)
    self.c = self.c + sum(self.own[c] - old[c] for c in ends) / 3


class Annealed(Moon):
  def setup(self):
    self.temperatures = [1.0, 1.0, 1.0]

  def tau(self, client):
    return self.temperatures[client]

  def before_step(self, index, client, step, loss, net):
    norm = flat([p.grad for p in net.parameters()]).norm().item()
    if self.last is not None:
      old_loss, old_norm = self.last
      now = self.temperatures[client]
      accepted = loss < old_loss or (
        UNIFORM[index, client, step] < np.exp((old_loss - loss) / now)
      )
      if accepted:
        change = abs(norm - old_norm) / (old_norm + 1e-8)
        self.temperatures[client] = max(now * (1 - 0.1 * change), 0.7)
    self.last = loss, norm


class Dynamic(Moon):
  weights = (2 * 0.7, 0.7)

  def setup(self):
    self.fractions = []

  def after(self, starts, ends):
    away = []
    for client, end in ends.items():
      start = flat(starts[client].parameters())
      distance = (flat(end.parameters()) - start).norm() / start.norm()
      away.append(float(distance > THETA))
    p = sum(away) / len(away)
    self.fractions.append(p)
    self.weights = (1.4 - 0.7 * p, 0.7 + 0.7 * p)


THETA = 0.2


def main():
  torch.set_default_dtype(torch.float64)
  torch.manual_seed(0)
  # Rounded to float32, which is what the reference computes in.
  images = torch.randn(12, 4).float().double()
  labels = torch.arange(12) % 2
  arrays = {'images': images.numpy(), 'labels': labels.numpy(), 'uniform': UNIFORM}
  nets = {}
  for name, norm in (('mlp', False), ('mlp_bn', True)):
    nets[name] = Net(norm).float().double()
    arrays |= {f'{name}/{k}': v.copy() for k, v in exported(nets[name]).items()}
  for case in (
    *(Simulation, Proximal, Moon, MoonBuffer, MoonFeatures, Nesterov, Adam, AdamW),
    *(Decentralised, Scaffold, Annealed, Dynamic),
  ):
    training = case(copy.deepcopy(nets['mlp']), images, labels)
    final = mean_of([training.previous[c][-1] for c in range(3)], [1, 1, 1])
    name = case.__name__
    network = final if case is Decentralised else training.net
    arrays |= {f'{name}/{k}': v for k, v in exported(network).items()}
    for extra in ('temperatures', 'fractions'):
      if hasattr(training, extra):
        arrays[f'{name}.{extra}'] = np.array(getattr(training, extra))
    if case is Scaffold:
      arrays[f'{name}.control_norms'] = np.array(
        [float(c.norm()) for c in (training.c, *training.own.values())]
      )
  training = Moon(copy.deepcopy(nets['mlp_bn']), images, labels)
  arrays |= {f'MoonNorm/{k}': v for k, v in exported(training.net).items()}
  arrays['MoonNorm.stats'] = statistics(training.net)
  np.savez_compressed(TARGET, **arrays)
  for name, value in arrays.items():
    if '.' in name:
      print(name, value)


if __name__ == '__main__':
  main()
