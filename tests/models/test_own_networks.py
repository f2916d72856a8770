"""Networks of a user's own, as in flax's manual: they work, or one line says why."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import moon_jax
from moon_jax import models
from moon_jax.__main__ import launch
from moon_jax.algorithms import fedbabu
from moon_jax.core.errors import ExitCode, UsageError
from tests import refusals
from tests.selection import few

pytestmark = pytest.mark.usefixtures('own_parts', 'quick_runs')

TEXT = """
import flax.linen as nn
import jax.numpy as jnp
import moon_jax
from moon_jax.config import defaults

class Mine(nn.Module):
  num_classes: int

  @nn.compact
  def __call__(self, images{arguments}):
    x = images.reshape(len(images), -1)
    {line}
    return nn.Dense(self.num_classes)(x)

moon_jax.register_model('mine', Mine, traits={{'normalized'}})

def get_config():
  config = defaults()
  config.model = 'mine'
  config.num_rounds = config.local_epochs = 1
  config.num_clients = 4
  config.data.limit = 90
  config.partition.name = 'iid'
  return config
"""


BATCH_NORM = 'x = nn.BatchNorm(use_running_average={})(x)'


def write(folder, monkeypatch, arguments='', line='pass'):
  monkeypatch.chdir(folder)
  (folder / 'own.py').write_text(TEXT.format(arguments=arguments, line=line))


def refused(capsys, algorithm):
  """The one line with which a run is refused."""
  words = ['--config=own.py', f'--workdir={algorithm}']
  assert launch([*words, f'--config.algorithm={algorithm}']) == ExitCode.USAGE
  (line,) = capsys.readouterr().err.splitlines()
  return line


# MOON reads the representation, FedBABU looks for the output layer.
@pytest.mark.parametrize(
  'algorithm', few(['moon', 'fedbabu'], ['feddecorr', 'fedproto'])
)
def test_logits_alone_are_too_little_for_others(
  algorithm, tmp_path, monkeypatch, capsys
):
  write(tmp_path, monkeypatch)
  line = refused(capsys, algorithm)
  assert 'return moon_jax.Outputs(representation=..., logits=...)' in line


def test_logits_alone_are_enough_for_algorithms_without_a_representation(
  tmp_path, monkeypatch
):
  # Where filler would reach its statistics: without filler it trains.
  write(tmp_path, monkeypatch, ', train=True', BATCH_NORM.format('not train'))
  changes = {'algorithm': 'fedntd', 'drop_last': True, 'batch_size': 4}
  config = moon_jax.load_config('own.py', changes)
  trained = moon_jax.run(config, tmp_path / 'trained').model
  images, _ = trained.test_data()
  predictions = trained.predict(images)
  assert predictions.logits.shape == (len(images), 10)
  np.testing.assert_array_equal(predictions.representations, predictions.logits)


@pytest.mark.parametrize(
  ('arguments', 'line'),
  [
    (', mask=None', BATCH_NORM.format('mask is None')),
    (', train=True', BATCH_NORM.format('not train')),
    # It has no running statistics.
    ('', 'x = x - jnp.mean(x, axis=0, keepdims=True)'),
  ],
)
def test_a_network_that_filler_reaches_is_refused(
  arguments, line, tmp_path, monkeypatch, capsys
):
  write(tmp_path, monkeypatch, arguments, line)
  message = refused(capsys, 'fedavg')
  assert message.startswith("The model 'mine' failed: TypeError: in training, filler")
  assert 'mask=mask[:, None] > 0' in message
  assert '--config.drop_last' in message


def test_the_mask_and_train_are_passed_to_a_network_that_takes_them():
  calls = []

  class Asking(nn.Module):
    @nn.compact
    def __call__(self, images, train, mask):
      calls.append((train, mask is not None))
      real = None if mask is None else mask[:, None] > 0
      x = images.reshape(len(images), -1)
      x = nn.BatchNorm(use_running_average=not train)(x, mask=real)
      x = nn.Dropout(0.5, deterministic=not train)(x)
      return nn.Dense(3)(x)

  network = models.of_module(Asking(), (4, 4, 1))
  models.refuse_if_filler_matters(network)
  variables, images = network.init(0), jnp.ones((2, 4, 4, 1))
  calls.clear()
  _, statistics = network.train(variables, images, jnp.ones(2), jax.random.key(0))
  network.apply(variables, images)
  assert calls == [(True, True), (False, False)]
  assert statistics['batch_stats']


def test_only_an_argument_called_mask_gets_the_mask():
  class Scaled(nn.Module):
    @nn.compact
    def __call__(self, images, factor=2.0, *others, **options):
      assert (others, options) == ((), {})
      return factor * nn.Dense(3)(images.reshape(len(images), -1))

  network = models.of_module(Scaled(), (4, 4, 1))
  variables, images = network.init(0), jnp.ones((2, 4, 4, 1))
  kernel = variables['params']['Dense_0']['kernel']
  expected = 2.0 * jnp.ones((2, 16)) @ kernel
  mask = jnp.array([1.0, 0.0])
  outputs, _ = network.train(variables, images, mask, jax.random.key(0))
  np.testing.assert_allclose(outputs.logits, expected, rtol=1e-5)
  np.testing.assert_allclose(
    network.apply(variables, images).logits, expected, rtol=1e-5
  )


@pytest.mark.parametrize('arguments', [', deterministic', ', *, deterministic'])
def test_a_network_that_needs_another_argument_is_refused(
  arguments, tmp_path, monkeypatch, capsys
):
  write(tmp_path, monkeypatch, arguments)
  assert refused(capsys, 'fedavg').endswith(
    "TypeError: its __call__ needs an argument 'deterministic': beside the images it "
    'gets mask and train alone, by these names'
  )


def test_filler_that_makes_nan_of_real_examples_is_refused():
  class Leaking(nn.Module):
    @nn.compact
    def __call__(self, images):
      logits = nn.Dense(3)(images.reshape(len(images), -1))
      # NaN if an image is far from 0, as only the second kind of filler is.
      return logits + 0.0 * jnp.log(4.5 - jnp.abs(images).max())

  with pytest.raises(TypeError, match='filler changes its results'):
    models.refuse_if_filler_matters(models.of_module(Leaking(), (4, 4, 1)))


def test_features_that_are_left_out_are_the_representation():
  class TwoOutputs(nn.Module):
    @nn.compact
    def __call__(self, images):
      z = nn.Dense(4)(images.reshape(len(images), -1))
      return moon_jax.Outputs(representation=z, logits=nn.Dense(3)(z))

  network = models.of_module(TwoOutputs(), (4, 4, 1))
  outputs = network.apply(network.init(0), jnp.ones((2, 4, 4, 1)))
  np.testing.assert_array_equal(outputs.features, outputs.representation)
  assert {path[1] for path in network.layers().output} == {'Dense_1'}
  assert {path[1] for path in network.layers().body} == {'Dense_0'}


def test_a_representation_that_is_the_logits_has_no_output_layer_behind_it():
  class LogitsTwice(nn.Module):
    @nn.compact
    def __call__(self, images):
      logits = nn.Dense(3)(images.reshape(len(images), -1))
      return moon_jax.Outputs(representation=logits, logits=logits)

  network_layers = models.of_module(LogitsTwice(), (4, 4, 1)).layers()
  with refusals.refused(
    UsageError, 'never trains the output layer, which cannot be found'
  ):
    fedbabu.fedbabu(network_layers=network_layers)
