"""Reads an optimised XLA:GPU program: its loops, their kernels, bytes and FLOPs."""

import collections
import math
import re
from collections.abc import Callable
from typing import NamedTuple

_SIZES = {'pred': 1, 's8': 1, 'u8': 1, 's16': 2, 'u16': 2, 'bf16': 2, 'f16': 2}
_SIZES |= {'s32': 4, 'u32': 4, 'f32': 4, 's64': 8, 'u64': 8, 'f64': 8}
_FREE = ('parameter', 'constant', 'tuple', 'get-tuple-element', 'bitcast', 'after-all')
_FREE += ('async-done', 'copy-done', 'fusion-done')
_PARTIAL = ('gather', 'dynamic-slice', 'slice')

# The model of time for one H200: the bandwidth and TF32 arithmetic that kernels reach,
# the overhead of a kernel, and the least time of one, inside a graph (True) or alone.
BYTES_PER_SECOND = 3.6e12
FLOPS_PER_SECOND = 200e12
KERNEL_SECONDS = 0.5e-6
LAUNCH_SECONDS = {True: 1.3e-6, False: 4e-6}
HOST_READ_SECONDS = 15e-6


class Instruction(NamedTuple):
  """One line of a computation, as written."""

  name: str
  is_root: bool
  type: str
  op: str
  operands: list[str]
  text: str

  def called(self, key: str) -> str | None:
    """The computation that it names as `key`."""
    found = re.search(rf'{key}=%?([\w.\-]+)', self.text)
    return found and found[1]

  def word(self, pattern: str) -> str:
    """The first group of a pattern in its attributes; '' if it is not there."""
    found = re.search(pattern, self.text)
    return found[1] if found else ''


class Kernel(NamedTuple):
  """The work of one instruction on the device."""

  name: str
  kind: str
  bytes: int
  flops: int

  def seconds(self, in_graph: bool) -> float:
    """By the model at the head of this file."""
    work = max(self.bytes / BYTES_PER_SECOND, self.flops / FLOPS_PER_SECOND)
    return max(LAUNCH_SECONDS[in_graph], work + KERNEL_SECONDS)


class Loop(NamedTuple):
  """A loop, or the whole program.

  Attributes:
    name: where it stands, 'round/while/while'.
    trips: how often its body runs whenever it is reached.
    known: whether the compiler knows how often; if not, the host reads its condition.
    kernels: of its body, without inner loops.
    inner: the loops inside.
  """

  name: str
  trips: float
  known: bool
  kernels: list[Kernel]
  inner: list['Loop']

  @property
  def in_graph(self) -> bool:
    """Whether its body can be one CUDA graph: cuDNN's convolutions cannot."""
    return not any('conv' in kernel.kind for kernel in self.kernels)

  def total(self, of: Callable[['Loop'], float]) -> float:
    """Sums up of(loop), of one run of a body, over all runs of all loops inside."""
    return self.trips * (of(self) + sum(loop.total(of) for loop in self.inner))

  def seconds(self) -> float:
    """Modelled, of one run of its body, without inner loops."""
    waits = 0 if self.known else HOST_READ_SECONDS
    return waits + sum(kernel.seconds(self.in_graph) for kernel in self.kernels)

  def walk(self):
    """This loop and all inside, outer ones first."""
    yield self
    for loop in self.inner:
      yield from loop.walk()


def read(text: str, trips: Callable[[str, int], float]) -> Loop:
  """The program of an HLO text.

  Args:
    text: text of a compiled program, `Compiled.as_text()`.
    trips: (where a loop stands, how many loops are around it) -> how often it runs, if
      the compiler does not know.
  """
  computations, entry = _parse(text)
  return _loop(computations, entry, ('program', 1, True), trips, -1)


def _loop(computations, body, about, trips, depth):
  kernels, inner = [], []
  for computation, instruction in _executed(computations, body):
    if instruction.op == 'while':
      where = instruction.word(r'op_name="([^"]*)"') or instruction.name
      count = instruction.word(r'known_trip_count":\{"n":"(\d+)"')
      known = bool(count)
      times = int(count) if known else trips(where, depth + 1)
      called = instruction.called('body')
      inner.append(_loop(computations, called, (where, times, known), trips, depth + 1))
    else:
      kernels.append(_kernel(computations, computation, instruction))
  return Loop(*about, kernels, inner)


def _executed(computations, name):
  """(computation, instruction) of all that costs something, calls followed."""
  for instruction in computations[name]:
    if instruction.op in ('call', 'async-start'):
      called = instruction.called('to_apply') or instruction.called('calls')
      yield from _executed(computations, called)
    elif instruction.op not in _FREE:
      yield name, instruction


def _parse(text):
  """Computation -> its instructions, and the name of the first that runs."""
  computations, current, entry = {}, None, None
  for line in text.splitlines():
    head = re.match(r'^(ENTRY )?%?([\w.\-]+) \(.*\{$', line)
    if head:
      current, entry = head[2], head[2] if head[1] else entry
      computations[current] = []
    elif line.startswith('}'):
      current = None
    elif current:
      line = re.sub(r'/\*.*?\*/', '', line)
      found = re.match(r'^\s+(ROOT )?%([\w.\-]+) = (.*)$', line)
      if found:
        parts = _split(found[3])
        computations[current].append(Instruction(found[2], bool(found[1]), *parts))
  return computations, entry


