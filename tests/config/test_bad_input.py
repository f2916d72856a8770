"""Command lines that cannot be run: one line for each mistake, and nothing else.

Each goes through `launch`, a few also through a process that may not load JAX.
"""

import os
import pathlib
import re
import resource
import shlex
import subprocess
import sys

import numpy as np
import pytest
from matplotlib import font_manager

from configs import base
from moon_jax import catalog, config
from moon_jax.__main__ import launch
from moon_jax.errors import ExitCode
from tests.data import test_sources

ROOT = pathlib.Path(__file__).parents[2]

LANES = "must be 'auto' or a count of at least 1."
MODELS = (
  'must be one of mlp, moon_cnn, tutorial_cnn, dco_cnn, cnn_transformer, resnet18, '
  'resnet50.'
)
ALGORITHMS = (
  'must be one of fedavg, fedprox, scaffold, moon, sa_moon, dco_moon, median, '
  'trimmed_mean, krum, decentralized_fedavg, decentralized_moon, solo, centralized.'
)
WEIGHTED = 'fedavg or fedprox or scaffold or moon or sa_moon or dco_moon'
SERVED = f'{WEIGHTED} or median or trimmed_mean or krum'
SEVERAL = f'{SERVED} or decentralized_fedavg or decentralized_moon or solo'
MOON = (
  'moon.mu, moon.tau, moon.negative, moon.similarity_on, moon.num_previous, '
  'moon.frozen_mode'
)
SEED = 'must be in [0, 2147483647].'
FRACTION = 'must be a fraction of the clients in (0, 1], not a count.'

