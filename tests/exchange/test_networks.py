"""The files for PyTorch and ONNX compute what the network computes."""

import ast
import functools
import importlib.util
import json
import sys
from typing import NamedTuple
from unittest import mock

import jax
import numpy as np
import pytest

from moon_jax import catalog, models
from moon_jax.core import weights
from moon_jax.core.types import Form, Outputs, Scale
from moon_jax.data import example_forms, texts
from moon_jax.data.device_split import normalise
from moon_jax.data.scale import grey_levels
from moon_jax.exchange import networks, onnx_graph, pytorch
from moon_jax.exchange.description import Description
from tests.golden import seeded
from tests.selection import few

NUM_CLASSES, NUM_IMAGES = 7, 3
MEAN, STD = (0.4, 0.5, 0.45), (0.3, 0.2, 0.25)
# 16x24 images: height and width differ. Large networks take seconds to compile.
SHAPE = (16, 24, 3)
LARGE = ('resnet50', 'mobilenet_v2')
# Words of knobs that other networks have, too, with the same step in the file. Those of
# ResNet-50 are ResNet-18's. A small stem has no step that torchvision's has not.
SEEN_IN_OTHERS = ('resnet18', 'resnet18-norm=group', 'resnet18-head=none')
SEEN_IN_OTHERS += ('dco_cnn-norm=batch', 'dco_cnn-norm=group')
SEEN_IN_OTHERS += ('tutorial_cnn-norm=batch', 'tutorial_cnn-norm=group')
SEEN_IN_OTHERS += ('tutorial_cnn-head=none',)
LEFT_OUT = ('resnet50-norm=group', 'resnet50-head=none')
SMALLER = {'cnn_transformer': {'layers': 2, 'feedforward': 128}}


def variants():
  """Each network of the catalog, and once with each other word of its knobs."""
  for name in sorted(networks.STEPS):
    if not catalog.part('model', name).has('of_pictures'):
      continue  # they are among OTHER_EXAMPLES
    knobs = catalog.part('model', name).knobs
    defaults = {knob: entry.default for knob, entry in knobs.items()}
    options = defaults | SMALLER.get(name, {})
    is_slow = name in (*LARGE, *SEEN_IN_OTHERS)
    marks = [pytest.mark.slow] if is_slow else []
    yield pytest.param(name, tuple(options.items()), id=name, marks=marks)
    for knob, entry in knobs.items():
      for word in entry.bound.words if entry.bound else ():
        variant = f'{name}-{knob}={word}'
        if word != entry.default and variant not in LEFT_OUT:
          changed = options | {knob: word}
          is_slow = name in LARGE or variant in SEEN_IN_OTHERS
          yield pytest.param(
            name,
            tuple(changed.items()),
            id=variant,
            marks=[pytest.mark.slow] if is_slow else [],
          )


def test_every_network_is_described():
  assert set(networks.STEPS) == set(catalog.names('model'))


def variables_of(network):
  def leaf(path, shape):
    return seeded.leaf('/'.join(key.key for key in path), shape.shape).astype('f4')

  return jax.tree_util.tree_map_with_path(leaf, network.shapes)


def facts_of(model, scale=Scale()):  # noqa: B008, it is immutable
  return pytorch.Facts(
    model=model,
    origin='A test\\ wrote """it.',
    shape=SHAPE,
    mean=MEAN,
    std=STD,
    scale=scale,
    class_names=('a "quoted" name', 'right-to-left \u202e', *map(str, range(5))),
  )


def images():
  rng = np.random.default_rng(0)
  return rng.integers(0, 256, (NUM_IMAGES, *SHAPE), np.uint8)


def in_channels_first(pictures):
  return np.ascontiguousarray(pictures.transpose(0, 3, 1, 2))


