"""MOON and three others on signals, speech, a table and texts of real users.

  python -m papers.arrays FOLDER build/arrays
  python launch.py --config=configs/arrays.py:list
  python launch.py --config=configs/arrays.py:watch_moon

The first command prepares the data; docs/experiments.md says where they are from, and
what was measured. Each user who trains is a client. The last fifth of the users do not
train, and all of their examples are test examples. NAME_centralized_all trains on all
users in one place, and is to reach a simple model's accuracy; NAME_centralized leaves
the same users out as the others.

No paper has these settings. A data set's network, rate and batches were chosen by
centralized runs; FedProx's mu is 0.01, MOON's mu is 1 and its tau 0.5 for all of
them, chosen before the first run.
"""

from moon_jax.config import Variant, choose, defaults

TITLES = {
  'watch': 'watch',
  'audio_prompts': 'speech',
  'randhie': 'table',
  'sotu': 'speeches',
  'shakespeare_roles': 'plays',
}
_NEXT_CHARACTER = {
  'data.axes': 'T',
  'model': 'gru',
  'gru.width': 64,
  'optimizer.learning_rate': 0.1,
  'batch_size': 64,
  'num_rounds': 40,
  'local_epochs': 2,
}
_SETTINGS = {
  # Signals of 64 steps and 6 channels; 8 of 10 people train.
  'watch': {
    'data.axes': 'TC',
    'model': 'cnn_1d',
    'optimizer.learning_rate': 0.01,
    'batch_size': 32,
    'num_rounds': 50,
    'local_epochs': 2,
  },
  # Log-mel spectrograms of 32 steps and 32 bands; 8 of 10 families of prompts train.
  'audio_prompts': {
    'data.axes': 'TC',
    'model': 'cnn_1d',
    'optimizer.learning_rate': 0.02,
    'batch_size': 32,
    'num_rounds': 40,
    'local_epochs': 2,
  },
  # 21 numbers; 4 of 6 sites train.
  'randhie': {
    'model': 'mlp',
    'optimizer.learning_rate': 0.01,
    'batch_size': 64,
    'num_rounds': 20,
    'local_epochs': 1,
  },
  # The next of 84 characters after 10; 34 of 43 speakers train, 11 of them in a round.
  'sotu': _NEXT_CHARACTER | {'participation': 0.32},
  # The next of 66 characters after 10; 183 of 229 roles train, 37 of them in a round.
  'shakespeare_roles': _NEXT_CHARACTER | {'participation': 0.2},
}
# In one place a round has more steps; more epochs fit the noise of the table.
_CENTRALIZED = {
  'randhie': {'num_rounds': 5},
  'sotu': {'num_rounds': 10},
  'shakespeare_roles': {'num_rounds': 10},
}
_ALGORITHMS = {
  'fedavg': ('FedAvg', {}),
  'fedprox': ('FedProx, mu 0.01', {'fedprox.mu': 0.01}),
  'scaffold': ('SCAFFOLD', {}),
  'moon': ('MOON, mu 1', {'moon.mu': 1.0, 'moon.tau': 0.5}),
  'centralized': ('centralized, same users', {}),
}


def _variants() -> dict[str, Variant]:
  table = {}
  for data, title in TITLES.items():
    settings = _SETTINGS[data] | {'data.path': f'build/arrays/{data}_unseen.npz'}
    centralized = settings | _CENTRALIZED.get(data, {})
    for name, (setting, knobs) in _ALGORITHMS.items():
      changes = centralized if name == 'centralized' else settings
      changes = {'algorithm': name} | changes | knobs
      table[f'{data}_{name}'] = Variant(f'{title}, {setting}', '', changes)
    with_all = {'algorithm': 'centralized', 'data.path': f'build/arrays/{data}.npz'}
    table[f'{data}_centralized_all'] = Variant(
      f'{title}, centralized, all users', '', centralized | with_all
    )
  return table


VARIANTS = _variants()


def get_config(variant='watch_moon'):
  config = defaults()
  config.data.source = 'npz'
  config.partition.name = 'natural'
  return choose(config, VARIANTS, variant)
