"""Writes a network as a Python file for PyTorch, and its weights for that file.

The file needs torch and safetensors, Pillow for pictures, and nothing of this package.
"""

import json
import textwrap
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from moon_jax.core.errors import printable
from moon_jax.core.types import Scale
from moon_jax.exchange.description import Description, Step

_WIDTH = 88  # of a line
# Kind of examples -> their axes.
_AXES = {
  'picture': 'channels, height, width',
  'table': 'numbers',
  'signal': 'steps, channels',
  'volume': 'depth, height, width, channels',
  'words': 'words',
}
_PICTURE_MODES = {1: 'L', 3: 'RGB', 4: 'RGBA'}


class Facts(NamedTuple):
  """What a file says about the model besides its layers.

  Attributes:
    model: name of the network in the catalog.
    origin: a sentence that says where the weights come from.
    shape: of an example: (H, W, C) of images, see `Description` for others.
    mean: of each channel, of grey levels / 255; or, of numbers, of each channel or of
      each number of an example.
    std: standard deviation, likewise.
    scale: the numbers of black and white.
    side: pixels of each side to which the run resized pictures; 0: it did not resize.
    class_names: names of the classes; () if they have none.
    kind: 'picture', 'table', 'signal', 'volume' or 'words'.
    content: 'levels' of grey, 'numbers' or 'words'.
    words: the vocabulary, if the examples were texts; () otherwise.
    tokenizer: what divides texts: 'characters' or 'wordpiece'.
    picture_bits: bits of a channel in the files of pictures from which the run's
      pictures may come; 0: from none.
    is_upright: whether pictures are turned as their EXIF data say.
    picture_formats: Pillow's names of the formats that may be read.
  """

  model: str
  origin: str
  shape: tuple[int, ...]
  mean: Any
  std: Any
  scale: Scale
  side: int = 0
  class_names: tuple[str, ...] = ()
  kind: str = 'picture'
  content: str = 'levels'
  words: tuple[str, ...] = ()
  tokenizer: str = ''
  picture_bits: int = 8
  is_upright: bool = False
  picture_formats: tuple[str, ...] = ('PNG',)

  @property
  def input_name(self) -> str:
    """What the examples are called."""
    return {'picture': 'images', 'words': 'words'}.get(self.kind, 'examples')

  @property
  def axes(self) -> str:
    """The axes of an example as the file takes them, without that of the batch."""
    return _AXES[self.kind]

  def arranged(self, numbers: Any) -> np.ndarray:
    """Means or deviations as an array that fits a batch of the file's examples."""
    array = np.asarray(numbers, np.float32)
    array = array.reshape((1,) * (1 + len(self.shape) - array.ndim) + array.shape)
    return np.moveaxis(array, -1, 1) if self.kind == 'picture' else array

  @property
  def number_type(self) -> str:
    """The type in which numbers become grey levels, as in `scale.grey_levels`."""
    is_narrow = self.scale.dtype in ('float16', 'float32')
    is_of_levels = not self.scale.declared and self.scale.dtype != 'float64'
    return 'float32' if is_narrow or is_of_levels else 'float64'


# --- layers ---------------------------------------------------------------------------


class _Layer(NamedTuple):
  """A layer in PyTorch.

  Attributes:
    constructor: the expression that makes it.
    weights: name in its state dict -> array.
  """

  constructor: str
  weights: dict[str, np.ndarray]


def _conv(network: Description, step: Step) -> _Layer:
  kernel, bias = (network.array(step.layer, name) for name in ('kernel', 'bias'))
  size, _, inputs, outputs = kernel.shape
  stride, padding = step.options['stride'], step.options['padding']
  groups = outputs if step.options['depthwise'] else 1
  words = [str(groups * inputs), str(outputs), str(size)]
  words += [f'stride={stride}'] if stride > 1 else []
  words += [f'padding={padding}'] if padding else []
  words += [f'groups={groups}'] if groups > 1 else []
  words += ['bias=False'] if bias is None else []
  return _Layer(
    f'nn.Conv2d({", ".join(words)})',
    _with_bias({'weight': kernel.transpose(3, 2, 0, 1)}, bias),
  )