# A command line -> every line of the answer.
BAD = {
  # Names.
  '--config.sed=1': ["--config.sed is not a knob. Did you mean 'seed'?"],
  '--config.moon.m=1': ["--config.moon.m is not a knob. Did you mean 'moon.mu'?"],
  '--config.mooon.mu=1': ["--config.mooon.mu is not a knob. Did you mean 'moon.mu'?"],
  '--config.beta=1': ["--config.beta is not a knob. Did you mean 'partition.beta'?"],
  '--config.mu=1': [
    "--config.mu is not a knob. Did you mean 'fedprox.mu' or 'moon.mu' or "
    "'sa_moon.mu' or 'dco_moon.mu'?"
  ],
  '--config.zzz=1': ['--config.zzz is not a knob.'],
  '--config.lr=1': [
    "--config.lr is not a knob. Did you mean 'optimizer.learning_rate'?"
  ],
  '--lr=1 LR=2': [
    "'--lr=1' is an unknown flag; see --help. Did you mean "
    "'--config.optimizer.learning_rate'?",
    "'LR=2' is a stray word; see --help. Did you mean "
    "'--config.optimizer.learning_rate'?",
  ],
  '--config.algorithm=fedavgm': [
    f"--config.algorithm='fedavgm' {ALGORITHMS} Did you mean 'fedavg' with "
    '--config.server_optimizer.momentum=0.9?'
  ],
  'configs/x.py': [
    "'configs/x.py' is a stray word; see --help. Did you mean --config=configs/x.py?"
  ],
  '--config.moon=5': [f'--config.moon is a group; set one of its knobs: {MOON}.'],
  '--config.moon=5 --config.algorithm=fedavg': [
    f'--config.moon is a group; set one of its knobs: {MOON}.'
  ],
  '--config.moon.=1': ["--config.moon. is not a knob. Did you mean 'moon.mu'?"],
  '--config.seed.x=1': ["--config.seed.x is not a knob. Did you mean 'seed'?"],
  '--config. -config.=1': ['--config. is not a knob.', '--config. is not a knob.'],
  # Words that are no knob.
  'hello': ["'hello' is a stray word; see --help."],
  'config.seed=1': [
    "'config.seed=1' is a stray word; see --help. Did you mean '--config.seed'?"
  ],
  '--seed=1': [
    "'--seed=1' is an unknown flag; see --help. Did you mean '--config.seed'?"
  ],
  '--wordkir=a': [
    "'--wordkir=a' is an unknown flag; see --help. Did you mean '--workdir'?"
  ],
  '--zzz': ["'--zzz' is an unknown flag; see --help."],
  '--noconfig.drop_last': [
    "'--noconfig.drop_last' is an unknown flag; see --help. "
    "Did you mean '--config.drop_last'?"
  ],
  # A file of further flags.
  '--flagfile=flags.txt --config.sed=1': [
    "--config.sed is not a knob. Did you mean 'seed'?",
    '--config.seed=-3 must be in [0, 2147483647].',
  ],
  '--flagfile=absent.txt': [
    "Unable to open flagfile: [Errno 2] No such file or directory: 'absent.txt'."
  ],
  '--flagfile': ['--flagfile with no argument.'],
  '--helpfull': ["'--helpfull' is an unknown flag; see --help."],
  '-- --config.seed=1 x': [
    "'--' is an unknown flag; see --help.",
    "'--config.seed=1' is an unknown flag; see --help. Did you mean '--config.seed'?",
    "'x' is a stray word; see --help.",
  ],
  # Empty, missing.
  '--config.seed=': ["--config.seed='' must be a whole number."],
  '--config.algorithm=': [f"--config.algorithm='' {ALGORITHMS}"],
  '--config.seed': ['--config.seed needs a value.'],
  '--config.seed --workdir=a': ['--config.seed needs a value.'],
  '--workdir=': ['--workdir needs a value.'],
  '--config.drop_last': ['--config.drop_last needs a value.'],
  '--workdir': ['--workdir needs a value.'],
  '--workdir --config.seed=-3': ['--workdir needs a value.'],
  '--config.sed=1 --workdir': [
    '--workdir needs a value.',
    "--config.sed is not a knob. Did you mean 'seed'?",
  ],
  '--config=': ["--config='' is not a file."],
  '--config': ['--config needs a value.'],
  # Numbers.
  '--config.moon.mu=nan': ['--config.moon.mu=nan must be a finite number.'],
  '--config.optimizer.learning_rate=inf': [
    '--config.optimizer.learning_rate=inf must be a finite number.'
  ],
  '--config.optimizer.learning_rate=0': [
    '--config.optimizer.learning_rate=0.0 must be above 0.'
  ],
  '--config.optimizer.weight_decay=-1e-3': [
    '--config.optimizer.weight_decay=-0.001 must be at least 0.'
  ],
  '--config.moon.mu -1 --config.optimizer.momentum -1': [
    '--config.optimizer.momentum=-1.0 must be in [0, 1).',
    '--config.moon.mu=-1.0 must be at least 0.',
  ],
  '--config.moon.tau=0': ['--config.moon.tau=0.0 must be above 0.'],
  '--config.moon.mu=big': ["--config.moon.mu='big' must be a number."],
  '--config.num_rounds=1e3': ["--config.num_rounds='1e3' must be a whole number."],
  '--config.num_rounds=2.0': ["--config.num_rounds='2.0' must be a whole number."],
  '--config.num_rounds=0': ['--config.num_rounds=0 must be at least 1.'],
  '--config.num_rounds=2147483648': [
    '--config.num_rounds=2147483648 must be at most 2147483647.'
  ],
  '--config.num_clients=ten': ["--config.num_clients='ten' must be a whole number."],
  '--config.seed=true --config.drop_last=1 --config.moon.mu=false': [
    "--config.seed='true' must be a whole number.",
    "--config.drop_last='1' must be true or false.",
    "--config.moon.mu='false' must be a number.",
  ],
  '--config.num_clients=-3': ['--config.num_clients=-3 must be at least 1.'],
  '--config.batch_size=0': ['--config.batch_size=0 must be at least 1.'],
  '--config.local_epochs=0': ['--config.local_epochs=0 must be at least 1.'],
  '--config.eval_every_rounds=0': ['--config.eval_every_rounds=0 must be at least 1.'],
  '--config.checkpoint_every_rounds=0': [
    '--config.checkpoint_every_rounds=0 must be at least 1.'
  ],
  '--config.partition.min_size=0': [
    '--config.partition.min_size=0 must be at least 1.'
  ],
  '--config.data.limit=-1': ['--config.data.limit=-1 must be at least 0.'],
  '--config.model=cnn_transformer --config.cnn_transformer.heads=7': [
    '--config.cnn_transformer.heads=7 must be a divisor of 256.'
  ],
  '--config.model=cnn_transformer --config.cnn_transformer.dropout=1': [
    '--config.cnn_transformer.dropout=1.0 must be in [0, 1).'
  ],
  '--config.participation=10': [f'--config.participation=10.0 {FRACTION}'],
  '--config.participation=0': [f'--config.participation=0.0 {FRACTION}'],
  '--config.seed=-1': [f'--config.seed=-1 {SEED}'],
  '--config.seed=2147483648': [f'--config.seed=2147483648 {SEED}'],
  '--config.execution.lanes=0': [f"--config.execution.lanes='0' {LANES}"],
  '--config.execution.lanes=many': [f"--config.execution.lanes='many' {LANES}"],
  '--config.execution.convolution=banded': [
    '--config.execution.convolution is not used with --config.model=mlp; '
    'it belongs to moon_cnn or tutorial_cnn or dco_cnn or cnn_transformer or resnet18 '
    'or resnet50.'
  ],
  '--config.execution.cache_mib=1 --config.algorithm=solo': [
    '--config.execution.cache_mib is not used with --config.algorithm=solo; '
    'it belongs to moon or sa_moon or dco_moon or decentralized_moon.'
  ],
  '--config.execution.cache_mib=-1': [
    '--config.execution.cache_mib=-1 must be at least 0.'
  ],
  '--config.moon.num_previous=0': ['--config.moon.num_previous=0 must be at least 1.'],
  '--config.algorithm=fedprox --config.fedprox.mu=-1': [
    '--config.fedprox.mu=-1.0 must be at least 0.'
  ],
  '--config.algorithm=decentralized_moon --config.moon.tau=-0.5': [
    '--config.moon.tau=-0.5 must be above 0.'
  ],
  '--config.algorithm=sa_moon --config.sa_moon.mu=-1 --config.sa_moon.sigma=-1': [
    '--config.sa_moon.mu=-1.0 must be at least 0.',
    '--config.sa_moon.sigma=-1.0 must be in [0, 1].',
  ],
  '--config.algorithm=sa_moon --config.sa_moon.sigma=1.5': [
    '--config.sa_moon.sigma=1.5 must be in [0, 1].'
  ],
  '--config.algorithm=sa_moon --config.sa_moon.initial_temperature=0': [
    '--config.sa_moon.initial_temperature=0.0 must be above 0.'
  ],
  '--config.algorithm=sa_moon --config.sa_moon.min_temperature=0': [
    '--config.sa_moon.min_temperature=0.0 must be above 0.'
  ],
  '--config.algorithm=sa_moon --config.sa_moon.min_temperature=1.5': [
    '--config.sa_moon.min_temperature=1.5 must be at most '
    '--config.sa_moon.initial_temperature=1.0.'
  ],
  '--config.algorithm=dco_moon --config.dco_moon.mu=-1 --config.dco_moon.tau=0 '
  '--config.dco_moon.theta=-0.1': [
    '--config.dco_moon.mu=-1.0 must be at least 0.',
    '--config.dco_moon.tau=0.0 must be above 0.',
    '--config.dco_moon.theta=-0.1 must be above 0.',
  ],
  '--config.algorithm=dco_moon --config.dco_moon.theta=0': [
    '--config.dco_moon.theta=0.0 must be above 0.'
  ],
  '--config.algorithm=dco_moon --config.dco_moon.theta=inf': [
    '--config.dco_moon.theta=inf must be a finite number.'
  ],
  '--config.algorithm=dco_moon --config.dco_moon.normalise=true '
  '--config.dco_moon.mu=0': [
    '--config.dco_moon.mu=0.0 must be above 0 with --config.dco_moon.normalise=true, '
    'which divides by it.'
  ],
  # Choices.
  '--config.moon.negative=noise': [
    "--config.moon.negative='noise' must be one of none, global, init. "
    "Did you mean 'none'?"
  ],
  '--config.algorithm=mon': [
    f"--config.algorithm='mon' {ALGORITHMS} Did you mean 'moon'?"
  ],
  '--config.model=vit': [f"--config.model='vit' {MODELS}"],
  '--config.model=moon-cnn': [
    f"--config.model='moon-cnn' {MODELS} Did you mean 'moon_cnn'?"
  ],
  '--config.partition.name=dirchlet': [
    "--config.partition.name='dirchlet' must be one of iid, dirichlet, "
    "shards, quantity, noise, natural. Did you mean 'dirichlet'?"
  ],
  '--config.data.source=digit': [
    "--config.data.source='digit' must be one of digits, tfds, npz, folder, records, "
    "hdf5, sqlite, huggingface. Did you mean 'digits'?"
  ],
  # Knobs that do not belong together.
  '--config.fedprox.mu=1': [
    '--config.fedprox.mu is not used with --config.algorithm=moon; '
    'it belongs to fedprox.'
  ],
  '--config.algorithm=solo --config.moon.tau=1': [
    '--config.moon.tau is not used with --config.algorithm=solo; '
    'it belongs to moon or decentralized_moon.'
  ],
  '--config=configs/mnist_moon.py --config.mlp.width=8': [
    '--config.mlp.width is not used with --config.model=moon_cnn; it belongs to mlp.'
  ],
  '--config.cnn_transformer.layers=2': [
    '--config.cnn_transformer.layers is not used with --config.model=mlp; '
    'it belongs to cnn_transformer.'
  ],
  '--config.partition.name=iid --config.partition.beta=1': [
    '--config.partition.beta is not used with --config.partition.name=iid; '
    'it belongs to dirichlet or quantity.'
  ],
  '--config.partition.classes_per_client=3': [
    '--config.partition.classes_per_client is not used with '
    '--config.partition.name=dirichlet; it belongs to shards.'
  ],
  '--config.partition.name=quantity --config.partition.noise_sigma=0.2': [
    '--config.partition.noise_sigma is not used with '
    '--config.partition.name=quantity; it belongs to noise.'
  ],
  '--config.partition.name=noise --config.partition.noise_sigma=1.5': [
    '--config.partition.noise_sigma=1.5 must be in [0, 1].'
  ],
  '--config.partition.name=shards --config.partition.classes_per_client=0': [
    '--config.partition.classes_per_client=0 must be at least 1.'
  ],
  '--config.augmentation.name=crop': [
    "--config.augmentation.name='crop' must be one of none, flip, crop_flip. "
    "Did you mean 'crop_flip'?"
  ],
  '--config.augmentation.name=crop_flip --config.augmentation.padding=edge': [
    "--config.augmentation.padding='edge' must be one of reflect, zero."
  ],
  '--config.augmentation.name=flip --config.augmentation.padding=zero': [
    '--config.augmentation.padding is not used with --config.augmentation.name=flip; '
    'it belongs to crop_flip.'
  ],
  '--config.data.name=mnist': [
    '--config.data.name is not used with --config.data.source=digits; '
    'it belongs to tfds.'
  ],
  '--config.data.path=a.npz': [
    '--config.data.path is not used with --config.data.source=digits; '
    'it belongs to npz or folder or records or hdf5 or sqlite or huggingface.'
  ],
  '--config.data.source=npz': [
    '--config.data.path is needed with --config.data.source=npz.'
  ],
  '--config.data.source=hdf5 --config.data.path=a.h5': [
    '--config.data.test_path is needed with --config.data.source=hdf5.'
  ],
  '--config.data.source=huggingface --config.data.path=a': [
    '--config.data.client is needed with --config.data.source=huggingface.'
  ],
  '--config.partition.name=natural --config.num_clients=5': [
    '--config.num_clients is not used with --config.partition.name=natural; '
    'it belongs to iid or dirichlet or shards or quantity or noise.'
  ],
  '--config.data.source=tfds': [
    '--config.data.name is needed with --config.data.source=tfds.'
  ],
  # Without a server, or with one client.
  '--config.algorithm=decentralized_moon --config.server_optimizer.name=adam': [
    '--config.server_optimizer.name is not used with '
    f'--config.algorithm=decentralized_moon; it belongs to {SERVED}.'
  ],
  '--config.algorithm=solo --config.server_optimizer.learning_rate=0.1': [
    '--config.server_optimizer.learning_rate is not used with '
    f'--config.algorithm=solo; it belongs to {SERVED}.'
  ],
  '--config.algorithm=centralized --config.client_weight=uniform': [
    '--config.client_weight is not used with --config.algorithm=centralized; '
    f'it belongs to {WEIGHTED}.'
  ],
  '--config.algorithm=centralized --config.num_clients=5 --config.partition.beta=1': [
    '--config.num_clients is not used with --config.algorithm=centralized; '
    f'it belongs to {SEVERAL}.',
    '--config.partition.beta is not used with --config.algorithm=centralized; '
    f'it belongs to {SEVERAL}.',
  ],
  '--config.algorithm=krum --config.krum.num_byzantine=4': [
    '--config.krum.num_byzantine=4 must be below (n - 2) / 2, with n = 10 clients in a '
    'round.'
  ],
  '--config.topology.name=grid': [
    '--config.topology.name is not used with --config.algorithm=moon; '
    'it belongs to decentralized_fedavg or decentralized_moon.'
  ],
  # Graphs.
  '--config.algorithm=decentralized_moon --config.topology.name=rnig': [
    "--config.topology.name='rnig' must be one of ring, grid, complete, erdos_renyi. "
    "Did you mean 'ring'?"
  ],
  '--config.algorithm=decentralized_moon --config.topology.degree=3': [
    '--config.topology.degree=3 must be even, at least 2.'
  ],
  '--config.algorithm=decentralized_moon --config.topology.degree=10': [
    '--config.topology.degree=10 must be below --config.num_clients=10.'
  ],
  '--config.algorithm=decentralized_moon --config.topology.name=grid '
  '--config.topology.degree=4': [
    '--config.topology.degree is not used with --config.topology.name=grid; '
    'it belongs to ring.'
  ],
  '--config.algorithm=decentralized_moon --config.topology.name=erdos_renyi '
  '--config.topology.edge_probability=1.5': [
    '--config.topology.edge_probability=1.5 must be in (0, 1].'
  ],
  # Optimizers and other options.
  '--config.optimizer.name=adam --config.optimizer.momentum=0.5': [
    '--config.optimizer.momentum is not used with --config.optimizer.name=adam; '
    'it belongs to sgd.'
  ],
  '--config.optimizer.name=adamw --config.optimizer.nesterov=true': [
    '--config.optimizer.nesterov is not used with --config.optimizer.name=adamw; '
    'it belongs to sgd.'
  ],
  '--config.optimizer.decay=0.5': [
    '--config.optimizer.decay is not used with --config.optimizer.schedule=constant; '
    'it belongs to exponential or step.'
  ],
  '--config.optimizer.schedule=cosin': [
    "--config.optimizer.schedule='cosin' must be one of constant, cosine, exponential, "
    "step. Did you mean 'cosine'?"
  ],
  '--config.server_optimizer.name=yogi --config.server_optimizer.momentum=0.5': [
    '--config.server_optimizer.momentum is not used with '
    '--config.server_optimizer.name=yogi; it belongs to sgd.'
  ],
  '--config.server_optimizer.learning_rate=0': [
    '--config.server_optimizer.learning_rate=0.0 must be above 0.'
  ],
  '--config.client_weight=examples': [
    "--config.client_weight='examples' must be one of samples, uniform. "
    "Did you mean 'samples'?"
  ],
  '--config.batch_norm=local': [
    '--config.batch_norm is not used with --config.model=mlp; '
    'it belongs to cnn_transformer or resnet18 or resnet50.'
  ],
  '--config.drop_last=yes': ["--config.drop_last='yes' must be true or false."],
  # Config files.
  '--config=configs/digits_mon.py': [
    "--config='configs/digits_mon.py' is not a file. "
    "Did you mean 'configs/digits_moon.py'?"
  ],
  '--config=nowhere.py': ["--config='nowhere.py' is not a file."],
  '--config=.': ["--config='.' is not a file."],
  '--config=folder.py': ["--config='folder.py' is not a file."],
  '--config=README.md': ["--config='README.md' is not a Python file, *.py."],
  f'--config={"long" * 100}.py': [f"--config='{'long' * 100}.py' is not a file."],
  '--config=~absentee/a.py': [
    "--config='~absentee/a.py' names the home folder of nobody."
  ],
  '--config=~absentee/a.py:moon --config.sed=1': [
    "--config='~absentee/a.py:moon' names the home folder of nobody.",
    "--config.sed is not a knob. Did you mean 'seed'?",
  ],
  '--config=raises.py': ["--config='raises.py' failed, line 1: ValueError: no luck"],
  '--config=broken.py --config.sed=1 hello': [
    "--config='broken.py' failed, line 1: SyntaxError: invalid syntax (broken.py, line "
    '1)',
    "--config.sed is not a knob. Did you mean 'seed'?",
    "'hello' is a stray word; see --help.",
  ],
  '--config=empty.py': ["--config='empty.py' has no function get_config()."],
  '--config=leaves.py': ["--config='leaves.py' failed, line 1: SystemExit: 0"],
  '--config=forgets.py': [
    "--config='forgets.py': get_config() must return a ConfigDict, not NoneType."
  ],
  '--config=misspelt.py': ["--config.sed is not a knob. Did you mean 'seed'?"],
  '--config=lacking.py': ['--config.seed is missing from the config file.'],
  '--config=wrong.py': [f'--config.seed=-1 {SEED}'],
  '--config=scalar.py --config.moon.mu=1': [
    f'--config.moon is a group; set one of its knobs: {MOON}.',
  ],
  # Variants of a config file.
  '--config=configs/review.py:moom --config.sed=1': [
    "configs/review.py has no variant 'moom'; --config=configs/review.py:list prints "
    "them. Did you mean 'moon'?",
    "--config.sed is not a knob. Did you mean 'seed'?",
  ],
  '--config=configs/review.py:': [
    "configs/review.py has no variant ''; --config=configs/review.py:list prints them."
  ],
  '--config=configs/base.py:moon': ["--config='configs/base.py' has no variants."],
  '--config=configs/base.py:list': ["--config='configs/base.py' has no variants."],
  '--config=configs/reviw.py:moon': [
    "--config='configs/reviw.py' is not a file. Did you mean 'configs/review.py'?"
  ],
  # Run directories.
  '--workdir=taken': ["--workdir='taken' cannot be written: Not a directory."],
  '--workdir=taken/a/b': ["--workdir='taken/a/b' cannot be written: Not a directory."],
  '--workdir=~absentee/a --config.seed=-1': [
    f'--config.seed=-1 {SEED}',
    "--workdir='~absentee/a' names the home folder of nobody.",
  ],
  f'--workdir={"long" * 100}': [
    f"--workdir='{'long' * 100}' cannot be written: File name too long."
  ],
  # Spaces, and letters beyond ASCII.
  "'two words' '--workdir=two words/läuft ✓'": [
    "'two words' is a stray word; see --help."
  ],
  "'--config=läuft ✓.py'": ["--config='läuft ✓.py' is not a file."],
  '--config.größe=1 --config.data.näme=x': [
    '--config.größe is not a knob.',
    "--config.data.näme is not a knob. Did you mean 'data.name'?",
  ],
  "''": ["'' is a stray word; see --help."],
  # Everything at once, in one answer.
  'hello --zzz --workdir= --config.sed=1 --config.seed=-1 --config.moon.mu=nan '
  '--config.model=mpl --config.fedprox.mu=1': [
    '--workdir needs a value.',
    "--config.sed is not a knob. Did you mean 'seed'?",
    "'hello' is a stray word; see --help.",
    "'--zzz' is an unknown flag; see --help.",
    f"--config.model='mpl' {MODELS} Did you mean 'mlp'?",
    f'--config.seed=-1 {SEED}',
    '--config.moon.mu=nan must be a finite number.',
    '--config.fedprox.mu is not used with --config.algorithm=moon; '
    'it belongs to fedprox.',
  ],
}

