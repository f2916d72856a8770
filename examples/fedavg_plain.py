"""Federated averaging in plain JAX: what the engine computes, without lanes.

  python examples/fedavg_plain.py

Ten clients own handwritten digits; the examples of each class are divided among them in
unequal shares. In each round every client trains the global model on its own digits by
SGD, and the next global model is the mean of the clients' models, weighted by their
numbers of examples (McMahan et al. 2017, arXiv:1602.05629). A test compares the weights
with the engine's.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from sklearn import datasets

WIDTHS = (64, 128, 128, 64, 10)  # pixels, two hidden layers, representation, classes


def logits(model, x):
  """[B, D] -> [B, Y]; ReLU follows the first two of the four layers."""
  for number, (kernel, bias) in enumerate(model):
    x = x @ kernel + bias[None]
    x = jax.nn.relu(x) if number < 2 else x
  return x


def loss(model, x, y):
  """Mean cross entropy of a batch, in nats."""
  log_p = jax.nn.log_softmax(logits(model, x))
  return -jnp.mean(jnp.take_along_axis(log_p, y[:, None], axis=1))


@jax.jit
def step(model, x, y, rate):
  """One step of SGD: w <- w - rate * gradient."""
  return jax.tree.map(lambda w, g: w - rate * g, model, jax.grad(loss)(model, x, y))


def communication_round(model, x, y, batches, rate):
  """Trains every client, and returns the mean of their models.

  `batches` has a list for each client, with the rows of each of its steps.
  """
  trained, sizes = [], []
  for rows_of_steps in batches:
    local = model
    for rows in rows_of_steps:
      local = step(local, x[rows], y[rows], rate)
    trained.append(local)
    sizes.append(len(np.unique(np.concatenate(rows_of_steps))))
  shares = np.array(sizes, np.float32) / sum(sizes)
  return jax.tree.map(lambda *w: jnp.tensordot(shares, jnp.stack(w), 1), *trained)


def epochs_of(rng, owned, epochs, size):
  """The rows of each step of a client, whose examples are shuffled in each epoch."""
  orders = [rng.permutation(owned) for _ in range(epochs)]
  return [o[i : i + size] for o in orders for i in range(0, len(o), size)]


def main(num_clients=10, num_rounds=20, local_epochs=5, batch_size=32, rate=0.1):
  rng = np.random.default_rng(0)
  x, y = datasets.load_digits(return_X_y=True)
  x = (x / 16 - np.mean(x / 16)) / np.std(x / 16)
  train, test = np.split(rng.permutation(len(y)), [1438])
  # The client of each example; the clients' shares of a class are a Dirichlet draw.
  owner = np.zeros(len(y), int)
  for label in range(10):
    share = rng.dirichlet(np.full(num_clients, 0.5))
    owner[y == label] = rng.choice(num_clients, np.sum(y == label), p=share)
  owned = [train[owner[train] == client] for client in range(num_clients)]
  model = [
    (rng.normal(0, (2 / i) ** 0.5, (i, o)).astype(np.float32), np.zeros(o, np.float32))
    for i, o in itertools.pairwise(WIDTHS)
  ]
  x, y = jnp.asarray(x, jnp.float32), jnp.asarray(y)
  for number in range(1, num_rounds + 1):
    batches = [epochs_of(rng, rows, local_epochs, batch_size) for rows in owned]
    model = communication_round(model, x, y, [b for b in batches if b], rate)
    accuracy = jnp.mean(jnp.argmax(logits(model, x[test]), 1) == y[test])
    print(f'round {number}/{num_rounds}  test accuracy {accuracy:.4f}')


if __name__ == '__main__':
  main()