def _dense(network: Description, step: Step) -> _Layer:
  kernel, bias = (network.array(step.layer, name) for name in ('kernel', 'bias'))
  inputs, outputs = kernel.shape
  return _Layer(
    f'nn.Linear({inputs}, {outputs})', _with_bias({'weight': kernel.T}, bias)
  )


def _with_bias(arrays, bias):
  return arrays if bias is None else arrays | {'bias': bias}


def _batch_norm(network: Description, step: Step) -> _Layer:
  arrays = _scale_and_bias(network, step.layer)
  arrays['running_mean'] = network.statistic(step.layer, 'mean')
  arrays['running_var'] = network.statistic(step.layer, 'var')
  dims = step.options['dims']
  return _Layer(f'nn.BatchNorm{dims}d({len(arrays["weight"])})', arrays)


def _group_norm(network: Description, step: Step) -> _Layer:
  arrays = _scale_and_bias(network, step.layer)
  groups = step.options['groups']
  return _Layer(f'nn.GroupNorm({groups}, {len(arrays["weight"])})', arrays)


def _scale_and_bias(network, layer):
  return {
    'weight': network.array(layer, 'scale'),
    'bias': network.array(layer, 'bias'),
  }


def _encoder_layer(network: Description, step: Step) -> _Layer:
  layer = step.layer
  arrays = {}
  for name, torch_name in (
    ('linear1', 'linear1'),
    ('linear2', 'linear2'),
    ('output', 'self_attn.out_proj'),
  ):
    arrays[f'{torch_name}.weight'] = network.array(f'{layer}/{name}', 'kernel').T
    arrays[f'{torch_name}.bias'] = network.array(f'{layer}/{name}', 'bias')
  for name in ('norm1', 'norm2'):
    for torch_name, array in _scale_and_bias(network, f'{layer}/{name}').items():
      arrays[f'{name}.{torch_name}'] = array
  arrays['self_attn.in_proj_weight'] = network.array(f'{layer}/qkv', 'kernel').T
  arrays['self_attn.in_proj_bias'] = network.array(f'{layer}/qkv', 'bias')
  feedforward, width = arrays['linear1.weight'].shape
  words = f'{width}, {step.options["heads"]}, {feedforward}, {step.options["dropout"]}'
  return _Layer(f'nn.TransformerEncoderLayer({words}, batch_first=True)', arrays)


def _window_conv(network: Description, step: Step) -> _Layer:
  """See `Description.window_conv`."""
  kernel, bias = (network.array(step.layer, name) for name in ('kernel', 'bias'))
  size, dims = step.options['size'], step.options['dims']
  outputs = kernel.shape[1]
  window = kernel.reshape([size] * dims + [-1, outputs])
  weight = np.moveaxis(window, (-1, -2), (0, 1))
  words = f'{weight.shape[1]}, {outputs}, {size}, padding={size // 2}'
  words += ', bias=False' if bias is None else ''
  return _Layer(f'nn.Conv{dims}d({words})', _with_bias({'weight': weight}, bias))


def _gru(network: Description, step: Step) -> _Layer:
  arrays = {
    'weight_ih': network.array(f'{step.layer}/input', 'kernel').T,
    'weight_hh': network.array(step.layer, 'hidden_kernel').T,
    'bias_ih': network.array(f'{step.layer}/input', 'bias'),
    'bias_hh': network.array(step.layer, 'hidden_bias'),
  }
  inputs, width = arrays['weight_ih'].shape[1], arrays['weight_hh'].shape[1]
  if step.options['of_words']:
    return _Layer(f'nn.GRUCell({inputs}, {width})', arrays)
  arrays = {f'{name}_l0': array for name, array in arrays.items()}
  return _Layer(f'nn.GRU({inputs}, {width}, batch_first=True)', arrays)