# What only the data, or the machine, can tell: a command line -> the answer.
NPZ = '--config.data.source=npz --config.data.path='
TFDS = '--config.data.source=tfds --config.data.dir=. --config.data.name='
ARRAYS = 'an .npz file of plain arrays train_x, train_y, test_x, test_y'
UNFIT = {
  '--config.partition.name=natural': (
    '--config.partition.name=natural needs data that name their users: train_client in '
    'an .npz file, --config.data.client, or another source.'
  ),
  '--config.model=moon_cnn': (
    "--config.model='moon_cnn' needs images of 28x28 or 32x32 pixels, the data has "
    '8x8; use --config.model=mlp.'
  ),
  '--config.model=cnn_transformer': (
    "--config.model='cnn_transformer' needs images of 32x32 pixels, the data has "
    '8x8; use --config.model=mlp.'
  ),
  '--config.num_clients=2147483647': (
    '2147483647 clients with at least 10 examples need 21474836470, and there are '
    '1438: lower --config.num_clients or --config.partition.min_size.'
  ),
  '--config.partition.name=shards --config.partition.classes_per_client=11': (
    '--config.partition.classes_per_client=11 must be in [1, 10]: 10 clients own the '
    '10 classes of the training examples.'
  ),
  '--config.num_clients=20 --config.partition.beta=0.001': (
    '--config.partition.beta=0.001 gave at least 7 of 20 clients fewer than 10 of 1438 '
    'examples in each draw (of 1000; the smallest at best 0): change it, or lower '
    '--config.partition.min_size or --config.num_clients.'
  ),
  '--config.algorithm=decentralized_moon --config.topology.name=erdos_renyi '
  '--config.topology.edge_probability=0.001': (
    'None of 100 random graphs of 10 clients was connected: raise '
    '--config.topology.edge_probability=0.001; above log(N) / N = 0.23 most are.'
  ),
  '--config.drop_last=true --config.batch_size=512': (
    'Client 2 owns 66 examples, no batch of --config.batch_size=512: with '
    '--config.drop_last=true it would not train at all. Lower batch_size, or raise '
    '--config.partition.min_size.'
  ),
  f'{NPZ}absent.npz': "--config.data.path='absent.npz' is not a file.",
  f'{NPZ}~/taken': (
    f"--config.data.path='~/taken' must be {ARRAYS}: ValueError: it is no archive; "
    'save it with np.savez'
  ),
  f'{NPZ}objects.npz': (
    f"--config.data.path='objects.npz' must be {ARRAYS}: ValueError: Object arrays "
    'cannot be loaded when allow_pickle=False'
  ),
  f'{NPZ}labels.npz': (
    "--config.data.path='labels.npz': test_y holds 3, a class that train_y has not; "
    'remove it.'
  ),
  f'{TFDS}cifr10': (
    "--config.data.name='cifr10' is not a TFDS data set, nor prepared in .. Did you "
    "mean 'cifar10'?"
  ),
  f'{TFDS}../mnist': (
    "cannot open --config.data.name='../mnist' in .; check both: ValueError: Parsing "
    'builder name string ../mnist failed.'
  ),
  f'{TFDS}emnist/balance': (
    "cannot open --config.data.name='emnist/balance' in .; check both: ValueError: "
    "Failed to construct dataset \"emnist\", builder_kwargs \"{'config': 'balance', "
    "'data_dir': '.'}\": BuilderConfig balance not found with version 3.1.0. Here are "
    '10 BuilderConfigs whose name closely match: balanced:None'
  ),
}

