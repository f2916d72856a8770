"""Every experiment of the papers, typed from them and not from the configurations.

The columns of reported.txt:

  head      algorithm of a row, and where its number `mu` and its `tau` stand
  '-'       the knob is not used, or the paper has no figure
  balance   whether a client with its fair share gets no more: the MOON paper's code
  data      'tiny' is Tiny-ImageNet, a folder of images
  drop      whether the last partial batch is left out
  reported  per cent; several as the file tells them, in its order

Where a paper is silent, what stands here is the MOON paper's, or a choice that the head
of the file names: DCO-MOON's rates, and theta = 0.1 but in the rows that are called by
another.
"""

import pathlib

TABLE = pathlib.Path(__file__).with_suffix('.txt').read_text()

# Settings that every experiment shares.
COMMON = {
  'batch_size': 64,
  'client_weight': 'samples',
  'partition.name': 'dirichlet',
  'optimizer.name': 'sgd',
  'optimizer.momentum': 0.9,
  'optimizer.weight_decay': 1e-5,
  'optimizer.schedule': 'constant',
  'server_optimizer.name': 'sgd',
  'server_optimizer.learning_rate': 'auto',
  'server_optimizer.momentum': 0.0,
  'data.limit': 0,
  'moon.negative': 'none',
  'moon.num_previous': 1,
  'moon.similarity_on': 'representation',
  'moon.frozen_mode': 'evaluation',
  'sa_moon.min_temperature': 0.001,
  'sa_moon.sigma': 0.005,
  'dco_moon.normalise': False,
  'dco_moon.initial': 'plain',
  'cnn_transformer.layers': 6,
  'cnn_transformer.heads': 8,
  'cnn_transformer.dropout': 0.1,
}


def rows() -> list[dict[str, str]]:
  """A mapping for each row, by the words of the first."""
  head, *lines = filter(None, TABLE.splitlines())
  columns = head.split()
  # The last column may hold several figures.
  rows_of_cells = [line.split(maxsplit=len(columns) - 1) for line in lines]
  return [dict(zip(columns, cells, strict=True)) for cells in rows_of_cells]