def _embed(network: Description, step: Step) -> _Layer:
  table = network.parameter(step.layer)
  words, width = table.shape
  return _Layer(f'nn.Embedding({words}, {width})', {'weight': table})


def _places(network: Description, step: Step) -> _Layer:
  places = network.parameter(step.layer)
  return _Layer(f'nn.Parameter(torch.zeros{places.shape})', {'': places})


_LAYERS: dict[str, Callable[[Description, Step], _Layer]] = {
  'conv': _conv,
  'dense': _dense,
  'batch_norm': _batch_norm,
  'group_norm': _group_norm,
  'encoder_layer': _encoder_layer,
  'window_conv': _window_conv,
  'gru': _gru,
  'embed': _embed,
  'add_places': _places,
}


def _attribute(layer: str) -> str:
  """'stage1_block1/conv1/conv' -> its name in the Python class."""
  return layer.replace('/', '_')


def state_dict(network: Description, facts: Facts) -> dict[str, np.ndarray]:
  """The weights by PyTorch's names and in its layouts, and what normalises numbers."""
  state = {}
  if facts.content == 'numbers':
    for name in ('mean', 'std'):
      state[name] = np.ascontiguousarray(facts.arranged(getattr(facts, name)))
  for step in network.steps:
    if step.layer:
      layer = _LAYERS[step.kind](network, step)
      for name, array in layer.weights.items():
        full_name = '.'.join(filter(None, (_attribute(step.layer), name)))
        state[full_name] = np.ascontiguousarray(array)
  return state


def metadata(facts: Facts) -> dict[str, str]:
  """What the file of weights has besides arrays: as JSON, the vocabulary of texts."""
  return {'words': json.dumps(facts.words)} if facts.words else {}


# --- lines of the file ----------------------------------------------------------------


def _max_pool(x, options):
  size, stride, padding = (options[name] for name in ('size', 'stride', 'padding'))
  words = [x, str(size)]
  if stride != size:
    words.append(f'stride={stride}')
  if padding:
    words.append(f'padding={padding}')
  return f'F.max_pool2d({", ".join(words)})'


_EXPRESSIONS: dict[str, Callable[[str, Mapping[str, Any]], str]] = {
  'relu': lambda x, options: f'F.relu({x})',
  'relu6': lambda x, options: f'F.relu6({x})',
  'max_pool': _max_pool,
  'dropout': lambda x, options: f'F.dropout({x}, {options["rate"]}, self.training)',
  'mean_of_pixels': lambda x, options: f'{x}.mean((2, 3))',
  'flatten': lambda x, options: f'{x}.permute(0, 2, 3, 1).flatten(1)',
  'tokens': lambda x, options: f'{x}.flatten(2).transpose(1, 2)',
  'flatten_tokens': lambda x, options: f'{x}.flatten(1)',
  'window_pool': lambda x, options: f'F.max_pool{options["dims"]}d({x}, 2)',
  'channels_first': lambda x, options: f'{x}.movedim(-1, 1)',
  'flatten_windows': lambda x, options: f'{x}.movedim(1, -1).flatten(1)',
}
# Steps that begin a line.
_INNER = (
  'conv',
  'window_conv',
  'dense',
  'encoder_layer',
  'copy',
  'add',
  'is_word',
  'embed',
  'add_places',
  'gru',
  'mean_of_words',
)


def _statements(network: Description) -> Iterator[str]:
  """The lines of the forward pass: a layer begins one, what follows goes around it."""
  target, expression = '', ''
  for step in network.steps:
    is_inner = step.kind in _INNER
    inner = expression
    if is_inner or step.target != target:
      if target:
        yield f'{target} = {expression}'
      inner = step.sources[0]
    target, before = step.target, inner
    expression = _expression(step, before)
    if len(f'    {target} = {expression}') > _WIDTH and not is_inner:
      yield f'{target} = {before}'
      expression = _expression(step, target)
  yield f'{target} = {expression}'


