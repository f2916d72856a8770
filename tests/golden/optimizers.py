"""Writes optimizers.json: the steps of PyTorch's optimizers on a small problem.

  pip install torch
  python tests/golden/optimizers.py

The problem is f(w) = |A w - b|^2 / 2 in float64. The numbers that are there came from
torch 2.13.0 on a CPU.
"""

import json
import pathlib

import torch

A = [[1.0, 0.5, -0.3], [0.2, -1.5, 0.7], [0.0, 0.4, 2.0], [1.1, -0.6, 0.1]]
B = [1.0, -2.0, 0.5, 3.0]
START = [2.0, -1.0, 0.5]
NUM_STEPS = 10

# Our name, PyTorch's class, and its numbers, which are large so that each one shows.
CASES = [
  ('sgd', torch.optim.SGD, {'lr': 0.05, 'momentum': 0.0, 'weight_decay': 0.0}),
  ('sgd', torch.optim.SGD, {'lr': 0.05, 'momentum': 0.9, 'weight_decay': 0.3}),
  (
    'sgd',
    torch.optim.SGD,
    {'lr': 0.05, 'momentum': 0.9, 'weight_decay': 0.3, 'nesterov': True},
  ),
  ('adam', torch.optim.Adam, {'lr': 0.1, 'weight_decay': 0.0}),
  ('adam', torch.optim.Adam, {'lr': 0.1, 'weight_decay': 0.3}),
  ('adamw', torch.optim.AdamW, {'lr': 0.1, 'weight_decay': 0.3}),
]


def steps(optimizer, options):
  """[NUM_STEPS, 3] the weights after each step."""
  a, b = torch.tensor(A, dtype=torch.float64), torch.tensor(B, dtype=torch.float64)
  w = torch.tensor(START, dtype=torch.float64, requires_grad=True)
  chosen = optimizer([w], **options)
  weights = []
  for _ in range(NUM_STEPS):
    chosen.zero_grad()
    (0.5 * torch.sum((a @ w - b) ** 2)).backward()
    chosen.step()
    weights.append(w.tolist())
  return weights


def main():
  cases = [
    {'name': name, 'options': options, 'weights': steps(optimizer, options)}
    for name, optimizer, options in CASES
  ]
  path = pathlib.Path(__file__).with_suffix('.json')
  golden = {'a': A, 'b': B, 'start': START, 'cases': cases}
  path.write_text(json.dumps(golden, indent=1) + '\n')


if __name__ == '__main__':
  main()