def imported(path):
  """The module in a file."""
  spec = importlib.util.spec_from_file_location(path.stem, path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


def check_close(outputs, expected):
  """Both are equal to 1e-5 of the largest number."""
  for array, name in zip(outputs, ('logits', 'representation'), strict=True):
    reference = np.asarray(getattr(expected, name))
    assert np.ptp(reference) > 0.1, name
    largest = max(1, np.abs(reference).max())
    np.testing.assert_allclose(array, reference, rtol=0, atol=1e-5 * largest)


class Computed(NamedTuple):
  """A network, and what it computes for `images`."""

  description: Description
  variables: dict
  outputs: Outputs


@functools.cache
def computed(model, options):
  network = models.make(
    model, image_shape=SHAPE, num_classes=NUM_CLASSES, **dict(options)
  )
  variables = variables_of(network)
  normalised = normalise(images(), np.float32(MEAN), np.float32(STD))
  return Computed(
    description=networks.describe(model, dict(options), variables),
    variables=variables,
    outputs=jax.jit(network.apply)(variables, normalised),
  )


def of_onnx(description, facts, pictures):
  """Logits and representation that ONNX Runtime computes."""
  onnxruntime = pytest.importorskip('onnxruntime', reason='no onnxruntime')
  session = onnxruntime.InferenceSession(
    onnx_graph.model_bytes(description, facts), providers=['CPUExecutionProvider']
  )
  properties = session.get_modelmeta().custom_metadata_map
  assert json.loads(properties.get('class_names', '[]')) == [*facts.class_names]
  as_float32 = in_channels_first(pictures).astype(np.float32)
  return session.run(['logits', 'representation'], {'images': as_float32})


def of_torch(description, facts, pictures, folder):
  """Logits and representation that PyTorch computes by the files."""
  torch = pytest.importorskip('torch', reason='no torch')
  text = pytorch.python_file(description, facts, 'x_weights.safetensors')
  (folder / 'x.py').write_text(text, 'utf-8')
  state = pytorch.state_dict(description, facts)
  weights.write(folder / 'x_weights.safetensors', state, {})
  module = imported(folder / 'x.py')
  assert list(facts.class_names) == module.CLASS_NAMES
  with torch.no_grad():
    outputs = module.load().outputs(torch.from_numpy(in_channels_first(pictures)))
  return [output.numpy() for output in outputs]


@pytest.mark.parametrize(('model', 'options'), list(variants()))
def test_the_same_outputs_in_onnx(model, options):
  network = computed(model, options)
  outputs = of_onnx(network.description, facts_of(model), images())
  check_close(outputs, network.outputs)


@pytest.mark.parametrize(('model', 'options'), list(variants()))
def test_the_same_outputs_in_pytorch(model, options, tmp_path):
  network = computed(model, options)
  outputs = of_torch(network.description, facts_of(model), images(), tmp_path)
  check_close(outputs, network.outputs)


@pytest.mark.parametrize(('model', 'options'), list(variants()))
def test_the_python_file_stands_alone(model, options):
  network = computed(model, options)
  text = pytorch.python_file(network.description, facts_of(model), 'x.safetensors')
  imports = [node for node in ast.walk(ast.parse(text)) if hasattr(node, 'names')]
  roots = {
    (getattr(node, 'module', None) or node.names[0].name).partition('.')[0]
    for node in imports
  }
  assert roots == {'pathlib', 'sys', 'importlib', 'torch', 'safetensors', 'PIL'}
  assert max(map(len, text.splitlines())) <= 88
  # Every weight is written once, in PyTorch's layout, and the file has its layer.
  state = pytorch.state_dict(network.description, facts_of(model))
  num_weights = sum(leaf.size for leaf in jax.tree.leaves(network.variables))
  assert sum(array.size for array in state.values()) == num_weights
  assert all(f'self.{name.split(".")[0]} = nn.' in text for name in state)


SCALES = [
  Scale(low=0.0, high=1.0, dtype='float16'),
  Scale(low=0.0, high=1.0, dtype='float32'),
  Scale(low=-1000.0, high=3000.0, dtype='int16', declared=True),
  Scale(low=0.0, high=16.0, dtype='float64', declared=True),
]


@pytest.mark.parametrize('program', ['onnx', 'torch'])
@pytest.mark.parametrize('scale', SCALES, ids=lambda scale: scale.dtype)
def test_numbers_become_the_same_levels(scale, program, tmp_path):
  network = models.make(
    'mlp', image_shape=SHAPE, num_classes=NUM_CLASSES, width=3, representation=2
  )
  variables = variables_of(network)
  description = networks.describe('mlp', {}, variables)
  numbers = np.linspace(scale.low, scale.high, images().size).reshape(images().shape)
  # ONNX takes float32, in which some of these numbers lie beside a border of levels.
  numbers = np.rint(numbers * 64) / 64
  numbers = numbers.astype(scale.dtype)
  levels = grey_levels(numbers, scale)
  expected = network.apply(
    variables, normalise(levels, np.float32(MEAN), np.float32(STD))
  )
  facts = facts_of('mlp', scale)
  if program == 'onnx':
    outputs = of_onnx(description, facts, numbers)
  else:
    outputs = of_torch(description, facts, numbers, tmp_path)
  check_close(outputs, expected)


# --- tables, signals, volumes and words -----------------------------------------------

WORDS = 11


def numbers(shape):
  return np.random.default_rng(1).normal(50, 20, shape).astype(np.float32)


def words():
  """Texts of all lengths, with gaps; the last one has no word at all."""
  rng = np.random.default_rng(2)
  texts = rng.integers(0, WORDS, (5, 7))
  is_word = np.arange(7) < np.array([7, 1, 4, 6, 0])[:, None]
  is_word[3, 2] = False
  return np.where(is_word, texts, -1).astype(np.int32)


class Other(NamedTuple):
  """A network for examples that are no pictures, small, and such examples."""

  model: str
  options: dict
  form: Form
  examples: np.ndarray


_HEAD = {'width': 12, 'representation': 6}
OTHER_EXAMPLES = {
  'mlp of tables': Other(
    'mlp', _HEAD, Form('table', 'D', 'numbers', 'per_feature'), numbers((4, 5))
  ),
  'mlp of pictures of numbers': Other(
    'mlp', _HEAD, Form('picture', 'HWC', 'numbers'), numbers((4, 5, 6, 2))
  ),
  'cnn_1d': Other(
    'cnn_1d',
    _HEAD | {'channels': 4, 'kernel': 5, 'norm': 'none'},
    Form('signal', 'TC', 'numbers'),
    numbers((4, 9, 3)),
  ),
  'cnn_3d': Other(
    'cnn_3d',
    _HEAD | {'channels': 3, 'norm': 'none'},
    Form('volume', 'DHWC', 'numbers'),
    numbers((3, 8, 9, 10, 2)),
  ),
  'gru of signals': Other(
    'gru',
    _HEAD | {'embedding': 5},
    Form('signal', 'TC', 'numbers'),
    numbers((4, 9, 3)),
  ),
  'gru of words': Other(
    'gru',
    _HEAD | {'embedding': 5},
    Form('words', 'T', 'words', 'none', 'int32', vocabulary=WORDS),
    words(),
  ),
  'transformer': Other(
    'transformer',
    _HEAD | {'layers': 2, 'heads': 3, 'feedforward': 10, 'dropout': 0.1},
    Form('words', 'T', 'words', 'none', 'int32', vocabulary=WORDS),
    words(),
  ),
}
for _name in ('cnn_1d', 'cnn_3d'):
  for _norm in ('batch', 'group'):
    _other = OTHER_EXAMPLES[_name]
    _options = _other.options | {'channels': 4, 'norm': _norm}
    OTHER_EXAMPLES[f'{_name}-norm={_norm}'] = _other._replace(options=_options)
# Those of cnn_1d have the same steps.
PLAIN = [name for name in OTHER_EXAMPLES if name not in ('cnn_3d', 'cnn_3d-norm=group')]


@functools.cache
def computed_of_others(name):
  """The steps of a network, its facts, and what it computes."""
  model, options, form, examples = OTHER_EXAMPLES[name]
  network = models.make(
    model,
    image_shape=examples.shape[1:],
    num_classes=NUM_CLASSES,
    form=form,
    **options,
  )
  variables = variables_of(network)
  mean, std = example_forms.statistics_of_numbers(examples, form)
  facts = facts_of(model)._replace(
    shape=examples.shape[1:], mean=mean, std=std, kind=form.kind, content=form.content
  )
  description = networks.describe(
    model, options, variables, of_pictures=form.kind == 'picture'
  )

  def compute(examples):
    seen = normalise(examples, np.float32(mean), np.float32(std), form.content)
    return jax.jit(network.apply)(variables, seen)

  return description, facts, compute


def as_the_file_takes_them(examples, facts):
  examples = in_channels_first(examples) if facts.kind == 'picture' else examples
  return examples.astype(np.int64) if facts.content == 'words' else examples


@pytest.mark.parametrize('name', few(PLAIN, OTHER_EXAMPLES))
def test_other_examples_in_onnx(name):
  onnxruntime = pytest.importorskip('onnxruntime', reason='no onnxruntime')
  description, facts, compute = computed_of_others(name)
  session = onnxruntime.InferenceSession(
    onnx_graph.model_bytes(description, facts), providers=['CPUExecutionProvider']
  )
  (argument,) = session.get_inputs()
  names = {'picture': 'images', 'words': 'words'}
  assert argument.name == names.get(facts.kind, 'examples')
  for examples in lengths(name):
    inputs = {argument.name: as_the_file_takes_them(examples, facts)}
    outputs = session.run(['logits', 'representation'], inputs)
    check_close(outputs, compute(examples))


@pytest.mark.parametrize('name', few(PLAIN, OTHER_EXAMPLES))
def test_other_examples_in_pytorch(name, tmp_path):
  torch = pytest.importorskip('torch', reason='no torch')
  description, facts, compute = computed_of_others(name)
  text = pytorch.python_file(description, facts, 'x_weights.safetensors')
  assert max(map(len, text.splitlines())) <= 88
  assert 'moon_jax' not in text
  (tmp_path / 'x.py').write_text(text, 'utf-8')
  state = pytorch.state_dict(description, facts)
  weights.write(tmp_path / 'x_weights.safetensors', state, {})
  network = imported(tmp_path / 'x.py').load()
  for examples in lengths(name):
    batch = torch.from_numpy(as_the_file_takes_them(examples, facts))
    for has_gradients in (False, True):  # PyTorch has two ways to compute an encoder
      with torch.set_grad_enabled(has_gradients):
        outputs = network.outputs(batch)
      check_close([output.detach().numpy() for output in outputs], compute(examples))


@pytest.mark.parametrize(
  ('channels', 'bits', 'line'),
  [
    (1, 16, "must be grey and have 16 bits.')"),
    (1, 8, 'return levels.double()'),
    (3, 8, "picture = picture.convert('RGB')"),
    (3, 16, ''),  # Pillow reads no colours of 16 bits
    (2, 8, ''),
    (1, 0, ''),
  ],
)
def test_pictures_of_numbers_are_read_from_files_of_their_bits(channels, bits, line):
  description, facts, _ = computed_of_others('mlp of pictures of numbers')
  facts = facts._replace(
    shape=(5, 6, channels), mean=[1] * channels, std=[2] * channels, picture_bits=bits
  )
  text = pytorch.python_file(description, facts, 'x_weights.safetensors')
  compile(text, 'x.py', 'exec')
  assert f'CHANNELS, HEIGHT, WIDTH = ({channels}, 5, 6)\n' in text
  assert f'{line}\n' in text
  is_program = bool(line)
  assert ('def main(paths)' in text) == is_program
  assert ('Pillow' in text) == is_program
  assert 'BLACK' not in text


def lengths(name):
  """The examples of a case; recurrent networks take them with other lengths too."""
  examples = OTHER_EXAMPLES[name].examples
  yield examples
  if OTHER_EXAMPLES[name].model == 'gru':
    yield examples[:, :4]
    yield np.concatenate([examples, examples], 1)


# --- texts ----------------------------------------------------------------------------

VOCABULARY = ('[UNK]', 'a', 'b', 'é', ' ', 'ab', '##a', '##b', '北', ',', 'ba')
TEXTS = ['ab, ÉBA', '', 'abba' * 5, '北ab\n!']


def file_of_texts(tokenizer, folder):
  """The Python file of a network of texts, with its weights beside it."""
  description, facts, _ = computed_of_others('gru of words')
  facts = facts._replace(words=VOCABULARY, tokenizer=tokenizer)
  weights.write(
    folder / 'x_weights.safetensors',
    pytorch.state_dict(description, facts),
    pytorch.metadata(facts),
  )
  path = folder / 'x.py'
  text = pytorch.python_file(description, facts, 'x_weights.safetensors')
  path.write_text(text, 'utf-8')
  return path


@pytest.mark.parametrize('tokenizer', ['characters', 'wordpiece'])
def test_the_vocabulary_of_texts_goes_with_the_weights(tokenizer, tmp_path):
  path = file_of_texts(tokenizer, tmp_path)
  compile(path.read_text('utf-8'), 'x.py', 'exec')
  assert max(map(len, path.read_text('utf-8').splitlines())) <= 88
  _, metadata = weights.read(tmp_path / 'x_weights.safetensors')
  assert tuple(json.loads(metadata['words'])) == VOCABULARY


@pytest.mark.parametrize('tokenizer', ['characters', 'wordpiece'])
def test_texts_are_read_as_in_training(tokenizer, tmp_path):
  pytest.importorskip('torch', reason='no torch')
  module = imported(file_of_texts(tokenizer, tmp_path))
  vocabulary = texts.Vocabulary(tokenizer=tokenizer, words=VOCABULARY, length=7)
  expected = texts.numbers_of(TEXTS, vocabulary)
  assert module.read_texts(TEXTS).tolist() == expected.tolist()
  assert module.main(TEXTS) == 0


def test_an_error_is_of_the_weights_or_of_the_texts(tmp_path, monkeypatch, capsys):
  pytest.importorskip('tokenizers', reason='no tokenizers')
  for name in ('torch', 'torch.nn', 'safetensors.torch'):  # no part of it
    monkeypatch.setitem(sys.modules, name, mock.MagicMock())
  module = imported(file_of_texts('wordpiece', tmp_path))
  module.load = lambda: None
  module.vocabulary = lambda: list(VOCABULARY)
  half_of_a_character = '\ud83d'
  assert module.main([half_of_a_character]) == 2
  assert capsys.readouterr().err.startswith('the texts: ')
  module.vocabulary = lambda: {}['words']
  assert module.main(['ab']) == 2
  assert capsys.readouterr().err == f"{tmp_path / 'x_weights.safetensors'}: 'words'\n"