def _expression(step: Step, x: str) -> str:
  if step.kind == 'copy':
    return x
  if step.kind == 'add':
    return f'{x} + {step.sources[1]}'
  if step.kind == 'is_word':
    return f'{x} >= 0'
  if step.kind == 'embed':
    return f'embedded(self.{step.layer}, {x}, is_word)'
  if step.kind == 'add_places':
    return f'{x} + self.places'
  if step.kind == 'mean_of_words':
    return f'mean_of_words({x}, is_word)'
  if step.kind == 'gru':
    layer = f'self.{_attribute(step.layer)}'
    if step.options['of_words']:
      return f'last_state({layer}, {x}, is_word)'
    return f'{layer}({x})[1][0]'
  if step.kind == 'encoder_layer' and len(step.sources) > 1:
    mask = 'src_key_padding_mask=no_word(is_word)'
    return f'self.{_attribute(step.layer)}({x}, {mask})'
  if step.layer:
    return f'self.{_attribute(step.layer)}({x})'
  return _EXPRESSIONS[step.kind](x, step.options)


def python_file(network: Description, facts: Facts, weights_name: str) -> str:
  """The text of the Python file.

  Args:
    network: its steps.
    facts: what the file says about the model.
    weights_name: name of the file of weights, which lies beside it.
  """
  # Nothing in it may end the text that it stands in.
  origin = printable(facts.origin).replace('\\', '/').replace('"', "'")
  class_name = ''.join(word.capitalize() for word in facts.model.split('_'))
  constructors = [
    _assigned(step.layer, _LAYERS[step.kind](network, step).constructor)
    for step in network.steps
    if step.layer
  ]
  of_levels = facts.content == 'levels'
  if facts.content == 'numbers':
    shape = facts.arranged(facts.mean).shape
    constructors += [
      f"self.register_buffer('{name}', torch.zeros{shape})" for name in ('mean', 'std')
    ]
  elif of_levels:
    constructors.append(_BUFFERS_OF_LEVELS)
  argument = facts.input_name
  kinds_of_steps = {step.kind for step in network.steps}
  helpers = ''.join(text for kind, text in _HELPERS.items() if kind in kinds_of_steps)
  for kind, helper in (('gru', _LAST_STATE), ('encoder_layer', _NO_WORD)):
    if any(step.kind == kind and step.sources[1:] for step in network.steps):
      helpers += helper
  reading = _picture_reading(facts)
  is_program = bool(facts.words or reading)
  imports = ['import json'] if facts.words else []
  imports.append('import pathlib')
  if is_program:
    imports += ['import sys', 'from importlib.util import find_spec']
  needs = _NEEDS_OF_PICTURES if reading else _NEEDS
  packages = {'torch': 'torch', 'safetensors': 'safetensors'}
  if reading:
    packages['PIL'] = 'pillow'
  if facts.words and facts.tokenizer == 'wordpiece':
    needs = _NEEDS_OF_WORD_PIECES
    packages['tokenizers'] = 'tokenizers'
  text = _HEAD.format(
    title=_wrapped(f'The network {facts.model!r} in PyTorch. {origin}'),
    needs=_wrapped(needs),
    argument=argument,
    described=f'{argument.capitalize()} [B, {facts.axes}]',
    about=_about_examples(facts),
    class_names=_names(facts.class_names),
    weights_name=weights_name,
    helpers=helpers,
    class_name=class_name,
    constructors='\n    '.join(constructors),
    statements='\n    '.join(_statements(network)),
    normalised=_NORMALISED[facts.content].format(
      number_type=facts.number_type, argument=argument
    ),
    import_safe_open='from safetensors import safe_open\n' if facts.words else '',
    imports=''.join(f'{line}\n' for line in imports),
    package_check=_PACKAGE_CHECK.format(packages=packages) if is_program else '',
  )
  if not is_program:
    return text
  if facts.words:
    text += _TEXTS.format(divided=_DIVIDED[facts.tokenizer])
  else:
    text += _PICTURES.format(
      also_imported=', ImageOps' if facts.is_upright else '',
      turned=_TURNED if facts.is_upright else '',
      formats=facts.picture_formats,
      reading=reading,
      described='BLACK to WHITE' if of_levels else 'with its numbers',
    )
  return text + _PROGRAM


