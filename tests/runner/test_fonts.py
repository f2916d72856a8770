"""Names in any script: a font that has them, or boxes and one line."""

import warnings

import matplotlib
import numpy as np
import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from matplotlib import font_manager

from moon_jax.report import figures
from moon_jax.report.charts import Matrix
from moon_jax.runner import fonts, plots

# Chinese, Hindi, emoji, and a letter of no script.
NAMES = ('鸟鱼', 'पक्षी', '🐦', '\U000e0fff')
FAMILY = 'One Letter'


@pytest.fixture
def fresh(monkeypatch):
  """As in a new process."""
  monkeypatch.setattr(fonts, '_NOTICE', fonts._Notice())
  fonts._families_with.cache_clear()
  yield
  fonts._families_with.cache_clear()


@pytest.fixture
def installed(tmp_path, monkeypatch):
  """An installed font that has only 鸟, as a filled square, and 鱼."""
  builder = FontBuilder(1000, isTTF=True)
  pen = TTGlyphPen(None)
  pen.moveTo((0, 0))
  for corner in ((0, 900), (900, 900), (900, 0)):
    pen.lineTo(corner)
  pen.closePath()
  square = pen.glyph()
  builder.setupGlyphOrder(['.notdef', 'bird'])
  builder.setupCharacterMap({ord('鸟'): 'bird', ord('鱼'): 'bird'})
  builder.setupGlyf({'.notdef': TTGlyphPen(None).glyph(), 'bird': square})
  builder.setupHorizontalMetrics({name: (1000, 0) for name in ('.notdef', 'bird')})
  builder.setupHorizontalHeader(ascent=900, descent=-100)
  builder.setupNameTable({'familyName': FAMILY, 'styleName': 'Regular'})
  builder.setupOS2()
  builder.setupPost()
  path = tmp_path / 'one.ttf'
  builder.save(path)
  manager = font_manager.fontManager
  monkeypatch.setattr(manager, 'ttflist', [*manager.ttflist])
  manager.addfont(path)
  yield FAMILY
  manager._findfont_cached.cache_clear()


def draw(folder, names):
  """All that draws names of classes: of a run, and of a report."""
  counts = np.arange(1, 2 * len(names) + 1).reshape(2, -1)
  plots.heat_map(folder / 'partition.png', counts, 'runs/' + names[0], names)
  matrix = Matrix(
    name='m',
    title=names[0],
    x_label='x',
    y_label='y',
    values=counts.astype(float),
    unit='u',
    rows=tuple(names[:2]),
    columns=tuple(names),
  )
  figure = figures.draw(matrix, {})
  figures.save(figure, folder, 'm', formats=('png', 'pdf'))
  return figure


@pytest.mark.slow
def test_letters_that_no_font_has_are_one_line(tmp_path, fresh, capsys):
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    draw(tmp_path, NAMES)
    plots.heat_map(tmp_path / 'again.png', np.ones((2, 2), int), NAMES[0], NAMES)
  out, err = capsys.readouterr()
  (line,) = err.splitlines()
  assert 'apt install fonts-noto-cjk' in line
  assert 'U+1F426' in line or '鸟 (U+9E1F)' in line or 'U+0915' in line
  assert out == ''
  for name in ('partition.png', 'm.png', 'm.pdf'):
    assert (tmp_path / name).stat().st_size > 1000


def test_letters_of_an_installed_font_are_drawn_by_it(
  tmp_path, fresh, installed, capsys
):
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    figure = draw(tmp_path, ['鸟', '鱼鸟'])
  assert capsys.readouterr().err == ''
  families = figure.axes[0].title.get_fontfamily()
  assert families == [*matplotlib.rcParams['font.family'], installed]


def test_other_warnings_stay(fresh):
  def write():
    warnings.warn('another', UserWarning, stacklevel=1)

  with pytest.warns(UserWarning, match='another'):
    fonts.saved(matplotlib.figure.Figure(), write)