def _split(text):
  """'f32[2] add(%a, %b), metadata=...' -> type, op, operands, the whole."""
  end = _closing(text) + 1 if text.startswith('(') else text.index(' ')
  call = text[end:].strip()
  op = call[: call.index('(')]
  rest = call[len(op) :]
  return text[:end], op, re.findall(r'%([\w.\-]+)', rest[: _closing(rest)]), call


def _closing(text):
  """Where the parenthesis closes that the text begins with."""
  depth = 0
  for index, letter in enumerate(text):
    depth += {'(': 1, ')': -1}.get(letter, 0)
    if depth == 0:
      return index
  raise ValueError(f'A parenthesis is not closed: {text[:80]}')


def _shapes(kind):
  found = re.findall(r'(pred|bf16|[sufS]\d+)\[([\d,]*)\]', kind)
  return [
    (name, [int(size) for size in sizes.split(',') if size]) for name, sizes in found
  ]


def _bytes(kind):
  return sum(_SIZES[name] * math.prod(sizes) for name, sizes in _shapes(kind))


def _kernel(computations, computation, instruction):
  types = {i.name: i.type for i in computations[computation]}
  operands = [types[name] for name in instruction.operands if name in types]
  if instruction.op in ('fusion', 'fusion-start'):
    kind = instruction.word(r'kind=k(\w+)').lower()
    kind = 'triton' if 'triton' in instruction.text else kind
    body = computations[instruction.called('calls')]
    return Kernel(instruction.name, kind, *_fusion_cost(body))
  moved, flops = sum(map(_bytes, operands)) + _bytes(instruction.type), 0
  kind = instruction.op
  if kind == 'custom-call':
    kind = instruction.word(r'custom_call_target="([^"]*)"')
    moved -= sum(math.prod(s) for name, s in _shapes(instruction.type) if name == 'u8')
    flops = _custom_flops(kind, instruction, types)
  return Kernel(instruction.name, kind, moved, flops)


def _custom_flops(kind, instruction, types):
  if 'conv' in kind:
    return _conv_flops(instruction, types)
  if 'gemm' in kind or 'cublas' in kind:
    contracted = instruction.word(r'"lhs_contracting_dimensions":\[([^\]]*)\]')
    return _product_flops(instruction, types, contracted.replace('"', ''))
  return 0


def _fusion_cost(body):
  """(bytes, FLOPs): each input and output counts once; for a slice only the slice."""
  types = {i.name: i.type for i in body}
  flops = sum(_flops(instruction, types) for instruction in body)
  users = collections.defaultdict(list)
  for instruction in body:
    for operand in instruction.operands:
      users[operand].append(instruction)
  read = sum(_bytes_read(i, users) for i in body if i.op == 'parameter')
  by_name = {i.name: i for i in body}
  root = next(i for i in body if i.is_root)
  results = [by_name[n] for n in root.operands] if root.op == 'tuple' else [root]
  return read + sum(_bytes_written(i, by_name) for i in results), flops


def _bytes_read(parameter, users):
  whole, todo, found = _bytes(parameter.type), list(users[parameter.name]), []
  while todo:
    user = todo.pop()
    further = users[user.name] if user.op in ('bitcast', 'reshape') else []
    todo += further
    found += [] if further else [user]
  # An update in place does not read what it leaves unchanged.
  part = (*_PARTIAL, 'dynamic-update-slice')
  if not found or any(user.op not in part for user in found):
    return whole
  return min(whole, sum(_bytes(u.type) for u in found if u.op in _PARTIAL))


def _bytes_written(result, by_name):
  while result.op == 'bitcast':
    result = by_name[result.operands[0]]
  changed = {'dynamic-update-slice': 1, 'scatter': 2}.get(result.op)
  return _bytes(by_name[result.operands[changed]].type if changed else result.type)


def _flops(instruction, types):
  if instruction.op == 'dot':
    contracted = instruction.word(r'lhs_contracting_dims=\{([\d,]*)\}')
    return _product_flops(instruction, types, contracted)
  return _conv_flops(instruction, types) if instruction.op == 'convolution' else 0


def _product_flops(instruction, types, contracted):
  left = _shapes(types[instruction.operands[0]])[0][1]
  terms = math.prod(left[int(axis)] for axis in contracted.split(',') if axis)
  return 2 * math.prod(_shapes(instruction.type)[0][1]) * terms


def _conv_flops(instruction, types):
  labels = instruction.word(r'dim_labels=\w+_(\w+)->')
  if not labels:
    return 0
  kernel = _shapes(types[instruction.operands[1]])[0][1]
  terms = math.prod(
    size for size, label in zip(kernel, labels, strict=True) if label != 'o'
  )
  return 2 * math.prod(_shapes(instruction.type)[0][1]) * terms