def _picture_reading(facts):
  """The lines that make an array of a picture; '' if the network takes none."""
  mode = _PICTURE_MODES.get(facts.shape[-1])
  if facts.kind != 'picture' or not mode:
    return ''
  sized = _RESIZED if facts.side else _OF_ONE_SIZE
  if facts.picture_bits == 16:
    return _DEEP_READING.format(sized=sized) if mode == 'L' else ''
  if facts.picture_bits == 8:
    scaled = _SCALED if facts.content == 'levels' else ''
    return _READING.format(mode=mode, sized=sized, scaled=scaled)
  return ''


def _about_examples(facts):
  """The constants that say what the examples are."""
  about = f'SHAPE = {facts.shape}  # {facts.axes}\n'
  if facts.kind == 'picture':
    height, width, channels = facts.shape
    about = f'CHANNELS, HEIGHT, WIDTH = {(channels, height, width)}\n'
  if facts.content == 'levels':
    return about + _ABOUT_LEVELS.format(
      black=facts.scale.low,
      white=facts.scale.high,
      mean=_numbers(facts.mean),
      std=_numbers(facts.std),
    )
  if facts.content == 'words':
    return about + '# Words are numbers from 0; -1 is no word and fills up a text.\n'
  return about


def _assigned(layer, constructor):
  """The line that makes a layer, or three lines if it is too long."""
  line = f'self.{_attribute(layer)} = {constructor}'
  if len(line) + 4 <= _WIDTH:
    return line
  start, bracket, arguments = line.partition('(')
  return f'{start}{bracket}\n      {arguments[:-1]}\n    )'


def _wrapped(sentences: str) -> str:
  return '\n'.join(textwrap.wrap(sentences, _WIDTH - 3))


def _names(names):
  """A list of texts in Python; what does not print is escaped."""
  if not names:
    return '[]'
  lines = ',\n  '.join(repr(str(name)) for name in names)
  return f'[\n  {lines},\n]'


def _numbers(numbers):
  return json.dumps([float(number) for number in numbers])


_NEEDS = 'It needs torch and safetensors. Without NumPy torch prints a warning.'
_NEEDS_OF_PICTURES = (
  'It needs torch and safetensors, and Pillow to read pictures. Without NumPy torch '
  'prints a warning.'
)
_NEEDS_OF_WORD_PIECES = (
  'It needs torch and safetensors, and tokenizers to read texts. Without NumPy torch '
  'prints a warning.'
)

_HEAD = '''\
"""{title}

  import torch, model  # this file
  network = model.load()
  logits = network({argument})  # {described}

{needs}
"""

{imports}
{package_check}import torch
{import_safe_open}from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F

WEIGHTS = pathlib.Path(__file__).with_name({weights_name!r})
{about}# In the order of the logits; empty if the data have no names.
CLASS_NAMES = {class_names}

{helpers}
class {class_name}(nn.Module):
  def __init__(self):
    super().__init__()
    {constructors}

  def forward(self, {argument}):
    """{described} -> logits [B, classes]."""
    logits, _ = self.outputs({argument})
    return logits

  def outputs(self, {argument}):
    """{described}
    -> logits [B, classes] and representation [B, D]."""
    x = self.normalised({argument})
    {statements}
    return x, representation

  def normalised(self, {argument}):
{normalised}

def load(path=WEIGHTS):
  """The network with the weights of a file, in evaluation mode."""
  network = {class_name}()
  network.load_state_dict(load_file(path))
  return network.eval()
'''

