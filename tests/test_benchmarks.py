"""What is read from a compiled program, and what the suites answer to bad input."""

import importlib.util
import subprocess
import sys

import pytest

from benchmarks import gpu, hlo
from benchmarks.cpu import Row
from moon_jax.errors import ExitCode
from tests.processes import ROOT

# One product before a loop of 7 steps, in which stands a loop of unknown length.
PROGRAM = """
HloModule m

%fused (p: f32[1000,8], i: s32[]) -> f32[8] {
  %p = f32[1000,8]{1,0} parameter(0)
  %i = s32[] parameter(1)
  ROOT %s = f32[1,8]{1,0} dynamic-slice(%p, %i, %i), dynamic_slice_sizes={1,8}
}

%inner (a: (f32[8], s32[])) -> (f32[8], s32[]) {
  %a = (f32[8]{0}, s32[]) parameter(0)
  %x = f32[8]{0} get-tuple-element(%a), index=0
  %y = f32[8]{0} add(%x, %x)
  %conv = (f32[8]{0}, u8[64]{0}) custom-call(%y), custom_call_target="__cudnn$convForward"
  ROOT %t = (f32[8]{0}, s32[]) tuple(%y, %x)
}

%outer (a: (f32[8], s32[])) -> (f32[8], s32[]) {
  %a = (f32[8]{0}, s32[]) parameter(0)
  %w = (f32[8]{0}, s32[]) while(%a), condition=%c, body=%inner, metadata={op_name="r/in"}
  ROOT %t = (f32[8]{0}, s32[]) tuple(%w, %w)
}

ENTRY %main (p: f32[1000,8], q: f32[8,16]) -> f32[8] {
  %p = f32[1000,8]{1,0} parameter(0)
  %q = f32[8,16]{1,0} parameter(1)
  %i = s32[] constant(0)
  %d = f32[1000,16]{1,0} dot(%p, %q), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %f = f32[1,8]{1,0} fusion(%p, %i), kind=kLoop, calls=%fused
  %w = (f32[8]{0}, s32[]) while(%f), condition=%c, body=%outer, metadata={op_name="r"}, backend_config={"known_trip_count":{"n":"7"}}
  ROOT %r = f32[8]{0} get-tuple-element(%w), index=0
}
"""  # noqa: E501


def test_kernels_bytes_and_loops_of_a_program_by_hand():
  program = hlo.read(PROGRAM, lambda where, depth: {('r/in', 1): 3}[where, depth])
  outer, inner = list(program.walk())[1:]
  assert [(loop.name, loop.trips, loop.known) for loop in (outer, inner)] == [
    ('r', 7, True),
    ('r/in', 3, False),
  ]
  assert [kernel.kind for kernel in program.kernels] == ['dot', 'loop']
  # All of both factors and the product; of what is sliced the slice, twice.
  assert [kernel.bytes for kernel in program.kernels] == [
    4 * (8000 + 128 + 16000),
    4 * (8 + 8) + 4,
  ]
  assert [kernel.bytes for kernel in inner.kernels] == [3 * 32, 2 * 32]
  assert program.total(lambda loop: len(loop.kernels)) == 2 + 7 * 3 * 2
  assert program.total(lambda loop: not loop.known) == 21
  assert not inner.in_graph
  assert outer.in_graph
  # The host reads a condition, and cuDNN starts outside a graph.
  assert inner.seconds() == pytest.approx(15e-6 + 2 * 4e-6)


def benchmark(*words):
  return subprocess.run(
    [sys.executable, '-m', 'benchmarks', *words],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=False,
  )


def test_a_suite_that_cannot_run_here_says_so_in_a_line():
  done = benchmark('--suite=gpu')
  assert done.returncode == ExitCode.USAGE
  assert done.stderr == ('--suite=gpu needs a GPU that JAX can use; see docs/gpu.md.\n')


@pytest.mark.skipif(
  importlib.util.find_spec('jax_plugins') is not None, reason='a compiler is installed'
)
def test_without_a_compiler_for_gpus_nothing_is_compiled():
  done = benchmark('--suite=gpu-compile', '--target-config=card.txtpb')
  assert done.returncode == 0
  assert done.stdout.startswith('Skipped: ')


def test_what_the_minutes_leave_no_time_for_is_left_out():
  workload = gpu.Workload('', 640, 2, 1, quick=True)
  details = {}
  measured = gpu._until(0, 'a row', None, details)
  assert measured == [Row('a row', 'not run: the minutes were over', '')]
  quick, whole = (
    list(gpu.tasks(workload._replace(quick=quick), {})) for quick in (True, False)
  )
  assert whole[: len(quick)] == quick