# File -> its text.
FILES = {
  'README.md': 'Not a config.',
  'raises.py': "raise ValueError('no luck\\nat all')",
  'broken.py': 'def get_config(:',
  'empty.py': '',
  'leaves.py': 'raise SystemExit(0)',
  'forgets.py': 'def get_config(): pass',
  'flags.txt': '--config.seed=-3',
  'taken': 'mine',
  'folder.py/inside': '',
}
# Config file -> what it does to the settings of configs/base.py.
CHANGES = {
  'misspelt.py': 'config.sed = 1',
  'lacking.py': 'del config.seed',
  'wrong.py': 'config.seed = -1',
  'scalar.py': 'del config.moon; config.moon = 5.0',
}


def write_config(path, change):
  path.write_text(
    'from configs import base\n'
    'def get_config():\n'
    f'  config = base.get_config()\n  {change}\n  return config\n'
  )


def everything(folder):
  """Path -> bytes of what lies below a folder, None of a folder."""
  return {
    str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
    for path in folder.rglob('*')
  }


@pytest.fixture(scope='module', autouse=True)
def _fonts():
  """The first user of matplotlib at a home makes a list of the fonts there."""
  font_manager.findfont('DejaVu Sans')


@pytest.fixture
def folder(tmp_path, monkeypatch):
  """Where the command lines are given: with the files of the tables, also as home."""
  for name, text in FILES.items():
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(text)
  for name, change in CHANGES.items():
    write_config(tmp_path / name, change)
  monkeypatch.chdir(tmp_path)
  monkeypatch.setenv('HOME', str(tmp_path))
  return tmp_path