_PACKAGE_CHECK = """\
# What the file needs as a program: module -> package.
PACKAGES = {packages}
if __name__ == '__main__':
  missing = [PACKAGES[name] for name in PACKAGES if find_spec(name) is None]
  if missing:
    command = f'pip install {{" ".join(missing)}}'
    print(f'{{pathlib.Path(__file__).name}} needs: {{command}}', file=sys.stderr)
    sys.exit(2)

"""

_ABOUT_LEVELS = """\
BLACK, WHITE = {black}, {white}  # numbers in the images
# Of each channel of the training images, of levels from 0 (black) to 1 (white).
MEAN = {mean}
STD = {std}
"""

_BUFFERS_OF_LEVELS = """\
for name, numbers in (('mean', MEAN), ('std', STD)):
      of_channels = torch.tensor(numbers).reshape(1, -1, 1, 1)
      self.register_buffer(name, of_channels, persistent=False)"""

_NORMALISED = {
  'levels': '''\
    """Images in whole levels of grey, as in training, with mean 0 and deviation 1."""
    levels = (images.to(torch.{number_type}) - BLACK) * (255 / (WHITE - BLACK))
    levels = levels.round().clamp(0, 255).to(self.mean.dtype)
    return (levels / 255 - self.mean) / self.std
''',
  'numbers': '''\
    """Numbers with the mean and the deviation of the training."""
    return ({argument}.to(self.mean.dtype) - self.mean) / self.std
''',
  'words': '''\
    """Words as whole numbers."""
    return words.long()
''',
}

# Kind of step -> a function that it calls.
_HELPERS = {
  'embed': '''
def embedded(table, words, is_word):
  """[B, T] words -> [B, T, width], zeros for no word."""
  vectors = table(words.clamp(0, table.num_embeddings - 1))
  return torch.where(is_word[..., None], vectors, 0.0)

''',
  'mean_of_words': '''
def mean_of_words(x, is_word):
  """[B, T, width] -> [B, width], the mean over the words."""
  total = torch.where(is_word[..., None], x, 0.0).sum(1)
  return total / is_word.sum(1, keepdim=True).clamp(min=1)

''',
}

_LAST_STATE = '''
def last_state(cell, x, is_word):
  """[B, T, C] -> [B, width]: no word leaves the state as it is."""
  state = x.new_zeros(len(x), cell.hidden_size)
  for step in range(x.shape[1]):
    is_real = is_word[:, step, None]
    state = torch.where(is_real, cell(x[:, step], state), state)
  return state

'''

_NO_WORD = '''
def no_word(is_word):
  """What is added to the scores of attention; an example may have no word at all."""
  return torch.where(is_word, 0.0, -1e30)

'''

_RESIZED = """picture = picture.resize((WIDTH, HEIGHT), Image.Resampling.BILINEAR)"""

_OF_ONE_SIZE = """if picture.size != (WIDTH, HEIGHT):
    raise ValueError(f'{path} must have {WIDTH}x{HEIGHT} pixels.')"""

_TURNED = """
  picture = ImageOps.exif_transpose(picture)"""

_READING = """\
  with open(path, 'rb') as file:
    head = file.read(25)
  is_deep = head[:4] == b'\\x89PNG' and head[24:] == b'\\x10'  # Pillow drops 8 bits
  if is_deep or picture.mode[0] in 'IF':
    raise ValueError(f'{{path}} must have 8 bits in each channel.')
  if picture.mode == 'P':
    picture = picture.convert('RGBA')
  picture = picture.convert({mode!r})
  {sized}
  levels = torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8)
  levels = levels.reshape(1, HEIGHT, WIDTH, CHANNELS).permute(0, 3, 1, 2)
  return levels.double(){scaled}"""

