"""Options of XLA's compiler reach the large programs, or are refused at once."""

import jax
import pytest

from moon_jax.catalog import compiler_options
from moon_jax.core.errors import ExitCode
from moon_jax.platform import compile_cache
from tests.processes import launched

pytestmark = pytest.mark.usefixtures('quick_runs')

WORDS = [
  '--config.data.limit=300',
  '--config.num_rounds=1',
  '--config.local_epochs=1',
  '--config.mlp.width=8',
  '--config.algorithm=fedavg',
  '--config.execution.devices=1',
  '--config.execution.compile_cache=off',
]


def test_options_reach_the_programs_of_a_round_and_of_a_test(tmp_path):
  dumped = tmp_path / 'dumped'
  option = f'--config.execution.compiler_options=xla_dump_to={dumped}'
  for workdir, words in (('with', [option]), ('without', [])):
    run = launched(tmp_path, [*WORDS, *words, f'--workdir={workdir}'])
    assert run.returncode == ExitCode.DONE, run.stderr
  names = {path.name.split('.')[1] for path in dumped.iterdir() if '.' in path.name}
  assert {'jit_run_round', 'jit_evaluate'} <= names
  records = [tmp_path / name / 'metrics.jsonl' for name in ('with', 'without')]
  assert records[0].read_bytes() == records[1].read_bytes()


@pytest.mark.parametrize(
  ('options', 'reason'),
  [
    (
      'xla_nonsense=1',
      "is refused by XLA's compiler: No such compile option: 'xla_nonsense'.",
    ),
    ('xla_gpu_autotune_level=zero', "'zero' is not a valid int32 value."),
    ('xla_gpu_autotune_level', 'must be NAME=VALUE,..., each name once, or '),
  ],
)
def test_options_that_xla_does_not_take_are_refused_in_one_line(
  tmp_path, options, reason
):
  flag = f'--config.execution.compiler_options={options!r}'
  run = launched(tmp_path, [*WORDS, flag.replace("'", ''), '--workdir=run'])
  assert run.returncode == ExitCode.USAGE
  assert flag in run.stderr
  assert reason in run.stderr
  assert run.stderr.count('\n') == 1
  assert not (tmp_path / 'run').exists()


def test_how_options_are_read():
  assert compiler_options('') == {}
  assert compiler_options('xla_a=FUSION,WHILE,xla_b=True,xla_c=2') == {
    'xla_a': 'FUSION,WHILE',
    'xla_b': True,
    'xla_c': '2',
  }
  for text in ('WHILE', 'xla_a=1,xla_a=2', '=1', 'a b=1'):
    with pytest.raises(ValueError, match=text):
      compiler_options(text)


def test_a_program_with_other_options_is_another_one_in_the_cache(tmp_path):
  lowered = jax.jit(lambda x: 3 * x).lower(1.0)

  def entries(options):
    compile_cache.compiled(
      str(tmp_path),
      lambda: compile_cache.compile_in_turn(lowered, 'it', options),
    )
    return len(list(tmp_path.glob('programs/*-cache')))

  assert entries({}) == 1
  assert entries({'xla_gpu_autotune_level': '0'}) == 2
  assert entries({'xla_gpu_autotune_level': '0'}) == 2