def test_enough_command_lines():
  assert len(BAD) + len(UNFIT) >= 60


@pytest.mark.parametrize('line', BAD)
def test_bad_command_line(line, folder, capsys):
  before = everything(folder)
  code = launch(shlex.split(line))
  out, err = capsys.readouterr()
  assert err.splitlines() == BAD[line]
  assert (code, out) == (ExitCode.USAGE, '')
  assert everything(folder) == before


@pytest.mark.parametrize('line', UNFIT)
def test_command_line_that_does_not_fit(line, folder, capsys, monkeypatch):
  monkeypatch.setenv('XLA_FLAGS', os.environ['XLA_FLAGS'])  # a run adds to it
  labels = np.arange(30)
  for name, test_y in (('labels', labels % 4), ('objects', labels.astype(object))):
    np.savez(folder / f'{name}.npz', **test_sources.arrays(test_y=test_y))
  before = everything(folder)
  code = launch(line.split())
  assert capsys.readouterr().err.splitlines() == [UNFIT[line]]
  assert code == ExitCode.USAGE
  assert everything(folder) == before


def test_more_devices_than_a_cpu_may_have(folder, capsys):
  most = max(len(os.sched_getaffinity(0)), 8)
  assert launch(['--config.execution.devices=100000000']) == ExitCode.USAGE
  wanted = f"--config.execution.devices='100000000' must be at most {most} here."
  assert capsys.readouterr().err == wanted + '\n'