_SCALED = ' * ((WHITE - BLACK) / 255) + BLACK'

_DEEP_READING = """\
  if picture.mode not in ('I', 'I;16', 'I;16B', 'I;16L', 'I;16N'):
    raise ValueError(f'{{path}} must be grey and have 16 bits.')
  picture = picture.convert('F')
  {sized}
  numbers = torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.float32)
  numbers = numbers.round().clamp(0, 65535)
  return numbers.reshape(1, HEIGHT, WIDTH, CHANNELS).permute(0, 3, 1, 2).double()"""

_PICTURES = '''

def read_picture(path):
  """A file of a picture -> [1, C, H, W], {described}, as in training."""
  from PIL import Image{also_imported}

  picture = Image.open(path, formats={formats}){turned}
{reading}


def main(paths):
  """Prints the class and its probability for each picture; returns the exit code."""
  if not paths:
    print(f'usage: python {{pathlib.Path(__file__).name}} PICTURE ...', file=sys.stderr)
    return 2
  try:
    network = load()
  except Exception as error:  # each package has its own
    return refuse(WEIGHTS, error)
  for path in paths:
    if pathlib.Path(path).is_dir():
      advice = 'python -m moon_jax.predict reads folders'
      print(f'{{path}} is a folder: {{advice}}', file=sys.stderr)
      return 2
    try:
      images = read_picture(path)
    except Exception as error:  # Pillow raises many kinds for a damaged picture
      return refuse(path, error)
    with torch.no_grad():
      probabilities = network(images).softmax(1)[0]
    print_class(path, probabilities)
  return 0
'''

# The end of each file that is a program.
_PROGRAM = '''

def refuse(path, error):
  """Prints in one line why a file cannot be read; returns the exit code."""
  reason = getattr(error, 'strerror', None) or str(error) or type(error).__name__
  print(f'{path}: {reason.splitlines()[0]}', file=sys.stderr)
  return 2


def print_class(example, probabilities):
  """Prints the class of an example, and its probability."""
  number = int(probabilities.argmax())
  name = CLASS_NAMES[number] if CLASS_NAMES else number
  print(f'{example}: {name}, probability {probabilities[number]:.4f}')


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
'''

_DIVIDED = {
  'characters': """\
  rows = [[number_of.get(character, 0) for character in text] for text in texts]""",
  'wordpiece': """\
  from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

  tokenizer = Tokenizer(models.WordPiece(number_of, unk_token=words[0]))
  tokenizer.normalizer = normalizers.BertNormalizer()  # small letters
  tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
  rows = [encoding.ids for encoding in tokenizer.encode_batch(list(texts))]""",
}

_TEXTS = '''

def vocabulary():
  """The words in the order of their numbers, from the file of weights."""
  with safe_open(WEIGHTS, 'pt') as weights:
    return json.loads(weights.metadata()['words'])


def read_texts(texts):
  """Texts -> words [B, SHAPE[0]], by the vocabulary that is in the file of weights.

  Word 0 is unknown, and -1 fills up a text.
  """
  words = vocabulary()
  number_of = {{word: number for number, word in enumerate(words)}}
{divided}
  length = SHAPE[0]
  rows = [(row or [0])[:length] for row in rows]
  return torch.tensor([row + [-1] * (length - len(row)) for row in rows])


def main(texts):
  """Prints the class and its probability for each text; returns the exit code."""
  if not texts:
    print(f'usage: python {{pathlib.Path(__file__).name}} TEXT ...', file=sys.stderr)
    return 2
  try:
    network = load()
    vocabulary()
  except Exception as error:  # each package has its own
    return refuse(WEIGHTS, error)
  try:
    words = read_texts(texts)
  except Exception as error:  # tokenizers takes no half of a character
    return refuse('the texts', error)
  with torch.no_grad():
    probabilities = network(words).softmax(1)
  for text, of_text in zip(texts, probabilities):
    print_class(text, of_text)
  return 0
'''
