"""A run directory and files with a name that shells and programs may misread."""

import json
import shlex

import numpy as np
import pytest

from moon_jax import __main__, export
from moon_jax.core.errors import ExitCode
from moon_jax.data import convert
from moon_jax.predict import command as predict
from moon_jax.report import __main__ as report
from moon_jax.runner.stop_requests import Stop
from moon_jax.sweeps import command as sweep
from tests.data import test_sources
from tests.run_directories import words_of

pytestmark = pytest.mark.usefixtures('quick_runs')
NAME = 'it\'s "a" name=50%d $HOME`x` {c} %(y)s #h :v ~\n-- \t\x1b(31m🐦'
SHOWN = NAME.replace('\n', '\\n').replace('\t', '\\t').replace('\x1b', '\\x1b')


@pytest.mark.slow
def test_an_odd_name_works_in_every_program(tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  data = f'data {NAME}.npz'
  arrays = test_sources.arrays()
  with open(data, 'wb') as file:
    np.savez(file, **arrays)
  source = ['--config.data.source=npz', f'--config.data.path={data}']
  words = [*words_of(num_rounds=1), *source, '--config.partition.min_size=1']
  outputs = (
    *(f'weights {NAME}.npz', f'predictions {NAME}.npz', f'report {NAME}'),
    *(f'converted {NAME}.npz', f'sweep {NAME}'),
  )
  assert __main__.launch([*words, f'--workdir={NAME}']) == ExitCode.DONE
  assert export.main([NAME, f'--output={outputs[0]}']) == ExitCode.DONE
  np.savez('images.npz', images=arrays['test_x'])
  predict_words = [f'--workdir={NAME}', '--input=images.npz', f'--output={outputs[1]}']
  assert predict.main(predict_words) == ExitCode.DONE
  assert report.main([NAME, f'--out={outputs[2]}', '--features=none']) == ExitCode.DONE
  assert convert.main([*source, f'--out={outputs[3]}']) == ExitCode.DONE
  over = ['--over=seed=0', '--jobs=1', '--no-report', f'--out={outputs[4]}']
  assert sweep.main([*words, *over], Stop()) == ExitCode.DONE
  out, err = capsys.readouterr()
  assert (out + err).replace('\n', '').isprintable()
  for name in outputs:
    assert (tmp_path / name).exists()
    assert name.replace(NAME, SHOWN) in out
  # The recorded command is that of this run.
  command = json.loads((tmp_path / NAME / 'config.json').read_text())['command']
  assert shlex.split(command)[-1] == f'--workdir={NAME}'