def test_line_breaks_stay_inside_their_line(folder, capsys):
  argv = ['--config.a\nb=1', '--config.seed=1\n2', 'x\ny', '--config=a\rb']
  assert launch(argv) == ExitCode.USAGE
  assert capsys.readouterr().err.split('\n') == [
    r"--config='a\rb' is not a file.",
    '--config.a b is not a knob.',
    r"'x\ny' is a stray word; see --help.",
    '',
  ]
  assert launch(argv[1:2]) == ExitCode.USAGE
  wanted = r"--config.seed='1\n2' must be a whole number."
  assert capsys.readouterr().err == wanted + '\n'


# --- as a process ---------------------------------------------------------------------

SAMPLE = (
  '--config.sed=1',
  '--config.moon=5 --config.algorithm=fedavg',
  '--config=broken.py --config.sed=1 hello',
  '--workdir=taken',
  "'--config=läuft ✓.py'",
  'hello --zzz --workdir= --config.sed=1 --config.seed=-1 --config.moon.mu=nan '
  '--config.model=mpl --config.fedprox.mu=1',
)
# Of the processor: other work on the machine may make a process wait.
MOST_SECONDS = 3


@pytest.fixture
def process(folder, tmp_path_factory):
  """Runs launch.py in a folder, without JAX unless told: to load it is an error."""
  trap = tmp_path_factory.mktemp('no_jax')
  (trap / 'jax.py').write_text("raise AssertionError('JAX is loaded')")

  def run(*words):
    before, files = resource.getrusage(resource.RUSAGE_CHILDREN), everything(folder)
    done = subprocess.run(
      [sys.executable, str(ROOT / 'launch.py'), *words],
      cwd=folder,
      env={**os.environ, 'PYTHONPATH': str(trap)},
      capture_output=True,
      encoding='utf-8',
      check=False,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert used < MOST_SECONDS
    assert everything(folder) == files
    return done

  return run


@pytest.mark.parametrize('line', SAMPLE)
def test_bad_command_line_as_a_process(line, process):
  done = process(*shlex.split(line))
  assert (done.returncode, done.stdout) == (ExitCode.USAGE, '')
  assert done.stderr.splitlines() == BAD[line]


@pytest.mark.parametrize('words', [['--help'], ['--config.sed=1', 'hello', '-h']])
def test_help_as_a_process(words, process):
  done = process(*words)
  assert (done.returncode, done.stderr) == (ExitCode.DONE, '')
  lines = re.findall(r'^  --config\.([\w.]+)=(\S*) +(\S.*)$', done.stdout, re.M)
  shown = {
    name: config.convert(name, config.from_word(name, word)) for name, word, _ in lines
  }
  assert shown == config.flatten(base.get_config().to_dict())
  assert [name for name, *_ in lines] == list(catalog.every_knob())


def test_no_jax_is_noticed(process):
  # Without this, the tests above might pass because the trap does not work.
  assert 'AssertionError: JAX is loaded' in process().stderr
